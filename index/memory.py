"""Memory that has been freed."""

from __future__ import annotations

import ctypes
import sys


def release_memory() -> None:
    """Return freed memory, such as that of an index or a model, to the operating system; glibc keeps it otherwise.

    Do nothing with other C libraries: they return it by themselves, or cannot be asked.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
