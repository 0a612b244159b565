"""Optimizers: trainable parameters, parameter groups, and the learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from training.config import Settings
from training.losses.base import Loss
from training.model import EmbeddingModel

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
    head = [*model.head.parameters()]
    head += [model.power] if model.power is not None else []
    head += [*projector.parameters()] if projector is not None else []
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
