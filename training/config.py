"""Settings of a training run, as plain values that load from and save to JSON.

An unknown key is an error that names the closest known key.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retrieval.catalogue.check import ITEMS_PER_BATCH, PHOTOS_PER_ITEM
from retrieval.errors import InvalidParameter
from retrieval.settings import setting

AUTO = "auto"  # value of a setting that is chosen by the model, the data or the machine
SMALL, LITE0 = "small", "efficientnet-lite0"  # backbones with names of their own
DEFAULT_LOSS = "recall_at_k"
SMALL_DIM = 128  # default length of an embedding of 'small'
SIZE, SIZES = 160, {LITE0: 224}  # default side of the input in pixels, and exceptions by backbone
NOT_NEGATIVE = (
    *("learning_rate", "weight_decay", "colour", "micro_batch_size", "epochs", "epoch_steps", "dim"),
    *("size", "projector", "precompute", "patience", "seed"),
)
GROUPS = DATA, MODEL, LOSS, SAMPLING, AUGMENTATION, OPTIMISATION, SCHEDULE, EVALUATION, HARDWARE, OUTPUT = (
    *("Data", "Model", "Loss", "Sampling", "Augmentation", "Optimisation", "Schedule", "Evaluation"),
    *("Hardware", "Output"),
)


KINDS = {  # of values, by annotation: the rule and the types
    "int": ("be a whole number", (int,)),
    "float": ("be a number", (int, float)),
    "bool": ("be true or false", (bool,)),
    "str": ("be a text", (str,)),
    "Mapping": ("be a table of names and values", (Mapping,)),
}


@dataclass(frozen=True)
class Settings:
    """Settings of one run; `retrieval train --help` describes the same names."""

    catalogue: str  # folder, CSV or parquet of labelled photos
    all_items: bool = setting(
        False,
        DATA,
        "Train on every item, and five more models without a fifth of the items each, from which a gallery of these "
        "items gets its threshold. Training takes six times as long; with --precompute, features are computed once.",
    )
    backbone: str = setting(
        AUTO,
        MODEL,
        "Backbone: 'auto' (a pretrained one for this machine), 'efficientnet-lite0' (pretrained, no download), a local "
        "folder or model of the Hugging Face hub, 'timm/NAME' or 'open_clip/NAME:WEIGHTS' where these packages are "
        "installed, or 'small' (trained from scratch).",
    )
    size: int = setting(
        0,
        MODEL,
        "Side of the model's square input, in pixels.",
        shown=f"{SIZES[LITE0]} for '{LITE0}', {SIZE} for other backbones",
    )
    crop_ratio: float = setting(0.8, MODEL, "Share of a photo's shorter side that the centred evaluation crop covers.")
    dim: int = setting(
        0,
        MODEL,
        "Length of an embedding.",
        shown=f"width of a pretrained backbone, {SMALL_DIM} for 'small'",
    )
    pooling: str = setting("average", MODEL, "Pooling of the feature map: 'average' or 'gem' (generalised mean).")
    loss: str = setting(DEFAULT_LOSS, LOSS, "Base loss. `retrieval losses` lists them.")
    loss_arguments: Mapping[str, float | int | bool | str] = setting(dict, LOSS, "Arguments of the base loss.")
    regularizer: str = setting(
        AUTO,
        LOSS,
        "Loss that is added to the base loss, or '' for none. 'tcm' makes distances consistent across items.",
        shown=f"tcm beside {DEFAULT_LOSS}, none beside other losses",
    )
    regularizer_arguments: Mapping[str, float | int | bool | str] = setting(
        dict, LOSS, "Arguments of the regularizer, and its `weight`."
    )
    epochs: int = setting(0, SCHEDULE, "Number of training epochs.", shown="chosen by the number of photos")
    epoch_steps: int = setting(
        0, SCHEDULE, "Batches per epoch.", shown="one pass over the photos, or more where the epochs are chosen"
    )
    micro_batch_size: int = setting(
        0, HARDWARE, "Photos that the network processes at a time, for batches too large for memory (0 = whole batch)."
    )
    items_per_batch: int = setting(ITEMS_PER_BATCH, SAMPLING, "Items per batch (P).")
    photos_per_item: int = setting(PHOTOS_PER_ITEM, SAMPLING, "Photos per item in a batch (K).")
    sampler: str = setting(
        "items",
        SAMPLING,
        "Batch sampler: 'items' (P×K), 'groups:COLUMN' (each half from one group of a catalogue column) or 'random'.",
    )
    learning_rate: float = setting(2e-4, OPTIMISATION, "Learning rate of the backbone (0 = frozen).")
    head_learning_rate: float = setting(1e-3, OPTIMISATION, "Learning rate of the embedding layer.")
    proxy_learning_rate: float = setting(1e-2, OPTIMISATION, "Learning rate of the loss's own parameters (proxies).")
    head_start: str = setting(
        AUTO,
        MODEL,
        "Start of the embedding layer: 'fit' (a projection of the backbone's features, fitted to the training photos), "
        "'random', or 'auto' (fit for a pretrained backbone, random for 'small').",
    )
    weight_decay: float = setting(
        1e-4, OPTIMISATION, "Weight decay of matrices. Biases, norms and proxies are not decayed."
    )
    projector: int = setting(
        0, MODEL, "Length of a linear projection between embedding and loss, dropped after training (0 = none)."
    )
    precompute: int = setting(
        0,
        SCHEDULE,
        "Views per photo whose features are computed once, to train only the head (0 = train the backbone).",
    )
    patience: int = setting(0, SCHEDULE, "Epochs without improvement after which training stops (0 = never stop).")
    select: str = setting(
        "tpir",
        EVALUATION,
        "Which checkpoint to keep, by searches in a mixed gallery of fitted and validation items: that of the highest "
        "'tpir' (mean around the target FPIR) or 'r@1', or the 'last'.",
    )
    crop_area: float = setting(0.35, AUGMENTATION, "Smallest share of a photo's area that a training crop covers.")
    flip: bool = setting(True, AUGMENTATION, "Mirror half of the training crops.")
    colour: float = setting(0.2, AUGMENTATION, "Strength of the brightness, contrast and saturation jitter.")
    augmentation: Mapping[str, Any] = setting(
        dict,
        AUGMENTATION,
        "Albumentations pipeline, as `albumentations.to_dict` returns it, in place of the built-in one.",
    )
    target_fpir: float = setting(0.05, EVALUATION, "FPIR at which the TPIR of checkpoints is compared.")
    seed: int = setting(0, DATA, "Seed of everything random. The splits do not depend on it.")
    precision: str = setting(
        "auto",
        HARDWARE,
        "Precision of training: 'fp32', 'bf16', 'fp16' (GPU only), or 'auto' (bf16 on GPUs that have it).",
    )
    loggers: str = setting("tensorboard", OUTPUT, "Comma-separated loggers of metrics: tensorboard, wandb, mlflow.")

    def __post_init__(self) -> None:
        if self.regularizer == AUTO:
            object.__setattr__(self, "regularizer", "tcm" if self.loss == DEFAULT_LOSS else "")
        _check_types(self)
        _check(self)

    @property
    def embedding_size(self) -> int:
        """Return the length of an embedding: `dim`, which a run always has, or that of 'small'."""
        return self.dim or SMALL_DIM

    @property
    def frozen_statistics(self) -> bool:
        """Return whether the statistics of batch-norm do not change: those of a pretrained backbone."""
        return self.backbone != SMALL

    @property
    def input_size(self) -> int:
        """Return the side of the input: `size`, or the default for the backbone."""
        return self.size or SIZES.get(self.backbone, SIZE)

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Settings:
        """Build settings from plain values; raise InvalidParameter for an unknown key."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"Did you mean {near[0]}?" if near else "Known: " + ", ".join(known)
                raise InvalidParameter("settings", "have only known keys", key, remedy=hint)
        return cls(**values)  # type: ignore[arg-type]


