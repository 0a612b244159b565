"""Transfer of loss parameters with one row per class to a run with other classes.

Symbols: C = classes, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.losses.registry import Regularized
from training.losses.sampled import SampledClasses

DIRECTIONS = frozenset(("proxies", "fields"))  # names of parameters (C, d) that embeddings are compared with


def carry_classes(
    old: nn.Module,
    new: nn.Module,
    *,
    old_items: Sequence[str],
    new_items: Sequence[str],
    means: Mapping[str, np.ndarray],
) -> None:
    """Set the parameters of a loss from those of an earlier loss of the same kind.

    The rows of known items are kept. A new item's row in a table of directions is the mean of its embeddings, scaled to
    the mean norm of the known rows; in another table it is the mean of the known rows.

    Parameters
    ----------
    old_items, new_items:
        Items of the rows, in order.
    means:
        Mean embedding (d,) of each new item.
    """
    rows = {item: row for row, item in enumerate(old_items)}
    kept = [row for row, item in enumerate(new_items) if item in rows]
    source = [rows[new_items[row]] for row in kept]
    for part, module in parts_of(new).items():
        if part not in (olds := parts_of(old)):
            continue
        before = dict(olds[part].named_parameters())
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name not in before:
                    continue
                if not (parameter.dim() and len(parameter) == len(new_items) and len(before[name]) == len(old_items)):
                    if parameter.shape == before[name].shape:
                        parameter.copy_(before[name])
                    continue
                parameter.copy_(before[name].mean(dim=0))
                parameter[kept] = before[name][source]
                if name in DIRECTIONS:
                    _set_directions(parameter, new_items, means, before[name].norm(dim=1).mean())


def set_new_classes(loss: nn.Module, items: Sequence[str], means: Mapping[str, np.ndarray]) -> None:
    """Set the directions of a loss without an earlier one to the mean embeddings of the items."""
    for module in parts_of(loss).values():
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name in DIRECTIONS and len(parameter) == len(items):
                    _set_directions(parameter, items, means, parameter.norm(dim=1).mean())


def has_directions(loss: nn.Module) -> bool:
    """Return whether a loss compares embeddings with one row per class."""
    return any(name in DIRECTIONS for module in parts_of(loss).values() for name, _ in module.named_parameters())


def parts_of(loss: nn.Module) -> dict[str, nn.Module]:
    """Return the base loss and the regularizer of a loss by their class names."""
    if isinstance(loss, Regularized):
        return parts_of(loss.base) | parts_of(loss.regularizer)
    inner = loss.loss if isinstance(loss, SampledClasses) else loss
    return {type(inner).__name__: inner}


def _set_directions(table: Tensor, items: Sequence[str], means: Mapping[str, np.ndarray], norm: Tensor) -> None:
    for row, item in enumerate(items):
        if item in means and means[item].shape == table[row].shape:
            table[row] = F.normalize(torch.from_numpy(means[item]).to(table), dim=0) * norm
