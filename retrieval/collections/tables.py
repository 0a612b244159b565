"""Tables in files: parquet, and Arrow's IPC format (Feather), also as a stream.

Shapes: b rows of a block, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrieval.errors import DataError

from . import ROWS, Block, Columns
from .arrays import Unsearched, compare_all
from .naming import choose, refuse_condition
from .reading import refused_dimension


class Table(Unsearched):
    """A table in a file."""

    def __init__(self, path: str, columns: Columns) -> None:
        refuse_condition(path, columns)
        self.name = path
        try:
            self._file = pa.memory_map(path)
            self._is_parquet = Path(path).suffix not in (".arrow", ".feather", ".ipc")
            self._count, schema = self._count_rows()
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} cannot be read: {error}", remedy="Write it again with pyarrow") from error
        lists = [field.name for field in schema if _is_vector(field.type)]
        self._names = choose(path, columns, schema.names, vectors=lists)
        if self._names.vectors not in lists:
            kind = schema.field(self._names.vectors).type
            raise DataError(
                f"the column {self._names.vectors} of {path} has the type {kind}, not lists of numbers",
                remedy="Name the vectors with --vectors",
            )

    def _count_rows(self) -> tuple[int, Any]:
        if self._is_parquet:
            self._parquet = pq.ParquetFile(self._file, pre_buffer=False)  # or it holds whole row groups in memory
            return self._parquet.metadata.num_rows, self._parquet.schema_arrow
        count, schema = 0, None
        for batch in self._ipc():
            count, schema = count + batch.num_rows, batch.schema
        return count, pa.schema([]) if schema is None else schema

    def _ipc(self) -> Iterator[Any]:
        self._file.seek(0)
        try:
            file = pa.ipc.open_file(self._file)
        except pa.ArrowInvalid:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)
            return
        yield from (file.get_batch(number) for number in range(file.num_record_batches))

    def __len__(self) -> int:
        return int(self._count)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in order; the photo ids are numbers of rows where there is no column of ids."""
        wanted, start = [name for name in self._names if name], 0
        batches = self._parquet.iter_batches(ROWS, columns=wanted) if self._is_parquet else self._ipc()
        for whole in batches:
            for first in range(0, whole.num_rows, ROWS):
                batch = whole.slice(first, ROWS)
                yield self._block(batch, start)
                start += batch.num_rows

    def _block(self, batch: Any, start: int) -> Block:
        names = self._names
        there = batch.column(names.vectors).is_valid()
        numbers = pa.array(range(start, start + batch.num_rows))
        ids, items = (
            _texts((numbers if name is None else batch.column(name)).filter(there)) for name in (names.ids, names.items)
        )
        vectors = batch.column(names.vectors).filter(there)
        sizes = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
        if len(wrong := np.flatnonzero(sizes != sizes[:1])):
            raise refused_dimension(self.name, ids[wrong[0]], int(sizes[wrong[0]]), int(sizes[0]))
        values = vectors.flatten().to_numpy(zero_copy_only=False)
        groups = _texts(batch.column(names.groups).filter(there)) if names.groups else None
        return Block(ids, items, values.reshape(len(ids), -1), groups, without_vector=batch.num_rows - len(ids))

    def recipe(self, promise: str) -> str:
        """Return lines of Python that compare all vectors by their cosine."""
        names, reader = self._names, "parquet" if self._is_parquet else "feather"
        opened = f"pyarrow.{reader}.read_table({self.name!r}, columns={[names.items, names.vectors]!r})"
        if not self._is_parquet and not self._is_file():
            opened = f"pyarrow.ipc.open_stream({self.name!r}).read_all()"
        return compare_all(
            promise,
            f"import numpy as np, pyarrow.{reader}",
            f"table = {opened}",
            f"items, vectors = table[{names.items!r}].to_pylist(), np.stack(table[{names.vectors!r}].to_numpy())",
        )

    def _is_file(self) -> bool:
        self._file.seek(0)
        return bytes(self._file.read(6)) == b"ARROW1"


def _is_vector(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def _texts(column: Any) -> list[str]:
    return ["" if value is None else value for value in pc.cast(column, pa.string()).to_pylist()]
