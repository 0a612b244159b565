"""Bytes from the middle of a file."""

from __future__ import annotations

import os
from pathlib import Path


def read_stretch(path: str | Path, offset: int, size: int) -> bytes:
    """Return `size` bytes of a file from `offset` on, or what there is of them; raises OSError.

    One open, one read and one close: no descriptor is kept, so that there is no limit on the number of files.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(file, size, offset)
        while len(data) < size and (more := os.pread(file, size - len(data), offset + len(data))):
            data += more
        return data
    finally:
        os.close(file)
