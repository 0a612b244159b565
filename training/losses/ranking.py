"""Ranking losses: smooth surrogates of average precision and of recall at k.

Symbols: n = batch size, d = embedding size, m = positives of a query, s = cosine similarities (n, n),
q = a query, x = one of its positives, z = any other photo, G = sigmoid((s_qz - s_qx) / temperature).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrieval.errors import InvalidParameter

from .base import Loss

BLOCK = 2**19  # elements of the largest (queries, m, n) block
SATURATED = 40.0  # sigmoid(-40) = 4e-18; subnormal numbers further out would take a hundred times as long


def positives_of(labels: Tensor, *, count_query: bool) -> tuple[Tensor, Tensor]:
    """Return the columns of each query's positives (n, m), and a mask (n, m) that excludes padding."""
    same = labels[:, None] == labels[None, :]
    if not count_query:
        same.fill_diagonal_(False)
    most = max(1, int(same.sum(dim=1).max()))
    order = torch.sort(same.to(torch.uint8), dim=1, descending=True, stable=True).indices[:, :most]
    return order, same.gather(1, order)


def soft_counts(
    similarity: Tensor, labels: Tensor, order: Tensor, *, temperature: float, count_query: bool
) -> tuple[Tensor, Tensor]:
    """Return Σ_{z≠x} G over all photos z, and over the positives z of q alone, both (n, m).

    Only the columns `order` (n, m) of positives x are compared: n·m·n numbers, computed in blocks of queries and again
    in the backward pass, so that memory is O(n²).
    """
    pair: tuple[Tensor, Tensor] = _SoftCounts.apply(  # type: ignore[no-untyped-call]
        similarity, labels, order, temperature, count_query
    )
    return pair


class _SoftCounts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, labels: Tensor, order: Tensor, temperature: float, count_query: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(similarity, labels, order)
        ctx.arguments = temperature, count_query
        everyone = torch.zeros_like(order, dtype=similarity.dtype)
        positives = torch.zeros_like(everyone)
        for block in _blocks(order, len(labels)):
            above, same = _above(similarity, labels, order, block, temperature, count_query)
            everyone[block] = above.sum(dim=2)
            positives[block] = torch.einsum("bmn,bn->bm", above, same)
        return everyone, positives

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, everyone: Tensor, positives: Tensor) -> tuple[Tensor | None, ...]:
        similarity, labels, order = ctx.saved_tensors
        temperature, count_query = ctx.arguments
        gradient = torch.empty_like(similarity)
        for block in _blocks(order, len(labels)):
            above, same = _above(similarity, labels, order, block, temperature, count_query)
            slope = above.addcmul_(above, above, value=-1).div_(temperature)  # G (1 - G) / temperature, (b, m, n)
            weights = torch.stack([everyone[block], positives[block]], dim=1)  # (b, 2, m)
            of_all, of_alike = torch.bmm(weights, slope).unbind(1)  # (b, n) each
            gradient[block] = of_all + of_alike * same
            columns = torch.bmm(slope, torch.stack([torch.ones_like(same), same], dim=2))  # (b, m, 2)
            own = (columns * weights.transpose(1, 2)).sum(dim=2)
            gradient[block].scatter_add_(1, order[block], -own)
        return gradient, None, None, None, None


def _blocks(order: Tensor, n: int) -> list[slice]:
    rows = max(1, BLOCK // (order.shape[1] * n))
    return [slice(start, min(start + rows, len(order))) for start in range(0, len(order), rows)]


def _above(
    similarity: Tensor, labels: Tensor, order: Tensor, block: slice, temperature: float, count_query: bool
) -> tuple[Tensor, Tensor]:
    """Return G of a block of queries (b, m, n), and a mask of the photos of their class (b, n)."""
    rows, columns = similarity[block], order[block]
    own = rows.gather(1, columns)
    above = (rows[:, None, :] - own[:, :, None]).div_(temperature).clamp_(-SATURATED, SATURATED).sigmoid_()
    above.scatter_(2, columns[:, :, None], 0.0)  # z = x is excluded
    if not count_query:
        queries = torch.arange(block.start, block.stop, device=rows.device)
        above.scatter_(2, queries[:, None, None].expand(-1, columns.shape[1], 1), 0.0)
    return above, (labels[block, None] == labels[None]).to(rows.dtype)


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
    order, real = positives_of(labels, count_query=count_query)
    everyone, positives = soft_counts(similarity, labels, order, temperature=temperature, count_query=count_query)
    precision = ((1 + positives) / (1 + everyone) * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)
    return precision, real.any(dim=1)


class SmoothAP(Loss):
    """One minus the smooth average precision (Brown et al., ECCV 2020).

    `count_query=True` counts the query among its own positives, as the released code behind the published
    numbers does; False is the exact definition. Queries without a positive are left out.
    Cost O(n² (d + m)), memory O(n²).
    """

    def __init__(self, *, temperature: float = 0.01, count_query: bool = True) -> None:
        super().__init__()
        _check_positive("temperature", temperature)
        self.temperature = temperature
        self.count_query = count_query

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        precision, has_positive = smooth_average_precision(
            unit @ unit.T, labels, temperature=self.temperature, count_query=self.count_query
        )
        return ((1 - precision) * has_positive).sum() / has_positive.sum().clamp(min=1)


def smooth_recall(
    similarity: Tensor,
    labels: Tensor,
    *,
    ks: Sequence[int],
    rank_temperature: float,
    similarity_temperature: float,
    count_query: bool,
) -> tuple[Tensor, Tensor]:
    """Return each query's smooth recall at each k (n, len(ks)), and whether it has any positive (n,).

    With the rank r(q, x) = 1 + Σ_{z≠x} G, R_k(q) = min(k, Σ_x sigmoid((k - r) / rank_temperature)) over
    min(k, positives of q); a k above the batch size counts as the batch size.
    """
    order, real = positives_of(labels, count_query=False)
    beyond, _ = soft_counts(similarity, labels, order, temperature=similarity_temperature, count_query=count_query)
    cuts = similarity.new_tensor([min(k, len(labels)) for k in ks])
    hits = torch.sigmoid((cuts - (1 + beyond)[:, :, None]) / rank_temperature) * real[:, :, None]  # (n, m, K)
    reachable = torch.minimum(cuts, real.sum(dim=1, keepdim=True).to(cuts.dtype)).clamp(min=1)
    return torch.minimum(hits.sum(dim=1), cuts) / reachable, real.any(dim=1)


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
        _check_positive("rank_temperature", rank_temperature)
        _check_positive("similarity_temperature", similarity_temperature)
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
        return ((1 - recall.mean(dim=1)) * has_positive).sum() / has_positive.sum().clamp(min=1)


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidParameter(name, "be positive", value)
