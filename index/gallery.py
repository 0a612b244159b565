"""The gallery: photos of items as vectors that can be added, removed and searched, and survive a power cut.

One writer at a time, in any process; any number of readers, in any process and thread. A reader works on an immutable
snapshot of one version and picks up a newer one at its next search.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_ids, check_stored, check_values, check_vectors
from .densities import Densities
from .distance import PLAIN, Measure
from .errors import GalleryCorrupt, GalleryError, InvalidParameter
from .kinds import FLAT, Choice, choose_kind
from .lock import take_lock
from .merging import build_index, crowded, remove_stranger_indexes, rewrite, worth_rewriting
from .recall import Probe, Recall
from .segments import Part, encode_row, explained, remove_strangers, sync_folder, write_segment
from .snapshot import TAIL, Filter, Neighbour, Snapshot
from .store import Change, Entry, Store, encode_metadata
from .verification import check_files, check_rows
from .where import check_columns, parse_where, to_sql

__all__ = ["Gallery", "Merged", "Neighbour", "StoredPhoto"]

DATABASE = "gallery.sqlite"
ASIDE = f"{DATABASE}.partial"
SEGMENTS, INDEXES, DENSITIES = "segments", "indexes", "densities"
LOCK = "writer.lock"
LEFTOVERS = {ASIDE, f"{ASIDE}-wal", f"{ASIDE}-shm", f"{ASIDE}-journal"}  # of a `create` that was interrupted
MIN_RECALL = 0.99  # lower bound of the decision recall below which an index is refused
UNINDEXED = 0.2  # share of photos outside the index beyond which a merge is due
BLOCK = 4096  # photos read at a time
ATTEMPTS = 5  # at a filter while others write


@dataclass(frozen=True)
class StoredPhoto:
    """A photo as the gallery holds it."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any]
    vector: NDArray[np.float32]  # (d,)


@dataclass(frozen=True)
class Merged:
    """What a merge made."""

    choice: Choice
    recall: Recall | None  # of an approximate kind
    dropped: int  # vectors of removed photos


