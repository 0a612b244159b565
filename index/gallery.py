"""The gallery: photos of items as vectors that can be added, removed and searched, and survive a power cut.

One writer at a time, in any process; any number of readers, in any process and thread. A reader works on an immutable
snapshot of one version and picks up a newer one at its next search.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_ids, check_vectors
from .densities import Densities
from .distance import PLAIN, Measure
from .errors import GalleryCorrupt, GalleryError, GalleryLocked, InvalidParameter
from .segments import remove_strangers, sha256, sync_folder, write_segment
from .snapshot import Neighbour, Snapshot
from .store import Row, Segment, Store, encode_metadata

__all__ = ["Gallery", "Neighbour"]

DATABASE = "gallery.sqlite"
ASIDE = f"{DATABASE}.partial"
SEGMENTS = "segments"
LOCK = "writer.lock"
LEFTOVERS = {ASIDE, f"{ASIDE}-wal", f"{ASIDE}-shm", f"{ASIDE}-journal"}  # of a `create` that was interrupted


class Gallery:
    """A directory of photos, items and vectors. Make one with `create`, use one with `open`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._store = Store(path / DATABASE, read_only=read_only)
        self._guard = threading.RLock()
        self._lock: int | None = None  # file descriptor while this process is the writer
        self._snapshot: Snapshot | None = None
        self._densities = Densities()
        self.dim = self._store.number("dim")
        self.embedding_id = self._store.fact("embedding_id")

    @classmethod
    def create(cls, path: str | Path, *, dim: int, embedding_id: str) -> Gallery:
        """Make an empty gallery for vectors (n, dim) of one embedder; GalleryError where something is already."""
        path = Path(path)
        if dim < 1:
            raise InvalidParameter("dim", "be at least 1", dim)
        if path.exists() and not _is_vacant(path):
            raise GalleryError(f"{path} exists and is not empty", remedy="Open it, or choose another directory")
        (path / SEGMENTS).mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path)
        try:
            if not _is_vacant(path):  # somebody else was faster
                raise GalleryError(f"{path} has just been made by another process", remedy="Open it")
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            Store.create(path / ASIDE, {"dim": dim, "embedding_id": embedding_id, "created": created})
            (path / ASIDE).replace(path / DATABASE)  # its presence makes the directory a gallery
            sync_folder(path)
        finally:
            os.close(lock)
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

    def facts(self) -> dict[str, str]:
        """Return what is written about the gallery as a whole: format, version, dim, embedding_id, created."""
        with self._guard:
            return self._store.facts()

    def photo_ids(self) -> set[str]:
        """Return the ids of all live photos."""
        return {row.photo_id for row in self._current().rows}

    def metadata(self) -> dict[str, dict[str, Any]]:
        """Return photo_id to metadata of all live photos."""
        return {row.photo_id: row.decoded() for row in self._current().rows}

    def contents(self) -> tuple[list[str], list[str], NDArray[np.float32]]:
        """Return photo_ids, item_ids and vectors (n, d) of all live photos of one version, in the same order."""
        now = self._current()
        return [row.photo_id for row in now.rows], [row.item_id for row in now.rows], now.vectors

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
            Vectors (n, d) of length 1 within 1e-3; they are scaled to it.
        metadata, thumbnails:
            One mapping of JSON values, and one JPEG (or None), a photo.
        """
        photo_ids, item_ids = check_ids("photo_ids", photo_ids), check_ids("item_ids", item_ids)
        unit = check_vectors(vectors, self.dim)
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
        if not count:
            return 0
        texts = [encode_metadata(m) for m in metadata] if metadata is not None else ["{}"] * count
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
        photo_ids, item_ids = check_ids("photo_ids", photo_ids or []), check_ids("item_ids", item_ids or [])
        with self._guard:
            self._start_writing()
            with self._store.transaction():
                gone = self._store.existing(photo_ids) | self._store.photos_of_items(item_ids)
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
            if not old:
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
            remove_strangers(self.path / SEGMENTS, {name})

    def search(
        self, vectors: ArrayLike, k: int, *, where: Mapping[str, Any] | None = None, measure: Measure = PLAIN
    ) -> list[list[Neighbour]]:
        """Return, for each of the vectors (n, d), the k nearest items by their nearest photo, best first.

        Distances are exact (`index.distance`); fewer than k items come back only when there are no more.

        Parameters
        ----------
        where:
            Metadata that a photo must have, as equal values; applied before the cut, at the price of one look
            at every photo.
        measure:
            What a distance is: the plain one, or one corrected by density. The first search with a measure works out
            the density around every photo.
        """
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        now = self._current()
        if where:
            now = now.filtered(where)
        densities = now.densities(measure, self._densities)
        return [now.nearest(vector, k, measure, densities) for vector in unit]

    def verify(self) -> list[str]:
        """Read everything and return what is wrong, in words; an empty list is good news."""
        with self._guard:
            problems = self._store.integrity()
            if problems:  # what such a database says of its files means little
                return problems
            while True:
                version = self._store.version()
                problems = [problem for segment in self._store.segments() for problem in self._check_file(segment)]
                if not problems or self._store.version() == version:  # else a merge took a file away meanwhile
                    return problems

    def _check_file(self, segment: Segment) -> list[str]:
        try:
            same = sha256(self.path / SEGMENTS / segment.name) == segment.sha256
        except OSError as error:
            return [f"segment {segment.name} is missing or cannot be read: {error.strerror}"]
        return [] if same else [f"segment {segment.name} is not what was written: its sha256 differs"]

    def _start_writing(self) -> None:
        """Become the one writer until `close`, and clear what an interrupted write left."""
        if self.read_only:
            raise GalleryError(f"{self.path} was opened to read only", remedy="Open it without read_only")
        if self._lock is not None:
            return
        self._lock = _take_lock(self.path)
        remove_strangers(self.path / SEGMENTS, {segment.name for segment in self._store.segments()})

    def _current(self) -> Snapshot:
        """Return the newest version, reading it when it is not the one at hand."""
        with self._guard:
            while True:
                version = self._store.version()
                if self._snapshot is not None and version == self._snapshot.version:
                    return self._snapshot
                try:
                    self._snapshot = Snapshot.read(self._store, self.path / SEGMENTS, dim=self.dim)
                except GalleryCorrupt:
                    if self._store.version() == version:  # else a merge took a file away while it was read
                        raise


def _is_vacant(path: Path) -> bool:
    """Return whether a directory holds nothing but what an interrupted `create` leaves."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    segments = path / SEGMENTS
    return names <= LEFTOVERS | {SEGMENTS, LOCK} and not (segments.exists() and any(segments.iterdir()))


def _take_lock(path: Path) -> int:
    """Return the file descriptor that holds a gallery's lock until it is closed."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise GalleryLocked(f"another process is writing to {path}", remedy="Wait until it has finished") from error
    return lock
