"""Scores of the smooth ranks of a query's positives, with their gradient.

Symbols: n = batch size, m = positives of a query, s = cosine similarities (n, n), q = a query, x = one of its
positives, z = any other photo, G = sigmoid((s_qz - s_qx) / temperature).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 2**19  # elements of the largest (queries, m, n) block
SATURATED = 40.0  # sigmoid(-40) = 4e-18; beyond it, subnormal numbers take a hundred times as long


def positives_of(labels: Tensor, *, count_query: bool) -> tuple[Tensor, Tensor]:
    """Return the columns of each query's positives (n, m), and a mask (n, m) that excludes padding."""
    labels = labels.int() if labels.dtype == torch.bool else labels  # searchsorted takes no truth values
    in_order, by_class = labels.sort(stable=True)
    starts = torch.searchsorted(in_order, labels)
    others = torch.searchsorted(in_order, labels, right=True) - starts
    if not count_query:
        others -= 1
    most = max(1, int(others.max()))
    place = torch.arange(most, device=labels.device).expand(len(labels), most)
    real = place < others[:, None]
    if not count_query:
        own = torch.empty_like(starts)
        own[by_class] = torch.arange(len(labels), device=labels.device)
        place = place + (place >= (own - starts)[:, None])
    return by_class[(starts[:, None] + place).clamp_(max=len(labels) - 1)], real


class Score(Protocol):
    """A figure of each query that depends on the ranks of its positives.

    Shapes: b queries of a block, m positives. `beyond` (b, m) is Σ_{z≠x} G over all photos z, `alike` (b, m) the same
    sum over the positives z of q, and `real` (b, m) is 1, or 0 for padding.
    """

    uses_alike: bool

    def __call__(self, beyond: Tensor, alike: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the figures (b,) and their derivatives by `beyond` and `alike` (b, m)."""


def scores_of_ranks(
    similarity: Tensor,
    labels: Tensor,
    score: Score,
    *,
    temperature: float,
    count_query: bool,
    count_positive: bool,
) -> tuple[Tensor, Tensor]:
    """Return the score of each query (n,), and whether it has any positive (n,).

    Only the columns of positives x are compared: n·m·n numbers, computed once in blocks of queries together with the
    gradient, so memory is O(n²).

    Parameters
    ----------
    count_query, count_positive:
        Whether a query counts in its own database, and among its own positives.
    """
    order, real = positives_of(labels, count_query=count_positive)
    scores: Tensor = _Scores.apply(similarity, order, real, score, temperature, count_query)  # type: ignore[no-untyped-call]
    return scores, real.any(dim=1)


class _Scores(torch.autograd.Function):
    """Scores of queries, each of which depends on its own row of the similarities only."""

    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        order: Tensor,
        real: Tensor,
        score: Score,
        temperature: float,
        count_query: bool,
    ) -> Tensor:
        scores, slopes = similarity.new_empty(len(order)), torch.empty_like(similarity)
        real = real.to(similarity.dtype)
        for block in _blocks(order, len(order)):
            above = _above(similarity, order, block, temperature, count_query)
            scores[block], slopes[block] = _scored(above, order[block], real[block], score, temperature)
        ctx.save_for_backward(slopes)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return gradient[:, None] * slopes, None, None, None, None, None


def _blocks(order: Tensor, n: int) -> list[slice]:
    rows = max(1, BLOCK // (order.shape[1] * n))
    return [slice(start, min(start + rows, len(order))) for start in range(0, len(order), rows)]


def _above(similarity: Tensor, order: Tensor, block: slice, temperature: float, count_query: bool) -> Tensor:
    """Return G of a block of queries (b, m, n)."""
    rows, columns = similarity[block] / temperature, order[block]
    own = rows.gather(1, columns)
    above = (rows[:, None, :] - own[:, :, None]).clamp_(-SATURATED, SATURATED).sigmoid_()
    above.scatter_(2, columns[:, :, None], 0.0)  # z = x is excluded
    if not count_query:
        queries = torch.arange(block.start, block.stop, device=rows.device)
        above.scatter_(2, queries[:, None, None].expand(-1, columns.shape[1], 1), 0.0)
    return above


def _scored(above: Tensor, columns: Tensor, real: Tensor, score: Score, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the scores of a block of queries (b,), and their derivatives by the similarities (b, n); changes G."""
    positives = columns[:, None, :].expand(-1, columns.shape[1], -1)  # (b, m, m)
    alike = above.gather(2, positives).mul_(real[:, None, :]) if score.uses_alike else above.new_zeros(1)
    scores, by_beyond, by_alike = score(above.sum(dim=2), alike.sum(dim=-1), real)
    slope = above.addcmul_(above, above, value=-1)  # G (1 - G)
    if score.uses_alike:
        steep = slope.gather(2, positives).mul_(real[:, None, :]).mul_((by_alike / temperature)[:, :, None])
    weighted = slope.mul_((by_beyond / temperature)[:, :, None])
    slopes, of_positives = weighted.sum(dim=1), weighted.sum(dim=2).neg_()
    if score.uses_alike:
        of_positives += steep.sum(dim=1) - steep.sum(dim=2)
    return scores, slopes.scatter_add_(1, columns, of_positives)
