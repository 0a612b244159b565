"""How the false positive identification rate grows with the gallery.

A photo of an unknown item is let in when any of N items comes within the threshold. With p the chance that a random
item does, for this query, FPIR(N) is the mean over queries of 1 - (1 - p)^N. Inside the calibrated gallery p needs no
model: of its M items a query met c within the threshold, and the chance that N random ones of the M avoid those is
hypergeometric. Beyond, two things are modelled, both fitted to the items nearest to each query:

- the mean of p, by the pooled distances of queries and other items, which far out in the tail follow a power of the
  distance (the Weibull domain of extreme-value theory: distances are bounded below; Hill's estimator);
- how p differs between queries, by a gamma distribution of shape a: some regions are crowded. Having met c of M items,
  a query avoids N with the chance ((b + M) / (b + M + N))^(a + c), b = a / p̄.

Shapes: n queries, k = items nearest to each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import InvalidParameter

TAIL_SHARE, TAIL_LEAST = 0.05, 50  # pooled distances a query, and at least, that the power law is fitted to
EXTRAPOLATION = 10  # times the calibrated number of items, beyond which a rate is an estimate at best

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GallerySize:
    """Each query's distances to the items nearest to it, its own aside, among `items` others."""

    near: Floats  # (n, k) ascending
    items: int

    def __post_init__(self) -> None:
        if self.near.ndim != 2 or not self.near.size:
            raise InvalidParameter("near", "be (queries, items) and not empty", self.near.shape)
        if self.items < self.near.shape[1]:
            raise InvalidParameter("items", "be at least the number of nearest items", self.items)

    def chances(self, threshold: float, items: int) -> Floats:
        """Return, for each query, the chance that a gallery of so many other items returns something (n,)."""
        if items < 1:
            raise InvalidParameter("items", "be at least 1", items)
        counts = (self.near <= threshold).sum(axis=1)
        if items <= self.items:
            return np.asarray(1 - _chance_to_avoid(counts, items, self.items))
        mean = self._mean_count(threshold) / self.items  # of p
        if not mean:
            return np.zeros(len(counts))
        shape = self._shape(max(threshold, self._tail[0]))
        known = shape / mean + self.items
        return np.asarray(-np.expm1(-(shape + counts) * math.log1p(items / known)))

    def fpir(self, threshold: float, items: int) -> float:
        """Return the share of searches without a mate that return something in a gallery of so many items."""
        return float(self.chances(threshold, items).mean())

    def threshold(self, fpir: float, items: int) -> float:
        """Return the largest threshold, to 1e-9, at which the FPIR is at most `fpir` in a gallery of so many items."""
        if not 0 < fpir < 1:
            raise InvalidParameter("fpir", "lie between 0 and 1", fpir)
        low, high = 0.0, float(self.near[np.isfinite(self.near)].max(initial=0))
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if self.fpir(middle, items) <= fpir else (low, middle)
        return low

    @cached_property
    def _pooled(self) -> Floats:
        """All distances, ascending. They stand for those of all items up to the smallest k-th of a query."""
        return np.sort(self.near[np.isfinite(self.near)])

    @cached_property
    def _tail(self) -> tuple[float, float, int]:
        """Where the tail begins, the exponent of its power law, and how many distances lie in it."""
        count = min(max(TAIL_LEAST, int(TAIL_SHARE * len(self.near))), len(self._pooled))
        edge = float(self._pooled[count - 1])
        logs = np.log(edge / np.maximum(self._pooled[: count - 1], 1e-12))
        total = float(logs.sum())
        return edge, (max(count - 2, 1) / total if total > 0 else math.inf), count

    def _mean_count(self, threshold: float) -> float:
        """Return how many of the `items` others lie within the threshold of a query, on average."""
        edge, exponent, count = self._tail
        if threshold >= edge:
            return float(np.searchsorted(self._pooled, threshold, side="right")) / len(self.near)
        if threshold <= 0 or math.isinf(exponent):
            return 0.0
        return float(count / len(self.near) * (threshold / edge) ** exponent)

    def _shape(self, threshold: float) -> float:
        """Return the gamma distribution's shape by maximum likelihood of the counts within a threshold."""
        counts, queries = np.unique((self.near <= threshold).sum(axis=1), return_counts=True)
        mean = float((counts * queries).sum() / queries.sum())
        grid = np.exp(np.linspace(-5, 5, 81))
        return float(grid[int(np.argmax([_log_likelihood(counts, queries, mean, shape) for shape in grid]))])


def _chance_to_avoid(counts: NDArray[np.int64], drawn: int, items: int) -> Floats:
    """Return, for each count c, the chance that `drawn` of the items avoid c given ones."""
    values, place = np.unique(counts, return_inverse=True)
    chances = [
        0.0 if drawn > items - c else math.exp(_log_choose(items - c, drawn) - _log_choose(items, drawn))
        for c in values.tolist()
    ]
    return np.array(chances)[place]


def _log_choose(total: int, drawn: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(drawn + 1) - math.lgamma(total - drawn + 1)


def _log_likelihood(counts: NDArray[np.int64], queries: NDArray[np.int64], mean: float, shape: float) -> float:
    """Return the log-likelihood of negative-binomial counts, without what does not depend on the shape."""
    rate = shape / (shape + mean)
    terms = (
        q * (math.lgamma(c + shape) - math.lgamma(shape) + shape * math.log(rate) + c * math.log1p(-rate))
        for c, q in zip(counts.tolist(), queries.tolist(), strict=True)
    )
    return float(sum(terms))
