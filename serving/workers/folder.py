"""The private folder of a server with several workers, and the folders that killed servers left behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "retrieval-workers-"
ALIVE = "alive"  # file in a folder on which the main process and the workers hold a shared lock while they run
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder for the sockets and counts of the workers, and remove it at the end.

    First remove the folders of killed servers of this user.
    """
    remove_left_folders()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    file = os.open(folder, FLAGS)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)  # systemd-tmpfiles, too, leaves a folder with a lock alone
        (folder / ALIVE).touch()
        yield folder
    finally:
        os.close(file)
        shutil.rmtree(folder, ignore_errors=True)


def hold_folder(folder: Path) -> None:
    """Mark a folder as used until this process ends."""
    fcntl.flock(os.open(folder, FLAGS), fcntl.LOCK_SH)  # stays open


def remove_left_folders() -> None:
    """Remove the folders of this user's servers that have no running process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # a link, removed meanwhile, or of another user who lets nobody in
            file = os.open(folder, FLAGS)
            try:
                if os.fstat(file).st_uid == os.geteuid() and (folder / ALIVE).exists():  # else it may have no lock yet
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while one of its processes runs
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(file)
