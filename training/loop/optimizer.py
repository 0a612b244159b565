"""The optimizer of a training: its parameter groups, learning rates and length.

With `epochs = 0`, a training takes as many steps as 8 passes over the photos, but at least 600 and at most 20,000. A
head on precomputed features takes 100 to 2,000. These steps are divided into at most 20 epochs, so that small data sets
are not validated after every few batches. The learning rates rise over the first share of the steps and fall over the
rest.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import nn

from retrieval.catalogue.check import batches_per_epoch
from training.config import Settings
from training.losses.base import Loss
from training.model import EmbeddingModel

MOST_EPOCHS = 20
PASSES = 8  # over the photos
WHOLE_MODEL, HEAD_ONLY = (600, 20_000), (100, 2_000)  # least and most steps
WARMUP = 0.05  # share of the steps over which the learning rates rise


def learning_rate_factor(step: int, steps: int) -> float:
    """Return the factor on the learning rate at a step: a linear warm-up, then cosine decay to 0."""
    rise = max(1, round(WARMUP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def set_learning(model: EmbeddingModel, settings: Settings) -> None:
    """Set which parameters of the model are trainable: with a learning rate of 0 or `precompute`, only the head."""
    frozen = not settings.learning_rate or settings.precompute > 0
    model.backbone.requires_grad_(not frozen)
    if model.power is not None:
        model.power.requires_grad_(not settings.precompute)


def make_optimizer(
    model: EmbeddingModel, loss: nn.Module, settings: Settings, *, projector: nn.Module | None = None
) -> torch.optim.Optimizer:
    """Return AdamW with separate rates for the backbone, the head and the loss's own parameters.

    Weight decay applies to matrices of the model, not to vectors or parameters of the loss.
    """
    head = [*model.head.parameters(), *([] if model.power is None else [model.power])]
    head += [] if projector is None else projector.parameters()
    groups: list[dict[str, Any]] = []
    for rate, parameters in (
        (settings.learning_rate, [*model.backbone.parameters()]),
        (settings.head_learning_rate, head),
    ):
        groups += [
            {"params": [p for p in parameters if p.dim() > 1], "lr": rate, "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "lr": rate, "weight_decay": 0.0},
        ]
    for factor, learned in sorted(learned_by(loss).items()):
        groups.append({"params": learned, "lr": factor * settings.proxy_learning_rate, "weight_decay": 0.0})
    return torch.optim.AdamW([group for group in groups if group["params"]])


def learned_by(loss: nn.Module) -> dict[float, list[nn.Parameter]]:
    """Return the trainable parameters of a loss by their factor on the proxies' rate."""
    groups: dict[float, list[nn.Parameter]] = {}
    for module in loss.modules():
        rates = module.rates if isinstance(module, Loss) else {}
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                groups.setdefault(rates.get(name, 1.0), []).append(parameter)
    return groups


def schedule(settings: Settings, *, photos: int, items: int) -> Settings:
    """Return settings with the number of epochs for this many training photos and items.

    Settings that have one are returned unchanged. A number of batches per epoch that was set is kept.
    """
    if settings.epochs:
        return settings
    batches = batches_per_epoch(photos, min(settings.items_per_batch, items) * settings.photos_per_item)
    least, most = HEAD_ONLY if settings.precompute else WHOLE_MODEL
    steps = min(max(PASSES * batches, least), most)
    if settings.epoch_steps:
        return dataclasses.replace(settings, epochs=math.ceil(steps / settings.epoch_steps))
    epochs = max(1, min(MOST_EPOCHS, round(steps / batches)))
    return dataclasses.replace(settings, epochs=epochs, epoch_steps=math.ceil(steps / epochs))
