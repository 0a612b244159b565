"""Masks of the positive and negative pairs of a batch."""

from __future__ import annotations

from torch import Tensor


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, n) masks of positive and negative pairs, self-pairs excluded."""
    same = labels[:, None] == labels[None, :]
    return same.clone().fill_diagonal_(False), ~same
