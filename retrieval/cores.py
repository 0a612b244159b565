"""What this process has of the machine."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_share() -> int:
    """Return how many cores are left to each of the processes that a launcher started on this machine, at least 1."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))  # set by torchrun, accelerate and ours
