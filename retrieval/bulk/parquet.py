"""Answers as a parquet file, with one row per photo and the options of the search in its metadata."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retrieval.errors import DataError
from retrieval.files import naming

HEAD = b"retrieval.answers"
ROWS = 1000  # answers per row group
MATCH = pa.struct(
    [
        ("item_id", pa.string()),
        ("photo_id", pa.string()),
        ("distance", pa.float64()),
        ("metadata", pa.string()),
        ("p_value", pa.float64()),
    ]
)
LISTS = ("matches", "review", "ranked")
FIELDS = {
    "photo_id": pa.string(),
    "item_id": pa.string(),
    "decision": pa.string(),
    "reason": pa.string(),
    "error": pa.string(),
    "truth": pa.string(),
    "in_gallery": pa.bool_(),
    "copy": pa.bool_(),
    "threshold": pa.float64(),
    "threshold_status": pa.string(),
    "nearest_distance": pa.float64(),
    "margin": pa.float64(),
    "nearest": MATCH,
    "matches": pa.list_(MATCH),
    "review": pa.list_(MATCH),
    "ranked": pa.list_(MATCH),
    "certainty": pa.float64(),
    "p_value_without_filter": pa.bool_(),
    "gallery_version": pa.int64(),
    "photos": pa.int64(),
    "threshold_photos": pa.int64(),
    "explanation": pa.string(),
}


def write_parquet(path: Path, head: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write answers as a parquet file; an existing file is replaced at the end."""
    schema = pa.schema(list(FIELDS.items()), metadata={HEAD: json.dumps(head)})
    rows = map(_row, lines)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with naming(path):
            with pq.ParquetWriter(aside, schema) as writer:
                while group := list(islice(rows, ROWS)):
                    writer.write_table(pa.Table.from_pylist(group, schema=schema))
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def head_of_parquet(path: Path) -> dict[str, Any]:
    """Return the options of the search; raise DataError if the file has no answers."""
    try:
        return dict(json.loads((pq.read_schema(path).metadata or {})[HEAD]))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is not a file of answers", remedy="Choose a new name") from error


def lines_of_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the answers of a parquet file."""
    with pq.ParquetFile(path) as file:
        for rows in file.iter_batches(ROWS):
            yield from (_line(row) for row in rows.to_pylist())


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer with metadata and explanation as JSON."""
    return _changed(line, lambda value: json.dumps(value, ensure_ascii=False))


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a row, without the columns that it does not have."""
    return {name: value for name, value in _changed(row, json.loads).items() if value is not None}


def _changed(line: Mapping[str, Any], convert: Any) -> dict[str, Any]:
    def match(value: Mapping[str, Any]) -> dict[str, Any]:
        return {**value, "metadata": convert(value["metadata"])}

    changed = dict(line)
    for name in LISTS:
        if changed.get(name) is not None:
            changed[name] = [match(each) for each in changed[name]]
    if changed.get("nearest") is not None:
        changed["nearest"] = match(changed["nearest"])
    if changed.get("explanation") is not None:
        changed["explanation"] = convert(changed["explanation"])
    return changed
