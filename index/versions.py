"""Load the newest version of a gallery, reusing what the previous snapshot has open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.ann.candidates import REBUILD, Candidates
from index.ann.kinds import FLAT

from .arrays import load_array
from .contents import POINT
from .database import RESTORE
from .errors import GalleryCorrupt
from .files import IndexFile
from .segments import OpenSegment, open_segment, sha256
from .snapshot import BLOCK, Base, Snapshot
from .store import Store
from .stored import Rows

TAIL = 8192  # photos scanned without a base
GROWTH = 4  # a tail larger than a quarter of the base goes into a base in memory


def read_snapshot(
    store: Store, folder: Path, indexes: Path, *, dim: int, last: Snapshot | None, searchable: bool = True
) -> Snapshot:
    """Read the newest version, reusing the open files of the last one; without `searchable`, read no indexes.

    Raise GalleryCorrupt if files are damaged, or if a rebuild removes a listed file meanwhile.
    """
    with store.transaction("DEFERRED"):
        (version, layout), listed, index = store.state(), store.segments(), store.index()
        removed, photos, items = store.removed(), store.number("photos"), store.number("items")
        expected, point, features = store.number("live_seqs"), store.kept(POINT), bool(store.features_key())
    opened = {} if last is None else {segment.id: segment for segment in last.segments}
    opened |= {s.id: open_segment(folder, s, dim=dim, features=features) for s in listed if s.id not in opened}
    rows = _read_rows([opened[s.id] for s in listed], removed, last)
    live = int(rows.live.sum())
    same = int(rows.seqs[rows.live].sum()) == expected and live == photos
    if not same or (rows.seqs[1:] <= rows.seqs[:-1]).any():
        raise GalleryCorrupt(f"the segments hold {live} live photos, the database {photos}", remedy=RESTORE)
    about = (version, layout, photos, items, point, dim)
    if not searchable:
        nothing = np.zeros(0, np.int32), Candidates.flat(np.zeros((0, dim), np.float32)), len(rows.seqs)
        return Snapshot(*about, rows.segments, rows.seqs, rows.items, rows.live, None, *nothing)
    return _searchable(about, rows, _base(last, index, indexes), last)


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
    about: tuple[int, int, int, int, bytes | None, int], rows: _Rows, base: Base | None, last: Snapshot | None
) -> Snapshot:
    """Return photos with their index; `about` are the first fields of a snapshot."""
    seqs, dim = rows.seqs, about[-1]
    if base is None or _is_outdated(base, seqs, rows.live):
        base = _in_memory(rows.segments, seqs, rows.live, dim) if base is None or not base.name else base
    positions, start = _positions(base, seqs)
    if last is not None and last.tail_start == start and last.seqs is seqs and last.base is base:
        tail = last.tail
    else:
        tail = Candidates.flat(_gather(rows.segments, start, len(seqs), dim))
    return Snapshot(*about, rows.segments, seqs, rows.items, rows.live, base, positions, tail, start)


def _base(last: Snapshot | None, index: IndexFile | None, indexes: Path) -> Base | None:
    """Return the base in use, either the open one or the one in its file."""
    if index is None:
        return last.base if last is not None and last.base is not None and not last.base.name else None
    if last is not None and last.base is not None and last.base.name == index.name:
        return last.base
    paths = [indexes / f"{index.name}{ending}" for ending in (".faiss", ".npy")]
    try:
        if sha256(*paths) != index.sha256:  # it is read completely anyway
            raise GalleryCorrupt(
                f"index {index.name} has changed since it was written: its sha256 differs", remedy=REBUILD
            )
        seqs = load_array(paths[1], mapped=True)
    except (OSError, ValueError) as error:
        raise GalleryCorrupt(f"the index {index.name} cannot be read: {error}", remedy=RESTORE) from error
    candidates = Candidates.read(paths[0], index.kind, index.settings, count=len(seqs))
    return Base(candidates, seqs, index.name)


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
