"""The folder of a gallery: its database, its files, its newest snapshot, and the lock of the process that writes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .database import DATABASE, FEATURES_KEY, FOLDS_FILE, INDEXES, SEGMENTS, Database
from .errors import GalleryCorrupt, GalleryError, GalleryLocked
from .files import remove_unused, sync_folder, take_lock
from .segments import ENDINGS
from .snapshot import Caches, Snapshot, read_snapshot, without_replaced
from .upkeep.contents_020 import FOLDS_HASH, with_ids

LOCK = "writer.lock"
LOCK_S, LOOK_S = 2.0, 0.02  # time that `lock` waits for another process that writes, and between looks
PARTIAL = f"{DATABASE}.partial"
LEFTOVERS = {PARTIAL, f"{PARTIAL}-wal", f"{PARTIAL}-shm", f"{PARTIAL}-journal"}  # of an interrupted `create`
FAISS, SEQS, ASIDE = ".faiss", ".npy", ".partial"
INDEX_ENDINGS = (FAISS, SEQS, ASIDE)  # of the files of indexes


class GalleryFolder:
    """An opened gallery on this machine. Code that changes attributes or uses the database must hold the `guard`."""

    _lock: int | None = None  # file descriptor while this process is the writer

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.database = Database(path / DATABASE, read_only=read_only)
        self.guard = threading.RLock()
        self.rebuilding = threading.Lock()
        self.newest: Snapshot | None = None  # the cached snapshot
        self.dim = self.database.number("dim")
        self.features_key = self.database.fact(FEATURES_KEY)
        self.caches = Caches(path, self.features_key, self.database, self.guard)

    @staticmethod
    def create(path: Path, facts: Mapping[str, object]) -> None:
        """Create an empty gallery with some facts; raise GalleryError if the path is taken."""
        if path.exists() and not _is_vacant(path):
            raise GalleryError(f"{path} exists and is not empty", remedy="Open it, or choose another directory")
        (path / SEGMENTS).mkdir(parents=True, exist_ok=True)
        lock = take_lock(path / LOCK)
        try:
            if not _is_vacant(path):  # another process created a gallery meanwhile
                raise GalleryError(f"{path} has just been created by another process", remedy="Open it")
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            Database.create(path / PARTIAL, facts)
            (path / PARTIAL).replace(path / DATABASE)  # the database file makes the directory a gallery
            sync_folder(path)
        finally:
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            os.close(lock)

    def close(self) -> None:
        """Close the database and release the write lock."""
        with self.guard:
            self.database.close()
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    __del__ = _unlock  # a version that is still in use may need the database

    # reading

    def snapshot(self) -> Snapshot:
        """Return the newest version as a searchable snapshot, reading it if it is not cached."""
        with self.guard:
            while True:
                state = self.database.state()
                last = self.newest
                if last is not None and state == (last.version, last.layout):
                    return last
                if last is not None:
                    last = self.newest = without_replaced(last, self.database.index())
                try:
                    self.newest = read_snapshot(self.database, self.caches, last=last)
                except GalleryCorrupt:
                    if self.database.state() == state:  # otherwise a rebuild removed a file during the read
                        raise

    def unindexed(self) -> Snapshot:
        """Return the newest version without indexes, which are not needed to rewrite files."""
        with self.guard:
            return read_snapshot(self.database, self.caches, last=self.newest, searchable=False)

    # writing

    def start_writing(self) -> None:
        """Take the write lock until `close`, and clean up after an interrupted write."""
        if self.read_only:
            raise GalleryError(f"{self.path} was opened read-only", remedy="Open it without read_only")
        if self._lock is None:
            self.database.fact("format")  # raises if the gallery is closed
            self._lock = take_lock(self.path / LOCK)
            self.delete_unused_files()
            self._name_kept_photos()

    def _name_kept_photos(self) -> None:
        """Keep contents of version 0.2.0 by photo ids, since changes give photos new numbers."""
        contents = with_ids(self.database, self.snapshot, self.path)
        if contents:
            with self.database.transaction():
                self.database.keep(contents)
            if FOLDS_HASH in contents:
                (self.path / FOLDS_FILE).unlink(missing_ok=True)

    def wait_to_write(self) -> None:
        """Take the write lock until `close`. Wait LOCK_S for another process that writes, then raise GalleryLocked."""
        end = time.monotonic() + LOCK_S
        while True:
            try:
                with self.guard:
                    return self.start_writing()
            except GalleryLocked:
                if time.monotonic() > end:
                    raise
            time.sleep(LOOK_S)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Commit the enclosed statements as one change."""
        before = self.newest
        try:
            with self.database.transaction():
                yield
        except BaseException:
            self.newest = before  # drop the snapshot of a version that was not committed
            raise

    def delete_unused_files(self) -> None:
        """Delete unreferenced files; those that cannot be deleted are left to the next writer."""
        names = {segment.name for segment in self.database.segments()}
        index = self.database.index()
        with suppress(OSError):
            remove_unused(self.path / SEGMENTS, names, ENDINGS)
            remove_unused(self.path / INDEXES, set() if index is None else {index.name}, INDEX_ENDINGS)


def _is_vacant(path: Path) -> bool:
    """Return whether a directory contains nothing but leftovers of an interrupted `create`."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    segments = path / SEGMENTS
    return names <= LEFTOVERS | {SEGMENTS, LOCK} and not (segments.exists() and any(segments.iterdir()))
