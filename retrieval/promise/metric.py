"""Metrics: the scores that collections return, as functions of the plain distance between unit vectors.

Shapes: n scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from index.search.distance import Floats
from retrieval.errors import InvalidParameter

BEYOND = 0.01  # share of the range of scores, by which a rounded score may lie outside of it


@dataclass(frozen=True)
class Metric:
    """A score of two unit vectors. With the plain distance d between them, their cosine is 1 - d² / 2."""

    name: str
    formula: str  # for messages
    is_similarity: bool  # whether a greater score is closer
    of_distance: Callable[[Floats], Floats]
    to_square: Callable[[Floats], Floats]  # square of the plain distance of a score

    @property
    def sign(self) -> str:
        """The comparison of a score with a threshold that accepts it."""
        return ">=" if self.is_similarity else "<="

    @property
    def noun(self) -> str:
        """What users call the number."""
        return "score" if self.is_similarity else "distance"

    def scores(self, distances: ArrayLike) -> Floats:
        """Return the scores (n,) of plain distances."""
        return np.asarray(self.of_distance(np.asarray(distances, dtype=np.float64)))

    def distances(self, scores: ArrayLike) -> Floats:
        """Return the plain distances (n,), 0 to 2, of scores."""
        return np.asarray(np.sqrt(np.clip(self.to_square(np.asarray(scores, dtype=np.float64)), 0.0, 4.0)))

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest score."""
        least, most = sorted(self.scores([0.0, 2.0]).tolist())
        return least, most

    def are_possible(self, scores: ArrayLike) -> np.ndarray:
        """Return whether scores lie in the range, but for what an index rounds (n,); NaN does not."""
        values, (least, most) = np.asarray(scores, dtype=np.float64), self.range
        slack = BEYOND * (most - least)
        return np.asarray((values >= least - slack) & (values <= most + slack))

    def accepts(self, scores: ArrayLike, threshold: float) -> np.ndarray:
        """Return whether scores are at least as close as a threshold (n,)."""
        compared = np.greater_equal if self.is_similarity else np.less_equal
        return np.asarray(compared(np.asarray(scores, dtype=np.float64), threshold))


METRICS = {
    each.name: each
    for each in (
        Metric("cosine", "cosine similarity", True, lambda d: 1 - d**2 / 2, lambda s: 2 - 2 * s),
        Metric("cosine_distance", "1 - cosine", False, lambda d: d**2 / 2, lambda s: 2 * s),
        Metric("ip", "inner product", True, lambda d: 1 - d**2 / 2, lambda s: 2 - 2 * s),
        Metric("negative_ip", "negative inner product", False, lambda d: d**2 / 2 - 1, lambda s: 2 + 2 * s),
        Metric("l2", "Euclidean distance", False, lambda d: d, lambda s: s**2),
        Metric("squared_l2", "squared Euclidean distance", False, lambda d: d**2, lambda s: s),
    )
}


def metric_named(name: str) -> Metric:
    """Return a metric; raise InvalidParameter for another name."""
    if name not in METRICS:
        raise InvalidParameter("metric", f"be one of {', '.join(METRICS)}", name)
    return METRICS[name]
