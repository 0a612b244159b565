"""Immutable snapshots of one gallery version, searchable from any number of threads.

Positions number the photos in insertion order. The index covers the older photos (the base), newer ones are scanned
(the tail), and removed ones are skipped.
Shapes: n photos, live or removed; d = embedding size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import sqrt
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.ann.faiss_index import REBUILD, Candidates
from index.ann.kinds import FLAT, FP16

from .database import FEATURES_KEY, INDEXES, PHOTO_SEQS, POINT, RESTORE, SEGMENTS, Database, IndexFile
from .errors import GalleryCorrupt, GalleryError
from .files import load_array, sha256
from .groups import number_of
from .photos import CONTENT, NONE, ItemFacts, Keys, Whole, hashed, sampled
from .search.details import Points, Verifier
from .search.distance import Floats, Rows, exact_unit
from .search.exact import MANY, contenders, first_of_items, pair_squares, sweep
from .search.filters import Filter, Value
from .search.item_distance import mean_photo
from .search.votes import InvertedLists, PhotoPoints
from .segments import OpenSegment, open_segment, reading

FIRST_FETCH = 16  # candidate photos in the first fetch, in addition to 1.5 times the average number for k items
MOST_FETCHED = 4096  # upper bound of the first fetch: an item may have very many photos
SCANNED = 20_000  # a filter that passes up to this many photos is searched exhaustively
BLOCK = 4096  # photos per read
MEANS = 20_000  # items whose mean photos are kept in memory
FEW = 64  # maximum number of candidates of a query that are all compared: bounding their distances would take longer
TAIL = 8192  # photos scanned without a base
GROWTH = 4  # a tail larger than a quarter of the base goes into a base in memory
CACHED_KEYS = 2  # keys whose values are kept in memory at a time: the current one and its successor
FILTERS = 32  # filters kept in the cache
ITEM_NUMBERS = "SELECT item_id, number FROM items WHERE item_id IN"
FETCHED = 2**18  # candidates fetched at a time, for all queries together


T = TypeVar("T")


class SegmentCache(Generic[T]):
    """Values by key and segment. Segments never change, so only those of new segments are computed."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, dict[str, T]] = {}

    def of(self, key: str, segments: Sequence[OpenSegment], compute: Callable[[OpenSegment], T]) -> list[T]:
        """Return the value of each segment, in order."""
        with self._guard:
            known = self._known.pop(key, {})
            self._known[key] = {s.name: known[s.name] if s.name in known else compute(s) for s in segments}
            while len(self._known) > CACHED_KEYS:
                del self._known[next(iter(self._known))]
            return list(self._known[key].values())


Facts = tuple[Floats, int]  # mean photo (d,) of an item and the number of its group


class Caches:
    """Values that a gallery computes from its segments, kept for all versions."""

    def __init__(self, path: Path, features_key: str, database: Database, guard: threading.RLock) -> None:
        self.path, self.features_key = path, features_key
        self.database, self.guard = database, guard  # whoever uses the database holds the guard
        self.facts: dict[int, tuple[bytes, Facts]] = {}  # of items by number, with the seqs of their photos
        self.orders: SegmentCache[tuple[Rows, NDArray[np.int32]]] = SegmentCache()  # rows of a segment by item
        self.keys: SegmentCache[tuple[Keys, Keys]] = SegmentCache()  # hashes of item ids and photo ids
        self.lists: SegmentCache[InvertedLists] = SegmentCache()  # of visual words, by their voting


@dataclass(frozen=True)
class Base:
    """An index over photos, identified by seq."""

    candidates: Candidates
    seqs: Rows  # (b,) ascending
    name: str  # file name, "" for an index in memory


