"""Model of the false positive identification rate (FPIR) as a function of gallery size.

A photo of an unknown item returns something if any of N items is within the threshold. With p the probability that a
random item is, for a given query, FPIR(N) is the mean over queries of 1 - (1 - p)^N. Up to the size of the calibrated
gallery p needs no model: if c of its M items are within the threshold of a query, the probability that N random items
of the M avoid those c is hypergeometric. For larger galleries two quantities are modelled, both fitted to the items
nearest to each query:

- the mean of p, from the pooled distances between queries and other items, whose tail follows a power of the distance
  (the Weibull domain of extreme-value theory, as distances are bounded below; Hill's estimator);
- the variation of p between queries, since some regions are denser, by a gamma distribution of shape a. A query with c
  of M items within the threshold avoids N items with probability ((b + M) / (b + M + N))^(a + c), b = a / p̄.

Shapes: n queries, k = items nearest to each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.search.distance import accepts
from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores

TAIL_SHARE, TAIL_LEAST = 0.05, 50  # pooled distances that the power law is fitted to: per query, and at least
EXTRAPOLATION = 10  # times the calibrated number of items; rates beyond cannot be certified

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GallerySize:
    """FPIR by gallery size, from each query's distances to its nearest items among `items` others, without its own."""

    near: Floats  # (n, k) ascending
    items: int

    def __post_init__(self) -> None:
        if self.near.ndim != 2 or not self.near.size:
            raise InvalidParameter("near", "be (queries, items) and not empty", self.near.shape)
        if self.items < self.near.shape[1]:
            raise InvalidParameter("items", "be at least the number of nearest items", self.items)

    def chances(self, threshold: float, items: int) -> Floats:
        """Return, for each query, the probability that a gallery of `items` other items returns something (n,)."""
        if items < 1:
            raise InvalidParameter("items", "be at least 1", items)
        counts = accepts(self.near, threshold).sum(axis=1)
        if items <= self.items:
            return np.asarray(1 - _chance_to_avoid(counts, items, self.items))
        mean = self._mean_count(threshold) / self.items  # of p
        if not mean:
            return np.zeros(len(counts))
        shape = self._shape(max(threshold, self._tail[0]))
        known = shape / mean + self.items
        return np.asarray(-np.expm1(-(shape + counts) * math.log1p(items / known)))

    def fpir(self, threshold: float, items: int) -> float:
        """Return the FPIR in a gallery of `items` items: the share of non-mated searches that return something."""
        return float(self.chances(threshold, items).mean())

    def threshold(self, fpir: float, items: int) -> float:
        """Return the largest threshold, to 1e-9, with an FPIR of at most `fpir` in a gallery of `items` items."""
        if not 0 < fpir < 1:
            raise InvalidParameter("fpir", "lie between 0 and 1", fpir)
        low, high = 0.0, float(self.near[np.isfinite(self.near)].max(initial=0))
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if self.fpir(middle, items) <= fpir else (low, middle)
        return low

    @cached_property
    def _pooled(self) -> Floats:
        """All distances, ascending. They are complete up to the smallest k-th distance of any query."""
        return np.sort(self.near[np.isfinite(self.near)])

    @cached_property
    def _tail(self) -> tuple[float, float, int]:
        """The upper edge of the tail, the exponent of its power law, and the number of distances in it."""
        count = min(max(TAIL_LEAST, int(TAIL_SHARE * len(self.near))), len(self._pooled))
        edge = float(self._pooled[count - 1])
        logs = np.log(edge / np.maximum(self._pooled[: count - 1], 1e-12))
        total = float(logs.sum())
        return edge, (max(count - 2, 1) / total if total > 0 else math.inf), count

    def _mean_count(self, threshold: float) -> float:
        """Return the mean number of the other items within the threshold of a query."""
        edge, exponent, count = self._tail
        if threshold >= edge:
            return float(np.searchsorted(self._pooled, threshold, side="right")) / len(self.near)
        if threshold <= 0 or math.isinf(exponent):
            return 0.0
        return float(count / len(self.near) * (threshold / edge) ** exponent)

    def _shape(self, threshold: float) -> float:
        """Return the maximum-likelihood shape of the gamma distribution for the counts within a threshold."""
        counts, queries = np.unique(accepts(self.near, threshold).sum(axis=1), return_counts=True)
        mean = float((counts * queries).sum() / queries.sum())
        grid = np.exp(np.linspace(-5, 5, 81))
        return float(grid[int(np.argmax([_log_likelihood(counts, queries, mean, shape) for shape in grid]))])


def _chance_to_avoid(counts: NDArray[np.int64], drawn: int, items: int) -> Floats:
    """Return, for each count c, the probability that `drawn` random items avoid c given ones."""
    values, place = np.unique(counts, return_inverse=True)
    chances = [
        0.0 if drawn > items - c else math.exp(_log_choose(items - c, drawn) - _log_choose(items, drawn))
        for c in values.tolist()
    ]
    return np.array(chances)[place]


def _log_choose(total: int, drawn: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(drawn + 1) - math.lgamma(total - drawn + 1)


def _log_likelihood(counts: NDArray[np.int64], queries: NDArray[np.int64], mean: float, shape: float) -> float:
    """Return the log-likelihood of negative-binomial counts, without terms that do not depend on the shape."""
    rate = shape / (shape + mean)
    terms = (
        q * (math.lgamma(c + shape) - math.lgamma(shape) + shape * math.log(rate) + c * math.log1p(-rate))
        for c, q in zip(counts.tolist(), queries.tolist(), strict=True)
    )
    return float(sum(terms))


def size_model(scores: SearchScores) -> GallerySize:
    """Return a model of the FPIR by gallery size, from searches that include the distances to their nearest items."""
    if scores.near is None:
        raise InvalidParameter("scores", "hold the distances to the nearest items", None)
    near = scores.near[:, : scores.gallery_items - 1]
    return GallerySize(near, scores.gallery_items - 1)
