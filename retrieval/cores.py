"""CPU cores and threads available to this process."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_share() -> int:
    """Return the number of cores per process that the launcher started on this machine, at least 1."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # also set by our launcher
