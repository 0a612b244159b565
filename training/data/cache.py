"""Disk cache of decoded photos, shared by processes and by later runs.

A cache is a folder of packs. A pack holds pixels, records with their offsets, and a tail. It is written to a temporary
file, synced, renamed and never changed, so that any number of processes can read and write at once, and a process that
is killed leaves only a temporary file. Two processes that decode the same photo at the same time both store it.

The key of a photo is its path, file size, modification time, byte range and bbox; the folder's name holds everything
else that decides the pixels. Outdated photos are not removed: delete the folder to free the space.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import __version__ as pillow
from PIL import features

from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from retrieval.files import read_stretch

PACK_BYTES = 256 * 2**20  # size from which a pack is published
FREE_BYTES = 2**30  # disk space that is left free
RESCAN_SECONDS = 10.0  # interval between searches for packs of other processes
ORPHAN_SECONDS = 86_400.0  # age from which a temporary file is deleted
RECORD = np.dtype(
    [("key", "<u8"), ("more", "<u8"), ("offset", "<u8"), ("width", "<u4"), ("height", "<u4"), ("exact", "<u8")]
)
TAIL = struct.Struct("<Q8s")  # number of records, and the format
FORMAT = b"pixels-1"

log = logging.getLogger("retrieval.training")


class Decoded(NamedTuple):
    """A decoded photo, uint8 (h, w, 3); not `exact` if it was reduced for training."""

    pixels: np.ndarray
    exact: bool


class _Index(NamedTuple):
    """Records of all packs, sorted by key, and the pack of each."""

    paths: tuple[Path, ...] = ()
    records: np.ndarray = np.empty(0, RECORD)
    packs: np.ndarray = np.empty(0, np.int64)

    def find(self, key: bytes) -> tuple[Path, np.void] | None:
        first, more = struct.unpack("<QQ", key)
        keys = self.records["key"]
        position = int(np.searchsorted(keys, np.uint64(first)))
        while position < len(keys) and keys[position] == first:
            if self.records["more"][position] == more:
                return self.paths[self.packs[position]], self.records[position]
            position += 1
        return None


class _Pack(NamedTuple):
    """A pack that is being written."""

    path: Path
    file: BinaryIO
    records: list[tuple[int, int, int, int, int, int]]
    keys: set[bytes]


class _Writer:
    """Writes packs, one at a time."""

    def __init__(self, folder: Path, pack_bytes: int) -> None:
        self._folder = folder
        self._pack_bytes = pack_bytes
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._pack: _Pack | None = None
        self._unpublished: set[bytes] = set()  # keys in packs that are not yet published
        self._writes = True

    def put(self, key: bytes, photo: Decoded) -> bool:
        """Write a photo; return whether it filled a pack, which is then published."""
        data = photo.pixels.tobytes()
        height, width = photo.pixels.shape[:2]
        with self._lock:
            if not self._writes or key in self._unpublished:
                return False
            try:
                pack = self._pack = self._pack or self._begin()
                offset = pack.file.tell()
                pack.file.write(data)
            except OSError as error:
                self._give_up(error)
                return False
            pack.records.append((*struct.unpack("<QQ", key), offset, width, height, int(photo.exact)))
            pack.keys.add(key)
            self._unpublished.add(key)
            if offset + len(data) < self._pack_bytes:
                return False
            self._pack = None
        self._finish(pack)
        return True

    def publish(self) -> None:
        if os.getpid() != self._process:  # after a fork, the pack belongs to the parent
            return
        with self._lock:
            pack, self._pack = self._pack, None
        if pack is not None:
            self._finish(pack)

    def _begin(self) -> _Pack:
        free = shutil.disk_usage(self._folder).free
        if free < FREE_BYTES + self._pack_bytes:
            raise OSError(None, f"only {free / 2**30:.1f} GiB are free")
        path = self._folder / f"{uuid.uuid4().hex}.partial"
        return _Pack(path, path.open("xb"), [], set())

    def _finish(self, pack: _Pack) -> None:
        """Write the records and the tail, and publish the pack, without holding the lock."""
        try:
            with pack.file as file:
                file.write(np.array(pack.records, RECORD).tobytes())
                file.write(TAIL.pack(len(pack.records), FORMAT))
                file.flush()
                os.fsync(file.fileno())
            pack.path.rename(pack.path.with_suffix(".pack"))
        except OSError as error:
            pack.path.unlink(missing_ok=True)
            with self._lock:
                self._give_up(error)
        with self._lock:
            self._unpublished -= pack.keys

    def _give_up(self, error: OSError) -> None:
        self._writes = False
        log.warning("%s: cannot cache more photos: %s", self._folder, error.strerror or error)
        if self._pack is not None:
            with contextlib.suppress(OSError):  # closing flushes, which fails again
                self._pack.file.close()
            self._pack.path.unlink(missing_ok=True)
            self._pack = None


class PixelCache:
    """Disk cache in one folder; any number of threads may share it."""

    def __init__(self, folder: str | Path, *, min_side: int, pack_bytes: int = PACK_BYTES) -> None:
        jpeg = features.version("libjpeg_turbo") or features.version("jpg")
        decoders = f"pillow-{pillow}-jpeg-{jpeg}-webp-{features.version('webp')}"
        self.folder = Path(folder) / f"{FORMAT.decode()}-side-{min_side}-{decoders}"
        self._index = _Index()
        self._rescan_lock = threading.Lock()
        self._next_rescan = 0.0
        self._writer = _Writer(self.folder, pack_bytes)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for orphan in self.folder.glob("*.partial"):
                with contextlib.suppress(FileNotFoundError):  # published in the meantime
                    if time.time() - orphan.stat().st_mtime > ORPHAN_SECONDS:
                        orphan.unlink()
        except OSError as error:
            raise InvalidParameter(
                "cache_dir", "be a writable folder", str(folder), remedy=error.strerror or str(error)
            ) from error
        weakref.finalize(self, self._writer.publish)

    def get(self, key: bytes) -> Decoded | None:
        """Return a published photo, or None."""
        entry = self._index.find(key)
        if entry is None and time.monotonic() >= self._next_rescan:
            self._rescan()
            entry = self._index.find(key)
        if entry is None:
            return None
        path, record = entry
        width, height = int(record["width"]), int(record["height"])
        try:
            data = read_stretch(path, int(record["offset"]), 3 * width * height)
        except OSError:
            data = b""
        if len(data) < 3 * width * height:
            self._forget(path)
            return None
        return Decoded(np.frombuffer(data, np.uint8).reshape(height, width, 3), bool(record["exact"]))

    def put(self, key: bytes, photo: Decoded) -> None:
        """Write a photo, which others see once its pack is published. A full disk ends the writing."""
        if self._writer.put(key, photo):
            self._next_rescan = 0.0

    def publish(self) -> None:
        """Make what was written visible to others. This also happens when the cache is garbage-collected."""
        self._writer.publish()
        self._next_rescan = 0.0

    def _forget(self, path: Path) -> None:
        """Forget a pack that was deleted."""
        with self._rescan_lock:
            known = self._index
            kept = known.packs != known.paths.index(path)
            self._index = _Index(known.paths, known.records[kept], known.packs[kept])

    def _rescan(self) -> None:
        """Read the packs that were published since the last scan."""
        if not self._rescan_lock.acquire(blocking=False):
            return  # another thread is scanning
        try:
            known = self._index
            fresh = sorted(set(self.folder.glob("*.pack")) - set(known.paths))
            read = [(path, records) for path in fresh if (records := _records(path)) is not None]
            if read:
                counts = [len(records) for _, records in read]
                numbers = np.repeat(np.arange(len(read)) + len(known.paths), counts)
                self._index = _sorted(
                    (*known.paths, *(path for path, _ in read)),
                    [known.records, *(records for _, records in read)],
                    np.concatenate([known.packs, numbers]),
                )
            self._next_rescan = time.monotonic() + RESCAN_SECONDS
        finally:
            self._rescan_lock.release()


def photo_key(photo: Photo) -> bytes:
    """Return a 16-byte key of a photo's file in its current state; raises OSError."""
    status = photo.path.stat()
    text = f"{photo.path.absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0{photo.span}\0{photo.bbox}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _records(path: Path) -> np.ndarray | None:
    """Return the records of a pack, or None if it is incomplete."""
    try:
        size = path.stat().st_size
        count, tail_format = TAIL.unpack(read_stretch(path, size - TAIL.size, TAIL.size))
        start = size - TAIL.size - count * RECORD.itemsize
        if tail_format != FORMAT or start < 0:
            return None
        records = np.frombuffer(read_stretch(path, start, count * RECORD.itemsize), RECORD)
    except (OSError, struct.error, ValueError):
        return None
    ends = records["offset"] + 3 * records["width"].astype(np.uint64) * records["height"]
    return records if len(records) == count and (ends <= start).all() else None


def _sorted(paths: tuple[Path, ...], records: Sequence[np.ndarray], packs: np.ndarray) -> _Index:
    merged = np.concatenate(records)
    order = np.argsort(merged["key"], kind="stable")
    return _Index(paths, merged[order], packs[order])
