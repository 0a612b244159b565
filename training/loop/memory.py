"""Memory that a process keeps between batches, in place of giving it back to the system and asking again."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # parameters of glibc's mallopt(3)
PAD = 64 * 2**20


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed, for the whole process; return whether it does.

    A batch on a CPU allocates and frees hundreds of megabytes of activations. By default each large one is a mapping of
    its own, and the system clears its pages again and again: that took more time than the network's arithmetic where
    it was measured. Memory does not fall after its peak then.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(parameter, value) for parameter, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, PAD)))
