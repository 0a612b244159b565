"""The gallery: photos of items as vectors that can be added, removed and searched, and survive a power cut.

One writer at a time, in any process; any number of readers, in any process and thread. A reader works on an immutable
snapshot of one version and picks up a newer one at its next search.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .candidates import SLACK, FlatCandidates
from .distance import plain_distance
from .errors import GalleryCorrupt, GalleryError, GalleryLocked, InvalidParameter
from .segments import open_segment, remove_strangers, sha256, sync_folder, write_segment
from .store import Row, Store, encode_metadata

DATABASE = "gallery.sqlite"
SEGMENTS = "segments"
FIRST_FETCH = 32  # candidate photos fetched before grouping by item


@dataclass(frozen=True)
class Neighbour:
    """An item near a query, by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Snapshot:
    """One version, ready to search: live photos only, in the order of `rows`."""

    version: int
    rows: list[Row]
    vectors: NDArray[np.float32]  # (n, d)
    items: NDArray[np.int64]  # (n,) number of each photo's item
    item_count: int
    candidates: FlatCandidates


class Gallery:
    """A directory of photos, items and vectors. Make one with `create`, use one with `open`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._store = Store(path / DATABASE, read_only=read_only)
        self._guard = threading.RLock()
        self._lock: int | None = None  # file descriptor while this process is the writer
        self._snapshot: _Snapshot | None = None
        self.dim = int(self._store.fact("dim"))
        self.embedding_id = self._store.fact("embedding_id")

    @classmethod
    def create(cls, path: str | Path, *, dim: int, embedding_id: str) -> Gallery:
        """Make an empty gallery for vectors (n, dim) of one embedder; GalleryError where something is already."""
        path = Path(path)
        if dim < 1:
            raise InvalidParameter("dim", "be at least 1", dim)
        if path.exists() and any(path.iterdir()):
            raise GalleryError(f"{path} exists and is not empty", remedy="Open it, or choose another directory")
        (path / SEGMENTS).mkdir(parents=True)
        aside = path / f"{DATABASE}.partial"
        created = datetime.now(UTC).isoformat(timespec="seconds")
        Store.create(aside, {"dim": dim, "embedding_id": embedding_id, "created": created})
        aside.replace(path / DATABASE)  # its presence makes the directory a gallery
        sync_folder(path)
        return cls(path, read_only=False)

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Gallery:
        """Open a gallery; GalleryError where there is none."""
        return cls(Path(path), read_only=read_only)

    def __enter__(self) -> Gallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let another process write."""
        with self._guard:
            self._store.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def __len__(self) -> int:
        """Return the number of live photos."""
        return len(self._current().rows)

    @property
    def items(self) -> int:
        """The number of items with a live photo."""
        return self._current().item_count

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return self._current().version

    def photo_ids(self) -> set[str]:
        """Return the ids of all live photos."""
        return {row.photo_id for row in self._current().rows}

    def metadata(self) -> dict[str, dict[str, Any]]:
        """Return photo_id to metadata of all live photos."""
        return {row.photo_id: json.loads(row.metadata) for row in self._current().rows}

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return a photo's JPEG thumbnail, None where it has none."""
        with self._guard:
            return self._store.thumbnail(photo_id)

    def add(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        vectors: ArrayLike,
        *,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        thumbnails: Sequence[bytes | None] | None = None,
        upsert: bool = False,
    ) -> int:
        """Add photos in one transaction and return how many; on an error nothing is added.

        Parameters
        ----------
        photo_ids, item_ids:
            One each a vector. A photo_id that is in the gallery is an error, or replaced with `upsert`.
        vectors:
            Unit vectors (n, d).
        metadata, thumbnails:
            One mapping of JSON values, and one JPEG (or None), a photo.
        """
        unit = self._check_vectors(vectors)
        count = len(photo_ids)
        for name, values in (
            ("item_ids", item_ids),
            ("vectors", unit),
            ("metadata", metadata),
            ("thumbnails", thumbnails),
        ):
            if values is not None and len(values) != count:
                raise InvalidParameter(name, f"have one entry a photo_id ({count})", len(values))
        if len(set(photo_ids)) != count:
            raise InvalidParameter("photo_ids", "be different from each other", "one of them twice")
        if not all(photo_ids) or not all(item_ids):
            raise InvalidParameter("photo_ids and item_ids", "not be empty", "")
        if not count:
            return 0
        with self._guard:
            self._start_writing()
            present = self._store.existing(photo_ids)
            if present and not upsert:
                raise InvalidParameter(
                    "photo_ids",
                    "not be in the gallery yet",
                    min(present),
                    remedy="Pass upsert=True to replace",
                )
            texts = [encode_metadata(m) for m in metadata] if metadata is not None else ["{}"] * count
            name, digest = write_segment(self.path / SEGMENTS, unit)
            with self._store.transaction():
                self._store.remove_photos(present)
                segment = self._store.add_segment(name, count, digest)
                self._store.add_photos(
                    Row(*facts)
                    for facts in zip(photo_ids, item_ids, [segment] * count, range(count), texts, strict=True)
                )
                pictures = zip(photo_ids, thumbnails or [], strict=False)
                self._store.add_thumbnails((photo_id, jpeg) for photo_id, jpeg in pictures if jpeg)
                self._store.next_version()
        return count

    def remove(self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None) -> int:
        """Remove photos, or all photos of items, in one transaction; return how many were there."""
        if photo_ids is None and item_ids is None:
            raise InvalidParameter("photo_ids or item_ids", "be given", None)
        with self._guard:
            self._start_writing()
            with self._store.transaction():
                gone = self._store.existing(list(photo_ids or []))
                gone |= self._store.photos_of_items(list(item_ids or []))
                if gone:
                    self._store.remove_photos(sorted(gone))
                    self._store.next_version()
        return len(gone)

    def merge(self) -> None:
        """Write all live vectors as one segment, and drop the vectors of removed photos."""
        with self._guard:
            self._start_writing()
            now = self._current()
            old = self._store.segments()
            if not now.rows:
                return
            name, digest = write_segment(self.path / SEGMENTS, now.vectors)
            with self._store.transaction():
                self._store.forget_places()
                segment = self._store.add_segment(name, len(now.rows), digest)
                self._store.add_photos(
                    Row(row.photo_id, row.item_id, segment, position, row.metadata)
                    for position, row in enumerate(now.rows)
                )
                self._store.drop_segments(segment.id for segment in old)
                self._store.next_version()
            self._snapshot = None
            remove_strangers(self.path / SEGMENTS, {name})

    def search(self, vectors: ArrayLike, k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Neighbour]]:
        """Return, for each of the vectors (n, d), the k nearest items by their nearest photo, best first.

        Distances are exact (`index.distance`); fewer than k items come back only when there are no more.

        Parameters
        ----------
        where:
            Metadata that a photo must have, as equal values; applied before the cut.
        """
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = self._check_vectors(vectors)
        now = self._current()
        if where:
            now = _filtered(now, where)
        return [_search_one(now, vector, k) for vector in unit]

    def verify(self) -> list[str]:
        """Read everything and return what is wrong, in words; an empty list is good news."""
        with self._guard:
            problems = self._store.integrity()
            for segment in self._store.segments():
                path = self.path / SEGMENTS / segment.name
                if not path.exists():
                    problems.append(f"segment {segment.name} is missing")
                elif sha256(path) != segment.sha256:
                    problems.append(f"segment {segment.name} is not what was written: its sha256 differs")
        return problems

    def _check_vectors(self, vectors: ArrayLike) -> NDArray[np.float32]:
        unit = np.asarray(vectors, dtype=np.float32)
        if unit.ndim != 2 or unit.shape[1] != self.dim:
            raise InvalidParameter("vectors", f"be (n, {self.dim})", unit.shape)
        lengths = np.linalg.norm(unit.astype(np.float64), axis=1)
        wrong = ~(np.abs(lengths - 1) <= 1e-3)  # NaN is wrong too
        if wrong.any():
            raise InvalidParameter("vectors", "be finite and of length one", float(lengths[wrong][0]))
        return unit

    def _start_writing(self) -> None:
        """Become the one writer until `close`, and clear what an interrupted write left."""
        if self.read_only:
            raise GalleryError(f"{self.path} was opened to read only", remedy="Open it without read_only")
        if self._lock is not None:
            return
        lock = os.open(self.path / "writer.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise GalleryLocked(
                f"another process is writing to {self.path}", remedy="Wait until it has finished"
            ) from error
        self._lock = lock
        remove_strangers(self.path / SEGMENTS, {segment.name for segment in self._store.segments()})

    def _current(self) -> _Snapshot:
        """Return the newest version, reading it when it is not the one at hand."""
        with self._guard:
            if self._snapshot is not None and int(self._store.fact("version")) == self._snapshot.version:
                return self._snapshot
            try:
                snapshot = self._read()
            except GalleryCorrupt:  # a merge may have dropped a file between listing and opening
                snapshot = self._read()
            self._snapshot = snapshot
            return snapshot

    def _read(self) -> _Snapshot:
        try:
            with self._store.transaction("DEFERRED"):
                version = int(self._store.fact("version"))
                rows = self._store.photos()
                segments = self._store.segments()
        except sqlite3.DatabaseError as error:
            raise GalleryCorrupt(
                f"the database of {self.path} is damaged: {error}",
                remedy="Restore it from a copy, or index again",
            ) from error
        maps = {s.id: open_segment(self.path / SEGMENTS, s.name, rows=s.rows, dim=self.dim) for s in segments}
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        numbers = np.array([row.segment for row in rows], dtype=np.int64)
        places = np.array([row.row for row in rows], dtype=np.int64)
        for number, mapped in maps.items():
            mine = numbers == number
            vectors[mine] = mapped[places[mine]]
        names, items = np.unique([row.item_id for row in rows], return_inverse=True)
        return _Snapshot(version, rows, vectors, items.astype(np.int64), len(names), FlatCandidates(vectors))