class Proposed(NamedTuple):
    """The candidates of n queries, up to m of each."""

    positions: Rows  # (n, m) padded with -1
    cosines: NDArray[np.float32]  # (n, m)
    slack: float  # maximum error of these cosines
    others: list[float]  # (n,) upper bound for the cosine of any other photo, -inf if there is none

    def bounds(self) -> tuple[Floats, Floats]:
        """Return bounds of the squared distances (n, m)."""
        middle = 2 - 2 * self.cosines.astype(np.float64)
        return np.clip(middle - 2 * self.slack, 0, 4), np.clip(middle + 2 * self.slack, 0, 4)


@dataclass(frozen=True)
class Snapshot(Whole):
    """The photos of one version by position, in insertion order: n of them, live or removed."""

    version: int
    layout: int
    photos: int  # number of live photos
    item_count: int
    point: bytes | None  # the operating point that is kept with this version
    dim: int
    caches: Caches
    segments: Sequence[OpenSegment]
    seqs: Rows  # (n,) ascending
    items: NDArray[np.int32]  # (n,) item number of each photo
    live: NDArray[np.bool_]  # (n,)
    base: Base | None
    base_positions: NDArray[np.integer]  # (b,) positions of the photos of the base, -1 for one that no longer exists
    tail: Candidates
    tail_start: int  # first position after the base
    same_picture: Callable[[str, str], bool] | None = None  # compares the pictures of two photos, given their ids
    _facts: dict[int, Facts] = field(default_factory=dict, init=False)  # of items that were looked at
    _contents: dict[int, object] = field(default_factory=dict, init=False)  # hashes of files by position
    _numbers: dict[str, int | None] = field(default_factory=dict, init=False)  # of items that were asked for, by id
    _filters: dict[str, Filter] = field(default_factory=dict, init=False)
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def scanned_photos(self) -> int:
        """The number of photos outside the index."""
        return len(self.seqs) - self.tail_start

    @property
    def kind(self) -> str:
        """The kind of the index in use."""
        return self.base.candidates.kind if self.base is not None and self.base.name else FLAT

    @cached_property
    def _starts(self) -> Rows:
        """Return the first position of each segment, and the end."""
        return np.cumsum([0, *(len(segment.seqs) for segment in self.segments)])

    def filter(self, key: str, passing: Rows, sql: tuple[str, list[Value]]) -> Filter:
        """Return the filter for the live photos whose seqs are in `passing`, and cache it under `key`."""
        mask = np.zeros(len(self.seqs), dtype=bool)
        mask[np.searchsorted(self.seqs, passing)] = True
        mask &= self.live
        few = np.flatnonzero(mask) if int(mask.sum()) <= SCANNED else None
        base = None
        if few is None and self.base is not None:
            known = self.base_positions >= 0
            base = self.base.candidates.selection(np.where(known, mask[self.base_positions], False))
        tail = None if few is not None else self.tail.selection(mask[self.tail_start :])
        return self._keep_filter(key, Filter(mask, few, base, tail, sql))

    def without(self, positions: Rows) -> Snapshot:
        """Return this version as if some live photos were not in it, without the filters that were made for it."""
        live = self.live.copy()
        live[positions] = False
        return replace(self, live=live, photos=int(live.sum()), item_count=len(np.unique(self.items[live])))

    def by_segment(self, positions: Rows) -> Iterator[tuple[OpenSegment, Rows, NDArray[np.bool_]]]:
        """Yield each segment that contains some of the positions, the rows there, and the mask of these positions."""
        of = self._starts.searchsorted(positions, side="right") - 1
        numbers = set(of.tolist())
        if len(numbers) == 1:
            (number,) = numbers
            yield self.segments[number], positions - self._starts[number], np.ones(len(positions), dtype=bool)
            return
        for number in numbers:
            inside = of == number
            yield self.segments[number], positions[inside] - self._starts[number], inside

    def blocks(self, positions: Rows) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors at some positions, one block at a time."""
        if len(positions) > BLOCK:
            self._check(positions)
        for start in range(0, len(positions), BLOCK):
            yield self.vectors(positions[start : start + BLOCK])

    def _check(self, positions: Rows) -> None:
        """Check the vectors at some positions, all at once, because this is faster than by block."""
        for segment, rows, _ in self.by_segment(positions):
            segment.check(rows)

    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Filter | None = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items, as `Photos.nearest`.

        Candidates are fetched until no other photo can be nearer.
        """
        nearest, distances = np.full((len(vectors), k), NONE), np.full((len(vectors), k), np.inf)
        exact, waiting = exact_unit(vectors), np.arange(len(vectors))
        fetch = min(FIRST_FETCH + int(1.5 * k * self.photos / max(1, self.item_count)), MOST_FETCHED)
        while len(waiting):
            together, again = max(1, FETCHED // fetch), []
            for start in range(0, len(waiting), together):
                rows = waiting[start : start + together]
                nearest[rows], distances[rows], is_sure = self._compared(vectors[rows], exact[rows], fetch, k, only)
                again.append(rows[~is_sure])
            waiting = np.concatenate(again)
            fetch *= 4
        return nearest, distances

    def _compared(
        self, vectors: NDArray[np.float32], exact: Floats, fetch: int, k: int, only: Filter | None
    ) -> tuple[Rows, Floats, NDArray[np.bool_]]:
        """Return the nearest photos (n, k) among the candidates, nearest first, their distances, and if they are all.

        A photo is left out if a photo that is no candidate may be as near.
        """
        found = self._candidates(vectors, fetch, only)
        bounds = [sqrt(min(max(2 - 2 * near, 0.0), 4.0)) if near > -np.inf else np.inf for near in found.others]
        limits = np.array(bounds)
        there = found.positions >= 0
        if there.size > FEW:
            least, most = (np.where(there, bound, np.inf) for bound in found.bounds())
            there = contenders(self.items[found.positions], least, most, k)
        rows, positions = there.nonzero()[0], found.positions[there]
        distances = np.sqrt(pair_squares(exact, self.vectors, rows, positions))
        is_sure = distances < limits[rows]
        if not is_sure.all():
            rows, positions, distances = rows[is_sure], positions[is_sure], distances[is_sure]
        nearest, apart, counts = first_of_items(rows, self.items[positions], positions, distances, (len(exact), k))
        return nearest, apart, (counts == k) | np.isinf(limits)

    def _candidates(self, vectors: NDArray[np.float32], fetch: int, only: Filter | None) -> Proposed:
        """Return the candidates of unit vectors (n, d)."""
        scanned = only.few if only is not None else None
        if only is None and len(vectors) >= MANY and self.base is not None and self.base.candidates.kind == FP16:
            scanned = np.flatnonzero(self.live)
        if scanned is not None:
            self._check(scanned)
            found, near, others = sweep(vectors, fetch, self.vectors, scanned)
            return Proposed(found, near, self.tail.slack, (others + 2 * self.tail.slack).tolist())
        parts: list[Proposed] = []
        if self.base is not None:
            rows, cosines = self.base.candidates.search(vectors, fetch, only.base if only else None)
            positions = self.base_positions[rows].astype(np.int64)
            parts.append(self._proposed(self.base.candidates, fetch, rows, positions, cosines))
        if self._tail_lives:
            rows, cosines = self.tail.search(vectors, fetch, only.tail if only else None)
            parts.append(self._proposed(self.tail, fetch, rows, rows + self.tail_start, cosines))
        if len(parts) == 1:
            return parts[0]
        empty = np.zeros((len(vectors), 0), np.int64), np.zeros((len(vectors), 0), np.float32)
        return Proposed(
            np.concatenate([empty[0], *(part.positions for part in parts)], axis=1),
            np.concatenate([empty[1], *(part.cosines for part in parts)], axis=1),
            max([0.0, *(part.slack for part in parts)]),
            [max(others) for others in zip([-np.inf] * len(vectors), *(part.others for part in parts), strict=True)],
        )

    def _proposed(
        self, candidates: Candidates, fetch: int, rows: Rows, positions: Rows, cosines: NDArray[np.float32]
    ) -> Proposed:
        """Return the candidates that an index found, without removed photos."""
        others, most = [-np.inf] * len(rows), 2 * candidates.slack
        if rows.shape[1] == fetch < len(candidates):
            last = zip(rows[:, -1].tolist(), cosines[:, -1].tolist(), strict=True)
            others = [-np.inf if row < 0 else cosine + most for row, cosine in last]
        positions[(rows < 0) | ~self.live[positions]] = -1
        return Proposed(positions, cosines, candidates.slack, others)

    @cached_property
    def _tail_lives(self) -> bool:
        """Return whether the tail contains a live photo."""
        return bool(self.live[self.tail_start :].any())

    @property
    def size(self) -> int:
        """The number of live photos."""
        return self.photos

    @cached_property
    def mark(self) -> tuple[int, int, int]:
        """The number of live photos, the sum of their seqs, and one more than the seq of the newest photo."""
        return self.photos, int(self.seqs[self.live].sum()), int(self.seqs[-1]) + 1 if len(self.seqs) else 0

    def changes_since(self, mark: Sequence[int]) -> int:
        """Return how many photos were added or removed since the version of the gallery that had the given mark."""
        photos, state, until = mark
        if (photos, state) == self.mark[:2]:
            return 0
        start = int(np.searchsorted(self.seqs, until))
        return max(1, int(self.live[start:].sum()) + photos - int(self.live[:start].sum()))

    def photos_of(self, items: Sequence[int]) -> list[Rows]:
        """Return the positions of the live photos of each of some items, by number, ascending."""
        wanted = np.asarray(items, dtype=np.int32)
        parts: list[list[Rows]] = [[] for _ in items]
        orders = self.caches.orders.of("", self.segments, _by_item)
        for start, (order, numbers) in zip(self._starts[:-1].tolist(), orders, strict=True):
            firsts, stops = numbers.searchsorted(wanted), numbers.searchsorted(wanted, side="right")
            for place in np.flatnonzero(stops > firsts).tolist():
                parts[place].append(start + order[firsts[place] : stops[place]])
        found = [np.concatenate([np.zeros(0, np.int64), *part]) for part in parts]
        return [positions[self.live[positions]] for positions in found]

    def items_at(self, positions: Rows) -> Rows:
        """Return the numbers of the items of photos, NONE for NONE."""
        return np.where(positions == NONE, NONE, self.items[positions]) if len(self.items) else positions

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each item that has live photos in this version, by id."""
        missing = [item for item in item_ids if item not in self._numbers]
        if missing:
            known = self._known(ITEM_NUMBERS, missing, 0, self.items)
            self._numbers.update({item: known.get(item) for item in missing})
        numbers = ((item, self._numbers[item]) for item in item_ids)
        return {item: number for item, number in numbers if number is not None}

    def positions(self, photo_ids: Sequence[str]) -> Rows:
        """Return the positions of photos, NONE for photos that this version lacks."""
        known = self._known(PHOTO_SEQS, photo_ids, 1, self.seqs)
        seqs = np.array([known.get(photo_id, NONE) for photo_id in photo_ids], dtype=np.int64)
        places = np.searchsorted(self.seqs, seqs)
        inside = places < len(self.seqs)
        places = np.where(inside, places, 0)
        there = inside & (self.seqs[places] == seqs) & self.live[places] if len(self.seqs) else inside
        return np.where(there, places, NONE)

    def _known(self, query: str, names: Sequence[str], column: int, values: NDArray[np.integer]) -> dict[str, int]:
        """Return a value of items (column 0) or photos (1) by id; those that this version lacks are left out.

        A query asks the newest version. If that is a later one, the segments tell, with the `values` of their photos.
        """
        database = self.caches.database
        with self.caches.guard, database.transaction("DEFERRED"):
            if database.state()[0] == self.version:
                return dict(database.each(query, names))
        places, wanted = np.flatnonzero(self.live & np.isin(self._keys[column], hashed(names))), set(names)
        ids = (photo[:2][1 - column] for photo in self.photos_at(places))
        return {name: value for name, value in zip(ids, values[places].tolist(), strict=True) if name in wanted}

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and the groups of items, by number. They are kept until photos change."""
        wanted = items.tolist()
        facts = {item: known for item in wanted if (known := self._facts.get(item)) is not None}
        missing = [item for item in dict.fromkeys(wanted) if item not in facts]
        if missing:
            facts |= self._read_facts(missing)
            if len(self._facts) + len(missing) > MEANS:
                self._facts.clear()
            self._facts.update({item: facts[item] for item in missing})
        means = np.array([facts[item][0] for item in wanted]).reshape(len(wanted), self.dim)
        return ItemFacts(means, np.array([facts[item][1] for item in wanted], dtype=np.int64))

    def _read_facts(self, items: Sequence[int]) -> dict[int, Facts]:
        """Return the mean photo and the group of items, from an earlier version if their photos have not changed."""
        known, facts, new = self.caches.facts, {}, {}
        for item, positions in zip(items, self.photos_of(items), strict=True):
            state = self.seqs[positions].tobytes()
            last = known.get(item)
            if last is not None and last[0] == state:
                facts[item] = last[1]
            else:
                new[item] = positions
        vectors = self.vectors(np.concatenate([np.zeros(0, np.int64), *new.values()]))
        stops = np.cumsum([len(positions) for positions in new.values()])
        for (item, positions), some in zip(new.items(), np.split(vectors, stops)[:-1], strict=True):
            _, name, metadata = self.photo(int(positions[0]))
            facts[item] = mean_photo(some), number_of(name, metadata)
        if len(known) + len(new) > MEANS:
            known.clear()
        known.update({item: (self.seqs[positions].tobytes(), facts[item]) for item, positions in new.items()})
        return facts

    def keys_of(self, positions: Rows) -> Keys:
        """Return the hashes of the ids of photos."""
        return self._keys[1][positions]

    @cached_property
    def _keys(self) -> tuple[Keys, Keys]:
        """The hashes of the item id and of the photo id of each photo (n,)."""
        parts = self.caches.keys.of("", self.segments, _hashed_ids)
        items, photos = ([np.zeros(0, np.uint64), *(part[column] for part in parts)] for column in (0, 1))
        return np.concatenate(items), np.concatenate(photos)

    def sample(self, most: int, *, excluded: Collection[int] = ()) -> Rows:
        """Return the positions of up to `most` live photos, chosen by the hashes of their ids (`sampled`)."""
        positions = np.flatnonzero(self.live)
        if excluded:
            positions = positions[~np.isin(self.items[positions], list(excluded))]
        items, photos = (keys[positions] for keys in self._keys)
        return np.asarray(positions[sampled(self.items[positions], items, photos)[:most]])

    def with_pictures(self, same_picture: Callable[[str, str], bool]) -> Snapshot:
        """Return this version with a function that compares the pictures of two photos, for `copies`."""
        return replace(self, same_picture=same_picture)

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether photos are copies: the same file or, where pictures can be compared, the same picture."""
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        return np.array([self._is_copy(*pair) for pair in pairs], dtype=bool)

    def _is_copy(self, first: int, second: int) -> bool:
        content = self._content(first)
        if content is not None and content == self._content(second):
            return True
        return self.same_picture is not None and self.same_picture(self.photo(first)[0], self.photo(second)[0])

    def _content(self, position: int) -> object:
        """Return the hash of the file of the photo at a position, None if it is unknown."""
        if position not in self._contents:
            self._contents[position] = self.photo(position)[2].get(CONTENT)
        return self._contents[position]

    def votes(self, verifier: Verifier, asked: Points) -> tuple[Rows, Floats]:
        """Return the positions of live photos with votes for the key points of a query, ascending, and these votes.

        Raises GalleryError if the gallery keeps other features than the verifier compares, or none.
        """
        if verifier.features_key != (kept := self.caches.features_key):
            keeps = "keeps other features than the bundle compares" if kept else "keeps no features"
            raise GalleryError(
                f"{self.caches.path} {keeps}", remedy="Index the photos into a new gallery with this bundle"
            )
        lists = self.caches.lists.of(verifier.voting.key, self.segments, partial(_lists_of, verifier))
        scores = np.concatenate([np.zeros(0), *(each.scores(asked, verifier.voting) for each in lists)])
        voted = np.flatnonzero((scores > 0) & self.live)
        return voted, scores[voted]

    def known_filter(self, key: str) -> Filter | None:
        """Return the cached filter for a key, or None."""
        with self._guard:
            return self._filters.get(key)

    def _keep_filter(self, key: str, new_filter: Filter) -> Filter:
        with self._guard:
            self._filters[key] = new_filter
            while len(self._filters) > FILTERS:
                del self._filters[next(iter(self._filters))]
        return new_filter

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions; raise GalleryCorrupt if one fails its checksum."""
        if len(self.segments) == 1:
            return self.segments[0].read(positions)
        gathered = np.empty((len(positions), self.dim), dtype=np.float32)
        for segment, rows, inside in self.by_segment(positions):
            if len(rows) == len(positions):
                return segment.read(rows)
            gathered[inside] = segment.read(rows)
        return gathered

    def features(self, positions: Rows) -> list[bytes]:
        """Return the local features at some positions; raise GalleryCorrupt if some fail their checksum."""
        gathered: dict[int, bytes] = {}
        for segment, rows, inside in self.by_segment(positions):
            gathered |= dict(zip(positions[inside].tolist(), map(segment.read_features, rows.tolist()), strict=True))
        return [gathered[position] for position in positions.tolist()]

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""
        if len(self.segments) == 1:
            return self.segments[0].photos(positions)
        found: dict[int, tuple[str, str, dict[str, Any]]] = {}
        for segment, rows, inside in self.by_segment(positions):
            if len(rows) == len(positions):
                return segment.photos(rows)
            found |= zip(positions[inside].tolist(), segment.photos(rows), strict=True)
        return [found[position] for position in positions.tolist()]

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""
        return self.photos_at(np.array([position]))[0]


def read_snapshot(database: Database, caches: Caches, *, last: Snapshot | None, searchable: bool = True) -> Snapshot:
    """Read the newest version, reusing the open files of the last one; without `searchable`, read no indexes.

    Raise GalleryCorrupt if files are damaged, or if a rebuild removes a listed file meanwhile.
    """
    with database.transaction("DEFERRED"):
        (version, layout), listed, index = database.state(), database.segments(), database.index()
        removed, photos, items = removed_seqs(database), database.number("photos"), database.number("items")
        expected, point, features = (
            database.number("live_seqs"),
            database.kept(POINT),
            bool(database.fact(FEATURES_KEY)),
        )
        dim = database.number("dim")
    opened = {} if last is None else {segment.id: segment for segment in last.segments}
    opened |= {
        s.id: open_segment(caches.path / SEGMENTS, s, dim=dim, features=features) for s in listed if s.id not in opened
    }
    rows = _read_rows([opened[s.id] for s in listed], removed, last)
    live = int(rows.live.sum())
    same = int(rows.seqs[rows.live].sum()) == expected and live == photos
    if not same or (rows.seqs[1:] <= rows.seqs[:-1]).any():
        raise GalleryCorrupt(f"the segments hold {live} live photos, the database {photos}", remedy=RESTORE)
    about = (version, layout, photos, items, point, dim, caches)
    if not searchable:
        nothing = np.zeros(0, np.int32), Candidates.flat(np.zeros((0, dim), np.float32)), len(rows.seqs)
        return Snapshot(*about, rows.segments, rows.seqs, rows.items, rows.live, None, *nothing)
    return _searchable(about, rows, _base(last, index, caches.path / INDEXES), last)


@dataclass(frozen=True)
class _Rows:
    """The photos of all segments."""

    segments: list[OpenSegment]
    seqs: Rows  # (n,)
    items: NDArray[np.int32]  # (n,)
    live: NDArray[np.bool_]  # (n,)


def _read_rows(segments: list[OpenSegment], removed: Rows, last: Snapshot | None) -> _Rows:
    """Return the photos of some segments; the `removed` ones (ascending seqs) are not live."""
    if last is not None and [s.id for s in segments] == [s.id for s in last.segments]:
        seqs, numbers = last.seqs, last.items
    else:
        seqs = _concatenated([segment.seqs for segment in segments], np.int64)
        numbers = _concatenated([segment.items for segment in segments], np.int32)
    live = np.ones(len(seqs), dtype=bool)
    places = np.searchsorted(seqs, removed)
    inside = places < len(seqs)
    places = places[inside][seqs[places[inside]] == removed[inside]]
    live[places] = False
    return _Rows(segments, seqs, numbers, live)


def _searchable(
    about: tuple[int, int, int, int, bytes | None, int, Caches], rows: _Rows, base: Base | None, last: Snapshot | None
) -> Snapshot:
    """Return photos with their index; `about` are the first fields of a snapshot."""
    seqs, dim = rows.seqs, about[-2]
    if base is None or _is_outdated(base, seqs, rows.live):
        base = _in_memory(rows.segments, seqs, rows.live, dim) if base is None or not base.name else base
    positions, start = _positions(base, seqs)
    if last is not None and last.tail_start == start and last.seqs is seqs and last.base is base:
        tail = last.tail
    else:
        tail = Candidates.flat(_gather(rows.segments, start, len(seqs), dim))
    return Snapshot(*about, rows.segments, seqs, rows.items, rows.live, base, positions, tail, start)


def _hashed_ids(segment: OpenSegment) -> tuple[Keys, Keys]:
    """Return the hashes of the item id and of the photo id of each photo of a segment."""
    photos = segment.photos(np.arange(len(segment.seqs)))
    return hashed(item_id for _, item_id, _ in photos), hashed(photo_id for photo_id, *_ in photos)


def _by_item(segment: OpenSegment) -> tuple[Rows, NDArray[np.int32]]:
    """Return the rows of a segment ordered by item, and the number of the item of each."""
    order = np.argsort(segment.items, kind="stable")
    return order, segment.items[order]


def _lists_of(verifier: Verifier, segment: OpenSegment) -> InvertedLists:
    """Return the lists of the photos of a segment; raise GalleryCorrupt if a word is unknown."""
    voting = verifier.voting
    points = PhotoPoints.of([verifier.points(segment.read_features(row)) for row in range(len(segment.seqs))])
    if len(points.words) and int(points.words.max()) >= len(voting.weights):
        row = int(np.searchsorted(points.starts, np.argmax(points.words), side="right")) - 1
        raise GalleryCorrupt(
            f"the features of photo number {segment.seqs[row]} have a visual word that the bundle does not know",
            remedy=RESTORE,
        )
    return InvertedLists.of(points, voting)


def removed_seqs(database: Database) -> Rows:
    """Return the seqs of removed photos whose vectors are still in a segment, ascending."""
    rows = database.rows("SELECT seq FROM removed ORDER BY seq")
    return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))


