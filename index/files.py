"""Files: atomic writes, arrays without pickles, names, hashes, syncs, the write lock, and interrupted writes."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import shutil
import tempfile
import threading
import uuid
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, DiskFull, GalleryError, GalleryLocked

SMALL, RATIO = 2**26, 50  # bytes that a .npz file may always unpack to, and how many times its size beyond
ROWS, MOST_ROW = 64, 2**20  # rows of a parquet file that are decoded at a time, and bytes of one on average
ZEROS = 2**24  # bytes that are written at a time
WORKING = ".partial"  # end of the names of folders that are worked in
_HEADER = threading.Lock()  # CPython 3.11 can raise SystemError if threads parse the headers of arrays at once


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into a GalleryError; the gallery is unchanged because no transaction references the files."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (DiskFull if full else GalleryError)(
            f"{path} cannot be written: {error.strerror or error}; nothing was changed",
            remedy="Check disk space and permissions, then try again",
        ) from error


def new_file(folder: Path) -> str:
    """Return a new name in a folder, creating the folder if needed."""
    if not folder.exists():
        folder.mkdir(parents=True)
        sync_folder(folder.parent)
    return uuid.uuid4().hex


def sha256(*paths: Path) -> str:
    """Return the hash of the concatenated files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def write_file(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically, replacing an existing one. On failure no partial file is left.

    `mode` sets the permissions, subject to the umask. Raises OSError with the file's name.
    """
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with naming(path):
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise the OSErrors of the block with the name of this file: that of a failed write has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def sync_file(path: Path) -> None:
    """Sync a file that has been written and closed."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync a folder to make renames in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def working_folder(beside: Path | None = None) -> Iterator[Path]:
    """Yield a new folder next to a path, or among the temporary ones, that is deleted at the end.

    Folders of the same kind that killed processes have left are deleted, too: who works in a folder holds its lock.
    """
    parent = Path(tempfile.gettempdir()) if beside is None else beside.parent
    prefix = "retrieval-" if beside is None else f".{beside.name}."
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(WORKING):
            with suppress(OSError), holding(left):
                shutil.rmtree(left)
    with ExitStack() as stack:
        while True:  # another process may delete the folder before it is locked
            folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=WORKING, dir=parent))
            with suppress(FileNotFoundError, BlockingIOError):
                stack.enter_context(holding(folder))
                break
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise BlockingIOError if it is taken, FileNotFoundError if the folder was deleted."""
    import fcntl  # not on Windows, where vectors can be measured all the same

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(handle).st_nlink:
            raise FileNotFoundError(folder)
        yield
    finally:
        os.close(handle)


def take_lock(path: Path) -> int:
    """Return a file descriptor that holds the lock until it is closed; raise GalleryLocked if the lock is taken."""
    import fcntl  # not on Windows, where vectors can be measured all the same

    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise GalleryLocked(
            f"another process is writing to {path.parent}", remedy="Wait until it has finished"
        ) from error
    return lock


def remove_unused(folder: Path, names: Set[str], endings: tuple[str, ...]) -> None:
    """Delete files other than `names`, which an interrupted write has left; only the writer may call this."""
    if not folder.exists():
        return
    for file in folder.iterdir():
        if file.name.split(".")[0] not in names and file.name.endswith(endings):
            file.unlink()


def load_array(file: Path | BinaryIO, *, mapped: bool = False) -> NDArray[Any]:
    """Read a .npy file, or map it into memory."""
    with _HEADER:
        array: NDArray[Any] = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    return array


def temporary_array(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return an array of zeros in a temporary file that is deleted with the array, on Windows and of a killed process.

    Raise DataError if there is no room for it: a map of a file with gaps would kill the process at a later write.
    """
    size = 4 * math.prod(shape)
    try:
        with tempfile.TemporaryFile(prefix="retrieval-") as file:
            for start in range(0, size, ZEROS):
                file.write(bytes(min(ZEROS, size - start)))
            file.flush()
            return np.memmap(file, np.float32, "r+", shape=shape)
    except OSError as error:
        raise DataError(
            f"a copy of the vectors needs {size:,} bytes in {tempfile.gettempdir()}: {error.strerror or error}",
            remedy="Make room there, or set TMPDIR to another folder",
        ) from error


def pack_arrays(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays as the bytes of a .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def load_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .npz file by name; raise ValueError if it is none, or would unpack to far more bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > max(SMALL, RATIO * len(data)):
            raise ValueError(f"it would unpack from {len(data):,} to {size:,} bytes")
        with _HEADER, np.load(io.BytesIO(data), allow_pickle=False) as file:
            return dict(file)
    except (EOFError, MemoryError, NotImplementedError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"the arrays cannot be read: {error}") from error


def parquet_batches(path: Path, rows: int) -> Iterator[Any]:
    """Yield the tables of a parquet file, of `rows` rows or a few more.

    A file holds a value that repeats once, so a small one may fill any memory. Raise DataError where rows are larger
    than MOST_ROW bytes on average, before they are decoded where the file tells it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    waiting: list[Any] = []
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            _check_rows(
                path, group.num_rows, max(group.column(i).total_uncompressed_size for i in range(group.num_columns))
            )
        for batch in file.iter_batches(ROWS, use_threads=False):
            _check_rows(path, batch.num_rows, batch.nbytes)
            waiting.append(batch)
            if sum(each.num_rows for each in waiting) >= rows:
                yield pa.Table.from_batches(waiting)
                waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _check_rows(path: Path, rows: int, size: int) -> None:
    if size > max(rows, ROWS) * MOST_ROW:
        raise DataError(
            f"{path}: {rows} rows have {size:,} bytes, the limit is {MOST_ROW:,} bytes a row",
            remedy="Leave out the column of long values",
        )
