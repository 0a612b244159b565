"""The one writer of a gallery: a lock that the system takes back when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .errors import GalleryLocked


def take_lock(path: Path) -> int:
    """Return the file descriptor that holds a lock until it is closed; GalleryLocked where another process holds it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise GalleryLocked(
            f"another process is writing to {path.parent}", remedy="Wait until it has finished"
        ) from error
    return lock