def _base(last: Snapshot | None, index: IndexFile | None, indexes: Path) -> Base | None:
    """Return the base in use, either the open one or the one in its file."""
    if index is None:
        return last.base if last is not None and last.base is not None and not last.base.name else None
    if last is not None and last.base is not None and last.base.name == index.name:
        return last.base
    paths = [indexes / f"{index.name}{ending}" for ending in (".faiss", ".npy")]
    with reading(f"index {index.name}"):
        if sha256(*paths) != index.sha256:  # it is read completely anyway
            raise GalleryCorrupt(
                f"index {index.name} has changed since it was written: its sha256 differs", remedy=REBUILD
            )
        seqs = load_array(paths[1], mapped=True)
    return Base(Candidates.read(paths[0], index.kind, index.settings, count=len(seqs)), seqs, index.name)


def without_replaced(last: Snapshot, index: IndexFile | None) -> Snapshot:
    """Return a version without its index if it is not `index`, which frees its memory for the new one."""
    if last.base is None or last.base.name == ("" if index is None else index.name):
        return last
    return replace(last, base=None)


def in_file(snapshot: Snapshot, index: IndexFile | None, indexes: Path) -> Snapshot:
    """Return a snapshot that searches its index in the file instead of in memory."""
    base = snapshot.base
    if base is None or index is None or base.name != index.name:
        return snapshot
    path = indexes / f"{index.name}.faiss"
    mapped = Candidates.read(path, index.kind, index.settings, count=len(base.seqs), mapped=True)
    return replace(snapshot, base=replace(base, candidates=mapped))


