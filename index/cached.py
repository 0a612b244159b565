"""Cache files: arrays that can be computed again, with a checksum; an invalid file counts as missing."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import load_array

Arrays = Sequence[NDArray[Any]]


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


def forget_cached(folder: Path, names: set[str]) -> None:
    """Delete the cache files of segments other than `names`; only the writer may call this."""
    if folder.exists():
        for file in folder.iterdir():
            if file.name.split("-")[0] not in names:
                file.unlink(missing_ok=True)


def _checksum(arrays: Arrays) -> bytes:
    checksum = 0
    for array in arrays:
        checksum = zlib.crc32(array.tobytes(), checksum)
    return checksum.to_bytes(4, "little")
