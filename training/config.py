"""Everything that decides a training run, as plain values.

Loaded from and saved to JSON; a key that nobody knows is an error which names it.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retrieval.catalogue.readiness import ITEMS_PER_BATCH, PHOTOS_PER_ITEM
from retrieval.errors import InvalidParameter

NOT_NEGATIVE = (
    *("weight_decay", "regularizer_weight", "colour", "chunk", "initial_norm", "epoch_steps", "clip"),
    *("frozen_epochs", "proxy_warmup", "projector", "precompute", "patience", "cache_gib", "decoders"),
)


def setting(default: Any, text: str) -> Any:
    """Declare a setting with its default and the sentence that `--help` shows."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"help": text})
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """Settings of one run; `retrieval train --help` describes the same names."""

    catalogue: str  # folder, CSV or parquet of labelled photos
    backbone: str = setting("small", "'small' (ours, from scratch), a local folder or a model of the hub")
    size: int = setting(160, "side of the square that the model sees, in pixels")
    view: float = setting(0.8, "share of the shorter side that the model sees: objects as large as in training crops")
    dim: int = setting(128, "length of an embedding")
    pooling: str = setting("average", "'average' or 'gem'")
    loss: str = setting("smooth_ap", "the base loss; `retrieval losses` lists them")
    loss_arguments: Mapping[str, float | int | bool | str] = setting({}, "its arguments")
    regularizer: str = setting("", "'' or any loss, added to the base loss; 'tcm' makes distances consistent")
    regularizer_arguments: Mapping[str, float | int | bool | str] = setting({}, "its arguments")
    regularizer_weight: float = setting(1.0, "weight of the regularizer beside the base loss")
    epochs: int = setting(8, "passes over as many photos as the training set has")
    epoch_steps: int = setting(0, "batches of an epoch (0 = as many as the photos fill)")
    chunk: int = setting(0, "photos in the network at a time, for batches beyond the memory (0 = the whole batch)")
    items_per_batch: int = setting(ITEMS_PER_BATCH, "items of a batch (P)")
    photos_per_item: int = setting(PHOTOS_PER_ITEM, "photos of each (K)")
    sampler: str = setting("items", "'items' (P×K), 'groups' (half a batch a group), 'hard' (items alike) or 'random'")
    sampler_group: str = setting("group", "column that names the groups of the sampler 'groups'")
    proxy_sample: float = setting(1.0, "share of the proxies that a step compares with; below 1 for very many items")
    learning_rate: float = setting(2e-4, "learning rate of the backbone")
    head_learning_rate: float = setting(1e-3, "learning rate of the embedding layer")
    proxy_learning_rate: float = setting(1e-2, "learning rate of the loss's own parameters, such as proxies")
    initial_norm: float = setting(0.0, "mean norm of embeddings before the first step (0 = leave; vmf_nca: 10 to 50)")
    weight_decay: float = setting(1e-4, "of matrices; biases, norms and proxies are not decayed")
    warmup: float = setting(0.05, "share of the steps over which the learning rates rise")
    clip: float = setting(0.0, "largest norm of the model's gradient (0 = any)")
    layer_decay: float = setting(1.0, "factor on the learning rate from each block of the backbone to the one before")
    frozen: float = setting(0.0, "share of the backbone's blocks that never learns, from the input on (1 = all)")
    frozen_epochs: int = setting(0, "first epochs in which the backbone does not learn")
    proxy_warmup: int = setting(0, "first epochs in which nothing but the loss's own parameters learns")
    projector: int = setting(0, "length of a linear projection that only the loss sees (0 = none)")
    precompute: int = setting(0, "views of each photo whose features are computed once, to train the head alone")
    ema: float = setting(0.0, "decay of the average of the weights that is validated and kept (0 = the last weights)")
    patience: int = setting(0, "epochs without a better checkpoint after which training ends (0 = never)")
    select: str = setting("fnir", "the checkpoint that is kept: lowest 'fnir', highest 'r@1' or 'map@r', or the 'last'")
    freeze_batch_norm: bool = setting(True, "keep the statistics of a pretrained backbone")
    crop_area: float = setting(0.35, "smallest share of the photo's area that a training crop shows")
    flip: bool = setting(True, "mirror half of the training crops")
    colour: float = setting(0.2, "strength of brightness, contrast and saturation jitter")
    gallery_source: str = setting("", "photos of this source form the gallery in every evaluation ('' = choose)")
    query_source: str = setting("", "photos of this source ask in every evaluation ('' = choose)")
    target_fpir: float = setting(0.05, "the checkpoint with the lowest FNIR at this FPIR on validation items wins")
    seed: int = setting(0, "decides everything random but the splits")
    split_seed: int = setting(0, "decides the class-disjoint splits, apart from `seed`")
    precision: str = setting("auto", "'fp32', 'bf16', 'fp16' (on a GPU), or bf16 where a GPU has it")
    device: str = setting("auto", "'cpu', 'cuda', or cuda where there is one")
    devices: int = setting(1, "processes that share each batch, a GPU each where there are any")
    compile: bool = setting(False, "compile the model with torch.compile")
    cache_gib: float = setting(4.0, "memory for decoded training photos, in GiB")
    cache_dir: str = setting("", "folder of decoded photos, shared by processes and runs ('' = none)")
    decoders: int = setting(0, "threads that decode training photos (0 = one a core)")
    loggers: str = setting("tensorboard", "where figures go, comma-separated: tensorboard, wandb, mlflow")

    def __post_init__(self) -> None:
        _check(self)

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Settings:
        """Build settings from plain values; an unknown key is an InvalidParameter naming the nearest."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"Did you mean {near[0]}?" if near else "Known: " + ", ".join(known)
                raise InvalidParameter("settings", "have known keys only", key, remedy=hint)
        return cls(**values)  # type: ignore[arg-type]


def _check(settings: Settings) -> None:
    for name in ("size", "dim", "epochs", "items_per_batch", "photos_per_item", "devices"):
        if getattr(settings, name) < 1:
            raise InvalidParameter(name, "be at least 1", getattr(settings, name))
    for name in ("learning_rate", "head_learning_rate", "proxy_learning_rate"):
        if not getattr(settings, name) > 0:
            raise InvalidParameter(name, "be positive", getattr(settings, name))
    for name in NOT_NEGATIVE:
        if not getattr(settings, name) >= 0:
            raise InvalidParameter(name, "be zero or more", getattr(settings, name))
    for name, allowed in (
        ("pooling", ("average", "gem")),
        ("precision", ("auto", "fp32", "bf16", "fp16")),
        ("sampler", ("items", "groups", "hard", "random")),
        ("select", ("fnir", "r@1", "map@r", "last")),
        ("device", ("auto", "cpu", "cuda")),
    ):
        if getattr(settings, name) not in allowed:
            raise InvalidParameter(name, f"be one of {', '.join(allowed)}", getattr(settings, name))
    for name, low, high in (
        ("target_fpir", 1e-6, 0.999),
        ("crop_area", 0.01, 1.0),
        ("warmup", 0.0, 0.99),
        ("view", 0.1, 1.0),
        ("frozen", 0.0, 1.0),
        ("layer_decay", 0.01, 1.0),
        ("ema", 0.0, 0.99999),
        ("proxy_sample", 1e-6, 1.0),
    ):
        if not low <= getattr(settings, name) <= high:
            raise InvalidParameter(name, f"lie between {low:g} and {high:g}", getattr(settings, name))
