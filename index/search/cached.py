"""Cache files: arrays that can be computed again, with a checksum; an invalid file counts as missing."""

from __future__ import annotations

import hashlib
import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.files import load_array
from index.segments import OpenSegment

KEYS = 2  # keys whose values are kept in memory at a time: the current one and its successor

Arrays = Sequence[NDArray[Any]]
T = TypeVar("T")


def read_cached(path: Path, count: int) -> list[NDArray[Any]] | None:
    """Return the arrays of a cache file, or None if it is missing or invalid."""
    try:
        with path.open("rb") as file:
            arrays = [load_array(file) for _ in range(count)]
            checksum = file.read()
    except (OSError, ValueError, EOFError):
        return None
    return arrays if checksum == _checksum(arrays) else None


def write_cached(path: Path, arrays: Arrays) -> None:
    """Write arrays to a cache file, if the folder can be written."""
    partial_path = path.with_suffix(f".{uuid.uuid4().hex}.partial")
    try:
        path.parent.mkdir(exist_ok=True)
        with partial_path.open("wb") as file:
            for array in arrays:
                np.save(file, array, allow_pickle=False)
            file.write(_checksum(arrays))
        partial_path.replace(path)
    except OSError:  # a read-only gallery: the arrays are computed at each start
        partial_path.unlink(missing_ok=True)


class SegmentCache(Generic[T]):
    """Values by key and segment. Segments never change, so only those of new segments are computed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._known: dict[str, dict[str, T]] = {}

    def of(self, key: str, segments: Sequence[OpenSegment], compute: Callable[[OpenSegment], T]) -> list[T]:
        """Return the value of each segment, in order."""
        with self._guard:
            known = self._known.pop(key, {})
            self._known[key] = {s.name: known[s.name] if s.name in known else compute(s) for s in segments}
            while len(self._known) > KEYS:
                del self._known[next(iter(self._known))]
            return list(self._known[key].values())

    def path(self, segment: OpenSegment, key: str) -> Path:
        """Return the path of the cache file of a segment."""
        return self._folder / f"{_file(segment.name)}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"

    def forget(self, names: set[str]) -> None:
        """Delete the cache files of segments other than `names`; only the writer may call this."""
        if self._folder.exists():
            files = set(map(_file, names))
            for file in self._folder.iterdir():
                if file.name.split("-")[0] not in files:
                    file.unlink(missing_ok=True)


def _file(name: str) -> str:
    """Return the last part of a segment's name, which is unique among all shards."""
    return name.rpartition("/")[2]


def _checksum(arrays: Arrays) -> bytes:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum.to_bytes(4, "little")
