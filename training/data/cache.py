"""Decoded photos on disk: processes that train on the same photos, together or one after another, decode them once.

A cache is a folder of packs. A pack holds pixels, the records that say where, and a tail; it is written aside, synced,
renamed and never changed, so that a process that is killed leaves a file which nobody reads, and any number of
processes read and write at once. Two that decode the same photo before either has published it both store it.

A photo's key is its path, size, date of change, stretch and bbox; what else decides the pixels is in the folder's name.
Packs are not searched for what is out of date: delete the folder to win its space back.
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
from PIL import Image, features
from PIL import __version__ as pillow

from retrieval.catalogue.byte_ranges import read_stretch
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter

PACK_BYTES = 256 * 2**20  # pixels of a pack, beyond which it is published
FREE_BYTES = 2**30  # room on the disk that is left alone
LOOK_SECONDS = 10.0  # between looks for packs of others
ORPHAN_SECONDS = 86_400.0  # age at which an unfinished pack is taken for one of a process that is gone
RECORD = np.dtype(
    [("key", "<u8"), ("more", "<u8"), ("offset", "<u8"), ("width", "<u4"), ("height", "<u4"), ("exact", "<u8")]
)
TAIL = struct.Struct("<Q8s")  # number of records, and the format
FORMAT = b"pixels-1"

log = logging.getLogger("retrieval.training")


class Decoded(NamedTuple):
    """A photo as it is trained on; `exact` where that is all the decoder gives, not a reduction of it."""

    image: Image.Image
    exact: bool


class _Index(NamedTuple):
    """Records of all packs, in the order of their keys, and the pack of each."""

    paths: tuple[Path, ...] = ()
    records: np.ndarray = np.empty(0, RECORD)
    packs: np.ndarray = np.empty(0, np.int64)

    def find(self, key: bytes) -> tuple[Path, np.void] | None:
        first, more = struct.unpack("<QQ", key)
        keys = self.records["key"]
        place = int(np.searchsorted(keys, np.uint64(first)))
        while place < len(keys) and keys[place] == first:
            if self.records["more"][place] == more:
                return self.paths[self.packs[place]], self.records[place]
            place += 1
        return None


class _Pack(NamedTuple):
    """A pack in the making."""

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
        self._waiting: set[bytes] = set()  # keys in packs that are not yet published
        self._writes = True

    def put(self, key: bytes, photo: Decoded) -> bool:
        """Write a photo, and return whether that filled a pack, which is published."""
        data = photo.image.tobytes()
        with self._lock:
            if not self._writes or key in self._waiting:
                return False
            try:
                pack = self._pack = self._pack or self._begin()
                offset = pack.file.tell()
                pack.file.write(data)
            except OSError as error:
                self._give_up(error)
                return False
            pack.records.append((*struct.unpack("<QQ", key), offset, *photo.image.size, int(photo.exact)))
            pack.keys.add(key)
            self._waiting.add(key)
            if offset + len(data) < self._pack_bytes:
                return False
            self._pack = None
        self._finish(pack)
        return True

    def publish(self) -> None:
        if os.getpid() != self._process:  # a fork: the pack is its parent's
            return
        with self._lock:
            pack, self._pack = self._pack, None
        if pack is not None:
            self._finish(pack)

    def _begin(self) -> _Pack:
        free = shutil.disk_usage(self._folder).free
        if free < FREE_BYTES + self._pack_bytes:
            raise OSError(None, f"{free / 2**30:.1f} GiB are free")
        path = self._folder / f"{uuid.uuid4().hex}.partial"
        return _Pack(path, path.open("xb"), [], set())

    def _finish(self, pack: _Pack) -> None:
        """Write the records and the tail, and publish the pack; no lock is held meanwhile."""
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
            self._waiting -= pack.keys

    def _give_up(self, error: OSError) -> None:
        self._writes = False
        log.warning("%s: no more photos are cached there: %s", self._folder, error.strerror or error)
        if self._pack is not None:
            with contextlib.suppress(OSError):  # what was not yet written cannot be now
                self._pack.file.close()
            self._pack.path.unlink(missing_ok=True)
            self._pack = None


class PixelCache:
    """Reads and writes the packs of one folder; any number of threads may share it."""

    def __init__(self, folder: str | Path, *, min_side: int, pack_bytes: int = PACK_BYTES) -> None:
        jpeg = features.version("libjpeg_turbo") or features.version("jpg")
        decoders = f"pillow-{pillow}-jpeg-{jpeg}-webp-{features.version('webp')}"
        self.folder = Path(folder) / f"{FORMAT.decode()}-side-{min_side}-{decoders}"
        self._index = _Index()
        self._looking = threading.Lock()
        self._next_look = 0.0
        self._writer = _Writer(self.folder, pack_bytes)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for orphan in self.folder.glob("*.partial"):
                with contextlib.suppress(FileNotFoundError):  # published meanwhile
                    if time.time() - orphan.stat().st_mtime > ORPHAN_SECONDS:
                        orphan.unlink()
        except OSError as error:
            raise InvalidParameter(
                "cache_dir", "be a folder that can be written", str(folder), remedy=error.strerror or str(error)
            ) from error
        weakref.finalize(self, self._writer.publish)

    def get(self, key: bytes) -> Decoded | None:
        """Return a photo, or None where nobody has published it."""
        found = self._index.find(key)
        if found is None and time.monotonic() >= self._next_look:
            self._look()
            found = self._index.find(key)
        if found is None:
            return None
        path, record = found
        width, height = int(record["width"]), int(record["height"])
        try:
            data = read_stretch(path, int(record["offset"]), 3 * width * height)
        except OSError:
            data = b""
        if len(data) < 3 * width * height:
            self._forget(path)
            return None
        return Decoded(Image.frombytes("RGB", (width, height), data), bool(record["exact"]))

    def put(self, key: bytes, photo: Decoded) -> None:
        """Write a photo, which others see once its pack is published; a disk that is full ends the writing only."""
        if self._writer.put(key, photo):
            self._next_look = 0.0

    def publish(self) -> None:
        """Let others, and later runs, see what was written so far; a cache that goes out of use does so by itself."""
        self._writer.publish()
        self._next_look = 0.0

    def _forget(self, path: Path) -> None:
        """Leave out a pack that was deleted meanwhile."""
        with self._looking:
            known = self._index
            kept = known.packs != known.paths.index(path)
            self._index = _Index(known.paths, known.records[kept], known.packs[kept])

    def _look(self) -> None:
        """Take in the packs that were published since the last look."""
        if not self._looking.acquire(blocking=False):
            return  # another thread looks
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
            self._next_look = time.monotonic() + LOOK_SECONDS
        finally:
            self._looking.release()


def photo_key(photo: Photo) -> bytes:
    """Return the 16 bytes that stand for a photo's file as it is now, its stretch and its bbox; raises OSError."""
    now = photo.path.stat()
    told = f"{photo.path.absolute()}\0{now.st_size}\0{now.st_mtime_ns}\0{photo.span}\0{photo.bbox}"
    return hashlib.blake2b(told.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _records(path: Path) -> np.ndarray | None:
    """Return a pack's records, or None where it is not whole."""
    try:
        size = path.stat().st_size
        count, form = TAIL.unpack(read_stretch(path, size - TAIL.size, TAIL.size))
        start = size - TAIL.size - count * RECORD.itemsize
        if form != FORMAT or start < 0:
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
