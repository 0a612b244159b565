"""Reading of .npy and .npz files, without pickles and safe among threads."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

_HEADER = threading.Lock()  # CPython 3.11 can raise SystemError if threads parse the headers of arrays at once


def load_array(file: Path | BinaryIO, *, mapped: bool = False) -> NDArray[Any]:
    """Read a .npy file, or map it into memory."""
    with _HEADER:
        array: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    return array


def load_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .npz file by name."""
    with _HEADER, np.load(io.BytesIO(data), allow_pickle=False) as file:
        return dict(file)
