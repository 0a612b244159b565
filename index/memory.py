"""Memory that was needed for a while only."""

from __future__ import annotations

import ctypes
import sys


def release_memory() -> None:
    """Return freed memory to the operating system, such as that of an index or a model, which glibc keeps.

    Do nothing with other C libraries: they return it by themselves, or cannot be asked.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
