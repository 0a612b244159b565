"""Collections of Qdrant in a local folder: payloads, named vectors, filters, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_client
from qdrant_client import QdrantClient, models

from retrieval.collections import Columns
from retrieval.collections.open import open_collection
from retrieval.collections.reading import read
from retrieval.errors import DataError, InvalidParameter

from .conftest import Place, write_qdrant
from .rows import Rows
from .test_sources import run_recipe


def make(folder: Path, vectors: Any, points: list[Any]) -> str:
    """Write a collection `c` and return its address."""
    with closing(QdrantClient(path=str(folder / "q"))) as client:
        client.create_collection("c", vectors)
        if points:
            client.upsert("c", points)
    return f"qdrant+{folder}/q/c"


def plain(distance: models.Distance = models.Distance.DOT) -> models.VectorParams:
    return models.VectorParams(size=2, distance=distance)


def point(number: int, vector: Any, **payload: Any) -> models.PointStruct:
    return models.PointStruct(id=number, vector=vector, payload=payload)


def test_condition_in_json_restricts_reading_searching_and_the_recipe(
    place_of: Callable[[str], Place], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = json.dumps({"must": [{"key": "item", "match": {"any": ["7", "o'brien"]}}]})
    collection = open_collection(place_of("qdrant")[0], Columns(where=where))
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


@pytest.mark.parametrize("where", ["item = 7", '{"must": 3}', '{"key": "item"}'])
def test_condition_that_is_no_filter_is_refused_with_an_example(where: str, place_of: Callable[[str], Place]) -> None:
    with pytest.raises(InvalidParameter, match=r"where must be a filter of Qdrant in JSON.*Such as \{"):
        open_collection(place_of("qdrant")[0], Columns(where=where))


def test_points_of_several_pages_are_all_read(tmp_path: Path) -> None:
    points = [point(number, [1, number], item=number // 2) for number in range(2500)]
    with closing(open_collection(make(tmp_path, plain(), points), Columns())) as collection:
        collected = read(collection)
    order = np.argsort(list(map(int, collected.ids)))
    assert [collected.items[row] for row in order] == [str(number // 2) for number in range(2500)]
    np.testing.assert_array_equal(collected.vectors[order, 1], np.arange(2500))
    assert collected.metric == "ip"


def test_named_vectors_are_read_searched_and_left_out_where_a_point_lacks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        point(1, {"clip": [1, 0], "dino": [0, 1]}, person="a", team="t"),
        point(2, {"dino": [1, 1]}, person="b"),
        point(3, {"clip": [0, 1], "dino": [1, 1]}, team="t"),
        point(4, {"clip": [1, 1]}, person=7),
    ]
    kinds = {"clip": plain(models.Distance.EUCLID), "dino": plain()}
    address = make(tmp_path, kinds, points)
    with pytest.raises(DataError, match=r"has the vectors clip, dino\. Name the vectors with --vectors"):
        open_collection(address, Columns(items="person"))
    with pytest.raises(DataError, match=r"has the vectors clip, dino, and not sift"):
        open_collection(address, Columns(items="person", vectors="sift"))
    collection = open_collection(address, Columns(items="person", vectors="clip", groups="team"))
    collected = read(collection)
    assert (collected.ids, collected.items, collected.groups) == (["1", "4"], ["a", "7"], ["t", ""])
    assert collected.vectors.tolist() == [[1, 0], [1, 1]]
    assert (collected.without_item, collected.without_vector, collected.metric) == (1, 1, "l2")
    assert collection.search(np.array([[1, 1]]), 5) == [[("4", "7", 0.0), ("1", "a", 1.0)]]
    collection.close()
    address = make(tmp_path / "second", kinds, [each for each in points if each.id in (1, 4)])
    collection = open_collection(address, Columns(items="person", vectors="clip"))
    assert run_recipe(collection, [1, 1], monkeypatch) == [("7", 0.0), ("a", 1.0)]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (plain(models.Distance.MANHATTAN), "has the distance Manhattan"),
        ({}, "has no dense vectors"),
        (
            models.VectorParams(
                size=2,
                distance=models.Distance.DOT,
                multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            ),
            "has several vectors per point",
        ),
    ],
)
def test_vectors_without_a_metric_are_refused_by_name(vectors: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        open_collection(make(tmp_path, vectors, []), Columns(items="item"))


def test_key_of_the_payload_that_is_missing_is_refused_with_those_that_are_there(tmp_path: Path) -> None:
    address = make(tmp_path, plain(), [point(1, [1, 0], name="a"), point(2, [1, 0], shop=1)])
    with pytest.raises(DataError, match=r"has the keys in the payload name, shop\. Name the items with --items"):
        open_collection(address, Columns())
    with pytest.raises(DataError, match=r"name, shop, and not person\. Name the items with --items"):
        open_collection(address, Columns(items="person"))
    with pytest.raises(DataError, match=r"has no names of vectors\. Leave out --vectors"):
        open_collection(address, Columns(items="name", vectors="clip"))


def test_key_that_few_points_have_is_read_where_it_is_named(tmp_path: Path) -> None:
    points = [point(number, [1, 0], name=number, **({"team": "t"} if number > 150 else {})) for number in range(200)]
    with closing(open_collection(make(tmp_path, plain(), points), Columns(items="team", groups="team"))) as collection:
        collected = read(collection)
    assert (len(collected.items), collected.without_item) == (49, 151)


def test_place_that_is_missing_is_refused_and_not_created(tmp_path: Path) -> None:
    make(tmp_path, plain(), [])
    with pytest.raises(DataError, match=r"is not there: there are the collections c$"):
        open_collection(f"qdrant+{tmp_path}/q/other", Columns())
    for address in (f"qdrant+{tmp_path}/none/c", "qdrant+c", "qdrant+http://127.0.0.1:6333/"):
        with pytest.raises(DataError, match=r"is not there\. Write qdrant\+http"):
            open_collection(address, Columns())
    assert not (tmp_path / "none").exists()


def test_folder_that_another_client_uses_is_refused_with_this_reason(place_of: Callable[[str], Place]) -> None:
    address, columns = place_of("qdrant")
    with closing(open_collection(address, columns)), pytest.raises(DataError, match="already accessed by another"):
        open_collection(address, columns)


def test_points_that_are_added_while_they_are_read_are_refused(rows: Rows, tmp_path: Path) -> None:
    collection: Any = open_collection(*write_qdrant(tmp_path, rows))
    blocks = collection.blocks

    def growing() -> Any:
        for block in blocks():
            collection._client.upsert("photos", [point(999, rows.vectors[0].tolist(), item="x")])
            yield block

    collection.blocks = growing
    with closing(collection), pytest.raises(DataError, match=r"changed while it was read: it had 58 rows before, 58"):
        read(collection)


def test_key_of_a_server_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    real = qdrant_client.QdrantClient

    def client(**options: Any) -> QdrantClient:
        given.update(options)
        return real(**options)

    monkeypatch.setattr(qdrant_client, "QdrantClient", client)
    monkeypatch.setenv("QDRANT_API_KEY", "hush-hush")
    with pytest.raises(DataError, match=r"qdrant\+http://127.0.0.1:1/c cannot be read.*QDRANT_API_KEY") as refused:
        open_collection("qdrant+http://127.0.0.1:1/c", Columns())
    assert (given["url"], given["api_key"]) == ("http://127.0.0.1:1", "hush-hush")
    assert "hush-hush" not in str(refused.value)
    for address in ("qdrant+http://user:hush-hush@host:6333/c", "qdrant+https://host/c?api-key=hush-hush"):
        with pytest.raises(
            DataError, match=r"holds no user, password or key\. Put the key into QDRANT_API_KEY"
        ) as refused:
            open_collection(address, Columns())
        assert "hush-hush" not in str(refused.value)