def _check_types(settings: Settings) -> None:
    for field in dataclasses.fields(settings):
        value, (rule, types) = getattr(settings, field.name), KINDS[str(field.type).partition("[")[0]]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise InvalidParameter(field.name, rule, value)


def _check(settings: Settings) -> None:
    for name in ("items_per_batch", "photos_per_item"):
        if getattr(settings, name) < 1:
            raise InvalidParameter(name, "be at least 1", getattr(settings, name))
    for name in ("head_learning_rate", "proxy_learning_rate"):
        if not 0 < (value := getattr(settings, name)) < math.inf:
            raise InvalidParameter(name, "be finite" if value == math.inf else "be positive", value)
    for name in NOT_NEGATIVE:
        if not 0 <= (value := getattr(settings, name)) < math.inf:
            raise InvalidParameter(name, "be finite" if value == math.inf else "be zero or more", value)
    for name, allowed in (
        ("pooling", ("average", "gem")),
        ("head_start", (AUTO, "fit", "random")),
        ("precision", ("auto", "fp32", "bf16", "fp16")),
        ("select", ("tpir", "r@1", "last")),
    ):
        if getattr(settings, name) not in allowed:
            raise InvalidParameter(name, f"be one of {', '.join(allowed)}", getattr(settings, name))
    for name, low, high in (
        ("target_fpir", 1e-6, 0.999),
        ("crop_area", 0.01, 1.0),
        ("crop_ratio", 0.1, 1.0),
    ):
        if not low <= getattr(settings, name) <= high:
            raise InvalidParameter(name, f"lie between {low:g} and {high:g}", getattr(settings, name))
