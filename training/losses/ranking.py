"""Ranking losses: smooth surrogates of average precision and of recall at k.

Symbols: n = batch size, d = embedding size, m = positives of a query, s = cosine similarities (n, n),
q = a query, x = one of its positives, z = any other photo, G = sigmoid((s_qz - s_qx) / temperature).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss, block_limit, check_positive, in_blocks

Score = Callable[[Tensor, Tensor, Tensor], Tensor]

SATURATED = 40.0  # sigmoid(-40) = 4e-18; beyond it, subnormal numbers are slow


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

    Only the columns of positives x are compared, n·m·n numbers, in blocks of queries, so memory is O(n²).

    Parameters
    ----------
    score:
        Returns a figure of each query of a block (b,) from Σ_{z≠x} G over all photos z (b, m), the same sum over the
        positives z of q (b, m), and 1 for each positive x, or 0 for padding (b, m).
    count_query, count_positive:
        Whether a query counts in its own database, and among its own positives.
    """
    order, real = positives_of(labels, count_query=count_positive)
    (n, m), weights = order.shape, real.to(similarity.dtype)

    def scored(block: slice) -> Tensor:
        rows, columns = similarity[block] / temperature, order[block]
        above = rows[:, None, :] - rows.gather(1, columns)[:, :, None]  # (b, m, n)
        above = above.clamp(-SATURATED, SATURATED).sigmoid().scatter(2, columns[:, :, None], 0.0)  # z = x is excluded
        if not count_query:
            queries = torch.arange(block.start, block.stop, device=rows.device)
            above = above.scatter(2, queries[:, None, None].expand(-1, m, 1), 0.0)
        alike = above.gather(2, columns[:, None, :].expand(-1, m, -1)) * weights[block, None, :]
        return score(above.sum(dim=2), alike.sum(dim=2), weights[block])

    return torch.cat(in_blocks(scored, rows=n, columns=m * n, limit=block_limit(similarity))), real.any(dim=1)


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

    def precision(beyond: Tensor, alike: Tensor, real: Tensor) -> Tensor:
        return ((1 + alike) / (1 + beyond) * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)

    return scores_of_ranks(
        similarity, labels, precision, temperature=temperature, count_query=count_query, count_positive=count_query
    )


class SmoothAP(Loss):
    """One minus the smooth average precision (Brown et al., ECCV 2020).

    `count_query=True` counts the query among its own positives, as the released code behind the published
    numbers does; False is the exact definition. Queries without a positive are left out.
    Cost O(n² (d + m)), memory O(n²).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> SmoothAP()(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(0.)
    >>> SmoothAP()(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(0.3810)
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
    cuts = similarity.new_tensor([min(k, len(labels)) for k in ks])

    def recall(beyond: Tensor, alike: Tensor, real: Tensor) -> Tensor:  # noqa: ARG001
        hits = torch.sigmoid((cuts - (1 + beyond)[:, :, None]) / rank_temperature) * real[:, :, None]  # (b, m, K)
        reachable = torch.minimum(cuts, real.sum(dim=1, keepdim=True)).clamp(min=1)
        return (torch.minimum(hits.sum(dim=1), cuts) / reachable).mean(dim=1)

    return scores_of_ranks(
        similarity,
        labels,
        recall,
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

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> RecallAtK(ks=[1])(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(0.6225)
    >>> RecallAtK(ks=[1])(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(0.9241)
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
