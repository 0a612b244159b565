"""The write lock of a gallery; the operating system releases it when the process ends, even by a crash."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .errors import GalleryLocked


def take_lock(path: Path) -> int:
    """Return a file descriptor that holds the lock until it is closed; raise GalleryLocked if the lock is taken."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise GalleryLocked(
            f"another process is writing to {path.parent}", remedy="Wait until it has finished"
        ) from error
    return lock
