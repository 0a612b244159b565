"""Every source of the same rows gives the same arrays, scores that fit its metric, and lines that search it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import faiss
import numpy as np
import pytest

import retrieval
from retrieval.collections import Collection
from retrieval.collections.open import open_collection
from retrieval.collections.reading import read
from retrieval.promise.metric import metric_named

from .conftest import SOURCES, Place, write_faiss, write_milvus, write_postgres, write_qdrant
from .postgres_server import PASSWORD
from .rows import Rows

METRICS = {
    "npz": None, "npy": None, "parquet": None, "feather": None, "arrow": None,
    "faiss": "ip", "qdrant": "cosine", "milvus": "cosine", "postgres": "cosine_distance",
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_read_of_any_source_with_the_same_rows_gives_the_same_arrays(
    kind: str, place_of: Callable[[str], Place], rows: Rows
) -> None:
    with closing(open_collection(*place_of(kind))) as collection:
        assert len(collection) == len(rows.ids)
        collected = read(collection)
    order = np.argsort(np.array(list(map(int, collected.ids))))
    expected = rows.sorted()
    assert [collected.ids[row] for row in order] == list(map(str, range(len(rows.ids))))
    assert [collected.items[row] for row in order] == expected.items
    assert collected.groups is not None
    assert [collected.groups[row] for row in order] == expected.groups
    np.testing.assert_allclose(collected.vectors[order], expected.vectors, atol=1e-7)
    np.testing.assert_allclose(collected.norms, 1, atol=1e-6)
    assert collected.vectors.dtype == np.float32
    assert (collected.name, collected.metric) == (collection.name, METRICS[kind])
    assert (collected.without_item, collected.without_vector, collected.remarks) == (0, 0, ())


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> Callable[[str, str, Any], Place]:
    def place(kind: str, how: str, server: Any) -> Place:
        folder = tmp_path_factory.mktemp(kind)
        if kind == "postgres":
            type_ = how.partition("_")[0]
            return write_postgres(server(), rows, f"by_{how}", how, type_)
        if kind == "faiss":
            return write_faiss(folder, rows, getattr(faiss, how))
        return (write_qdrant if kind == "qdrant" else write_milvus)(folder, rows, how)

    return place


@pytest.mark.parametrize(
    ("kind", "how", "metric"),
    [
        ("faiss", "METRIC_INNER_PRODUCT", "ip"),
        ("faiss", "METRIC_L2", "squared_l2"),
        ("postgres", "vector_cosine_ops", "cosine_distance"),
        ("postgres", "vector_l2_ops", "l2"),
        ("postgres", "vector_ip_ops", "negative_ip"),
        ("postgres", "halfvec_cosine_ops", "cosine_distance"),
        ("qdrant", "Cosine", "cosine"),
        ("qdrant", "Dot", "ip"),
        ("qdrant", "Euclid", "l2"),
        ("milvus", "COSINE", "cosine"),
        ("milvus", "IP", "ip"),
        ("milvus", "L2", "squared_l2"),
    ],
)
def test_search_of_a_source_returns_scores_that_fit_the_formula_of_its_metric(
    kind: str, how: str, metric: str, measured: Any, rows: Rows, request: pytest.FixtureRequest
) -> None:
    queries = rows.vectors[:7] + np.float32(0.05)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    with closing(open_collection(*measured(kind, how, lambda: request.getfixturevalue("server")))) as collection:
        assert collection.metric == metric
        answers = collection.search(queries, 9)
    stored = rows.sorted()
    vectors = stored.vectors.astype(np.float16 if "half" in how else np.float32).astype(np.float64)
    assert answers is not None
    assert [len(answer) for answer in answers] == [9] * 7
    for query, answer in zip(queries.astype(np.float64), answers, strict=True):
        distances = np.linalg.norm(_unit(vectors) - query, axis=1)
        nearest = [int(neighbour.photo_id) for neighbour in answer]
        assert nearest == np.argsort(distances)[:9].tolist()
        assert [neighbour.item_id for neighbour in answer] == [stored.items[row] for row in nearest]
        expected = metric_named(metric).scores(distances[nearest])
        atol = 1e-3 if "half" in how else 1e-5
        np.testing.assert_allclose([neighbour.score for neighbour in answer], expected, atol=atol)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class Loaded:
    """Stands for a promise, and keeps what it is asked."""

    asked: tuple[Any, ...] = ()

    @classmethod
    def load(cls, path: str) -> type[Loaded]:
        assert path == "it's.promise"
        return cls

    @classmethod
    def decide(cls, vector: Any, neighbours: Any) -> str:
        cls.asked = (vector, list(neighbours))
        return "answered"


def run_recipe(collection: Collection, vector: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Run a recipe and return the neighbours that it gives to `decide`."""
    monkeypatch.setattr(retrieval, "Promise", Loaded, raising=False)
    lines = collection.recipe("it's.promise")
    collection.close()  # a local database has one user at a time
    assert 3 <= len(lines.splitlines()) <= 8
    assert PASSWORD not in lines
    names = {"vector": vector}
    exec(lines, names)  # noqa: S102
    assert names["answer"] == "answered"
    for name in ("client", "connection"):
        if name in names:
            names[name].close()
    return [(item, float(score)) for item, score in Loaded.asked[1]]


@pytest.mark.parametrize("kind", SOURCES)
def test_recipe_of_a_source_finds_the_twenty_nearest_with_the_scores_of_its_metric(
    kind: str, place_of: Callable[[str], Place], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = rows.vectors[3]
    neighbours = run_recipe(open_collection(*place_of(kind)), query, monkeypatch)
    distances = np.linalg.norm(rows.vectors.astype(np.float64) - query, axis=1)
    nearest = np.argsort(distances)[:20]
    assert [item for item, _ in neighbours] == [rows.items[row] for row in nearest]
    expected = metric_named(METRICS[kind] or "cosine").scores(distances[nearest])
    np.testing.assert_allclose([score for _, score in neighbours], expected, atol=1e-5)
