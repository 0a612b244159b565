"""Photos inside parquet files: a column of encoded images, as the Hugging Face package `datasets` writes it.

The column `image` holds bytes, or a structure of `bytes` and `path`. Numeric labels are replaced by the
names that the file has for them. A photo is read with its row group, so photos are best read in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from index.files import parquet_batches
from retrieval.errors import DataError, ImageUnreadable
from retrieval.images import check_bytes

from .photos import LABELS, Photo
from .shards import SPAN

IMAGE = "image"
KEPT = 4  # row groups kept in memory
LARGEST = 256 * 2**20  # bytes of images, or of the other columns, in a row group
GROUP = 50  # photos per row group that is written
ROWS = 64  # of the other columns, decoded at a time
TABLE_ROWS, LARGEST_TABLE = 5000, 2**30  # of a table without images: rows read at a time, and bytes


@dataclass(frozen=True, slots=True)
class EmbeddedPhoto(Photo):
    """A photo in a parquet file; its span is the row group and the row in it."""

    reads_ahead: ClassVar[bool] = False  # decoding a row group keeps a core busy

    def read(self) -> bytes:
        """Return the encoded photo.

        Raises ImageUnreadable if there is none, ImageTooLarge if it is too large, and DataError if its row group is.
        """
        group, row = self.span or (0, 0)
        try:
            data = _images(self.path, self.path.stat().st_mtime_ns, group)[row].as_py()
        except (pa.ArrowException, OSError) as error:
            raise ImageUnreadable(f"{self.path} cannot be read: {error}") from error
        if data is None:
            raise ImageUnreadable(f"row {row} of row group {group} of {self.path} has no image")
        check_bytes(f"the photo in row {row} of row group {group} of {self.path}", len(data))
        return bytes(data)


Maker = Callable[[Sequence[str], Iterable[Mapping[str, Any]]], list[Photo]]  # of columns and rows


def read_parquet(path: Path, root: Path, make: Maker) -> list[Photo]:
    """Return the photos of a parquet file, with the folders below `root` in the ids of photos inside of the file."""
    try:
        with pq.ParquetFile(path) as file:
            if _has_images(file.schema_arrow):
                above = path.parent.relative_to(root)
                columns, rows = _embedded_rows(file, path)
                return [_embedded(photo, above) for photo in make(columns, rows)]
            return make(file.schema_arrow.names, _table_rows(path))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a parquet file: {error}") from error


def _table_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table without images; raise DataError if they are far larger than their file."""
    size = 0
    for table in parquet_batches(path, TABLE_ROWS):
        size += table.nbytes
        if size > LARGEST_TABLE:
            raise DataError(
                f"{path} has more than {LARGEST_TABLE:,} bytes when it is read", remedy="Split it into several tables"
            )
        try:
            yield from table.to_pylist()
        except (ArithmeticError, LookupError, ValueError) as error:  # such as a date that Python does not have
            raise DataError(f"{path} has a value that cannot be read: {error}", remedy="Write it as text") from error


def _embedded(photo: Photo, above: Path) -> EmbeddedPhoto:
    inside = EmbeddedPhoto(*(getattr(photo, field.name) for field in fields(Photo)))
    return replace(inside, photo_id=(above / photo.photo_id).as_posix())


def _has_images(schema: pa.Schema) -> bool:
    """Return whether a parquet file has a column of encoded images."""
    if IMAGE not in schema.names:
        return False
    kind = schema.field(IMAGE).type
    encoded = kind.field("bytes").type if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
    return bool(pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded))


def _embedded_rows(file: pq.ParquetFile, path: Path) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Return the columns and the rows of the catalogue in a parquet file with images."""
    others = [name for name in file.schema_arrow.names if name not in (IMAGE, "path")]
    for group in range(file.num_row_groups):
        size = sum(
            chunk.total_uncompressed_size
            for chunk in map(file.metadata.row_group(group).column, range(file.metadata.num_columns))
            if chunk.path_in_schema.split(".")[0] == IMAGE
        )
        if size > LARGEST:
            raise _too_large(path, size)
    return [*dict.fromkeys((*others, "photo_id")), "path", SPAN], _rows(file, path, others)


def _rows(file: pq.ParquetFile, path: Path, others: list[str]) -> Iterator[dict[str, Any]]:
    names, number = _label_names(file.schema_arrow), 0
    for group in range(file.num_row_groups):
        table = _decoded(file, path, group, others, rows=ROWS)
        values = {name: _named(table[name].to_pylist(), names.get(name)) for name in others}
        for row in range(file.metadata.row_group(group).num_rows):
            cells = {name: column[row] for name, column in values.items()}
            yield {"photo_id": f"{path.name}/{number}", **cells, "path": path.name, SPAN: (group, row)}
            number += 1


def _named(values: list[Any], names: list[str] | None) -> list[Any]:
    if names is None:
        return values
    return [names[value] if isinstance(value, int) and 0 <= value < len(names) else value for value in values]


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of numbered labels, by column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: [str(n) for n in features[name]["names"]] for name in LABELS if "names" in features.get(name, {})}
    except (KeyError, TypeError, ValueError):
        return {}


def _too_large(path: Path, size: int) -> DataError:
    return DataError(
        f"{path}: a row group has {size:,} bytes, the limit is {LARGEST:,}",
        remedy="Write it again with row groups of 100 photos, or as tar shards",
    )


def _decoded(file: pq.ParquetFile, path: Path, group: int, columns: list[str], *, rows: int) -> pa.Table:
    """Return columns of a row group; raise DataError if they are large although they are small in the file.

    A file holds a value that repeats once, so that its sizes say little about the memory that the values take.
    """
    batches, size = [], 0
    for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
        size += batch.nbytes
        if size > LARGEST:
            raise _too_large(path, size)
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else file.read_row_group(group, columns=columns)


@lru_cache(maxsize=KEPT)
def _images(path: Path, changed: int, group: int) -> pa.ChunkedArray:  # noqa: ARG001 (another time is another file)
    with pq.ParquetFile(path) as file:
        column = _decoded(file, path, group, [IMAGE], rows=1)[IMAGE]
    return (
        pa.chunked_array([chunk.field("bytes") for chunk in column.chunks])
        if pa.types.is_struct(column.type)
        else column
    )


def write_embedded(photos: Sequence[Photo], path: Path) -> Path:
    """Write photos with their content as a parquet file for `read_catalogue`; return its path."""
    names = list(dict.fromkeys(name for photo in photos for name in photo.metadata))
    kinds = {name: pa.infer_type([photo.metadata.get(name) for photo in photos]) for name in names}
    texts = ("photo_id", "item_id", "source")
    boxes = [("bbox", pa.list_(pa.float64()))] * any(photo.bbox is not None for photo in photos)
    schema = pa.schema([*((name, pa.string()) for name in texts), *boxes, *kinds.items(), (IMAGE, pa.binary())])
    aside = path.with_name(f".{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with pq.ParquetWriter(aside, schema) as writer:
            for start in range(0, len(photos), GROUP):
                block = photos[start : start + GROUP]
                columns = [[getattr(photo, name) for photo in block] for name in texts]
                columns += [[photo.bbox for photo in block] for _ in boxes]
                columns += [[photo.metadata.get(name) for photo in block] for name in names]
                images = [photo.read() for photo in block]
                writer.write_table(pa.table([*columns, images], schema=schema), row_group_size=GROUP)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return path
