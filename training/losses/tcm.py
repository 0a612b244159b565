"""Threshold-consistent margin loss (TCM, arXiv 2307.04047).

Symbols: n = batch size, d = embedding size, b = rows of a block, s = cosine similarities (n, n), f = unit embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrieval.errors import InvalidParameter

from .base import Loss, check_not_negative

SHORTEST = 1e-12  # as in torch.nn.functional.normalize
BLOCK = {"cpu": 2**19, "cuda": 2**26}  # cosines computed at a time: as many as a cache, or a GPU, holds


def threshold_consistent_margin(
    embeddings: Tensor,
    labels: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    hard_only: bool = True,
    inclusive: bool = True,
) -> Tensor:
    """Return Eq. 5 of arXiv 2307.04047 for raw embeddings (n, d) and labels (n,).

    Each term is the mean violation over the pairs on the wrong side of its margin, and 0, still differentiable,
    without such pairs. Memory O(n d): the cosine matrix is computed in blocks of rows.

    Parameters
    ----------
    hard_only:
        False sums over all pairs, including those on the right side, but still divides by the number of hard ones
        (ablation, Eq. 17).
    inclusive:
        Whether a pair exactly on a margin counts.
    """
    value: Tensor = _MeanViolation.apply(  # type: ignore[no-untyped-call]
        embeddings, labels, (positive_margin, negative_margin), (positive_weight, negative_weight), hard_only, inclusive
    )
    return value


class _MeanViolation(torch.autograd.Function):
    """The two terms and their gradient in one pass over the cosine matrix.

    W = d loss / d s is symmetric and piecewise constant, so that the gradient of the unit embeddings is 2 W f.
    """

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        labels: Tensor,
        margins: tuple[float, float],
        weights: tuple[float, float],
        hard_only: bool,
        inclusive: bool,
    ) -> Tensor:
        lengths = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True)
        long = lengths > SHORTEST
        lengths.clamp_(min=SHORTEST)
        unit = embeddings / lengths
        n = len(labels)
        rows = max(1, BLOCK.get(unit.device.type, BLOCK["cuda"]) // n)
        blocks = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
        pairs = _Pairs(unit, labels, margins, weights, hard_only, inclusive)
        value, product = pairs.in_one_block(blocks[0]) if len(blocks) == 1 else pairs.in_blocks(blocks)
        along = torch.linalg.vecdot(product, unit)[:, None] * long  # a change along an embedding has no effect
        ctx.save_for_backward(product.addcmul_(unit, along, value=-1).div_(lengths).mul_(2))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradient * slope, None, None, None, None, None


@dataclass(frozen=True)
class _Pairs:
    """The pairs of a batch, and which of them the two terms count."""

    unit: Tensor
    labels: Tensor
    margins: tuple[float, float]
    weights: tuple[float, float]
    hard_only: bool
    inclusive: bool

    def in_one_block(self, block: slice) -> tuple[Tensor, Tensor]:
        """Return the loss and W f (n, d) of a batch of one block, with a single product."""
        violation, chosen, same, counts = self._violations(block)
        positive, negative = (self.unit.new_tensor(self.weights) / counts.clamp(min=1)).unbind()
        slope = torch.where(same, -positive, negative) * chosen
        return torch.dot(slope.abs().flatten(), violation.flatten()), slope @ self.unit

    def in_blocks(self, blocks: list[slice]) -> tuple[Tensor, Tensor]:
        """Return the loss and W f (n, d).

        The terms are divided by numbers of pairs that are known only after the pass, so that the pairs of each term
        are multiplied with f separately.
        """
        unit = self.unit
        products = [torch.empty_like(unit), torch.empty_like(unit)]  # positive and negative pairs times f
        totals = unit.new_zeros(2, dtype=torch.float64)
        counts = torch.zeros(2, dtype=torch.int64, device=unit.device)
        for block in blocks:
            violation, chosen, same, hard = self._violations(block)
            counts += hard
            for term, pairs in enumerate((chosen & same, chosen & ~same)):
                totals[term] += torch.where(pairs, violation, 0).sum()
                products[term][block] = _times(pairs, unit)
        shares = unit.new_tensor(self.weights) / counts.clamp(min=1)
        return (totals.to(unit.dtype) * shares).sum(), shares[1] * products[1] - shares[0] * products[0]

    def _violations(self, block: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the violations of the pairs of a block with all photos, and masks of the counted and positive pairs.

        These are (b, n). The fourth value has the numbers of hard positive and negative pairs (2,).
        """
        similarity = self.unit[block] @ self.unit.T
        same = self.labels[block, None] == self.labels[None]
        violation = torch.where(same, self.margins[0] - similarity, similarity - self.margins[1])
        hard = (violation >= 0) if self.inclusive else (violation > 0)
        hard[:, block].fill_diagonal_(False)
        positives = torch.count_nonzero(hard & same)
        counts = torch.stack([positives, torch.count_nonzero(hard) - positives])
        if not self.hard_only:
            hard = torch.ones_like(hard)
            hard[:, block].fill_diagonal_(False)
        return violation, hard, same, counts


def _times(mask: Tensor, unit: Tensor) -> Tensor:
    """Return mask (b, n) times f (n, d): by rows where few pairs are set, else as a matrix product."""
    rows, columns = mask.nonzero(as_tuple=True)
    if 16 * len(rows) > mask.numel():
        return mask.to(unit.dtype) @ unit
    product = unit.new_zeros(len(mask), unit.shape[1])
    return product.index_add_(0, rows, unit[columns])


def check_margins(positive_margin: float, negative_margin: float) -> None:
    """Raise InvalidParameter for margins that are out of order or no cosines."""
    if not -1 <= negative_margin <= positive_margin <= 1:
        raise InvalidParameter(
            "margins",
            "satisfy -1 <= negative_margin <= positive_margin <= 1",
            (negative_margin, positive_margin),
        )


class ThresholdConsistentMargin(Loss):
    """Threshold-consistent margin regulariser (TCM, arXiv 2307.04047, Eq. 5).

    Pulls positive pairs that are less similar than `positive_margin` and pushes negative pairs that are more similar
    than `negative_margin`, each averaged over these hard pairs only. Ablations of
    Appendix A.2.3: `negative_weight=0` (Eq. 16), `positive_weight=0` (Eq. 15), `hard_only=False` (Eq. 17).
    Cost O(n² d), memory O(n d).
    """

    def __init__(
        self,
        *,
        positive_margin: float = 0.9,
        negative_margin: float = 0.5,
        positive_weight: float = 1.0,
        negative_weight: float = 1.0,
        hard_only: bool = True,
    ) -> None:
        super().__init__()
        check_margins(positive_margin, negative_margin)
        check_not_negative(positive_weight=positive_weight, negative_weight=negative_weight)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.positive_weight = positive_weight
        self.negative_weight = negative_weight
        self.hard_only = hard_only

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return threshold_consistent_margin(
            embeddings,
            labels,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            positive_weight=self.positive_weight,
            negative_weight=self.negative_weight,
            hard_only=self.hard_only,
        )
