"""Losses of all pairs of a batch.

Symbols used in every docstring: n = batch size, d = embedding size, s = cosine similarities (n, n).
Each loss is a pure function plus a module that only holds its hyper-parameters.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrieval.errors import InvalidParameter

from .base import Loss


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, n) masks of positive and negative pairs, self-pairs excluded."""
    same = labels[:, None] == labels[None, :]
    return same.clone().fill_diagonal_(False), ~same


def threshold_consistent_margin(
    unit: Tensor,
    labels: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
) -> Tensor:
    """Return Eq. 5 of arXiv 2307.04047 for unit embeddings (n, d) and labels (n,).

    A term is the mean violation over the pairs on the wrong side of its margin (a pair exactly on it counts),
    and 0, still differentiable, where there is none.
    """
    value: Tensor = _MeanViolation.apply(  # type: ignore[no-untyped-call]
        unit, labels, positive_margin, negative_margin, positive_weight, negative_weight
    )
    return value


class _MeanViolation(torch.autograd.Function):
    """The two terms and their gradient in one pass over the cosine matrix.

    With W = d loss / d s, which is symmetric and constant between ties, the gradient of the embeddings is
    2 W f: one matrix product, where autograd through s = f fᵀ takes two and keeps every mask.
    """

    @staticmethod
    def forward(
        ctx: Any,
        unit: Tensor,
        labels: Tensor,
        positive_margin: float,
        negative_margin: float,
        positive_weight: float,
        negative_weight: float,
    ) -> Tensor:
        similarity = unit @ unit.T
        positive, negative = pair_masks(labels)
        positive &= similarity <= positive_margin
        negative &= similarity >= negative_margin
        slopes = (
            -positive_weight / positive.sum().clamp(min=1).to(unit.dtype),
            negative_weight / negative.sum().clamp(min=1).to(unit.dtype),
        )
        weights = positive * slopes[0] + negative * slopes[1]
        ctx.save_for_backward(unit, weights)
        pulls = (weights * (similarity - positive_margin)).masked_fill(~positive, 0)
        pushes = (weights * (similarity - negative_margin)).masked_fill(~negative, 0)
        return pulls.sum() + pushes.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        unit, weights = ctx.saved_tensors
        return (2 * gradient) * (weights @ unit), None, None, None, None, None


class ThresholdConsistentMargin(Loss):
    """Threshold-consistent margin regulariser (TCM, arXiv 2307.04047, Eq. 5).

    Pulls positive pairs that are less similar than `positive_margin` and pushes negative pairs that are more
    similar than `negative_margin`, each averaged over those hard pairs only. Cost O(n² d), memory O(n²).
    """

    def __init__(
        self,
        *,
        positive_margin: float = 0.9,
        negative_margin: float = 0.5,
        positive_weight: float = 1.0,
        negative_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if not -1 <= negative_margin <= positive_margin <= 1:
            raise InvalidParameter(
                "margins",
                "satisfy -1 <= negative_margin <= positive_margin <= 1",
                (negative_margin, positive_margin),
            )
        for name, weight in (("positive_weight", positive_weight), ("negative_weight", negative_weight)):
            if not weight >= 0:
                raise InvalidParameter(name, "be zero or more", weight)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.positive_weight = positive_weight
        self.negative_weight = negative_weight

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return threshold_consistent_margin(
            F.normalize(embeddings, dim=1),
            labels,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            positive_weight=self.positive_weight,
            negative_weight=self.negative_weight,
        )
