"""Base class of the losses, which are computed in float32 or better, and what several of them share.

Symbols: n = batch size, B = classes of the batch, k = any number of columns.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from retrieval.errors import InvalidParameter

T = TypeVar("T")


class Loss(nn.Module, ABC):
    """A loss of raw embeddings (n, d) and labels (n,).

    Autocast is switched off: a temperature of 0.01 or a cosine near one needs more than half precision.
    """

    rates: Mapping[str, float] = {}  # parameters with a multiple of the proxies' learning rate
    initial_norm = 0.0  # mean norm that raw embeddings have before the first step, 0 for any

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        if embeddings.ndim != 2 or not embeddings.numel() or not embeddings.is_floating_point():
            kind = f"{str(embeddings.dtype).removeprefix('torch.')} {tuple(embeddings.shape)}"
            raise InvalidParameter("embeddings", "be floats of shape (n, d), with n and d at least 1", kind)
        if labels.shape != embeddings.shape[:1] or labels.is_floating_point() or labels.is_complex():
            kind = f"{str(labels.dtype).removeprefix('torch.')} {tuple(labels.shape)}"
            raise InvalidParameter("labels", f"be integers of shape ({len(embeddings)},), one for each embedding", kind)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.compute(embeddings if embeddings.dtype == torch.float64 else embeddings.float(), labels.long())

    @abstractmethod
    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss; embeddings are float32 or float64, and autocast is off."""


def check_shape(classes: int, dim: int) -> None:
    """Raise InvalidParameter for a number of classes or a dimension below 1."""
    _check_each("be at least 1", lambda value: value >= 1, {"classes": classes, "dim": dim})


def check_positive(**values: float) -> None:
    """Raise InvalidParameter for an argument that is not finite and above 0."""
    _check_each("be positive and finite", lambda value: 0 < value < math.inf, values)


def check_not_negative(**values: float) -> None:
    """Raise InvalidParameter for an argument that is not finite, or below 0."""
    _check_each("be zero or more, and finite", lambda value: 0 <= value < math.inf, values)


def check_cosine_distance(**values: float) -> None:
    """Raise InvalidParameter for an argument outside of the range of cosine distances."""
    _check_each("lie in [0, 2], a cosine distance", lambda value: 0 <= value <= 2, values)


def _check_each(rule: str, holds: Callable[[float], bool], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        if not holds(value):
            raise InvalidParameter(name, rule, value)


def check_one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise InvalidParameter for an argument that is not among the allowed words."""
    if value not in allowed:
        raise InvalidParameter(name, f"be one of {', '.join(allowed)}", value)


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise InvalidParameter for a label without a proxy."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidParameter("labels", f"lie between 0 and {classes - 1}", (int(labels.min()), int(labels.max())))


def one_label_each(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return each photo's class as 0 … B-1 (n,), and the number of photos of each class (B,)."""
    _, groups, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    return groups, sizes


def group_log_mean_exp(exponents: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the log of the mean of e^x over the rows of each group (count, k), for exponents (n, k).

    Every group must have a row. The largest exponent of each group is factored out to avoid overflow.
    """
    index = groups[:, None].expand_as(exponents)
    with torch.no_grad():
        top = exponents.new_full((count, exponents.shape[1]), -torch.inf)
        top = top.scatter_reduce(0, index, exponents, "amax")
    total = exponents.new_zeros(count, exponents.shape[1])
    total = total.index_add(0, groups, (exponents - top[groups]).exp())
    sizes = torch.bincount(groups, minlength=count).to(exponents.dtype)
    return top + (total / sizes[:, None]).log()


def block_limit(tensor: Tensor) -> int:
    """Return how many elements to compute at a time on the device of a tensor: what a cache, or a GPU, holds."""
    return 2**19 if tensor.device.type == "cpu" else 2**26


def in_blocks(compute: Callable[[slice], T], *, rows: int, columns: int, limit: int) -> list[T]:
    """Return `compute(block)` for blocks of rows that have at most `limit` elements each.

    The gradient computes a block again where there are several, so that the tensors of one are in memory at a time.
    """
    each = max(1, limit // columns)
    blocks = [slice(start, min(start + each, rows)) for start in range(0, rows, each)]
    if len(blocks) == 1:
        return [compute(blocks[0])]
    return [checkpoint(compute, block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
