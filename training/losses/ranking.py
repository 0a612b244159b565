"""Ranking losses: smooth surrogates of average precision and of recall at k.

Symbols: n = batch size, d = embedding size, m = positives of a query, s = cosine similarities (n, n),
q = a query, x = one of its positives, z = any other photo, G = sigmoid((s_qz - s_qx) / temperature).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrieval.errors import InvalidParameter

from .base import Loss, check_positive

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


class AveragePrecision:
    """Smooth average precision: the mean over positives x of (1 + alike) / (1 + beyond)."""

    uses_alike = True

    def __call__(self, beyond: Tensor, alike: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the precisions (b,) and their derivatives (b, m)."""
        by_alike = real / ((1 + beyond) * real.sum(dim=1, keepdim=True).clamp(min=1))
        parts = (1 + alike) * by_alike
        return parts.sum(dim=1), -parts / (1 + beyond), by_alike


class MeanRecall:
    """Smooth recall at several k, averaged.

    With the rank r = 1 + beyond, R_k is min(k, Σ_x sigmoid((k - r) / temperature)) over min(k, positives).
    """

    uses_alike = False

    def __init__(self, ks: Sequence[int], temperature: float) -> None:
        self.ks = ks
        self.temperature = temperature

    def __call__(self, beyond: Tensor, alike: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ARG002
        """Return the recalls (b,) and their derivatives (b, m)."""
        cuts = beyond.new_tensor(self.ks)
        hits = torch.sigmoid((cuts - (1 + beyond)[:, :, None]) / self.temperature) * real[:, :, None]  # (b, m, K)
        reachable = torch.minimum(cuts, real.sum(dim=1, keepdim=True)).clamp(min=1)
        found = hits.sum(dim=1)
        share = (found < cuts) / (reachable * (self.temperature * len(self.ks)))  # (b, K)
        slope = hits.addcmul(hits, hits, value=-1).mul_(share[:, None]).sum(dim=2)
        return (torch.minimum(found, cuts) / reachable).mean(dim=1), -slope, torch.zeros_like(slope)


def smooth_average_precision(
    similarity: Tensor, labels: Tensor, *, temperature: float, count_query: bool
) -> tuple[Tensor, Tensor]:
    """Return each query's smooth average precision (n,), and whether it has any positive (n,).

    AP_q is the mean over its positives x of (1 + Σ_{positives z ≠ x} G) / (1 + Σ_{z ≠ x} G).

    Parameters
    ----------
    similarity:
        Cosines (n, n).
    count_query:
        Whether a query counts among its own positives and in its own database, as in the released code.
    """
    return scores_of_ranks(
        similarity,
        labels,
        AveragePrecision(),
        temperature=temperature,
        count_query=count_query,
        count_positive=count_query,
    )


class SmoothAP(Loss):
    """One minus the smooth average precision (Brown et al., ECCV 2020).

    `count_query=True` counts the query among its own positives, as the released code behind the published
    numbers does; False is the exact definition. Queries without a positive are left out.
    Cost O(n² (d + m)), memory O(n²).
    """

    def __init__(self, *, temperature: float = 0.01, count_query: bool = True) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        self.temperature = temperature
        self.count_query = count_query

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        precision, has_positive = smooth_average_precision(
            unit @ unit.T, labels, temperature=self.temperature, count_query=self.count_query
        )
        return _one_minus_mean(precision, has_positive)


def smooth_recall(
    similarity: Tensor,
    labels: Tensor,
    *,
    ks: Sequence[int],
    rank_temperature: float,
    similarity_temperature: float,
    count_query: bool,
) -> tuple[Tensor, Tensor]:
    """Return each query's mean smooth recall at the ks (n,), and whether it has any positive (n,).

    With the rank r(q, x) = 1 + Σ_{z≠x} G, R_k(q) = min(k, Σ_x sigmoid((k - r) / rank_temperature)) over
    min(k, positives of q); a k above the batch size counts as the batch size.
    """
    return scores_of_ranks(
        similarity,
        labels,
        MeanRecall([min(k, len(labels)) for k in ks], rank_temperature),
        temperature=similarity_temperature,
        count_query=count_query,
        count_positive=False,
    )


def simix_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return every pair of photos of the same class once, as two lists of positions."""
    same = (labels[:, None] == labels[None, :]).triu(diagonal=1)
    first, second = same.nonzero(as_tuple=True)
    return first, second


def simix(unit: Tensor, labels: Tensor, pairs: tuple[Tensor, Tensor], shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the batch with a virtual photo for each pair of the same class (SiMix of the Recall@k paper).

    A virtual embedding is share · f_i + (1 - share) · f_j, not scaled to unit length, as in the released code. It is
    both a query and a database photo. Shapes: unit (n, d), pairs 2 × (p,), shares (p,) to (n + p, d) and (n + p,).
    """
    first, second = pairs
    mixed = shares[:, None] * unit[first] + (1 - shares[:, None]) * unit[second]
    return torch.cat([unit, mixed]), torch.cat([labels, labels[first]])


class RecallAtK(Loss):
    """One minus the recall@k surrogate, averaged over several k (Patel et al., CVPR 2022).

    `count_query=True` keeps the query in its own database, as the released code behind the published numbers does,
    which shifts every rank by about one; False is the exact rank. `simix=True` adds virtual photos (see
    `simix`; shares are drawn from the global generator). Queries without a positive are left out.
    Cost O(n² (d + m)), memory O(n²).
    """

    def __init__(
        self,
        *,
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        rank_temperature: float = 1.0,
        similarity_temperature: float = 0.01,
        count_query: bool = True,
        simix: bool = False,
    ) -> None:
        super().__init__()
        if not ks or any(int(k) != k or k < 1 for k in ks):
            raise InvalidParameter("ks", "be whole numbers of at least 1", ks)
        check_positive(rank_temperature=rank_temperature)
        check_positive(similarity_temperature=similarity_temperature)
        self.ks = tuple(int(k) for k in ks)
        self.rank_temperature = rank_temperature
        self.similarity_temperature = similarity_temperature
        self.count_query = count_query
        self.simix = simix

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        if self.simix:
            pairs = simix_pairs(labels)
            unit, labels = simix(unit, labels, pairs, torch.rand(len(pairs[0]), device=unit.device).to(unit.dtype))
        recall, has_positive = smooth_recall(
            unit @ unit.T,
            labels,
            ks=self.ks,
            rank_temperature=self.rank_temperature,
            similarity_temperature=self.similarity_temperature,
            count_query=self.count_query,
        )
        return _one_minus_mean(recall, has_positive)


def _one_minus_mean(scores: Tensor, has_positive: Tensor) -> Tensor:
    """Return one minus the mean score of the queries with a positive; the scores of the others are 0."""
    queries = has_positive.sum()
    return (queries - scores.sum()) / queries.clamp(min=1)
