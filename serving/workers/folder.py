"""The private folder of a server with several workers, and the folders that killed servers left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "retrieval-workers-"
ALIVE = "alive"  # file on which the main process and the workers hold a shared lock while they run


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder for the sockets and counts of the workers, and remove it at the end.

    First remove the folders of killed servers of this user.
    """
    remove_left_folders()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    aside = folder / f"{ALIVE}.partial"  # renamed when it is locked
    file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        aside.rename(folder / ALIVE)
        yield folder
    finally:
        os.close(file)
        shutil.rmtree(folder, ignore_errors=True)


def hold_folder(folder: Path) -> None:
    """Mark a folder as used until this process ends."""
    fcntl.flock(os.open(folder / ALIVE, os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_SH)  # stays open


def remove_left_folders() -> None:
    """Remove the folders of this user's servers that have no running process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, one without a lock, or removed meanwhile
            facts = folder.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                continue
            file = os.open(folder / ALIVE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while one of its processes runs
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)
