"""Allocator settings that let a process keep freed memory between batches."""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # parameters of glibc's mallopt(3)
PAD = 64 * 2**20


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory, for the whole process; return whether that worked.

    A batch on a CPU allocates and frees hundreds of megabytes of activations. By default each large allocation is a
    separate mapping whose pages the kernel clears every time, which can take longer than the arithmetic. In exchange,
    the memory of the process does not fall after its peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(parameter, value) for parameter, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, PAD)))
