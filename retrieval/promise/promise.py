"""A promise: thresholds for vectors that lie somewhere, with measured error rates, and decisions by them.

Examples
--------
Vectors of 200 items, three each, and two queries: another vector of an item, and a vector of no item.

>>> import numpy as np
>>> generator = np.random.default_rng(0)
>>> centres = generator.normal(size=(200, 64))
>>> items = np.repeat([f"item {n}" for n in range(200)], 3)
>>> vectors = np.repeat(centres, 3, axis=0) + generator.normal(size=(600, 64)) / 2
>>> promise = Promise.measure(vectors, items, target_fpir=0.01)
>>> queries = np.array([centres[7] + generator.normal(size=64) / 2, generator.normal(size=64)])
>>> cosines = queries @ vectors.T / np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(vectors, axis=1))
>>> nearest = np.argsort(-cosines, axis=1)[:, :20]
>>> neighbours = [[(items[row], cosines[query, row]) for row in rows] for query, rows in enumerate(nearest)]
>>> [(answer.decision, answer.item_id) for answer in promise.decide(queries, neighbours)]
[('match', 'item 7'), ('no_match', None)]

Shapes: n vectors, q queries, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.search.distance import Floats, accepts
from index.search.item_distance import ItemDistance
from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.measuring.draws import Probes
from retrieval.measuring.twins import suspected_twins

from .checks import as_array, as_list, check_queries, checked_neighbours, checked_vectors
from .contents import Contents
from .decision import BEYOND_THRESHOLD, MATCH, NO_MATCH, NO_NEIGHBOURS, PERHAPS, SHORT_LIST, TWINS, Decision, Match
from .file import read, write
from .levels import TARGETS, DrawnVectors, Level, Limit, assumptions, few_queries
from .metric import Metric, metric_named
from .neighbours import LEAST_FIT, ItemMeans, Listed, gaps, listed, measure_items
from .table import describe
from .vectors import GivenVectors, fingerprint, largest_gap, lengths, means_of, merged

BEYOND_SEEN = 1.5  # times the largest gap of the draws, up to which scores are taken for true ones
LEAST_KNOWN = 10  # items of a list, of which at least one was there when the promise was measured
SLACK = 0.02  # of a cosine, by which neighbours may be nearer or farther than measured ones


class Promise(Contents):
    """Thresholds of a collection with their error rates, and decisions by them. `measure` or `load` makes one."""

    @classmethod
    def measure(
        cls,
        vectors: ArrayLike,
        items: ArrayLike,
        *,
        target_fpir: float = 0.05,
        metric: str = "cosine",
        groups: ArrayLike | None = None,
        queries: tuple[ArrayLike, ArrayLike] | None = None,
        photo_ids: Sequence[str] | None = None,
        name: str = "vectors",
    ) -> Self:
        """Measure thresholds on searches for each item in turn that leave out its vectors.

        Parameters
        ----------
        vectors, items:
            Vectors (n, d) and the item that each shows (n,). Lengths make no difference to cosines.
        target_fpir:
            Share of queries for unknown items that may return an item, by which `decide` decides.
        metric:
            What your search returns: cosine, cosine_distance, ip, negative_ip, l2 or squared_l2.
        groups:
            Group of the item of each vector, "" for none (n,). Variants of one product are no rivals.
        queries:
            Users' photos, which are measured as they are: vectors (q, d) and item ids (q,), "" for a photo that shows
            no item.
        photo_ids:
            Ids of the vectors, by which the sample is chosen. By default row numbers.
        name:
            Name of the collection, for people.

        Raises
        ------
        InvalidParameter, DataError
            If vectors or items cannot be used: NaN, zero vectors, missing ids.
        CalibrationError
            If there are too few items for the target.
        """
        by = metric_named(metric)
        if not isinstance(target_fpir, int | float) or not 0 < target_fpir < 1:
            raise InvalidParameter("target_fpir", "be a number between 0 and 1, as 0.05 for 5 %", target_fpir)
        given = GivenVectors.checked(vectors, items, metric=by, groups=groups, photo_ids=photo_ids)
        probes = None if queries is None else given.probes(queries)
        return cls(**vars(_measured(given, probes, by, target_fpir, name)))

    def save(self, path: str | Path, *, means: bool = True) -> None:
        """Write the promise: JSON at `path` and, with `means`, the mean vectors of the items in `path`.npz beside it.

        Of faces, means are templates of people. Without them, decisions go by the score alone.
        """
        write(self if means else replace(self, means=None), Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a promise from the file that `save` wrote; raise DataError if it is none, or damaged."""
        return cls(**vars(read(Path(path))))

    @overload
    def decide(self, vectors: NDArray[Any], neighbours: Sequence[tuple[str, float]]) -> Decision: ...

    @overload
    def decide(self, vectors: NDArray[Any], neighbours: Sequence[Sequence[tuple[str, float]]]) -> list[Decision]: ...

    def decide(self, vectors: ArrayLike, neighbours: Sequence[Any]) -> Decision | list[Decision]:
        """Decide which item queries show, if any.

        Parameters
        ----------
        vectors:
            One query (d,), or several (q, d).
        neighbours:
            The nearest vectors that a search of the collection returned for the query, as pairs of item id and score,
            nearest first: 20 are enough. For several queries, a list of such pairs for each.

        Raises
        ------
        InvalidParameter
            If a query has another dimension, is zero or holds NaN, or if scores cannot be of the metric.
        """
        queries, lists = as_array(vectors), as_list(neighbours)
        if queries.ndim == 1:
            return self._decide(self._unit(queries[None])[0], lists)
        units = self._unit(queries)
        if len(units) != len(lists):
            raise InvalidParameter("neighbours", f"be a list for each of the {len(units)} queries", len(lists))
        return [self._decide(query, as_list(each)) for query, each in zip(units, lists, strict=True)]

    def __str__(self) -> str:
        """Return the table of thresholds, with what is wrong with the vectors before it."""
        return describe(self)

    def _unit(self, queries: NDArray[Any]) -> Floats:
        """Return queries (q, d) of length one; raise InvalidParameter for queries that cannot be of this collection."""
        exact = checked_vectors(queries).astype(np.float64)
        if exact.shape[1] != self.dimension:
            raise InvalidParameter(
                "vectors",
                f"have {self.dimension} numbers",
                exact.shape[1],
                remedy="Embed the query with the model of the collection",
            )
        norms = lengths(exact)
        check_queries(norms, "vectors")
        return np.asarray(exact / norms[:, None])

    def _decide(self, query: Floats, neighbours: Sequence[Any]) -> Decision:
        if not neighbours:
            return Decision(NO_MATCH, None, None, None, reason=NO_NEIGHBOURS, neighbours_short=self.means is not None)
        found = listed(checked_neighbours(neighbours, self.metric), self.metric)
        if self.means is None:
            return self._by_score(found)
        self._check_scores(query, found, self.means)
        limit = _required(self.level.item_distance, self.level)
        measured = measure_items(query, found, self.means, self.distance)
        p_values = [self.p_values_of_distances.at(distance) for distance in measured.distances.tolist()]
        within, near = (accepts(measured.distances, each) for each in (limit.threshold, _asked(limit)))
        answer = self._answer(measured.items, measured.scores, p_values, within, near)
        answer = replace(answer, neighbours_short=measured.is_short and answer.decision != MATCH)
        if not measured.is_first and answer.decision == MATCH:
            return replace(
                answer, decision=NO_MATCH, item_id=None, matches=(), reason=SHORT_LIST, neighbours_short=True
            )
        return answer

    def _by_score(self, found: Listed) -> Decision:
        """Return the decision by the score of the nearest photo alone."""
        limit = _required(self.level.score, self.level)
        within, near = (self.metric.accepts(found.scores, each) for each in (limit.threshold, _asked(limit)))
        p_values = [self.p_values_of_scores.at(distance) for distance in found.nearest.tolist()]
        return self._answer(found.items, found.scores, p_values, within, near)

    def _answer(
        self,
        items: list[str],
        scores: list[float],
        p_values: list[float],
        within: NDArray[np.bool_],
        near: NDArray[np.bool_],
    ) -> Decision:
        """Return the decision on items, best first, that are within the threshold, or near enough for a question."""
        is_pair = len(items) > 1 and tuple(sorted(items[:2])) in self.twins
        first = scores[0], p_values[0]
        if is_pair and (within[0] or near[0]):
            return Decision(PERHAPS, items[0], *first, reason=TWINS)
        if not within[0]:
            decision, item = (PERHAPS, items[0]) if near[0] else (NO_MATCH, None)
            return Decision(decision, item, *first, reason=BEYOND_THRESHOLD)
        pairs = zip(items, scores, p_values, within, strict=True)
        matches = tuple(Match(item, score, p_value) for item, score, p_value, is_within in pairs if is_within)
        return Decision(MATCH, items[0], *first, matches=matches)

    def _check_scores(self, query: Floats, found: Listed, means: ItemMeans) -> None:
        """Raise InvalidParameter if the scores of most neighbours cannot be of the metric, or of this collection."""
        nearer, most = gaps(query, found, means)
        if len(found.items) >= LEAST_KNOWN and not any(item in means.numbers for item in found.items):
            raise InvalidParameter(
                "neighbours",
                "name items of the collection",
                found.items[:3],
                remedy="Pass the item ids that were measured; if all of these items are new, measure the promise again",
            )
        beyond = nearer - np.minimum(most, BEYOND_SEEN * self.largest_gap)  # the largest one seen is no bound
        if len(nearer) >= LEAST_FIT and (np.median(nearer) < -SLACK or np.median(beyond) > SLACK):
            raise InvalidParameter(
                "neighbours",
                f"have scores that are the {self.metric.formula} between the query and vectors of the collection",
                found.scores[:3],
                remedy=f"Pass the {self.metric.noun} as the database returns it and the vector that it searched with; "
                "if the model has changed, measure the promise again",
            )


