"""Errors of the searches of an evaluation split, and confused items, as pure functions of vectors and labels.

Each query is searched with its own item in the gallery (mated: is it first?) and without (non-mated: is anything
returned?). The distance to an item is that to its nearest photo.
Shapes: n queries, m gallery photos, d = embedding size, T items of the gallery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.search.distance import PLAIN, DistanceForm, accepts
from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import IdentificationRates, SearchScores, identification_rates
from training.evaluation.evaluate import EvaluationSplit, score_split

from .item_search import Floats, ItemSearch, Neighbour, OtherAnswers, Places
from .item_utilities import Utilities, item_utilities

FOUND, MISIDENTIFIED, MISSED, UNMATED = OUTCOMES = ("found", "misidentified", "missed", "unmated")
FALSE_ALARM = "false alarm"
WORST = 8  # queries per kind of error
MOST_WORST = 50  # largest number of queries per kind
NEIGHBOURS = 4  # nearest items per query
PAIRS = 12  # confused pairs of items
EXAMPLES = 3  # pairs of photos per confused pair


@dataclass(frozen=True)
class WorstQuery:
    """A wrong query, with its own item and its nearest items."""

    photo: int
    item: int
    outcome: str  # one of OUTCOMES
    own: Neighbour | None  # None if its item has no photo in the gallery
    neighbours: tuple[Neighbour, ...]  # the nearest items, including its own


@dataclass(frozen=True)
class Mistake:
    """A query, and the returned photo of another item."""

    query: int
    photo: int
    distance: float


@dataclass(frozen=True)
class ConfusedPair:
    """Two items that searches confuse."""

    items: tuple[int, int]
    times: int  # searches for one item that return the other
    first: int  # those that return it before their own item
    queries: int  # searches for either item
    distance: float  # mean over `times`
    examples: tuple[Mistake, ...]  # the nearest ones


@dataclass(frozen=True)
class Outcomes:
    """Outcome of each query at the threshold; all (n,)."""

    kind: NDArray[np.int8]  # index into OUTCOMES
    false_alarm: NDArray[np.bool_]  # returns another item, an error if its own is not in the gallery
    own: Floats  # distance to its own item, inf if not in the gallery
    impostor: Floats  # distance to the nearest other item, inf if there is none
    nearest_other: Places  # label of that item, -1 if there is none

    def count(self, outcome: str) -> int:
        """Return the number of queries with this outcome."""
        return int((self.kind == OUTCOMES.index(outcome)).sum())


@dataclass(frozen=True)
class Explanation:
    """Errors in an evaluation split, worst first; photos are positions, items are labels."""

    split: EvaluationSplit
    threshold: float
    gallery_items: int
    rates: IdentificationRates
    outcomes: Outcomes
    worst: Mapping[str, tuple[WorstQuery, ...]]  # by MISIDENTIFIED, MISSED, FALSE_ALARM
    confused: tuple[ConfusedPair, ...]
    confused_pairs: int  # total number of confused pairs
    utilities: Utilities | None  # None if no item has two photos, or there is only one item


def explain(
    split: EvaluationSplit,
    vectors: NDArray[np.float32],
    labels: Places,
    *,
    threshold: float,
    distance_form: DistanceForm = PLAIN,
    worst: int = WORST,
) -> Explanation:
    """Return the errors in an evaluation split at a threshold.

    Parameters
    ----------
    vectors, labels:
        Unit vectors (photos, d) and labels (photos,) of all photos, which the split refers to by position.
    worst:
        Number of queries per kind of error, 1 to 50.
    """
    if not 1 <= worst <= MOST_WORST:
        raise InvalidParameter("worst", f"lie between 1 and {MOST_WORST}", worst)
    search = ItemSearch(split, vectors, labels, threshold=threshold, distance_form=distance_form)
    scores = score_split(split, vectors, labels, distance_form=distance_form)
    answers = search.other_answers()
    outcomes = outcomes_of(scores, threshold, answers.nearest)
    confused, pairs = confused_pairs(search, answers, outcomes)
    return Explanation(
        split=split,
        threshold=threshold,
        gallery_items=scores.gallery_items,
        rates=identification_rates(scores, threshold),
        outcomes=outcomes,
        worst={
            kind: _described(search, rows, outcomes) for kind, rows in worst_rows(outcomes, threshold, worst).items()
        },
        confused=confused,
        confused_pairs=pairs,
        utilities=item_utilities(split, vectors, labels),
    )


def outcomes_of(scores: SearchScores, threshold: float, nearest_other: Places) -> Outcomes:
    """Return the outcome of each query, as `identification_rates` counts it: a tie with another item is an error."""
    returned = accepts(scores.impostor, threshold)
    kind = np.full(len(returned), OUTCOMES.index(MISSED), dtype=np.int8)
    kind[accepts(scores.own, threshold) & (scores.own < scores.impostor)] = OUTCOMES.index(FOUND)
    kind[returned & (scores.impostor <= scores.own)] = OUTCOMES.index(MISIDENTIFIED)
    kind[~scores.mated] = OUTCOMES.index(UNMATED)
    return Outcomes(kind, returned, scores.own, scores.impostor, nearest_other)


def worst_rows(outcomes: Outcomes, threshold: float, worst: int) -> dict[str, Places]:
    """Return the rows of the worst queries of each kind: those whose distances are furthest from a right answer.

    A mated query is too far by own - min(impostor, threshold), a false alarm too near by threshold - impostor.
    Misidentified queries are not repeated as false alarms.
    """
    too_far = outcomes.own - np.minimum(outcomes.impostor, threshold)
    too_near = threshold - outcomes.impostor
    wrong = {outcome: outcomes.kind == OUTCOMES.index(outcome) for outcome in (MISIDENTIFIED, MISSED)}
    return {
        MISIDENTIFIED: _largest(too_far, wrong[MISIDENTIFIED], worst),
        MISSED: _largest(too_far, wrong[MISSED], worst),
        FALSE_ALARM: _largest(too_near, outcomes.false_alarm & ~wrong[MISIDENTIFIED], worst),
    }


def confused_pairs(
    search: ItemSearch, answers: OtherAnswers, outcomes: Outcomes, *, most: int = PAIRS
) -> tuple[tuple[ConfusedPair, ...], int]:
    """Return the most frequent pairs of items whose searches return each other, and the number of all such pairs."""
    query_labels = search.labels[search.split.queries]
    size = int(search.labels.max()) + 1
    own = query_labels[answers.rows]
    pair_codes = np.minimum(own, answers.items) * size + np.maximum(own, answers.items)
    codes, inverse = np.unique(pair_codes, return_inverse=True)
    times = np.bincount(inverse, minlength=len(codes))
    before_own = (answers.ranks == 0) & (outcomes.kind[answers.rows] == OUTCOMES.index(MISIDENTIFIED))
    first = np.bincount(inverse[before_own], minlength=len(codes))
    means = np.bincount(inverse, weights=answers.distances, minlength=len(codes)) / np.maximum(times, 1)
    queries = np.bincount(query_labels, minlength=size)
    pairs = []
    for index in np.lexsort((codes, means, -first, -times))[:most]:
        entries = np.flatnonzero(inverse == index)
        nearest = entries[np.argsort(answers.distances[entries], kind="stable")][:EXAMPLES]
        first_item, second_item = divmod(int(codes[index]), size)
        pairs.append(
            ConfusedPair(
                items=(first_item, second_item),
                times=int(times[index]),
                first=int(first[index]),
                queries=int(queries[first_item] + queries[second_item]),
                distance=float(means[index]),
                examples=tuple(_mistake(search, int(answers.rows[e]), int(answers.items[e])) for e in nearest),
            )
        )
    return tuple(pairs), len(codes)


def _mistake(search: ItemSearch, row: int, item: int) -> Mistake:
    nearest = search.nearest_photo(row, item)
    if nearest is None:  # a returned item has a photo
        raise ValueError(f"item {item} has no photo for query {row}")
    return Mistake(int(search.split.queries[row]), nearest.photo, nearest.distance)


def _described(search: ItemSearch, rows: Places, outcomes: Outcomes) -> tuple[WorstQuery, ...]:
    """Return the queries of some rows, with their neighbours."""
    described = []
    for part, distances in search.blocks(rows):
        for row, item_distances in zip(part.tolist(), distances, strict=True):
            nearest = search.items[np.argsort(item_distances, kind="stable")[:NEIGHBOURS]]
            neighbours = [search.nearest_photo(row, int(item)) for item in nearest]
            photo = int(search.split.queries[row])
            item = int(search.labels[photo])
            described.append(
                WorstQuery(
                    photo=photo,
                    item=item,
                    outcome=OUTCOMES[outcomes.kind[row]],
                    own=search.nearest_photo(row, item),
                    neighbours=tuple(neighbour for neighbour in neighbours if neighbour is not None),
                )
            )
    return tuple(described)


def _largest(values: Floats, among: NDArray[np.bool_], count: int) -> Places:
    """Return the positions of the largest values; ties keep their order."""
    positions = np.flatnonzero(among)
    return np.asarray(positions[np.argsort(-values[positions], kind="stable")][:count], dtype=np.int64)
