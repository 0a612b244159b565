"""The Python of the page *Your own vectors*, run as it stands, with addresses of servers of the tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retrieval import Promise
from tests.conftest import ROOT

from .conftest import write_milvus, write_postgres, write_qdrant
from .postgres_server import Server
from .rows import Rows, many_rows

MEASURE, DECIDE, POSTGRES, QDRANT, MILVUS, FAISS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs" / "vectors.md").read_text(), re.DOTALL
)


@pytest.fixture(scope="module")
def many() -> Rows:
    return many_rows()


@pytest.fixture
def here(many: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(many: Rows, metric: str) -> None:
    Promise.measure(many.vectors, many.items, metric=metric).save("shop.promise")


def check(code: str, many: Rows, *closed: str, **given: Any) -> None:
    """Run code for a photo of an item and for a vector of no item, and compare what it decides."""
    for vector, decision, item in ((many.vectors[5], "match", many.items[5]), (np.eye(16)[3], "no_match", None)):
        names: dict[str, Any] = {"vector": vector.astype(np.float32), **given}
        try:
            exec(code, names)  # noqa: S102 - the page's own lines
            assert (names["answer"].decision, names["answer"].item_id) == (decision, item)
        finally:
            for name in closed:
                names[name].close()


def test_the_first_lines_measure_and_decide(here: Path, many: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("flowers.npz", vectors=many.vectors, items=many.items)
    names: dict[str, Any] = {}
    exec(MEASURE, names)  # noqa: S102
    names.pop("photos").close()
    assert "<- decide() uses this target" in capsys.readouterr().out
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    client.create_collection("flowers", models.VectorParams(size=16, distance=models.Distance.COSINE))
    client.upsert(
        "flowers",
        [
            models.PointStruct(id=int(number), vector=vector.tolist(), payload={"item_id": item})
            for number, vector, item in zip(many.ids, many.vectors, many.items, strict=True)
        ],
    )
    check(DECIDE, many, client=client, Promise=Promise)
    client.close()


def test_the_recipe_for_postgres_decides(here: Path, many: Rows, server: Server) -> None:
    save(many, "cosine_distance")
    write_postgres(server, many, "page")
    code = POSTGRES.replace("postgresql://localhost/shop", server.address("page").partition("#")[0])
    check(code.replace("FROM photos", "FROM page").replace("sku", "item_id"), many)


def test_the_recipe_for_qdrant_decides(here: Path, many: Rows) -> None:
    save(many, "cosine")
    write_qdrant(here, many, payload=("item_id", "group"))
    code = QDRANT.replace('QdrantClient("http://localhost:6333")', 'QdrantClient(path="qdrant")')
    assert code != QDRANT
    check(code, many, "client")


def test_the_recipe_for_milvus_decides(here: Path, many: Rows) -> None:
    save(many, "cosine")
    write_milvus(here, many)
    code = MILVUS.replace("http://localhost:19530", "lite.db")
    assert code != MILVUS
    check(code, many, "client")


def test_the_recipe_for_faiss_decides(here: Path, many: Rows) -> None:
    numbers = [str(int(item)) for item in many.items]
    numbered = Rows(many.ids, numbers, many.groups, many.vectors)
    save(numbered, "ip")
    index = faiss.index_factory(16, "IDMap,Flat", faiss.METRIC_INNER_PRODUCT)
    index.add_with_ids(many.vectors, np.array(numbers, dtype=np.int64))
    faiss.write_index(index, "photos.faiss")
    check(FAISS, numbered)
