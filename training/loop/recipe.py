"""Model, loss and sampler of a run, built from its settings, and the checks made before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import Splits
from retrieval.errors import InvalidParameter, command
from training.backbones import check_size, load_backbone
from training.config import SMALL, Settings
from training.data.samplers import GroupItemSampler, ItemSampler, PhotoSampler, Sampler
from training.evaluation.evaluate import item_labels
from training.losses.registry import LOSSES, Regularized, make_loss
from training.model import EmbeddingModel, choose_device

from .learner import half_precision
from .loggers import check_loggers


def initial_model(settings: Settings) -> tuple[EmbeddingModel, dict[str, Any] | None]:
    """Return the model before its first step and the backbone's configuration."""
    torch.manual_seed(settings.seed)
    backbone, config = load_backbone(settings.backbone)
    check_size(backbone, settings.backbone, settings.input_size)
    dim = settings.embedding_size if settings.backbone == SMALL else settings.dim or backbone.width
    return EmbeddingModel(backbone, dim=dim, pooling=settings.pooling), config


def build_loss(settings: Settings, *, classes: int) -> nn.Module:
    """Return the loss of the settings: the base loss, plus the regularizer if there is one.

    The joint objective of vmf_nca has one set of proxies; beside a loss with proxies of its own, it is refused.
    """
    dim = settings.projector or settings.embedding_size
    base = make_loss(settings.loss, classes=classes, dim=dim, arguments=dict(settings.loss_arguments))
    if not settings.regularizer:
        return base
    arguments = dict(settings.regularizer_arguments)
    weight = float(arguments.pop("weight", 1.0))
    extra = make_loss(settings.regularizer, classes=classes, dim=dim, arguments=arguments)
    both_learn = LOSSES[settings.loss].has_proxies and LOSSES[settings.regularizer].has_proxies
    if both_learn and "vmf_nca" in (settings.loss, settings.regularizer):
        raise InvalidParameter(
            "regularizer",
            f"learn no proxies beside {settings.loss}: vmf_nca shares its own with ProxyAnchor (2207.03784, Eq. 7)",
            settings.regularizer,
            remedy="Use --loss vmf_nca --loss.anchor_weight 0.3",
        )
    return Regularized(base, extra, weight)


def check_recipe(settings: Settings, splits: Splits) -> None:
    """Raise InvalidParameter for settings that cannot be trained or would learn nothing."""
    check_loggers(settings.loggers)
    build_loss(settings, classes=len(splits.fit))
    half_precision(settings.precision, choose_device())
    for name in filter(None, (settings.loss, settings.regularizer)):
        single_photos = settings.photos_per_item < 2 or settings.sampler == "random"
        if LOSSES[name].needs_balanced_batches and single_photos:
            raise InvalidParameter(
                "photos_per_item",
                f"be at least 2 for {name}, which compares photos of one item within a batch",
                settings.photos_per_item if settings.sampler != "random" else "any photos (sampler random)",
                remedy=f"Use 4, or a loss with proxies, which works with 1 (see `{command('losses')}`)",
            )


def make_sampler(settings: Settings, photos: Sequence[Photo]) -> Sampler:
    """Return the sampler of the settings for the training photos, in the given order."""
    labels = item_labels(photos).tolist()
    items, each, seed, steps = settings.items_per_batch, settings.photos_per_item, settings.seed, settings.epoch_steps
    kind, _, column = settings.sampler.partition(":")
    if settings.sampler == "random":
        return PhotoSampler(len(labels), batch_size=items * each, seed=seed, steps=steps)
    if kind == "groups":
        groups = [_column(photo, column or "group") for photo in photos]
        return GroupItemSampler(labels, groups, items_per_batch=items, photos_per_item=each, seed=seed, steps=steps)
    if settings.sampler != "items":
        raise InvalidParameter("sampler", "be items, groups:COLUMN or random", settings.sampler)
    return ItemSampler(labels, items_per_batch=items, photos_per_item=each, seed=seed, steps=steps)


def _column(photo: Photo, name: str) -> str:
    """Return the value of a catalogue column for a photo."""
    own = getattr(photo, name, None)
    return own if isinstance(own, str) else str(photo.metadata.get(name, ""))