class Gallery:
    """A directory of photos, items and vectors. Make one with `create`, use one with `open`."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._store = Store(path / DATABASE, read_only=read_only)
        self._guard = threading.RLock()
        self._merging = threading.Lock()
        self._lock: int | None = None  # file descriptor while this process is the writer
        self._snapshot: Snapshot | None = None
        self._densities = Densities(path / DENSITIES)
        self.dim = self._store.number("dim")
        self.embedding_id = self._store.fact("embedding_id")

    @classmethod
    def create(
        cls, path: str | Path, *, dim: int, embedding_id: str, columns: Mapping[str, str] | None = None
    ) -> Gallery:
        """Make an empty gallery for vectors (n, dim) of one embedder; GalleryError where something is already.

        `columns` are metadata keys that filters may use, each text, number or boolean.
        """
        path = Path(path)
        if dim < 1:
            raise InvalidParameter("dim", "be at least 1", dim)
        check_columns(columns or {})
        if path.exists() and not _is_vacant(path):
            raise GalleryError(f"{path} exists and is not empty", remedy="Open it, or choose another directory")
        (path / SEGMENTS).mkdir(parents=True, exist_ok=True)
        lock = take_lock(path / LOCK)
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
        gallery = cls(path, read_only=False)
        if columns:
            gallery.declare(columns)
        return gallery

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
        return self._current().photos

    @property
    def items(self) -> int:
        """The number of items with a live photo."""
        return self._current().item_count

    @property
    def version(self) -> int:
        """The number of changes so far."""
        return self._current().version

    def facts(self) -> dict[str, str]:
        """Return what is written about the gallery as a whole: format, version, dim, embedding_id, created and more."""
        with self._guard:
            return self._store.facts()

    def index(self) -> dict[str, Any]:
        """Return the kind of index in force, what it looks at and what it loses, and the photos outside of it."""
        now = self._current()
        with self._guard:
            file = self._store.index()
        found = {"kind": "flat"} if file is None else {"kind": file.kind, **file.settings}
        return {**found, "scanned_photos": len(now.seqs) - now.tail_start}

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        with self._guard:
            return self._store.columns()

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first."""
        with self._guard:
            return self._store.changes(limit)

    def photo_ids(self) -> set[str]:
        """Return the ids of all live photos."""
        with self._guard:
            return set(self._store.photo_ids())

    def values(self, key: str) -> dict[str, Any]:
        """Return photo_id to the value of a metadata key, for the photos that have one."""
        with self._guard:
            return self._store.values(key)

    def contents(self) -> tuple[list[str], list[str], NDArray[np.float32]]:
        """Return photo_ids, item_ids and vectors (n, d) of all live photos of one version, in the same order."""
        photos = [photo for block in self.walk(BLOCK) for photo in block]
        vectors = np.array([photo.vector for photo in photos], dtype=np.float32).reshape(-1, self.dim)
        return [photo.photo_id for photo in photos], [photo.item_id for photo in photos], vectors

    def walk(self, count: int) -> Iterator[list[StoredPhoto]]:
        """Yield all live photos of one version in the order of adding, `count` at a time."""
        now = self._current()
        live = np.flatnonzero(now.live)
        for start in range(0, len(live), count):
            positions = live[start : start + count]
            photos = zip(positions.tolist(), now.vectors(positions), strict=True)
            yield [StoredPhoto(*now.photo(position), vector) for position, vector in photos]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return a photo's JPEG thumbnail, None where it has none."""
        with self._guard:
            return self._store.thumbnail(photo_id)

    def declare(self, columns: Mapping[str, str]) -> None:
        """Let filters use metadata keys, each text, number or boolean; those declared already stay as they are."""
        check_columns(columns)
        with self._guard:
            self._start_writing()
            known = self._store.columns()
            new = {name: kind for name, kind in columns.items() if known.get(name) != kind}
            for name, kind in new.items():
                if name in known:
                    raise InvalidParameter(f"column {name}", f"stay {known[name]}, as it was declared", kind)
                check_stored(self._store, name, kind)
            if new:
                with self._store.transaction():
                    for name, kind in new.items():
                        self._store.declare(name, kind)
                    self._store.log(f"declare {', '.join(sorted(new))}", 0)

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
            One mapping of JSON values, and one JPEG (or None), a photo. Values of declared columns are of their kind.
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
        with self._guard:
            self._start_writing()
            check_values(metadata or (), self._store.columns())
            texts = [encode_metadata(m) for m in metadata] if metadata is not None else ["{}"] * count
            entries = [Entry(*facts) for facts in zip(photo_ids, item_ids, texts, strict=True)]
            present = self._store.existing(photo_ids)
            if present and not upsert:
                raise InvalidParameter(
                    "photo_ids",
                    "not be in the gallery yet",
                    min(present),
                    remedy="Pass upsert=True to replace",
                )
            with explained(self.path), self._store.transaction():
                self._store.remove_photos(sorted(present))
                first, numbers = self._store.add_photos(entries)
                part = Part(
                    unit,
                    np.arange(first, first + count, dtype=np.int64),
                    np.array(numbers, dtype=np.int32),
                    [encode_row(entry.photo_id, entry.item_id, entry.metadata) for entry in entries],
                )
                name, digest = write_segment(self.path / SEGMENTS, [part], rows=count, dim=self.dim)
                self._store.add_segment(name, count, first, digest)
                pictures = zip(photo_ids, thumbnails or [], strict=False)
                self._store.add_thumbnails((photo_id, jpeg) for photo_id, jpeg in pictures if jpeg)
                self._store.log(f"add, {len(present)} of them replaced" if present else "add", count)
            self._compact()
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
                    self._store.log("remove", len(gone))
        return len(gone)

    def merge(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        probe: Probe | None = None,
        min_recall: float = MIN_RECALL,
        purge: bool = True,
        threads: int | None = None,
    ) -> Merged:
        """Write live vectors together, drop those of removed photos, and build the index anew, while searches go on.

        Parameters
        ----------
        kind:
            Of the index, from `index.kinds`, or "auto": by size and memory. By default as it was told last.
        max_memory:
            Bytes that index and rebuild may take.
        probe:
            What an approximate index is asked, to see what it loses; refused where that is too much (`min_recall`).
        purge:
            Rewrite every segment that holds a removed photo; else only those that hold many.
        """
        with explained(self.path), self._merging:
            with self._guard:
                self._start_writing()
                now = self._current()
                told = self._store.facts()
            kind = kind or told["kind"]
            if max_memory is None and "max_memory" in told:
                max_memory = int(told["max_memory"])
            choice = choose_kind(now.photos, self.dim, kind=kind, max_memory=max_memory)
            chosen = worth_rewriting(now, purge=purge)
            rewritten = rewrite(now, chosen, self.path / SEGMENTS, dim=self.dim) if chosen else None
            index, recall = build_index(
                now,
                choice,
                self.path / INDEXES,
                self._densities,
                probe=probe or Probe(),
                min_recall=min_recall,
                threads=threads or os.cpu_count() or 1,
            )
            with self._guard:
                with self._store.transaction():
                    if rewritten is not None:
                        self._store.drop_segments(rewritten.replaced)
                        self._store.forget_removed(rewritten.dropped)
                        if rewritten.segment is not None:
                            self._store.add_segment(*rewritten.segment)
                    self._store.set_index(index)
                    self._store.set_fact("kind", kind)
                    if max_memory is not None:
                        self._store.set_fact("max_memory", max_memory)
                    self._store.increase("layout")
                    self._store.log(f"merge as {choice.kind}", now.photos)
                self._clear()
        return Merged(choice, recall, len(rewritten.dropped) if rewritten is not None else 0)

    def merge_if_due(self, *, probe: Probe | None = None) -> Merged | None:
        """Merge where the usual kind of index for this size is another one, or does not cover enough of the photos."""
        now, told, index = self._current(), self.facts(), self.index()
        most = int(told["max_memory"]) if "max_memory" in told else None
        usual = choose_kind(now.photos, self.dim, kind=told["kind"], max_memory=most)
        covered = index["scanned_photos"] <= max(TAIL, UNINDEXED * now.photos)
        if usual.kind == index["kind"] and (covered or usual.kind == FLAT):
            return None
        return self.merge(probe=probe, purge=False)

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        measure: Measure = PLAIN,
        within: float | None = None,
    ) -> list[list[Neighbour]]:
        """Return, for each of the vectors (n, d), the k nearest items by their nearest photo, best first.

        Distances are exact (`index.distance`); fewer than k items come back only when there are no more.

        Parameters
        ----------
        where:
            A filter over declared columns, such as "brand = 'x' and price < 10" (`index.where`), before the cut.
        measure:
            What a distance is: the plain one, or one corrected by density. The first search with a measure works out
            the density around every photo.
        within:
            A distance up to which items are wanted: the search stops once it has the nearest item and all of those.
        """
        return self.search_version(vectors, k, where=where, measure=measure, within=within)[1]

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        measure: Measure = PLAIN,
        within: float | None = None,
    ) -> tuple[int, list[list[Neighbour]]]:
        """Do the same, and return the version that was searched with it."""
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        now, only = self._filtered(where) if where is not None else (self._current(), None)
        densities = now.densities(measure, self._densities)
        answers = []
        for vector in unit:
            found = now.nearest(vector, k, measure, densities, only=only, within=within)
            photos = [(now.photo(position), distance) for position, distance in found]
            answers.append([Neighbour(item, photo, distance, values) for (photo, item, values), distance in photos])
        return now.version, answers

    def verify(self) -> list[str]:
        """Read everything and return what is wrong, in words; an empty list is good news."""
        with self._guard:
            problems = self._store.integrity()
            if problems:  # what such a database says of its files means little
                return problems
            while True:
                state = self._store.state()
                problems = check_files(self._store, self.path / SEGMENTS, self.path / INDEXES)
                problems = problems or check_rows(self._store, self.path / SEGMENTS, dim=self.dim)
                if not problems or self._store.state() == state:  # else a merge took a file away meanwhile
                    return problems

    def _filtered(self, where: str) -> tuple[Snapshot, Filter]:
        """Return a snapshot, and the filter over its photos: both of one version."""
        for _ in range(ATTEMPTS):
            now = self._current()
            known = now.known_filter(where)
            if known is not None:
                return now, known
            with self._guard, self._store.transaction("DEFERRED"):
                if self._store.state() != (now.version, now.layout):
                    continue
                passing = self._store.passing(*to_sql(parse_where(where, self._store.columns())))
            return now, now.filter(where, passing)
        raise GalleryError(f"{self.path} changes faster than it can be filtered", remedy="Try again")

    def _start_writing(self) -> None:
        """Become the one writer until `close`, and clear what an interrupted write left."""
        if self.read_only:
            raise GalleryError(f"{self.path} was opened to read only", remedy="Open it without read_only")
        if self._lock is None:
            self._lock = take_lock(self.path / LOCK)
            self._clear()

    def _clear(self) -> None:
        """Delete the files that nothing names any more; what cannot be deleted is left to the next writer."""
        names = {segment.name for segment in self._store.segments()}
        index = self._store.index()
        with suppress(OSError):
            remove_strangers(self.path / SEGMENTS, names)
            remove_stranger_indexes(self.path / INDEXES, None if index is None else index.name)
            self._densities.forget(names)

    def _compact(self) -> None:
        """Write small segments as one where there are many; a merge under way reads them, and does it afterwards."""
        if len(crowded(self._store.segments())) == 0 or not self._merging.acquire(blocking=False):
            return
        try:
            chosen = {segment.id for segment in crowded(self._store.segments())}
            made = rewrite(self._current(), chosen, self.path / SEGMENTS, dim=self.dim)
            with self._store.transaction():
                self._store.drop_segments(made.replaced)
                self._store.forget_removed(made.dropped)
                if made.segment is not None:
                    self._store.add_segment(*made.segment)
                self._store.increase("layout")
            self._clear()
        except (OSError, GalleryError) as error:
            if isinstance(error, GalleryCorrupt):
                raise
            # a full disk: what was asked for is committed, and the next addition tries again
        finally:
            self._merging.release()

    def _current(self) -> Snapshot:
        """Return the newest version, reading it when it is not the one at hand."""
        with self._guard:
            while True:
                state = self._store.state()
                last = self._snapshot
                if last is not None and state == (last.version, last.layout):
                    return last
                try:
                    self._snapshot = Snapshot.read(
                        self._store, self.path / SEGMENTS, self.path / INDEXES, dim=self.dim, last=last
                    )
                except GalleryCorrupt:
                    if self._store.state() == state:  # else a merge took a file away while it was read
                        raise


def _is_vacant(path: Path) -> bool:
    """Return whether a directory holds nothing but what an interrupted `create` leaves."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    segments = path / SEGMENTS
    return names <= LEFTOVERS | {SEGMENTS, LOCK} and not (segments.exists() and any(segments.iterdir()))
