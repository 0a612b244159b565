"""Files like those that version 0.2.0 exported, made to do harm: one typed error, and nothing is left or changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from index.checks import MAX_DEPTH
from index.errors import DataError, RetrievalError
from index.gallery import Gallery
from index.upkeep.backup_020 import FACTS, KEPT
from index.upkeep.transfer import copy_gallery, open_backup

DIM, PHOTOS = 16, 40


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """Return a file as version 0.2.0 exported it."""
    vectors = np.random.default_rng(0).normal(size=(PHOTOS, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    facts = {"format": 1, "dim": DIM, "embedding_id": "e", "columns": {"price": "number"}, "features_key": ""}
    kinds = {"photo_id": pa.string(), "item_id": pa.string(), "vector": pa.list_(pa.float32(), DIM)}
    kinds |= {"metadata": pa.string(), "thumbnail": pa.binary()}
    rows = {
        "photo_id": [f"p{number}" for number in range(PHOTOS)],
        "item_id": [f"i{number // 3}" for number in range(PHOTOS)],
        "vector": vectors.astype(np.float32).tolist(),
        "metadata": ['{"price": 1}'] * PHOTOS,
        "thumbnail": [None] * PHOTOS,
    }
    schema = pa.schema(list(kinds.items()), metadata={FACTS: json.dumps(facts | {"folds": ""}), KEPT: "{}"})
    (tmp_path / "of").mkdir()
    with pq.ParquetWriter(tmp_path / "of" / "export.parquet", schema, write_page_checksum=True) as writer:
        writer.write_table(pa.table(rows, schema=schema))
    return tmp_path / "of" / "export.parquet"


def imported(file: Path, place: Path) -> int:
    with open_backup(file, beside=place) as backup:
        return copy_gallery(backup, place)


def changed(exported: Path, column: str, value: Any, *, kind: Any = None) -> Path:
    """Write the file with another value in its last row, which comes after several batches."""
    table = pq.read_table(exported)
    values = [*table[column].to_pylist()[:-1], value]
    array = pa.array(values, type=kind or table.schema.field(column).type)
    number = table.schema.get_field_index(column)
    table = table.set_column(number, pa.field(column, array.type), array)
    pq.write_table(table, exported)
    return exported


def with_facts(exported: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    table = pq.read_table(exported)
    facts = json.loads(table.schema.metadata[FACTS])
    change(facts)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, FACTS: json.dumps(facts)}), exported)
    return exported


def nested(depth: int) -> str:
    return '{"x": ' + "[" * depth + "]" * depth + "}"


def _texts(file: Path) -> Path:
    table = pq.read_table(file)
    texts = pa.array([["x"] * DIM] * len(table), type=pa.list_(pa.string()))
    return _write(file, table.set_column(table.schema.get_field_index("vector"), "vector", texts))


def _write(file: Path, table: pa.Table) -> Path:
    pq.write_table(table, file)
    return file


def _repeated(file: Path) -> Path:
    """Write the file with a thumbnail of 2 MiB, the same in 100 rows: some kB, and 200 MiB where it is read."""
    table = pa.concat_tables([pq.read_table(file)] * 3).slice(0, 100)
    thumbnails = pa.array([bytes(2**21)] * 100, table.schema.field("thumbnail").type)
    table = table.set_column(table.schema.get_field_index("thumbnail"), table.schema.field("thumbnail"), thumbnails)
    pq.write_table(table, file, compression="zstd")
    assert file.stat().st_size < 100_000
    return file


def _cut(file: Path) -> Path:
    content = file.read_bytes()
    file.write_bytes(content[:200] + bytes(300) + content[500:])
    return file


VECTORS = pa.list_(pa.float32())
HOSTILE: dict[str, Callable[[Path], Path]] = {
    "NaN": lambda file: changed(file, "vector", [float("nan")] * DIM),
    "long vector": lambda file: changed(file, "vector", [2.0] * DIM),
    "short vector": lambda file: changed(file, "vector", [1.0], kind=VECTORS),
    "huge vector": lambda file: changed(file, "vector", [1.0] * 10**6, kind=VECTORS),
    "no vector": lambda file: changed(file, "vector", None),
    "vectors of text": _texts,
    "no id": lambda file: changed(file, "photo_id", None),
    "empty id": lambda file: changed(file, "photo_id", ""),
    "deep metadata": lambda file: changed(file, "metadata", nested(MAX_DEPTH + 1)),
    "very deep metadata": lambda file: changed(file, "metadata", nested(100_000)),
    "no JSON": lambda file: changed(file, "metadata", "{"),
    "a list": lambda file: changed(file, "metadata", "[1]"),
    "a number": lambda file: changed(file, "metadata", "3"),
    "null": lambda file: changed(file, "metadata", "null"),
    "no metadata": lambda file: changed(file, "metadata", None),
    "NaN in metadata": lambda file: changed(file, "metadata", '{"price": NaN}'),
    "half a surrogate": lambda file: changed(file, "metadata", '{"x": "\\ud800"}'),
    "long metadata": lambda file: changed(file, "metadata", json.dumps({"x": "y" * 100_000})),
    "text in a column of numbers": lambda file: changed(file, "metadata", '{"price": "x"}'),
    "other columns": lambda file: _write(file, pq.read_table(file).drop_columns(["metadata"])),
    "negative size": lambda file: with_facts(file, lambda facts: facts.update(dim=-1)),
    "size of text": lambda file: with_facts(file, lambda facts: facts.update(dim="x")),
    "huge size": lambda file: with_facts(file, lambda facts: facts.update(dim=2**62)),
    "columns of numbers": lambda file: with_facts(file, lambda facts: facts.update(columns=[1])),
    "column that injects": lambda file: with_facts(file, lambda facts: facts.update(columns={"x') --": "text"})),
    "a thumbnail that repeats": _repeated,
    "cut off": _cut,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_failed_import_leaves_nothing(
    exported: Path, tmp_path: Path, make: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.upkeep.backup_020.BATCH", 10)
    file, place = make(exported), tmp_path / "shop" / "new"
    with pytest.raises(RetrievalError):
        imported(file, place)
    assert not place.exists()
    assert [*place.parent.glob("*")] == []


@pytest.mark.parametrize("column", ["photo_id", "item_id", "vector.list.element", "metadata", "thumbnail"])
def test_a_bit_that_has_changed_in_a_backup_is_found(exported: Path, tmp_path: Path, column: str) -> None:
    group, whole = pq.ParquetFile(exported).metadata.row_group(0), bytearray(exported.read_bytes())
    (chunk,) = (each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    whole[start + chunk.total_compressed_size - 1] ^= 4  # in the last page
    exported.write_bytes(whole)
    with pytest.raises(DataError):
        imported(exported, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_good_import_takes_its_place_and_adds_to_a_gallery(exported: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "shop" / "new", tmp_path / "empty"):
        if place.name == "empty":
            place.mkdir()
        for _ in range(2):
            assert imported(exported, place) == PHOTOS
        with Gallery.open(place, read_only=True) as gallery:
            assert len(gallery) == PHOTOS
            assert gallery.verify() == []
    assert {path.name for path in (tmp_path / "shop").iterdir()} == {"new"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(RetrievalError, match="not empty"):
        imported(exported, tmp_path / "other")
