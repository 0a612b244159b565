"""File helpers: partial reads, and remedies for operating-system errors; with the atomic writes of `index.files`."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from index.files import naming, write_file

__all__ = ["REMEDIES", "check_place", "explain", "naming", "read_stretch", "write_file"]

REMEDIES = {
    errno.ENOSPC: "Make room on the disk, then try again",
    errno.EDQUOT: "Make room in your quota, then try again",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), then try again",
    errno.EROFS: "Choose a folder that can be written",
    errno.EACCES: "Choose a place that you may read and write",
    errno.EPERM: "Choose a place that you may read and write",
    errno.ENOTDIR: "A file lies where a folder is meant: choose another place",
    errno.EEXIST: "Choose a new name",
    errno.EISDIR: "Name a file, not a folder",
    errno.ENOENT: "Check that the path is right",
    errno.EMFILE: "Raise the limit on open files (ulimit -n), then try again",
}


def read_stretch(path: str | Path, offset: int, size: int) -> bytes:
    """Return up to `size` bytes of a regular file, starting at `offset`. Raises OSError, for pipes and devices too.

    The file is opened and closed on each call, so the number of files is not limited by open descriptors.
    """
    mode = Path(path).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a folder fails by itself
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that was put there since does not wait for a writer
    try:
        part = max(1, min(size, os.fstat(file).st_size - offset + 1))  # a buffer of this size is made for each part
        data = os.pread(file, part, offset)
        while len(data) < size and (more := os.pread(file, min(part, size - len(data)), offset + len(data))):
            data += more
        return data
    finally:
        os.close(file)


def check_place(path: Path) -> None:
    """Raise OSError if a path cannot be written. Call it before long work, to fail early."""
    path = path.absolute()
    above = path if path.is_dir() else next(folder for folder in path.parents if folder.exists())
    if not above.is_dir():
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
    if not os.access(above, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(above))


def explain(error: OSError) -> str:
    """Return the file, the reason and the remedy of an OSError as text."""
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    remedy = REMEDIES.get(error.errno or 0, "")
    return f"{place}{error.strerror or error}" + (f". {remedy}" if remedy else "")
