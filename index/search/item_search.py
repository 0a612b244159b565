"""Searches by item distance in one version of a gallery: for queries, for draws and for evaluation.

The candidates of a query are the nearest items by their nearest photo and, where local features are compared, the items
of the photos with the most votes. All of them are rivals of each other, whatever a filter says: a filter only chooses
which items are answers.
Shapes: n queries, m candidates, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .details import Verifier, check_query_features
from .distance import Floats, Rows, exact_unit, squared_from
from .filters import Filter
from .item_distance import CANDIDATES, RIVALS, ItemDistance, Near, mean_photo
from .votes import most_votes

if TYPE_CHECKING:
    from index.location import AnyPhotos

NOBODY = -1  # position or seq of a photo, or number of an item, that does not exist
TOGETHER = 256  # draws whose candidates are looked for at a time
CLOSE = 0.2  # largest plain distance at which two photos may be copies of each other

IsDuplicate = Callable[[int, int], bool]  # whether the photo at the second position is a copy of the first one's


@dataclass(frozen=True)
class Queries:
    """The queries of n draws."""

    vectors: NDArray[np.float32]  # (n, d) of length one
    numbers: NDArray[np.int32]  # (n,) of their items, NOBODY if the gallery does not have the item
    positions: Rows  # (n, k) of its photos in the gallery, NOBODY for a query from elsewhere
    features: Sequence[bytes] = ()  # of each query from elsewhere, where details are compared


class Draw(NamedTuple):
    """A search without the query's item and, with it but without the query's own photo, another one."""

    distance: float = np.inf  # item distance of the first item without the own one, inf if there is none
    nearest: int = NOBODY  # position of that item's nearest photo
    rivals: tuple[int, ...] = ()  # numbers of the groups of its nearest rivals, at most RIVALS
    without: tuple[float, ...] = ()  # item distance of the first item if its group, or that of a rival, were missing
    plain: float = np.inf  # plain distance to the nearest photo of any other item
    own: float = np.inf  # item distance of the own item, inf if it has no other photo
    own_nearest: int = NOBODY  # position of its nearest other photo
    own_plain: float = np.inf  # plain distance to that photo
    wrong: float = np.inf  # item distance of another item that comes first although the own one is there; else inf
    duplicate: int = NOBODY  # position of a copy of the query in another item


class Candidate(NamedTuple):
    """An item that may be near a query."""

    item: int
    position: int  # of its nearest photo
    photo: float  # plain distance to it
    compared: tuple[int, ...] = ()  # positions of photos whose details are compared


@dataclass(frozen=True)
class _Query:
    exact: Floats  # (1, d) scaled to length one in float64
    features: bytes = b""
    votes: Floats = field(default_factory=lambda: np.zeros(0))  # for each photo of the version
    passing: NDArray[np.bool_] | None = None  # photos that votes may bring; None for all live ones
    itself: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # positions of its own photos, to leave out
    inliers: dict[int, int] = field(default_factory=dict)  # with photos that were compared, by position


@dataclass(frozen=True)
class _Others:
    """The items that a draw leaves in the gallery."""

    near: list[tuple[int, float]]  # position and plain distance of the nearest photo of each of the nearest ones
    left_out: set[int]  # numbers of the items that are not among them
    duplicate: int  # position of a copy of the query in another item, NOBODY without one


@dataclass(frozen=True)
class ItemSearch:
    """Searches one version of a gallery by one item distance."""

    photos: AnyPhotos
    distance: ItemDistance
    verifier: Verifier | None = None  # compares details, if the gallery keeps local features

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        *,
        only: Any = None,
        features: Sequence[bytes] | None = None,
    ) -> list[list[Near]]:
        """Return the k nearest items by item distance, best first, for unit vectors (n, d).

        The nearest 24 items by their nearest photo are ordered by item distance. Any others follow them, and count as
        at least as far. `only` is a `Filter`, or a condition for photos on Milvus.
        """
        if self.distance.is_plain and self.verifier is None:
            plain = self.photos.nearest(vectors, k, only=only)
            return [[Near(position, apart, apart, apart) for position, apart in best] for best in plain]
        described = [b""] * len(vectors) if self.verifier is None else check_query_features(features, len(vectors))
        nearest = self.photos.nearest(vectors, max(k, CANDIDATES))
        passing = nearest if only is None else self.photos.nearest(vectors, max(k, CANDIDATES), only=only)
        mask = only.mask if isinstance(only, Filter) else None
        found = []
        for exact, of_query, near, passed in zip(exact_unit(vectors), described, nearest, passing, strict=True):
            query = self._query(exact[None], of_query)
            rivals = self._candidates(query, near[:CANDIDATES])
            answers = rivals if only is None else self._candidates(replace(query, passing=mask), passed[:CANDIDATES])
            listed = {candidate.item for candidate in answers}
            further = [one for one in self._items(passed[CANDIDATES:]) if one.item not in listed]
            found.append(self._answers(query, rivals, answers, further)[:k])
        return found

    def draws(self, queries: Queries, is_duplicate: IsDuplicate) -> list[Draw]:
        """Return the results of draws. Members of the own item's group and items with a copy of the query are left out.

        The distance of the own item is that of a search in which only the query's own photo is missing.
        """
        found: list[Draw] = []
        with ThreadPoolExecutor(os.cpu_count() or 1 if self.verifier is not None else 1) as pool:
            for start in range(0, len(queries.vectors), TOGETHER):
                rows = range(start, min(start + TOGETHER, len(queries.vectors)))
                others = self._others(queries, rows, is_duplicate)
                found += pool.map(partial(self._draw, queries, is_duplicate), rows, others)
        return found

    def _query(self, exact: Floats, features: bytes) -> _Query:
        if self.verifier is None:
            return _Query(exact)
        return _Query(exact, features, self.photos.votes(self.verifier, self.verifier.asked(features)))

    def _answers(
        self, query: _Query, rivals: list[Candidate], answers: list[Candidate], further: list[Candidate]
    ) -> list[Near]:
        """Return the answers and then the further ones, best first; `rivals` are the nearest items of the gallery.

        With a filter, an answer has the distance to its nearest photo that passes. As a rival, it has that of any.
        """
        others = further if answers is rivals else [*answers, *further]
        measured = self._measured(query, rivals, others)
        first = measured if answers is rivals else measured[len(rivals) :]
        found = sorted(first[: len(answers)], key=lambda near: near.own)
        for near in sorted(first[len(answers) :], key=lambda near: near.own):
            found.append(near._replace(distance=max(near.distance, found[-1].distance if found else 0.0)))
        return found

    def _candidates(self, query: _Query, near: Sequence[tuple[int, float]]) -> list[Candidate]:
        """Return the items of photos at positions and distances, and those of photos with the most votes."""
        numbers = self.photos.items
        found = {candidate.item: candidate for candidate in self._items(near)}
        if self.verifier is None:
            return list(found.values())
        for item in list(found)[: max(1, self.verifier.items)]:
            positions = self._photos_of(query, item)
            distances = squared_from(query.exact, self.photos.vectors(positions))
            nearest = positions[np.lexsort((positions, distances))[: self.verifier.photos]]
            found[item] = found[item]._replace(compared=tuple(nearest.tolist()))
        passing = self.photos.live if query.passing is None else query.passing
        voting = np.flatnonzero((query.votes > 0) & passing)
        for position in most_votes(voting, query.votes[voting], self.verifier.voted).tolist():
            item = int(numbers[position])
            if item not in found:
                positions = self._photos_of(query, item)
                positions = positions[passing[positions]]
                found[item] = _nearest(query, item, positions, self.photos.vectors(positions))
            found[item] = found[item]._replace(compared=(*found[item].compared, position))
        return list(found.values())

    def _items(self, near: Sequence[tuple[int, float]]) -> list[Candidate]:
        return [Candidate(int(self.photos.items[position]), position, apart) for position, apart in near]

    def _measured(
        self,
        query: _Query,
        rivals: Sequence[Candidate],
        others: Sequence[Candidate] = (),
        means: Mapping[int, Floats] | None = None,
    ) -> list[Near]:
        """Return the evidence of each of the rivals and then of each of the others, which are rivals of no item.

        `means` replaces the mean photo of some items.
        """
        candidates = [*rivals, *others]
        if not candidates:
            return []
        about, given = self.photos.about([each.item for each in candidates]), means or {}
        mean = np.stack([given.get(each.item, one.mean) for each, one in zip(candidates, about, strict=True)])
        apart = np.sqrt(squared_from(query.exact, mean))
        inliers = [self._inliers(query, each.compared) for each in candidates]
        own = self.distance.own(np.array([each.photo for each in candidates]), apart, np.array(inliers))
        order = np.argsort(own, kind="stable")
        groups = np.array([one.group for one in about])
        among = np.arange(len(candidates)) < len(rivals)
        distances = np.empty(len(candidates))
        distances[order] = self.distance.with_rivals(own[order][None], groups[order][None], among[order][None])[0]
        evidence = zip(candidates, distances.tolist(), own.tolist(), apart.tolist(), inliers, strict=True)
        return [Near(each.position, d, u, each.photo, c, count) for each, d, u, c, count in evidence]

    def _inliers(self, query: _Query, positions: Sequence[int]) -> int:
        """Return the greatest number of inliers of a query with the photos at some positions."""
        new = [position for position in positions if position not in query.inliers]
        if self.verifier is not None and new:
            counts = self.verifier.inliers(query.features, self.photos.features(np.array(new)))
            query.inliers.update(zip(new, counts.tolist(), strict=True))
        return max((query.inliers[position] for position in positions), default=0)

    def _photos_of(self, query: _Query, item: int) -> Rows:
        """Return the positions of the photos of an item, without the query's own ones."""
        positions = self.photos.photos_of([item])[0]
        return positions[~np.isin(positions, query.itself)] if len(query.itself) else positions

    # draws

    def _others(self, queries: Queries, rows: range, is_duplicate: IsDuplicate) -> list[_Others]:
        """Return the items that are left in the gallery for each of some draws, by their vectors alone."""
        found: dict[int, _Others] = {}
        waiting, k = list(rows), CANDIDATES + 1
        while waiting:
            again, nearest = [], self.photos.nearest(queries.vectors[waiting], k)
            if not found:  # all at once: each of the calls that follow would ask a store for few items
                self.photos.about(sorted({each.item for near in nearest for each in self._items(near)}))
            for row, near in zip(waiting, nearest, strict=True):
                left_out, duplicate = self._left_out(queries, row, self._items(near), is_duplicate)
                others = [(place, apart) for place, apart in near if self.photos.items[place] not in left_out]
                found[row] = _Others(others[:CANDIDATES], left_out, duplicate)
                if len(others) < CANDIDATES and len(near) == k:
                    again.append(row)
            waiting, k = again, 4 * k
        return [found[row] for row in rows]

    def _left_out(
        self, queries: Queries, row: int, candidates: Sequence[Candidate], is_duplicate: IsDuplicate
    ) -> tuple[set[int], int]:
        """Return the own item and the candidates that a draw must not find, and the first copy of the query."""
        left_out = self._own_group(int(queries.numbers[row]), [each.item for each in candidates])
        own = queries.positions[row].tolist()
        copies = [
            each
            for each in candidates
            if each.item not in left_out
            and each.photo <= CLOSE
            and any(is_duplicate(photo, each.position) for photo in own)
        ]
        return left_out | {copy.item for copy in copies}, copies[0].position if copies else NOBODY

    def _own_group(self, number: int, items: Sequence[int]) -> set[int]:
        """Return the number of an item, with those of the items that are of its group."""
        if number == NOBODY:
            return {NOBODY}
        (own,), about = self.photos.about([number]), self.photos.about(items)
        return {number} | {item for item, each in zip(items, about, strict=True) if each.group == own.group}

    def _draw(self, queries: Queries, is_duplicate: IsDuplicate, row: int, others: _Others) -> Draw:
        number, itself = int(queries.numbers[row]), queries.positions[row]
        itself = itself[itself != NOBODY]
        features = b""
        if self.verifier is not None:
            features = self.photos.features(itself)[0] if len(itself) else queries.features[row]
        query = replace(self._query(exact_unit(queries.vectors[[row]]), features), itself=itself)
        candidates, others = self._left(query, queries, row, others, is_duplicate)
        draw, measured = Draw(duplicate=others.duplicate), self._measured(query, candidates)
        if measured:
            first = min(measured, key=lambda near: near.own)
            plain = min(near.photo for near in measured)
            draw = draw._replace(distance=first.distance, nearest=first.position, plain=plain)
            draw = self._with_rivals(draw, measured, [each.item for each in candidates])
        own_photos = self._photos_of(query, number) if number != NOBODY else np.zeros(0, np.int64)
        return self._with_own(query, draw, others, number, own_photos) if len(own_photos) else draw

    def _with_rivals(self, draw: Draw, measured: Sequence[Near], items: Sequence[int]) -> Draw:
        """Return a draw with its rivals, and what its distance would be without the first item or one of them."""
        ordered = sorted(zip(measured, self.photos.about(items), strict=True), key=lambda pair: pair[0].own)
        own, groups = np.array([near.own for near, _ in ordered]), np.array([about.group for _, about in ordered])
        first, *rivals = list(dict.fromkeys(groups.tolist()))[: 1 + RIVALS]
        left = groups != np.array([first, *rivals])[:, None]
        distances = self.distance.with_rivals(np.where(left, own, np.inf), np.broadcast_to(groups, left.shape))
        without = distances[np.arange(len(left)), left.argmax(axis=1)]
        return draw._replace(rivals=tuple(rivals), without=tuple(without.tolist()))

    def _left(
        self, query: _Query, queries: Queries, row: int, others: _Others, is_duplicate: IsDuplicate
    ) -> tuple[list[Candidate], _Others]:
        """Return the candidates of a draw, once the items that votes bring are looked at as well."""
        candidates = self._candidates(self._without(query, others.left_out), others.near)
        while voted := candidates[len(others.near) :]:
            left_out, duplicate = self._left_out(queries, row, voted, is_duplicate)
            if left_out <= others.left_out:
                break
            first = duplicate if others.duplicate == NOBODY else others.duplicate
            others = _Others(others.near, others.left_out | left_out, first)
            candidates = self._candidates(self._without(query, others.left_out), others.near)
        return candidates, others

    def _without(self, query: _Query, items: set[int]) -> _Query:
        """Return a query for which votes bring no photo of some items, and none of its own."""
        if self.verifier is None:
            return query
        passing = self.photos.live & ~np.isin(self.photos.items, list(items))
        passing[query.itself] = False
        return replace(query, passing=passing)

    def _with_own(self, query: _Query, draw: Draw, others: _Others, number: int, own_photos: Rows) -> Draw:
        """Return a draw with the search in which the own item is there, by its photos at some positions."""
        vectors = self.photos.vectors(own_photos)
        own = _nearest(query, number, own_photos, vectors)
        near = sorted([*others.near, (own.position, own.photo)], key=lambda one: (one[1], one[0]))[:CANDIDATES]
        listed = self._candidates(self._without(query, others.left_out - {number}), near)
        is_listed = any(candidate.item == number for candidate in listed)
        every = listed if is_listed else [*listed, own]
        measured = self._measured(query, listed, every[len(listed) :], {number: mean_photo(vectors)})
        found = next(near for near, candidate in zip(measured, every, strict=True) if candidate.item == number)
        rivals = [near for near, candidate in zip(measured, every, strict=True) if candidate.item != number]
        best = min(rivals, key=lambda near: near.own, default=None)
        right = is_listed and (best is None or found.own < best.own)
        return draw._replace(
            own=found.distance,
            own_nearest=own.position,
            own_plain=own.photo,
            wrong=np.inf if right or best is None else best.distance,
        )


def _nearest(query: _Query, item: int, positions: Rows, vectors: NDArray[np.float32]) -> Candidate:
    """Return an item with the nearest of its photos at some positions, with vectors (p, d)."""
    squared = squared_from(query.exact, vectors)
    best = int(np.lexsort((positions, squared))[0])
    return Candidate(item, int(positions[best]), float(np.sqrt(squared[best])))
