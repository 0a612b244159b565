"""Reductions over the photos of each class, without one-hot matrices.

Symbols: n = batch size, B = classes of the batch, k = any number of columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
