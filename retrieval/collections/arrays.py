"""Arrays in files: `.npz` with vectors and items, and `.npy` of vectors with a file of items beside it.

Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DataError

from . import ROWS, Block, Columns, Neighbour
from .naming import choose, refuse_condition

SAVE = "Save it by np.save or np.savez with a dtype of texts or numbers, not of objects"
SAVE_AGAIN = "Write it again by np.savez"


class Unsearched:
    """A file of vectors, which has neither a metric nor a search of its own."""

    remarks: Sequence[str] = ()

    @property
    def metric(self) -> str | None:
        """Return None: a file does not say."""
        return None

    def search(self, vectors: NDArray[Any], k: int) -> list[list[Neighbour]] | None:  # noqa: ARG002
        """Return None."""
        return None

    def close(self) -> None:
        """Do nothing: vectors that were read stay mapped."""


def compare_all(promise: str, imports: str, *lines: str) -> str:
    """Return lines of Python that compare `vectors` of `items`, which the given lines read, by their cosine."""
    return "\n".join(
        (
            imports,
            "from retrieval import Promise",
            *lines,
            "cosines = vectors @ vector / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vector)",
            "nearest = np.argsort(-cosines)[:20]",
            f"answer = Promise.load({promise!r}).decide(vector, [(str(items[i]), cosines[i]) for i in nearest])",
        )
    )


class Arrays(Unsearched):
    """Vectors (n, d) with ids in files of NumPy."""

    def __init__(self, path: str, columns: Columns) -> None:
        refuse_condition(path, columns)
        self.name, self._path = path, Path(path)
        self.vectors: NDArray[Any] | None = None  # the mapped file; None inside an archive
        if self._path.suffix == ".npz":
            self._open_archive(columns)
        else:
            self.vectors = _load(self._path, mapped=True)
            self._shape = self.vectors.shape
            _checked(self.vectors.dtype, path)
            if columns.items is None:
                raise DataError(
                    f"{path} holds vectors alone", remedy="Name a file of items, an id per line: --items FILE"
                )
            self.items = read_ids(columns.items)
            self.groups = None if columns.groups is None else read_ids(columns.groups)
            self.ids: Sequence[str] = [str(row) for row in range(len(self.items))]
            self._load = f"vectors = np.load({path!r})", f"items = {lines_of_ids(columns.items)}"
        for what, values in (("items", self.items), ("groups", self.groups), ("ids", self.ids)):
            if len(self._shape) != 2 or (values is not None and len(values) != self._shape[0]):
                shape = " × ".join(map(str, self._shape))
                raise DataError(
                    f"{path} has vectors of shape {shape} and {len(values or ()):,} {what}",
                    remedy="Each row needs a vector and an item",
                )

    def _open_archive(self, columns: Columns) -> None:
        with _archive(self._path) as archive:
            there = [name.removesuffix(".npy") for name in archive.namelist()]
            names = choose(self.name, columns, there, noun="arrays")
            with archive.open(f"{names.vectors}.npy") as file:
                self._shape = _header(file, self.name)[0]
        with np.load(self._path, allow_pickle=False) as arrays:
            self.items = _texts(self.name, names.items, arrays)
            self.groups = _texts(self.name, names.groups, arrays) if names.groups else None
            self.ids = _texts(self.name, names.ids, arrays) if names.ids else list(map(str, range(self._shape[0])))
        self._member = f"{names.vectors}.npy"
        self._load = (
            f"arrays = np.load({self.name!r})",
            f"vectors, items = arrays[{names.vectors!r}], arrays[{names.items!r}].astype(str)",
        )

    def __len__(self) -> int:
        return int(self._shape[0])

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order."""
        stored = self._from_archive() if self.vectors is None else self._from_map(self.vectors)
        start = 0
        for vectors in stored:
            rows = slice(start, start + len(vectors))
            yield Block(self.ids[rows], self.items[rows], vectors, self.groups and self.groups[rows])
            start += len(vectors)

    def _from_map(self, vectors: NDArray[Any]) -> Iterator[NDArray[Any]]:
        return (vectors[start : start + ROWS] for start in range(0, len(vectors), ROWS))

    def _from_archive(self) -> Iterator[NDArray[Any]]:
        """Yield blocks of the vectors without unpacking all of them."""
        with _archive(self._path) as archive, archive.open(self._member) as file:
            (count, size), by_column, dtype = _header(file, self.name)
            if by_column:
                with np.load(self._path, allow_pickle=False) as arrays:
                    yield from self._from_map(arrays[self._member.removesuffix(".npy")])
                return
            for start in range(0, count, ROWS):
                rows = min(ROWS, count - start)
                try:
                    values = np.frombuffer(file.read(rows * size * dtype.itemsize), dtype).reshape(rows, size)
                except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
                    raise DataError(f"{self.name} is damaged: {error}", remedy=SAVE_AGAIN) from error
                yield values

    def recipe(self, promise: str) -> str:
        """Return lines of Python that compare all vectors by their cosine."""
        return compare_all(promise, "import numpy as np", *self._load)


def read_ids(file: str) -> list[str]:
    """Return the ids in a `.npy` file or in a text file with an id per line."""
    path = Path(file)
    if path.suffix == ".npy":
        return _as_texts(_load(path))
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() also splits at rarer characters
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {error}", remedy="It needs an id per line, in UTF-8") from error
    return [line.removesuffix("\r") for line in lines[: -1 if lines[-1] == "" else None]]


def lines_of_ids(file: str) -> str:
    """Return an expression of Python that reads the ids in a file."""
    is_array = Path(file).suffix == ".npy"
    return f"np.load({file!r}).astype(str)" if is_array else f"open({file!r}, encoding='utf-8-sig').read().split('\\n')"


def _texts(source: str, name: str, arrays: Any) -> list[str]:
    try:
        return _as_texts(arrays[name])
    except ValueError as error:
        raise DataError(f"the array {name} of {source} cannot be read: {error}", remedy=SAVE) from error


def _as_texts(values: NDArray[Any]) -> list[str]:
    texts = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values.astype(str)
    return [str(value) for value in texts.reshape(-1).tolist()]


def _load(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    try:
        return np.asanyarray(np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}", remedy=SAVE) from error


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}", remedy=SAVE_AGAIN) from error


def _header(file: IO[bytes], source: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order by columns and dtype of an array in an archive."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(file)
    except ValueError as error:
        raise DataError(f"{source} cannot be read: {error}", remedy=SAVE) from error
    return shape, by_column, _checked(dtype, source)


def _checked(dtype: np.dtype[Any], source: str) -> np.dtype[Any]:
    """Return the type of vectors; raise DataError if they are not numbers."""
    if dtype.kind not in "fiu":
        raise DataError(f"the vectors of {source} are of type {dtype}", remedy="Save them as float32")
    return dtype
