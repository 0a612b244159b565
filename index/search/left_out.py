"""Searches for items that are left out: how close other items come, and how close the item itself would come.

Each query is searched twice. The first search leaves out the query's item, the other items of its group, and items with
a copy of the query. The second search leaves out the query's own photos only.
Shapes: n queries, m candidates, p photos, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from index.photos import NONE

from .details import Verifier
from .distance import Floats, Rows, exact_unit
from .exact import pair_squares
from .item_distance import CANDIDATES, RIVALS, ItemDistance, mean_photo
from .item_search import ItemSearch
from .shortlist import Listed, Shortlist
from .tables import Candidates, KnownItems, Table, measured

TOGETHER = 256  # queries that are searched at a time
PHOTOS = 4096  # photos of own items that are read at a time
_OwnItems = tuple[Rows, Rows, Floats, Floats]
CLOSE = 0.2  # largest plain distance at which two photos may be copies of each other


@dataclass(frozen=True)
class Queries:
    """Queries whose items are left out."""

    vectors: NDArray[np.float32]  # (n, d) of length one
    numbers: Rows  # (n,) of their items, NONE for an item that is not here
    positions: Rows  # (n, k) of their photos here, NONE for a query from elsewhere
    features: Sequence[bytes] = ()  # of each query from elsewhere, where local features are compared
    find_copies: bool = True  # whether items with a copy of the query are left out, too

    def where(self, rows: Rows) -> Queries:
        """Return some of the queries."""
        features = [self.features[row] for row in rows.tolist()] if self.features else ()
        return replace(
            self,
            vectors=self.vectors[rows],
            numbers=self.numbers[rows],
            positions=self.positions[rows],
            features=features,
        )


@dataclass(frozen=True)
class LeftOut:
    """The results of the searches of n queries."""

    distances: Floats  # (n,) item distance of the first item if the own item is left out, inf if there is none
    nearest: Rows  # (n,) position of the nearest photo of the first item, NONE if there is none
    plain: Floats  # (n,) plain distance to the nearest photo of another item
    rivals: Rows  # (n, 5) numbers of the groups of the first item's rivals, or NONE
    without: Floats  # (n, 6) `distances` without the first item's group or a rival's group, inf if no item is left
    duplicates: Rows  # (n,) position of a copy of the query in another item, NONE if there is none
    own: Floats  # (n,) item distance of the own item without the query's photos, inf if it has no other photo
    own_nearest: Rows  # (n,) position of the nearest other photo of the own item, NONE if there is none
    own_plain: Floats  # (n,) plain distance to that photo, inf if there is none
    wrong: Floats  # (n,) item distance of another item that comes before the own item, inf if there is none


@dataclass(frozen=True)
class _Others:
    """The candidates that the searches of n queries leave."""

    candidates: Candidates  # (n, 24)
    duplicates: Rows  # (n,)
    left_out: list[set[int]]  # numbers of the items that are not among them, where local features are compared
    shortlists: list[Shortlist] = field(default_factory=list)  # where local features are compared
    near: Candidates | None = None  # (n, 24) the candidates without those that votes bring


def search_without(search: ItemSearch, queries: Queries) -> LeftOut:
    """Search with each query without its item, and without its own photos only."""
    return searches_without(search, queries, [search.distance])[0]


def searches_without(search: ItemSearch, queries: Queries, distances: Sequence[ItemDistance]) -> list[LeftOut]:
    """Search as `search_without` does, by each of several item distances. The photos are read once."""
    count = len(queries.vectors)
    blocks = (np.arange(start, min(start + TOGETHER, count)) for start in range(0, max(1, count), TOGETHER))
    parts = [_searched(search, queries.where(rows), distances) for rows in blocks]
    return [
        LeftOut(*(np.concatenate([getattr(part, each.name) for part in of_one]) for each in fields(LeftOut)))
        for of_one in zip(*parts, strict=True)
    ]


def _searched(search: ItemSearch, queries: Queries, distances: Sequence[ItemDistance]) -> list[LeftOut]:
    """Return what the searches of up to TOGETHER queries find, by each item distance."""
    exact = exact_unit(queries.vectors) if len(queries.vectors) else queries.vectors.astype(np.float64)
    others = _others(search, queries)
    if search.verifier is not None:
        others = _with_details(search, search.verifier, exact, queries, others)
    known = KnownItems.of(search.photos, others.candidates.items, queries.numbers)
    own_items, results = _own_items(search, exact, queries), []
    for distance in distances:
        by_distance = replace(search, distance=distance)
        table = measured(exact, others.candidates, distance, known)
        first, row = table.own.argmin(axis=1), np.arange(len(exact))
        rivals, without = _with_rivals(by_distance, table)
        own, own_nearest, own_plain, wrong = _with_own(by_distance, exact, queries, others, table, own_items)
        left_out = LeftOut(
            distances=table.distances[row, first],
            nearest=table.positions[row, first],
            plain=table.nearest.min(axis=1),
            rivals=rivals,
            without=without,
            duplicates=others.duplicates,
            own=own,
            own_nearest=own_nearest,
            own_plain=own_plain,
            wrong=wrong,
        )
        results.append(left_out)
    return results


def _others(search: ItemSearch, queries: Queries) -> _Others:
    """Return the items that are left for each query, by their vectors alone."""
    count, k = len(queries.vectors), CANDIDATES + 1
    positions, nearest = np.full((count, CANDIDATES), NONE), np.full((count, CANDIDATES), np.inf)
    duplicates, left_out = np.full(count, NONE), [set[int]() for _ in range(count)]
    rows = np.arange(count)
    while len(rows):
        found = Candidates.of(search.photos, *search.photos.nearest(queries.vectors[rows], k))
        gone, duplicates[rows] = _left_out(search, queries.where(rows), found)
        kept = ~gone & (found.items != NONE)
        order = np.argsort(~kept, axis=1, kind="stable")[:, :CANDIDATES]
        remaining = found.without(~kept).take(order)
        positions[rows], nearest[rows] = remaining.positions, remaining.nearest
        if search.verifier is not None:
            for row, items, mask in zip(rows.tolist(), found.items, gone, strict=True):
                left_out[row] = {int(queries.numbers[row]), *items[mask].tolist()}
        rows = rows[(kept.sum(axis=1) < CANDIDATES) & (found.items[:, -1] != NONE)]
        k *= 4
    return _Others(Candidates.of(search.photos, positions, nearest), duplicates, left_out)


def _left_out(search: ItemSearch, queries: Queries, found: Candidates) -> tuple[NDArray[np.bool_], Rows]:
    """Return a mask (n, m) of the candidates that queries must not find, and the position of the first copy (n,)."""
    known, numbers = KnownItems.of(search.photos, found.items, queries.numbers), queries.numbers[:, None]
    is_here = numbers != NONE
    gone = is_here & ((found.items == numbers) | (known.groups_of(found.items) == known.groups_of(numbers)))
    gone &= found.items != NONE
    copies = np.zeros(gone.shape, bool)
    if queries.find_copies:
        rows, columns = (~gone & (found.nearest <= CLOSE)).nonzero()
        for own in queries.positions.T:
            asked = own[rows] != NONE
            pairs = rows[asked], columns[asked]
            copies[pairs] |= search.photos.copies(own[pairs[0]], found.positions[pairs])
    first = np.take_along_axis(found.positions, copies.argmax(axis=1)[:, None], axis=1)[:, 0]
    return gone | copies, np.where(copies.any(axis=1), first, NONE)


def _with_rivals(search: ItemSearch, table: Table) -> tuple[Rows, Floats]:
    """Return the groups of the first item's rivals (n, 5), and the distances (n, 6) without its or a rival's group.

    Each distance is the item distance of the first item that is left.
    """
    ordered = table.take(np.argsort(table.own, axis=1, kind="stable"))
    groups, own, there = ordered.groups, ordered.own, ordered.items != NONE
    width = groups.shape[1]
    before = np.tril(np.ones((width, width), bool), -1)
    is_new = there & ~((groups[:, :, None] == groups[:, None, :]) & before & there[:, None, :]).any(axis=2)
    turn = is_new.cumsum(axis=1) * is_new
    deciding, without = np.full((len(groups), 1 + RIVALS), NONE), np.full((len(groups), 1 + RIVALS), np.inf)
    for place in range(1 + RIVALS):
        is_next = turn == place + 1
        rows = np.flatnonzero(is_next.any(axis=1))
        deciding[rows, place] = groups[rows, is_next[rows].argmax(axis=1)]
        left = there[rows] & (groups[rows] != deciding[rows, place][:, None])
        first = left.argmax(axis=1)[:, None]
        distances = search.distance.with_rivals(np.where(left, own[rows], np.inf), groups[rows], columns=first)
        without[rows, place] = distances[:, 0]
    return deciding[:, 1:], without


# the own item


def _with_own(
    search: ItemSearch, exact: Floats, queries: Queries, others: _Others, table: Table, own_items: _OwnItems
) -> tuple[Floats, Rows, Floats, Floats]:
    """Return the fields of `LeftOut` about the own item (n,)."""
    count = len(exact)
    found = np.full(count, np.inf), np.full(count, NONE), np.full(count, np.inf), np.full(count, np.inf)
    rows, positions, nearest, mean = own_items
    if not len(rows):
        return found
    own = Candidates(
        queries.numbers[rows, None], positions[:, None], nearest[:, None], np.zeros((len(rows), 1), np.int64)
    )
    if search.verifier is None:
        near = others.candidates.rows(rows).beside(own)
        order = np.lexsort((near.positions, near.nearest), axis=1)
        listed, place = near.take(order), (order == CANDIDATES).argmax(axis=1)
        means = np.take_along_axis(np.hstack([table.mean[rows], mean[:, None]]), order, axis=1)
        is_listed = place < CANDIDATES
        farthest = np.arange(CANDIDATES + 1) == CANDIDATES
        listed = listed.without(farthest & is_listed[:, None])
        among = np.broadcast_to(~farthest, listed.items.shape)
    else:
        listed, place, is_listed = _listed_with_details(others, rows, own)
        means = np.full(listed.items.shape, np.nan)
        means[np.arange(len(rows)), place] = mean
        among = (np.arange(listed.items.shape[1]) != place[:, None]) | is_listed[:, None]
    known = KnownItems.of(search.photos, listed.items)
    measures = measured(exact[rows], listed, search.distance, known, mean=means, among=among)
    return _judged(found, rows, measures, place, is_listed)


def _judged(
    found: tuple[Floats, Rows, Floats, Floats], rows: Rows, table: Table, place: Rows, is_listed: NDArray[np.bool_]
) -> tuple[Floats, Rows, Floats, Floats]:
    """Return the fields about the own item, which is in one place of each row of a table."""
    own, own_nearest, own_plain, wrong = found
    each = np.arange(len(rows))
    own[rows], own_nearest[rows] = table.distances[each, place], table.positions[each, place]
    own_plain[rows] = table.nearest[each, place]
    rivals = np.where(np.arange(table.items.shape[1]) == place[:, None], np.inf, table.own)
    best = rivals.argmin(axis=1)
    is_right = is_listed & (table.own[each, place] < rivals[each, best])
    wrong[rows] = np.where(is_right | np.isinf(rivals[each, best]), np.inf, table.distances[each, best])
    return own, own_nearest, own_plain, wrong


def _own_items(search: ItemSearch, exact: Floats, queries: Queries) -> _OwnItems:
    """Return the queries (q,) whose item has other photos, the nearest of these, and the distances to it and the mean.

    All are (q,): rows, positions, plain distances, and plain distances to the mean of the other photos.
    """
    here = np.flatnonzero(queries.numbers != NONE)
    numbers, of = np.unique(queries.numbers[here], return_inverse=True)
    photos = search.photos.photos_of(numbers.tolist())
    own = [photos[number] for number in of.tolist()]
    rows, nearest, distances, means = [], [], [], []
    for some in _together([len(each) for each in own]):
        which = np.repeat(here[some], [len(own[place]) for place in some])
        positions = np.concatenate([own[place] for place in some])
        others = ~(positions[:, None] == queries.positions[which]).any(axis=1)
        which, positions = which[others], positions[others]
        vectors = search.photos.vectors(positions)
        squared = pair_squares(exact, vectors.__getitem__, which, np.arange(len(which)))
        order = np.lexsort((positions, squared, which))
        present, starts = np.unique(which[order], return_index=True)
        rows.append(present)
        nearest.append(positions[order[starts]])
        distances.append(np.sqrt(squared[order[starts]]))
        ends = np.searchsorted(which, present), np.searchsorted(which, present, side="right")
        middle = exact_unit([mean_photo(vectors[start:stop]) for start, stop in zip(*ends, strict=True)] or exact[:0])
        difference = exact[present] - middle
        means.append(np.sqrt(np.minimum(np.vecdot(difference, difference), 4.0)))
    none = np.zeros(0, np.int64), np.zeros(0)
    return (
        np.concatenate([none[0], *rows]),
        np.concatenate([none[0], *nearest]),
        np.concatenate([none[1], *distances]),
        np.concatenate([none[1], *means]),
    )


def _together(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield places in order, as many at a time as have up to PHOTOS photos together, at least one."""
    some, total = list[int](), 0
    for place, count in enumerate(counts):
        if some and total + count > PHOTOS:
            yield some
            some, total = [], 0
        some.append(place)
        total += count
    if some:
        yield some


