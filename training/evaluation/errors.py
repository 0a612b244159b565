"""Wrong answers of an evaluation split, as pure functions of vectors and labels.

Each query is searched with its own item in the gallery (is it first?) and without (is anything returned?).
The distance to an item is the plain distance to its nearest photo.
Shapes: n queries, d = embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.search.distance import accepts, plain_distance
from retrieval.metrics.identification import SearchScores

from .evaluate import EvaluationSplit

FOUND, MISIDENTIFIED, MISSED, UNMATED = OUTCOMES = ("found", "misidentified", "missed", "unmated")
FALSE_MATCH = "false match"
KINDS = (MISIDENTIFIED, MISSED, FALSE_MATCH)

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Outcomes:
    """Outcome of each query at a threshold."""

    kind: NDArray[np.str_]  # (n,) one of OUTCOMES
    false_match: NDArray[np.bool_]  # (n,) returns another item, an error if its own is not in the gallery

    @classmethod
    def of(cls, scores: SearchScores, threshold: float) -> Outcomes:
        """Return the outcomes as `identification_rates` counts them: a tie with another item is an error."""
        returned = accepts(scores.impostor, threshold)
        found = accepts(scores.own, threshold) & (scores.own < scores.impostor)
        mistaken = returned & (scores.impostor <= scores.own)
        kind = np.select([~scores.mated, found, mistaken], [UNMATED, FOUND, MISIDENTIFIED], MISSED)
        return cls(kind, returned)

    def counts(self) -> dict[str, int]:
        """Return the number of queries of each outcome, and of false matches."""
        found = {outcome: int((self.kind == outcome).sum()) for outcome in OUTCOMES}
        return found | {FALSE_MATCH: int(self.false_match.sum())}


def worst_rows(outcomes: Outcomes, scores: SearchScores, threshold: float, count: int) -> dict[str, Places]:
    """Return the rows of the worst queries of each of KINDS: those whose distances are furthest from a right answer.

    A mated query is too far by own - min(impostor, threshold), a false match too near by threshold - impostor.
    Misidentified queries are not repeated as false matches.
    """
    too_far = scores.own - np.minimum(scores.impostor, threshold)
    wrong = {kind: outcomes.kind == kind for kind in (MISIDENTIFIED, MISSED)}
    return {
        **{kind: _largest(too_far, rows, count) for kind, rows in wrong.items()},
        FALSE_MATCH: _largest(threshold - scores.impostor, outcomes.false_match & ~wrong[MISIDENTIFIED], count),
    }


@dataclass(frozen=True)
class Neighbour:
    """A gallery photo by its position, and its distance from a query."""

    photo: int
    distance: float


def nearest_photos(
    split: EvaluationSplit,
    vectors: NDArray[np.float32],
    labels: Places,
    row: int,
    groups: NDArray[np.str_] | None = None,
) -> tuple[Neighbour | None, Neighbour | None]:
    """Return the nearest gallery photos of another item and of its own item to the query in a row.

    The query itself is left out, and so are the other items of its group (`item_groups`); None where there is no such
    photo.
    """
    query = int(split.queries[row])
    others = split.gallery[split.gallery != query]
    if groups is not None and groups[query]:
        others = others[(groups[others] != groups[query]) | (labels[others] == labels[query])]
    distances = plain_distance(np.broadcast_to(vectors[query], (len(others), vectors.shape[1])), vectors[others])
    own = labels[others] == labels[query]
    return _nearest(others[~own], distances[~own]), _nearest(others[own], distances[own])


def _nearest(photos: Places, distances: NDArray[np.float64]) -> Neighbour | None:
    if not len(photos):
        return None
    best = int(distances.argmin())
    return Neighbour(int(photos[best]), float(distances[best]))


def _largest(values: NDArray[np.float64], among: NDArray[np.bool_], count: int) -> Places:
    """Return the positions of the largest values; ties keep their order."""
    positions = np.flatnonzero(among)
    return np.asarray(positions[np.argsort(-values[positions], kind="stable")][:count], dtype=np.int64)