def _is_outdated(base: Base, seqs: Rows, live: NDArray[np.bool_]) -> bool:
    """Return whether too many photos were added or removed since the base was built."""
    last = int(base.seqs[-1]) if len(base.seqs) else -1
    newer = len(seqs) - int(np.searchsorted(seqs, last, side="right"))
    alive = int(live[: len(seqs) - newer].sum())
    return newer > max(TAIL, len(base.seqs) // GROWTH) or alive < len(base.seqs) * (1 - 1 / GROWTH)


def _in_memory(segments: list[OpenSegment], seqs: Rows, live: NDArray[np.bool_], dim: int) -> Base | None:
    """Return an exact base over all live photos, or None if there are few."""
    if len(seqs) <= TAIL:
        return None

    def blocks() -> Iterator[NDArray[np.float32]]:
        place = 0
        for segment in segments:
            segment.check(np.arange(len(segment.seqs)))
            for start in range(0, len(segment.seqs), BLOCK):
                block = segment.read(slice(start, start + BLOCK))
                chosen = live[place + start : place + start + len(block)]
                yield block if chosen.all() else block[chosen]
            place += len(segment.seqs)

    candidates = Candidates.build(FLAT, blocks, int(live.sum()), dim, threads=1)
    return Base(candidates, seqs if live.all() else seqs[live], "")


def _concatenated(parts: list[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    """Concatenate arrays; a single array stays memory-mapped."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, kind), *parts])


def _positions(base: Base | None, seqs: Rows) -> tuple[NDArray[np.integer], int]:
    """Return the position of each photo of the base, and the first position after them."""
    if base is None or not len(base.seqs):
        return np.zeros(0, np.int32), 0
    start = int(np.searchsorted(seqs, base.seqs[-1], side="right"))
    places = np.searchsorted(seqs[:start], base.seqs)
    there = np.zeros(len(places), dtype=bool)
    inside = places < start
    there[inside] = seqs[places[inside]] == base.seqs[inside]
    return np.where(there, places, -1).astype(np.int32), start


def _gather(segments: list[OpenSegment], start: int, stop: int, dim: int) -> NDArray[np.float32]:
    """Return the vectors from position `start` up to `stop`."""
    vectors = np.empty((max(0, stop - start), dim), dtype=np.float32)
    place = 0
    for segment in segments:
        rows = len(segment.seqs)
        first, last = max(start, place), min(stop, place + rows)
        if first < last:
            vectors[first - start : last - start] = segment.read(slice(first - place, last - place))
        place += rows
    return vectors
