"""The search of a collection itself: whether its scores are of the metric that it names, and which photos it misses.

Shapes: n rows of the collection, q queries, d = embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.search.distance import plain_distance
from retrieval.errors import DataError
from retrieval.promise.metric import METRICS, Metric

from . import Collection, Neighbour
from .reading import Collected

SCORED, DRAWN = 100, 200  # scores that are computed again, and photos that are searched for
PER_QUERY = 5  # neighbours of a query whose scores are computed again
TOGETHER = 16  # photos that are compared with all others at a time
NEIGHBOURS = 20  # photos of a search, as a recipe asks for them
CLOSE = 1e-3  # largest error of a score
TIE = 1e-4  # difference of plain distances of photos that are equally near


@dataclass(frozen=True)
class OwnSearch:
    """Searches of a collection for some of its photos."""

    collected: Collected
    rows: NDArray[np.int64]  # (q,) that were searched for
    results: list[list[Neighbour]]  # of each

    @classmethod
    def of(cls, collection: Collection, collected: Collected) -> OwnSearch | None:
        """Search for up to DRAWN photos, evenly spaced; None if the collection has no search of its own."""
        rows = np.unique(np.linspace(0, len(collected.ids) - 1, DRAWN).round().astype(np.int64))
        results = collection.search(np.asarray(collected.vectors[rows]), NEIGHBOURS + 1)
        return None if results is None else cls(collected, rows, results)

    def check_metric(self, metric: Metric) -> None:
        """Raise DataError unless the scores of the search are those of the metric."""
        known = self.known
        pairs = [
            (row, known[each.photo_id], each.score)
            for row, neighbours in zip(self.rows.tolist(), self.results, strict=True)
            for each in neighbours[:PER_QUERY]
            if each.photo_id in known
        ][:SCORED]
        if not pairs:
            return
        vectors, scores = self.collected.vectors, np.array([score for *_, score in pairs])
        distances = plain_distance(vectors[[row for row, *_ in pairs]], vectors[[other for _, other, _ in pairs]])
        if np.abs(metric.scores(distances) - scores).max() <= CLOSE * max(1.0, float(np.abs(scores).max())):
            return
        fitting = [each.formula for each in METRICS.values() if np.abs(each.scores(distances) - scores).max() <= CLOSE]
        means = f"they are its {fitting[0]}" if fitting else "no metric that is known here fits them"
        example = f"{scores[0]:.4f} where the {metric.formula} is {metric.scores(distances[:1])[0]:.4f}"
        raise DataError(
            f"the scores that {self.collected.name} returns are not the {metric.formula}: {means}, such as {example}",
            remedy="Search by cosine, or by the inner product of vectors of length one",
        )

    def missed(self, vectors: NDArray[np.float32]) -> float:
        """Return the share of searches that miss the nearest photo, given all vectors (n, d) of length one."""
        misses = 0
        for start in range(0, len(self.rows), TOGETHER):
            rows = self.rows[start : start + TOGETHER]
            cosines = vectors[rows] @ vectors.T
            cosines[np.arange(len(rows)), rows] = -np.inf  # not the query itself
            nearest = plain_distance(vectors[rows], vectors[cosines.argmax(axis=1)])
            for row, least, neighbours in zip(rows.tolist(), nearest, self.results[start:], strict=False):
                found = [self.known[each.photo_id] for each in neighbours if each.photo_id in self.known]
                others = vectors[[other for other in found if other != row]]
                misses += plain_distance(vectors[row], others).min(initial=np.inf) > least + TIE
        return misses / len(self.rows)

    @cached_property
    def known(self) -> dict[str, int]:
        """The row of each photo."""
        return {photo: row for row, photo in enumerate(self.collected.ids)}
