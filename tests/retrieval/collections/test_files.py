"""Files of arrays and tables: names, types and damage; and sources that are not understood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from retrieval.collections import ROWS, Columns
from retrieval.collections.open import open_collection
from retrieval.collections.reading import Collected, read
from retrieval.errors import DataError, InvalidParameter

VECTORS = np.array([[1, 0], [0, 2], [3, 4]], np.float32)


def read_of(path: Path, **columns: str) -> Collected:
    return read(open_collection(str(path), Columns(**columns)))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (np.array([7, 7, 10]), ["7", "7", "10"]),
        (np.array(["é", "苹果", "x y"]), ["é", "苹果", "x y"]),
        (np.array(["é".encode(), b"a", b"b"]), ["é", "a", "b"]),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive_with_names_of_its_own_is_read_by_them(
    save: Any, items: Any, expected: list[str], tmp_path: Path
) -> None:
    save(tmp_path / "a.npz", clip=VECTORS, people=items, teams=items)
    collected = read_of(tmp_path / "a.npz", vectors="clip", items="people", groups="teams")
    assert (collected.items, collected.groups, collected.ids) == (expected, expected, ["0", "1", "2"])
    np.testing.assert_array_equal(collected.vectors, VECTORS)
    np.testing.assert_allclose(collected.norms, [1, 2, 5])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_archive_of_several_blocks_in_another_type_gives_all_rows(dtype: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(ROWS + 3, 2)).astype(dtype)
    for order in ("C", "F"):
        np.savez(tmp_path / "a.npz", vectors=np.asarray(vectors, order=order), items=np.arange(len(vectors)))
        collected = read_of(tmp_path / "a.npz")
        np.testing.assert_array_equal(collected.vectors, vectors.astype(np.float32))
        assert collected.items == list(map(str, range(len(vectors))))


@pytest.mark.parametrize(
    ("arrays", "columns", "message"),
    [
        ({"x": VECTORS, "items": [1, 2, 3]}, {}, r"has the arrays x, items\. Name the vectors with --vectors"),
        (
            {"x": VECTORS, "items": [1, 2, 3]},
            {"vectors": "y"},
            r"has the arrays x, items, and not y\. Name the vectors",
        ),
        ({"vectors": VECTORS}, {}, r"has the arrays vectors\. Name the items with --items"),
        ({"vectors": VECTORS, "items": [1, 2]}, {}, r"vectors of shape 3 × 2 and 2 items"),
        ({"vectors": VECTORS, "items": [1, 2, 3], "groups": [1]}, {}, r"vectors of shape 3 × 2 and 1 groups"),
        ({"vectors": VECTORS.ravel(), "items": [1] * 6}, {}, r"vectors of shape 6 and 6 items"),
        ({"vectors": np.array(["a"]), "items": [1]}, {}, r"the vectors of .* are of type <U1"),
        ({"vectors": VECTORS, "items": np.array([1, "a", None], object)}, {}, r"array items .*not of objects"),
        ({"vectors": VECTORS.astype(object), "items": [1, 2, 3]}, {}, r"are of type object"),
    ],
)
def test_archive_that_cannot_be_used_is_refused_with_what_it_has(
    arrays: dict[str, Any], columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_of(tmp_path / "a.npz", **columns)


def test_vectors_alone_without_a_file_of_items_are_refused_with_the_option(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VECTORS)
    with pytest.raises(DataError, match=r"holds vectors alone.*--items FILE"):
        read_of(tmp_path / "a.npy")
    (tmp_path / "items.txt").write_bytes("a\r\nb\u2028c\r\n\r\n".encode())
    assert read_of(tmp_path / "a.npy", items=str(tmp_path / "items.txt")).items == ["a", "b\u2028c"]
    (tmp_path / "items.txt").write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="in UTF-8"):
        read_of(tmp_path / "a.npy", items=str(tmp_path / "items.txt"))
    np.save(tmp_path / "b.npy", np.array(["a"]))
    (tmp_path / "items.txt").write_text("a")
    with pytest.raises(DataError, match="are of type <U1"):
        read_of(tmp_path / "b.npy", items=str(tmp_path / "items.txt"))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".arrow", ".feather", ".faiss"])
def test_damaged_file_is_refused_as_such(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    for content in (b"", b"nothing of the kind" * 9):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            read_of(path, items=str(path))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive_with_a_damaged_byte_of_its_vectors_is_refused(save: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    save(path, vectors=np.random.default_rng(0).normal(size=(99, 9)), items=np.arange(99))
    content = bytearray(path.read_bytes())
    content[2000] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        read_of(path)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("fixed", [True, False])
def test_table_of_any_type_of_lists_leaves_out_rows_without_vector_or_item(
    kind: Any, fixed: bool, tmp_path: Path
) -> None:
    lists = [[1, 0], None, [0, 2], [3, 4]]
    numbers = [each and [np.float16(number) for number in each] for each in lists]
    column = pa.array(numbers, pa.list_(kind, 2) if fixed else pa.list_(kind))
    items = pa.array(["b", "a", None, "a"]).dictionary_encode()
    table = pa.table({"clip": column, "label": items, "other": [1, 2, 3, 4]}).slice(0, 4)
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    pa.feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed")
    for path in (tmp_path / "a.parquet", tmp_path / "a.feather"):
        collected = read_of(path)
        assert (collected.ids, collected.items) == (["0", "3"], ["b", "a"])
        assert collected.vectors.tolist() == [[1, 0], [3, 4]]
        assert (collected.without_item, collected.without_vector) == (1, 1)


def test_table_with_lists_of_different_lengths_is_refused_with_the_first_id(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b", "c"], "item": [1, 1, 1], "vector": [[1.0, 2.0], None, [1.0]]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"the vector of 'c' .* has 1 number, those before it have 2"):
        read_of(tmp_path / "a.parquet")


def test_table_that_lacks_columns_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    table = pa.table({"name": ["a"], "clip": [[1.0, 2.0]], "dino": [[1.0, 2.0]]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"has the columns name, clip, dino\. Name the items with --items"):
        read_of(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"has the columns name, clip, dino\. Name the vectors with --vectors"):
        read_of(tmp_path / "a.parquet", items="name")
    with pytest.raises(DataError, match=r"the column name .* has the type string, not lists of numbers"):
        read_of(tmp_path / "a.parquet", items="name", vectors="name")
    assert read_of(tmp_path / "a.parquet", items="name", vectors="dino").items == ["a"]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".faiss"])
def test_condition_for_a_file_is_refused(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"a{suffix}").touch()
    with pytest.raises(InvalidParameter, match="where must be left out"):
        read_of(tmp_path / f"a{suffix}", where="id = 1")


@pytest.mark.parametrize("source", ["a.csv", "http://user:secret@host/a.npz?key=secret", "mysql://x", "folder"])
def test_source_that_is_not_understood_is_refused_with_what_is(source: str) -> None:
    with pytest.raises(
        DataError, match=r"is not understood as vectors\. Give \.npz .*postgresql://.*qdrant\+.*milvus"
    ) as refused:
        open_collection(source, Columns())
    assert "secret" not in str(refused.value)


def test_import_of_the_sources_loads_no_driver() -> None:
    modules = ("open", "reading", "arrays", "faiss_files", "postgres", "qdrant", "milvus")
    lines = [f"import retrieval.collections.{module}" for module in modules]
    lines.append("import sys; print({'faiss', 'psycopg', 'pymilvus', 'qdrant_client', 'pyarrow'} & set(sys.modules))")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet is not there"):
        open_collection(str(tmp_path / "a.parquet"), Columns())
