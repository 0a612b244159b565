"""Index files of Faiss: whose vectors come back, whose ids are items, and the parameters that the file holds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retrieval.collections import Columns
from retrieval.collections.open import open_collection
from retrieval.collections.reading import read
from retrieval.errors import DataError, MissingDependency

from .rows import DIM, write_lines
from .test_sources import run_recipe

COUNT = 400
VECTORS = np.random.default_rng(0).normal(size=(COUNT, DIM)).astype(np.float32)
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def write(folder: Path, recipe: str, ids: Any = None, change: Any = None, metric: int = faiss.METRIC_L2) -> str:
    index = faiss.index_factory(DIM, recipe, metric)
    index.train(VECTORS)
    if ids is None:
        index.add(VECTORS)
    else:
        index.add_with_ids(VECTORS, ids)
    if change is not None:
        change(index)
    faiss.write_index(index, str(folder / "a.index"))
    return str(folder / "a.index")


@pytest.mark.parametrize(
    ("recipe", "error"),
    [
        ("Flat", 0),
        ("HNSW8", 0),
        ("IVF4,Flat", 0),
        ("IVF4_HNSW8,Flat", 0),
        ("IVF4,Flat,RFlat", 0),
        ("SQfp16", 1e-3),
        ("IVF4,SQ8", 0.02),
        ("IVF4,PQ8x4", 0.8),
        ("PQ8x4", 0.8),
        ("OPQ8,IVF4,PQ8x4", 0.8),
        ("PCA8,Flat", 1),
    ],
)
def test_vectors_of_an_index_come_back_and_are_called_approximate_where_it_compresses_them(
    recipe: str, error: float, tmp_path: Path
) -> None:
    items = write_lines(tmp_path / "items.txt", [f"item {row // 3}" for row in range(COUNT)])
    with closing(open_collection(write(tmp_path, recipe), Columns(items=items))) as collection:
        collected = read(collection)
        answers = collection.search(VECTORS[:5], 1)
    assert np.abs(collected.vectors - VECTORS).max() <= error
    assert collected.ids == [str(row) for row in range(COUNT)]
    assert collected.items == [f"item {row // 3}" for row in range(COUNT)]
    assert [bool(remark) for remark in collected.remarks] == [True] * bool(error)
    assert all("approximate" in remark for remark in collected.remarks)
    assert answers is not None
    if error < 0.1:
        assert [answer[0][:2] for answer in answers] == [(str(row), f"item {row // 3}") for row in range(5)]


@pytest.mark.parametrize("recipe", ["IDMap,Flat", "IDMap2,HNSW8", "IDMap,IVF4,Flat"])
def test_ids_of_an_index_that_repeat_are_items_and_rows_are_photos(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(1).permutation(np.arange(COUNT) // 4 + 10**12)
    path = write(tmp_path, recipe, ids)
    collection = open_collection(path, Columns())
    collected = read(collection)
    assert (collected.ids, collected.items) == (list(map(str, range(COUNT))), list(map(str, ids.tolist())))
    np.testing.assert_array_equal(collected.vectors, VECTORS)
    answers = collection.search(VECTORS[:5], 1)
    assert answers == [[(str(row), str(ids[row]), pytest.approx(0, abs=1e-6))] for row in range(5)]
    assert run_recipe(collection, VECTORS[7], monkeypatch)[0] == (str(ids[7]), pytest.approx(0, abs=1e-6))


def test_ids_of_an_index_that_differ_are_photos_where_a_file_names_the_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(1).permutation(COUNT) * 7 + 3
    names = [f"item {row // 3}" for row in range(COUNT)]
    np.save(tmp_path / "items.npy", names)
    with_items = Columns(items=str(tmp_path / "items.npy"))
    collection = open_collection(write(tmp_path, "IDMap,Flat", ids), with_items)
    collected = read(collection)
    assert (collected.ids, collected.items) == (list(map(str, ids.tolist())), names)
    np.testing.assert_array_equal(collected.vectors, VECTORS)
    answers = collection.search(VECTORS[:5], 1)
    assert answers is not None
    assert [answer[0][:2] for answer in answers] == [(str(ids[row]), names[row]) for row in range(5)]
    assert run_recipe(collection, VECTORS[7], monkeypatch)[0][0] == names[7]


def test_ids_in_inverted_lists_are_items_and_have_no_order_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(1).permutation(COUNT) * 7 + 3
    path = write(tmp_path, "IVF4,Flat", ids)
    with pytest.raises(DataError, match=r"in no order that a file of items could have.*as \.npz"):
        open_collection(path, Columns(items=write_lines(tmp_path / "items.txt", ["a"] * COUNT)))
    collection = open_collection(path, Columns())
    collected = read(collection)
    assert collected.ids == collected.items == list(map(str, sorted(ids.tolist())))
    np.testing.assert_array_equal(collected.vectors, VECTORS[np.argsort(ids)])
    assert run_recipe(collection, VECTORS[7], monkeypatch)[0] == (str(ids[7]), pytest.approx(0, abs=1e-6))


def test_search_of_an_index_has_the_parameters_of_the_file(tmp_path: Path) -> None:
    items = write_lines(tmp_path / "items.txt", [str(row) for row in range(COUNT)])
    hits = []
    for probes in (1, 64):
        path = write(tmp_path, "IVF64,Flat", change=lambda index, probes=probes: setattr(index, "nprobe", probes))
        with closing(open_collection(path, Columns(items=items))) as collection:
            answers = collection.search(-VECTORS[:50], 10)
        assert answers is not None
        hits.append(sum(map(len, answers)))
    assert hits[0] < hits[1] == 500  # rows that a list lacks are left out


@pytest.mark.parametrize(
    ("recipe", "ids", "columns", "message"),
    [
        ("Flat", None, {}, r"holds vectors alone, numbered by rows.*--items FILE"),
        ("Flat", None, {"items": "short"}, r"has 400 vectors, .*items\.txt has 2 ids"),
        ("IDMap,Flat", np.arange(COUNT), {"groups": "short"}, r"has 400 vectors, .*items\.txt has 2 ids"),
        ("IVF4,Flat", np.arange(COUNT) // 2, {}, r"share an id.*as \.npz"),
    ],
)
def test_index_without_an_id_per_vector_is_refused(
    recipe: str, ids: Any, columns: dict[str, str], message: str, tmp_path: Path
) -> None:
    file = write_lines(tmp_path / "items.txt", ["a", "b"])
    with pytest.raises(DataError, match=message):
        open_collection(write(tmp_path, recipe, ids), Columns(**dict.fromkeys(columns, file)))


def test_index_of_another_metric_or_without_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"compares by metric 2 of Faiss"):
        open_collection(write(tmp_path, "IDMap,Flat", np.arange(COUNT), metric=faiss.METRIC_L1), Columns())
    binary = faiss.IndexBinaryFlat(8)
    faiss.write_index_binary(binary, str(tmp_path / "a.index"))
    with pytest.raises(DataError, match=r"cannot be read, or gives no vectors back.*as \.npz"):
        open_collection(str(tmp_path / "a.index"), Columns())
    ids = np.arange(COUNT)
    with pytest.raises(DataError, match=r"cannot be read, or gives no vectors back.*as \.npz"):
        open_collection(write(tmp_path, "IDMap,ITQ8,LSHt", ids), Columns())


def test_driver_that_is_broken_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.index").touch()
    (tmp_path / "faiss.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "faiss")
    with pytest.raises(MissingDependency, match="faiss is installed but cannot be imported: No module named 'no_such"):
        open_collection(str(tmp_path / "a.index"), Columns())
    (tmp_path / "faiss.py").write_text("from math import nothing")
    with pytest.raises(MissingDependency, match="faiss is installed but cannot be imported: cannot import name"):
        open_collection(str(tmp_path / "a.index"), Columns())
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(MissingDependency, match=r"faiss is not installed.*'\.\[collections\]'"):
        open_collection(str(tmp_path / "a.index"), Columns())
