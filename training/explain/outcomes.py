"""Which searches of a scene go wrong, and which items are taken for each other. Pure functions of vectors and labels.

A query is asked twice: with its own item in the gallery (mated: is it first?) and without (non-mated: is anything
returned?). An item is as far as its nearest photo, as in a search.
Shapes: n queries, m gallery photos, d = embedding size, T items of the gallery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.distance import PLAIN, Measure, accepts
from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import IdentificationRates, SearchScores, identification_rates
from training.evaluation.evaluate import Scene, score_scene

from .item_search import Floats, ItemSearch, Neighbour, OtherAnswers, Places
from .item_utilities import Utilities, item_utilities

FOUND, MISIDENTIFIED, MISSED, UNMATED = OUTCOMES = ("found", "misidentified", "missed", "unmated")
FALSE_ALARM = "false alarm"
WORST = 8  # queries of a kind
MOST_WORST = 50  # what a page can hold
NEIGHBOURS = 4  # items shown beside a query
PAIRS = 12  # confused pairs of items
EXAMPLES = 3  # couples of photos of a confused pair


@dataclass(frozen=True)
class WorstQuery:
    """A query that went wrong, beside what it should have found and what it found."""

    photo: int
    item: int
    outcome: str  # one of OUTCOMES
    own: Neighbour | None  # None where its item has no photo in the gallery
    neighbours: tuple[Neighbour, ...]  # the nearest items, its own among them


@dataclass(frozen=True)
class Mistake:
    """A query, and the photo of another item that it was answered with."""

    query: int
    photo: int
    distance: float


@dataclass(frozen=True)
class ConfusedPair:
    """Two items that searches take for each other."""

    items: tuple[int, int]
    times: int  # searches for one that return the other
    first: int  # of these, with the other before its own item
    queries: int  # searches for either
    distance: float  # mean over `times`
    examples: tuple[Mistake, ...]  # the nearest ones


@dataclass(frozen=True)
class Outcomes:
    """What the threshold makes of each query; all (n,)."""

    kind: NDArray[np.int8]  # place in OUTCOMES
    false_alarm: NDArray[np.bool_]  # returns another item; without its own in the gallery, that is an error
    own: Floats  # distance to its own item, inf where it has none in the gallery
    impostor: Floats  # distance to the nearest other item, inf where there is none
    nearest_other: Places  # label of that item, -1 where there is none

    def count(self, outcome: str) -> int:
        """Return how many queries ended like this."""
        return int((self.kind == OUTCOMES.index(outcome)).sum())


@dataclass(frozen=True)
class Explanation:
    """What is wrong in a scene, the worst first; photos are positions, items are labels."""

    scene: Scene
    threshold: float
    gallery_items: int
    rates: IdentificationRates
    outcomes: Outcomes
    worst: Mapping[str, tuple[WorstQuery, ...]]  # by MISIDENTIFIED, MISSED, FALSE_ALARM
    confused: tuple[ConfusedPair, ...]
    confused_pairs: int  # of which the worst are given
    utilities: Utilities | None  # None where no item has two photos, or there is one item only


def explain(
    scene: Scene,
    vectors: NDArray[np.float32],
    labels: Places,
    *,
    threshold: float,
    measure: Measure = PLAIN,
    worst: int = WORST,
) -> Explanation:
    """Return what goes wrong in a scene at a threshold.

    Parameters
    ----------
    vectors, labels:
        Unit vectors (photos, d) and items (photos,) of all photos that the scene's positions name.
    worst:
        Queries of each kind of error, 1 to 50.
    """
    if not 1 <= worst <= MOST_WORST:
        raise InvalidParameter("worst", f"lie between 1 and {MOST_WORST}", worst)
    search = ItemSearch(scene, vectors, labels, threshold=threshold, measure=measure)
    scores = score_scene(scene, vectors, labels, measure=measure)
    answers = search.other_answers()
    outcomes = outcomes_of(scores, threshold, answers.nearest)
    confused, pairs = confused_pairs(search, answers, outcomes)
    return Explanation(
        scene=scene,
        threshold=threshold,
        gallery_items=scores.gallery_items,
        rates=identification_rates(scores, threshold),
        outcomes=outcomes,
        worst={
            kind: _described(search, rows, outcomes) for kind, rows in worst_rows(outcomes, threshold, worst).items()
        },
        confused=confused,
        confused_pairs=pairs,
        utilities=item_utilities(scene, vectors, labels),
    )


def outcomes_of(scores: SearchScores, threshold: float, nearest_other: Places) -> Outcomes:
    """Return what became of each query, as `identification_rates` counts it: a tie with another item is wrong."""
    returned = accepts(scores.impostor, threshold)
    kind = np.full(len(returned), OUTCOMES.index(MISSED), dtype=np.int8)
    kind[accepts(scores.own, threshold) & (scores.own < scores.impostor)] = OUTCOMES.index(FOUND)
    kind[returned & (scores.impostor <= scores.own)] = OUTCOMES.index(MISIDENTIFIED)
    kind[~scores.mated] = OUTCOMES.index(UNMATED)
    return Outcomes(kind, returned, scores.own, scores.impostor, nearest_other)


def worst_rows(outcomes: Outcomes, threshold: float, worst: int) -> dict[str, Places]:
    """Return the rows of the worst queries of each kind: those that the most would have to change for.

    A mated one lacks own - min(impostor, threshold); a false alarm is threshold - impostor too near. A query that
    is shown as misidentified is not shown as a false alarm, too.
    """
    lacking = outcomes.own - np.minimum(outcomes.impostor, threshold)
    too_near = threshold - outcomes.impostor
    wrong = {outcome: outcomes.kind == OUTCOMES.index(outcome) for outcome in (MISIDENTIFIED, MISSED)}
    return {
        MISIDENTIFIED: _largest(lacking, wrong[MISIDENTIFIED], worst),
        MISSED: _largest(lacking, wrong[MISSED], worst),
        FALSE_ALARM: _largest(too_near, outcomes.false_alarm & ~wrong[MISIDENTIFIED], worst),
    }


def confused_pairs(
    search: ItemSearch, answers: OtherAnswers, outcomes: Outcomes, *, most: int = PAIRS
) -> tuple[tuple[ConfusedPair, ...], int]:
    """Return the pairs of items of which one's searches return the other, the most frequent first, and how many."""
    asked = search.labels[search.scene.queries]
    size = int(search.labels.max()) + 1
    mine = asked[answers.rows]
    couples = np.minimum(mine, answers.items) * size + np.maximum(mine, answers.items)
    codes, inverse = np.unique(couples, return_inverse=True)
    times = np.bincount(inverse, minlength=len(codes))
    ahead = (answers.ranks == 0) & (outcomes.kind[answers.rows] == OUTCOMES.index(MISIDENTIFIED))
    first = np.bincount(inverse[ahead], minlength=len(codes))
    means = np.bincount(inverse, weights=answers.distances, minlength=len(codes)) / np.maximum(times, 1)
    queries = np.bincount(asked, minlength=size)
    found = []
    for place in np.lexsort((codes, means, -first, -times))[:most]:
        entries = np.flatnonzero(inverse == place)
        nearest = entries[np.argsort(answers.distances[entries], kind="stable")][:EXAMPLES]
        one, other = divmod(int(codes[place]), size)
        found.append(
            ConfusedPair(
                items=(one, other),
                times=int(times[place]),
                first=int(first[place]),
                queries=int(queries[one] + queries[other]),
                distance=float(means[place]),
                examples=tuple(_mistake(search, int(answers.rows[e]), int(answers.items[e])) for e in nearest),
            )
        )
    return tuple(found), len(codes)


def _mistake(search: ItemSearch, row: int, item: int) -> Mistake:
    nearest = search.nearest_photo(row, item)
    if nearest is None:  # an item that was returned has a photo
        raise ValueError(f"item {item} has no photo for query {row}")
    return Mistake(int(search.scene.queries[row]), nearest.photo, nearest.distance)


def _described(search: ItemSearch, rows: Places, outcomes: Outcomes) -> tuple[WorstQuery, ...]:
    """Return the queries of some rows with their neighbours."""
    described = []
    for part, distances in search.blocks(rows):
        for row, far in zip(part.tolist(), search.by_item(distances), strict=True):
            nearest = search.items[np.argsort(far, kind="stable")[:NEIGHBOURS]]
            neighbours = [search.nearest_photo(row, int(item)) for item in nearest]
            photo = int(search.scene.queries[row])
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
    """Return the places of the largest values, the first of equals first."""
    places = np.flatnonzero(among)
    return np.asarray(places[np.argsort(-values[places], kind="stable")][:count], dtype=np.int64)