# local features


def _with_details(search: ItemSearch, verifier: Verifier, exact: Floats, queries: Queries, others: _Others) -> _Others:
    """Return the candidates with the items that votes bring, and with their inliers."""

    def compared(row: int) -> tuple[Shortlist, list[Listed], set[int], int]:
        return _compared(search, verifier, exact, queries, row, others)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(compared, range(len(exact))))
        tables = list(pool.map(lambda each: each[0].compared(each[1]), found))
    return _Others(
        Candidates.padded(tables) if tables else others.candidates,
        np.array([duplicate for *_, duplicate in found], dtype=np.int64),
        [left_out for *_, left_out, _ in found],
        [shortlist for shortlist, *_ in found],
        others.candidates,
    )


def _compared(
    search: ItemSearch, verifier: Verifier, exact: Floats, queries: Queries, row: int, others: _Others
) -> tuple[Shortlist, list[Listed], set[int], int]:
    """Return the shortlist of a query, its items, the items that it leaves out, and the position of its first copy."""
    itself = queries.positions[row]
    itself = itself[itself != NONE]
    features = search.photos.features(itself)[0] if len(itself) else queries.features[row]
    shortlist = replace(Shortlist.of(search.photos, verifier, exact[[row]], features), itself=itself)
    left_out, duplicate = others.left_out[row], int(others.duplicates[row])
    there = others.candidates.items[row] != NONE
    near = others.candidates.positions[row][there], others.candidates.nearest[row][there]
    while True:
        listed = shortlist.without(left_out).listed(*near)
        voted = listed[len(near[0]) :]
        if not voted:
            break
        columns = ([getattr(each, name) for each in voted] for name in ("position", "nearest"))
        positions, nearest = columns
        found = Candidates.of(search.photos, np.array([positions]), np.array([nearest]))
        gone, copy = _left_out(search, queries.where(np.array([row])), found)
        more = set(found.items[gone].tolist())
        if more <= left_out:
            break
        left_out, duplicate = left_out | more, int(copy[0]) if duplicate == NONE else duplicate
    return shortlist, listed, left_out, duplicate


def _listed_with_details(others: _Others, rows: Rows, own: Candidates) -> tuple[Candidates, Rows, NDArray[np.bool_]]:
    """Return the candidates of searches with the own item, its place in each row, and whether it is shortlisted."""

    def listed(place: int) -> tuple[Candidates, int, bool]:
        row, number = int(rows[place]), int(own.items[place, 0])
        near = others.near if others.near is not None else others.candidates
        positions = np.append(near.positions[row], own.positions[place])
        nearest = np.append(near.nearest[row], own.nearest[place])
        order = np.lexsort((positions, nearest))
        order = order[positions[order] != NONE][:CANDIDATES]
        shortlist = others.shortlists[row].without(others.left_out[row] - {number})
        found = shortlist.listed(positions[order], nearest[order])
        items = [each.item for each in found]
        table = shortlist.compared(found)
        if number in items:
            return table, items.index(number), True
        alone = Candidates(*(getattr(own, each.name)[[place]] for each in fields(Candidates)))
        return table.beside(alone), len(items), False

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        parts = list(pool.map(listed, range(len(rows))))
    tables, places, is_listed = zip(*parts, strict=True)
    return Candidates.padded(tables), np.array(places, dtype=np.int64), np.array(is_listed, dtype=bool)
