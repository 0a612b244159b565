"""Optimizers: trainable parameters, parameter groups, and the learning-rate schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import nn

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.losses.base import Loss
from training.losses.sampled import SampledClasses
from training.model import EmbeddingModel

NUMBERED = re.compile(r"^(.*?\.\d+)(?:\.|$)")  # the first numbered part of a name: a block


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Return the factor on the learning rate at a step: a linear warm-up, then cosine decay to 0."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def blocks_of(backbone: nn.Module) -> dict[str, int]:
    """Return the depth of every parameter of a backbone: 0 for the stem, then 1, 2, … for the numbered blocks.

    Blocks are the first numbered parts of the names (`encoder.layer.3`, `blocks.0`) in the order of the module.
    Unnumbered parameters before the first block form the stem; later ones (a last norm) belong to the block before.
    """
    order: list[str] = []
    depths: dict[str, int] = {}
    for name, _ in backbone.named_parameters():
        match = NUMBERED.match(name)
        if match is not None and match.group(1) not in order:
            order.append(match.group(1))
        depths[name] = (order.index(match.group(1)) + 1) if match is not None else len(order)
    return depths


def set_learning(model: EmbeddingModel, settings: Settings, epoch: int) -> None:
    """Set which parameters of the model are trainable in an epoch (0 …)."""
    depths = blocks_of(model.backbone)
    last = max(depths.values(), default=0)
    frozen_depths = math.floor(settings.frozen * (last + 1) + 1e-9)  # of the stem and `last` blocks
    warming = epoch < settings.proxy_warmup
    backbone_frozen = warming or epoch < settings.proxy_warmup + settings.frozen_epochs or settings.precompute > 0
    for name, parameter in model.backbone.named_parameters():
        parameter.requires_grad_(not backbone_frozen and depths[name] >= frozen_depths)
    for parameter in model.head.parameters():
        parameter.requires_grad_(not warming)
    if model.power is not None:
        model.power.requires_grad_(not warming and not settings.precompute)


def check_learning(settings: Settings, loss: nn.Module) -> None:
    """Raise InvalidParameter for a proxy warm-up without proxies, or one that leaves no epoch for the model."""
    if not settings.proxy_warmup:
        return
    if not any(True for _ in loss.parameters()):
        raise InvalidParameter("proxy_warmup", f"be 0 for {settings.loss}, which has no parameters of its own", 1)
    if settings.epochs and settings.proxy_warmup >= settings.epochs:
        raise InvalidParameter("proxy_warmup", f"be below the epochs, {settings.epochs}", settings.proxy_warmup)


def make_optimizers(
    model: EmbeddingModel, loss: nn.Module, settings: Settings, *, projector: nn.Module | None = None
) -> list[torch.optim.Optimizer]:
    """Return AdamW with separate rates for the backbone's blocks, the head and the loss's own parameters.

    Weight decay applies to matrices of the model, not to vectors or parameters of the loss. Sampled proxies get a
    SparseAdam of their own, which updates only the proxies of the step.
    """
    groups: list[dict[str, object]] = []
    for rate, parameters in _by_rate(model, settings, projector).items():
        groups += [
            {"params": [p for p in parameters if p.dim() > 1], "lr": rate, "weight_decay": settings.weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "lr": rate, "weight_decay": 0.0},
        ]
    sparse: list[dict[str, object]] = []
    for (factor, sampled), learned in sorted(learned_by(loss).items()):
        rate = factor * settings.proxy_learning_rate
        if sampled:
            sparse.append({"params": learned, "lr": rate})
        else:
            groups.append({"params": learned, "lr": rate, "weight_decay": 0.0})
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW([group for group in groups if group["params"]])]
    if sparse:
        optimizers.append(torch.optim.SparseAdam(sparse))
    return optimizers


def _by_rate(model: EmbeddingModel, settings: Settings, projector: nn.Module | None) -> dict[float, list[nn.Parameter]]:
    """Return the model's parameters by learning rate: the backbone's blocks from the input on, then the head."""
    rates: dict[float, list[nn.Parameter]] = {}
    depths = blocks_of(model.backbone)
    last = max(depths.values(), default=0)
    for name, parameter in model.backbone.named_parameters():
        rate = settings.learning_rate * settings.layer_decay ** (last - depths[name])
        rates.setdefault(rate, []).append(parameter)
    head = [*model.head.parameters()]
    head += [model.power] if model.power is not None else []
    head += [*projector.parameters()] if projector is not None else []
    rates.setdefault(settings.head_learning_rate, []).extend(head)
    return rates


def learned_by(loss: nn.Module) -> dict[tuple[float, bool], list[nn.Parameter]]:
    """Return the trainable parameters of a loss by (factor on the proxies' rate, whether they are sampled)."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    sampled = {id(p) for module in loss.modules() if isinstance(module, SampledClasses) for p in module.of_classes()}
    for module in loss.modules():
        rates = module.rates if isinstance(module, Loss) else {}
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                groups.setdefault((rates.get(name, 1.0), id(parameter) in sampled), []).append(parameter)
    return groups


def parameters_of(optimizers: Sequence[torch.optim.Optimizer]) -> list[nn.Parameter]:
    """Return the parameters of the optimizers, in order."""
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