def _search_one(now: _Snapshot, vector: NDArray[np.float32], k: int) -> list[Neighbour]:
    """Fetch candidates until k items are sure, then measure and group them."""
    fetch = max(FIRST_FETCH, 4 * k)
    while True:
        rows, cosines = now.candidates.search(vector, fetch)
        distances = plain_distance(vector[None], now.vectors[rows])
        order = np.lexsort((rows, distances))
        _, first = np.unique(now.items[rows[order]], return_index=True)
        best = order[np.sort(first)]  # the nearest photo of each item, items in order
        if len(rows) == len(now.rows):
            break
        # a photo that was not fetched has at most the last cosine, give or take float32
        nearest_unseen = np.sqrt(max(0.0, 2 - 2 * (float(cosines[-1]) + SLACK)))
        if len(best) >= k and distances[best[k - 1]] < nearest_unseen:
            break
        fetch *= 4
    return [
        Neighbour(
            item_id=now.rows[rows[i]].item_id,
            photo_id=now.rows[rows[i]].photo_id,
            distance=float(distances[i]),
            metadata=json.loads(now.rows[rows[i]].metadata),
        )
        for i in best[:k]
    ]


def _filtered(now: _Snapshot, where: Mapping[str, Any]) -> _Snapshot:
    """Return the snapshot of the photos whose metadata hold all the given values."""
    kept = []
    for position, row in enumerate(now.rows):
        metadata = json.loads(row.metadata)
        if all(key in metadata and metadata[key] == value for key, value in where.items()):
            kept.append(position)
    vectors = now.vectors[kept]
    rows = [now.rows[position] for position in kept]
    return _Snapshot(now.version, rows, vectors, now.items[kept], now.item_count, FlatCandidates(vectors))