def _measured(given: GivenVectors, probes: Probes | None, by: Metric, target_fpir: float, name: str) -> Contents:
    """Return what draws of vectors show; raise CalibrationError if there are too few items for the target."""
    distance, targets = ItemDistance.default(), sorted({target_fpir, *TARGETS}, reverse=True)
    drawn = DrawnVectors.of(given.photos, distance, queries=probes, targets=targets)
    level = drawn.level(target_fpir, by)
    if level.score is None and level.item_distance is None:
        raise CalibrationError(level.why)
    means, own, pairs = means_of(given.photos), drawn.own, tuple(suspected_twins(drawn.own))
    return Contents(
        name=name,
        metric=by,
        vectors=given.photos.size,
        items=given.photos.item_count,
        dimension=means.means.shape[1],
        target_fpir=target_fpir,
        levels=tuple(level if each == target_fpir else drawn.level(each, by) for each in targets),
        distance=distance,
        p_values_of_scores=drawn.p_values(by_score=True),
        p_values_of_distances=drawn.p_values(by_score=False),
        known=drawn.known,
        largest_gap=largest_gap(own, means, given.photos),
        fingerprint=fingerprint(means),
        assumptions=assumptions(probes),
        warnings=(*given.warnings, *few_queries(probes)),
        twins=pairs,
        twins_cost=_cost_of(pairs, drawn, probes, target_fpir),
        measured=datetime.now(UTC).date().isoformat(),
        means=means,
        drawn=drawn,
    )


def _asked(limit: Limit) -> float:
    """Return the score or distance up to which the first item is worth a question."""
    return limit.threshold if limit.perhaps is None else limit.perhaps


def _required(limit: Limit | None, level: Level) -> Limit:
    if limit is None:
        raise CalibrationError(level.why or f"there is no threshold for an FPIR of {level.target_fpir:g}")
    return limit


def _cost_of(
    pairs: tuple[tuple[str, str], ...], drawn: DrawnVectors, probes: Probes | None, target_fpir: float
) -> float | None:
    """Return the TPIR that pairs of items cost, by draws in which they are no rivals; None without pairs or a TPIR."""
    if not pairs:
        return None
    without = DrawnVectors.of(merged(drawn.photos, pairs), drawn.distance, queries=probes, targets=[target_fpir])
    rates = [each.measure(target_fpir)[1].point for each in (drawn, without)]
    found, merged_found = (None if point is None else point.rates.tpir for point in rates)
    return None if found is None or merged_found is None else max(0.0, merged_found - found)
