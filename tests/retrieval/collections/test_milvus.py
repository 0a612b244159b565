"""Collections of Milvus in a file of Milvus Lite: fields, conditions, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pymilvus
import pytest
from pymilvus import DataType, MilvusClient

from retrieval.collections import Columns
from retrieval.collections.open import open_collection
from retrieval.collections.reading import read
from retrieval.errors import DataError

from .conftest import Place
from .rows import Rows
from .test_sources import run_recipe


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with a collection `long` of several pages; three of its rows have no item."""
    path = tmp_path_factory.mktemp("milvus") / "lite.db"
    with closing(MilvusClient(str(path))) as client:
        schema = MilvusClient.create_schema(auto_id=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=99)
        schema.add_field("person", DataType.INT64, nullable=True)
        schema.add_field("clip", DataType.FLOAT_VECTOR, dim=8)
        params = client.prepare_index_params()
        params.add_index("clip", index_type="HNSW", metric_type="L2", params={"M": 8, "efConstruction": 64})
        client.create_collection("long", schema=schema, index_params=params)
        rows = [{"id": f"é {n}", "person": n // 3 or None, "clip": list(range(n, n + 8))} for n in range(1200)]
        client.insert("long", rows)
    return path


def test_condition_restricts_reading_searching_and_the_recipe(
    place_of: Callable[[str], Place], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = """item_id in ["7", "o'brien"]"""
    collection = open_collection(place_of("milvus")[0], Columns(where=where))
    assert len(collection) == 14
    collected = read(collection)
    answers = collection.search(rows.vectors[:1], 50)
    assert answers is not None
    for names in (
        collected.items,
        [neighbour.item_id for neighbour in answers[0]],
        [item for item, _ in run_recipe(collection, rows.vectors[0], monkeypatch)],
    ):
        assert sorted(names) == ["7"] * 6 + ["o'brien"] * 8


def test_condition_that_is_no_expression_is_refused(place_of: Callable[[str], Place]) -> None:
    with (
        closing(open_collection(place_of("milvus")[0], Columns(where="item_id is what"))) as collection,
        pytest.raises(DataError, match=r"cannot be read: .*Check the address, the condition"),
    ):
        len(collection)


def test_vectors_of_a_collection_of_several_pages_are_all_read(lite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = open_collection(f"milvus+{lite}/long", Columns(items="person"))
    collected = read(collection)
    order = np.argsort([int(photo_id[2:]) for photo_id in collected.ids])
    assert [collected.ids[row] for row in order] == [f"é {n}" for n in range(3, 1200)]
    assert [collected.items[row] for row in order] == [str(n // 3) for n in range(3, 1200)]
    np.testing.assert_array_equal(collected.vectors[order], np.arange(3, 1200)[:, None] + np.arange(8))
    assert (collected.without_item, collected.metric) == (3, "squared_l2")
    answers = collection.search(np.arange(9, 17)[None], 3)
    assert answers is not None
    assert answers[0][0] == ("é 9", "3", 0.0)
    assert {neighbour.item_id for neighbour in answers[0][1:]} == {"2", "3"}
    np.testing.assert_allclose([neighbour.score for neighbour in answers[0]], [0, 8, 8], atol=1e-5)
    assert run_recipe(collection, np.arange(9, 17), monkeypatch)[0] == ("3", 0.0)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(), r"has the fields id, person, clip\. Name the items with --items"),
        (Columns(items="people"), r"has the fields id, person, clip, and not people\. Name the items with --items"),
        (Columns(items="person", vectors="dino"), r"has the fields .*, and not dino\. Name the vectors with --vectors"),
        (Columns(items="person", vectors="id"), r"the field id of .* has the type VARCHAR"),
    ],
)
def test_field_that_cannot_be_used_is_refused_with_those_that_are_there(
    columns: Columns, message: str, lite: Path
) -> None:
    with pytest.raises(DataError, match=message):
        open_collection(f"milvus+{lite}/long", columns)


def test_place_that_is_missing_is_refused_and_not_created(lite: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"other is not there: there are the collections .*long"):
        open_collection(f"milvus+{lite}/other", Columns())
    with pytest.raises(DataError, match=r"is not there\. Write milvus\+http"):
        open_collection(f"milvus+{tmp_path}/none.db/photos", Columns())
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"is not there\. Write milvus\+http"):
        open_collection(f"milvus+{lite}/not-a-name", Columns())


def test_token_of_a_server_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def client(server: str, token: str, **_: object) -> None:
        given.update(server=server, token=token)
        raise pymilvus.MilvusException(message=f"no access with {token}")

    monkeypatch.setattr(pymilvus, "MilvusClient", client)
    monkeypatch.setenv("MILVUS_TOKEN", "root:hush-hush")
    with pytest.raises(DataError, match=r"milvus\+http://host:1/c cannot be read.*MILVUS_TOKEN") as refused:
        open_collection("milvus+http://host:1/c", Columns())
    assert given == {"server": "http://host:1", "token": "root:hush-hush"}
    assert "hush-hush" not in str(refused.value)
    with pytest.raises(DataError, match=r"holds no user, password or key\. Put the key into MILVUS_TOKEN") as refused:
        open_collection("milvus+http://root:hush-hush@host:19530/c", Columns())
    assert "hush-hush" not in str(refused.value)
