"""Read a collection once, into arrays: its vectors lie in a mapped file, so a million of them fit into little memory.

Shapes: n rows that are kept, b rows of a block, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.files import temporary_array
from retrieval.errors import DataError, counted

from . import Block, Collection
from .arrays import Arrays


@dataclass(frozen=True)
class Collected:
    """The rows of a collection that have a vector and an item."""

    name: str
    metric: str | None
    ids: Sequence[str]  # (n,) of the photos, all different
    items: Sequence[str]  # (n,)
    vectors: NDArray[np.float32]  # (n, d) mapped, as they are stored
    norms: NDArray[np.float64]  # (n,) of the vectors as they are stored
    groups: Sequence[str] | None = None  # (n,), "" for none
    without_item: int = 0  # rows that were left out
    without_vector: int = 0
    remarks: Sequence[str] = ()


def read(collection: Collection, *, unlabelled: bool = False) -> Collected:
    """Read all rows of a collection, and copy the vectors to a temporary file unless they are a mapped one of float32.

    With `unlabelled`, rows without an item are kept, with an empty id. Else they are left out and counted.
    Raise DataError if dimensions differ, ids repeat or the collection changes meanwhile, or if no row is left.
    """
    expected = len(collection)
    rows = _Rows(collection, expected, unlabelled)
    for block in collection.blocks():
        rows.add(block)
    after, count = len(collection), len(rows.ids) + rows.without_item + rows.without_vector
    if not expected == count == after:
        raise _changed(f"it had {expected:,} rows before, {count:,} were read, it has {after:,} now", collection.name)
    if rows.ids and len(set(rows.ids)) < len(rows.ids):
        raise _changed(f"the id {_repeated(rows.ids)!r} was read twice", collection.name)
    if not rows.ids:
        left_out = f": {rows.without_item:,} lack an item, {rows.without_vector:,} a vector" if count else ""
        raise DataError(f"{collection.name} has no rows with a vector and an item{left_out}")
    return Collected(
        collection.name,
        collection.metric,
        rows.ids,
        rows.items,
        rows.vectors(),
        np.concatenate(rows.norms),
        rows.groups if rows.has_groups else None,
        rows.without_item,
        rows.without_vector,
        tuple(collection.remarks),
    )


class _Rows:
    """The rows that were read."""

    def __init__(self, collection: Collection, expected: int, unlabelled: bool) -> None:
        self.name, self.expected, self.unlabelled = collection.name, expected, unlabelled
        self.ids: list[str] = []
        self.items: list[str] = []
        self.groups: list[str] = []
        self.norms: list[NDArray[np.float64]] = []
        self.has_groups = False
        self.without_item = self.without_vector = 0
        self._known = collection.vectors if isinstance(collection, Arrays) and _is_usable(collection) else None
        self._copy: NDArray[np.float32] | None = None
        self._dim = 0
        self._texts: dict[str, str] = {}  # each item and group once

    def add(self, block: Block) -> None:
        """Keep the rows of a block that have an item."""
        self.without_vector += block.without_vector
        if not len(block.ids):
            return
        self._dim = self._dim or block.vectors.shape[1]
        if block.vectors.shape[1] != self._dim:
            raise refused_dimension(self.name, block.ids[0], block.vectors.shape[1], self._dim)
        kept = [row for row, item in enumerate(block.items) if item]
        vectors = block.vectors if len(kept) == len(block.ids) else block.vectors[kept]
        start, end = len(self.ids), len(self.ids) + len(kept)
        if end > self.expected:
            raise _changed(f"it had {self.expected:,} rows before and has more now", self.name)
        if self._known is None:
            self._mapped()[start:end] = vectors
        self.norms.append(np.linalg.norm(vectors.astype(np.float64), axis=1))
        self.ids += [block.ids[row] for row in kept]
        self.items += [self._same(block.items[row]) for row in kept]
        self.has_groups |= block.groups is not None
        self.groups += ["" if block.groups is None else self._same(block.groups[row]) for row in kept]
        self.without_item += len(block.ids) - len(kept)

    def _same(self, text: str) -> str:
        return self._texts.setdefault(text, text)

    def _mapped(self) -> NDArray[np.float32]:
        if self._copy is None:
            self._copy = temporary_array((self.expected, self._dim))
        return self._copy

    def vectors(self) -> NDArray[np.float32]:
        """Return the vectors of the rows that are kept (n, d)."""
        return self._mapped()[: len(self.ids)] if self._known is None else self._known


def stacked(source: str, ids: Sequence[str], vectors: Sequence[Any]) -> NDArray[np.float32]:
    """Return vectors as an array (b, d); raise DataError if their dimensions differ."""
    sizes = [len(vector) for vector in vectors]
    wrong = next((row for row, size in enumerate(sizes) if size != sizes[0]), None)
    if wrong is not None:
        raise refused_dimension(source, ids[wrong], sizes[wrong], sizes[0])
    return np.asarray(vectors, dtype=np.float32).reshape(len(ids), -1)


def refused_dimension(source: str, photo_id: str, size: int, expected: int) -> DataError:
    """Return the error for a vector of another dimension than those before."""
    return DataError(
        f"the vector of {photo_id!r} in {source} has {counted(size, 'number')}, those before it have {expected:,}",
        remedy="Keep the vectors of one model apart from those of others",
    )


def _is_usable(collection: Arrays) -> bool:
    vectors = collection.vectors
    is_mapped = isinstance(vectors, np.memmap) and vectors.dtype == np.float32 and vectors.flags.c_contiguous
    return is_mapped and all(collection.items)


def _changed(how: str, name: str) -> DataError:
    return DataError(
        f"{name} changed while it was read: {how}", remedy="Run it again; ids that still repeat must be made unique"
    )


def _repeated(ids: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(photo_id for photo_id in ids if photo_id in seen or seen.add(photo_id))  # type: ignore[func-returns-value]
