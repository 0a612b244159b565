"""What a gallery on Milvus asks for and answers, with a client in memory that is as inexact as Milvus may be."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from index.errors import InvalidParameter, MissingDependency
from index.milvus.client import Access
from index.milvus.collections import ITEMS, MOST, TEXTS
from index.milvus.gallery import FACTS, FORMAT, MilvusGallery
from index.milvus.items import Item, key_of
from index.milvus.photos import SLACK
from index.photos import NONE
from index.search.distance import plain_distance
from index.snapshot import FIRST_FETCH

NAME, DIM = "shop", 8


class MemoryClient:
    """Holds rows as Milvus does, and searches them with an error of its cosines below the documented one."""

    name, address, requests, access = NAME, "milvus+memory/shop", 0, Access()

    def __init__(self, rows: Sequence[Mapping[str, Any]] = (), *, error: float = 0.0) -> None:
        facts = {"format": FORMAT, "dim": DIM, "embedding_id": "e", "created": "", "version": 1, "written": 0}
        facts |= {"state": 2, "photos": len(rows), "columns": {}, "kept": {}, "index": {"kind": "FLAT"}}
        by_item: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            by_item.setdefault(row["item_id"], []).append(row)
        facts["items"] = len(by_item)
        self.texts = {FACTS: {"key": FACTS, "value": json.dumps(facts)}}
        self.rows = {str(row["photo_id"]): dict(row) for row in rows}
        self.items = {item: Item.of(item, own).row() for item, own in by_item.items()}
        self.errors = np.random.default_rng(5).uniform(-error, error, len(rows))
        self.asked: list[int] = []

    def close(self) -> None:
        pass

    def written(self, *_: str) -> int:
        return 0

    def held(self, collection: str) -> tuple[dict[str, dict[str, Any]], str]:
        kept = {NAME: (self.rows, "photo_id"), NAME + ITEMS: (self.items, "item_id"), NAME + TEXTS: (self.texts, "key")}
        return kept[collection]

    def ask(self, verb: str, collection: str, *given: Any, **more: Any) -> Any:
        return getattr(self, verb)(collection, *given, **more)

    def upsert(self, collection: str, rows: Sequence[dict[str, Any]]) -> None:
        held, key = self.held(collection)
        held.update({row[key]: row for row in rows})

    def delete(self, collection: str, *, ids: Sequence[str]) -> None:
        held, _ = self.held(collection)
        for name in ids:
            held.pop(name, None)

    def query(self, collection: str, *, filter: str, limit: int = 0, **_: object) -> list[dict[str, Any]]:  # noqa: A002
        """Return the rows that pass conditions on ids and keys."""
        rows = list(self.held(collection)[0].values())
        for name, values in re.findall(r"(\w+) in (\[.*?\])", filter):
            rows = [row for row in rows if row[name] in json.loads(values)]
        for sign, number in re.findall(r"key (>=|<) (\d+)", filter):
            rows = [row for row in rows if (row["key"] >= int(number)) == (sign == ">=")]
        return rows[: limit or None]

    def search(self, collection: str, vectors: Sequence[Sequence[float]], *, limit: int, **_: object) -> list[Any]:
        assert collection == NAME
        assert limit <= MOST, "Milvus refuses to return more"
        self.asked.append(limit)
        rows = list(self.rows.values())
        cosines = np.array(vectors) @ np.array([row["vector"] for row in rows]).T + self.errors
        best = np.argsort(-cosines, axis=1, kind="stable")[:, :limit]
        return [
            [{"entity": rows[place], "distance": float(row[place])} for place in places]
            for row, places in zip(cosines, best, strict=True)
        ]


def photo(name: str, item: str, vector: NDArray[np.float32]) -> dict[str, Any]:
    about = {"photo_id": name, "item_id": item, "key": key_of(name), "metadata": {}, "thumbnail": ""}
    return about | {"vector": vector.tolist()}


def near(query: NDArray[np.float32], cosines: NDArray[np.float64], seed: int) -> NDArray[np.float32]:
    """Return unit vectors (n, d) with these cosines (n,) to a query."""
    aside = np.random.default_rng(seed).normal(size=(len(cosines), DIM))
    aside -= (aside @ query)[:, None] * query
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    vectors = cosines[:, None] * query + np.sqrt(1 - cosines**2)[:, None] * aside
    return np.asarray(vectors, dtype=np.float32)


QUERY = near(np.eye(DIM)[0], np.array([0.5]), 1)[0]


def gallery_of(
    vectors: NDArray[np.float32], items: Sequence[str], *, error: float = 0.0
) -> tuple[MilvusGallery, MemoryClient]:
    """Return a gallery with photos whose ids are in no order, and its client."""
    names = np.random.default_rng(3).permutation(len(vectors)).astype(str)
    rows = [photo(name, item, vector) for name, item, vector in zip(names, items, vectors, strict=True)]
    client = MemoryClient(rows, error=error)
    return MilvusGallery(client), client  # type: ignore[arg-type]


def nearest(gallery: MilvusGallery, k: int) -> tuple[list[tuple[str, str]], list[float]]:
    """Return photo_id and item_id of the nearest photo of each of the k items nearest to QUERY, and its distance."""
    photos = gallery.snapshot()
    positions, distances = photos.nearest(QUERY[None], k)
    found = positions[0][positions[0] != NONE]
    assert np.isinf(distances[0][len(found) :]).all()
    return [ids[:2] for ids in photos.photos_at(found)], distances[0][: len(found)].tolist()


def test_items_behind_thousands_of_photos_of_one_item_are_found() -> None:
    cosines = np.r_[np.linspace(0.9999, 0.95, 3000), 0.9, 0.8]
    found, client = gallery_of(near(QUERY, cosines, 2), [*["many"] * 3000, "second", "third"])
    assert [item_id for _, item_id in nearest(found, 3)[0]] == ["many", "second", "third"]
    assert client.asked[0] == FIRST_FETCH + 12
    assert client.asked == sorted(set(client.asked))
    assert client.asked[-1] >= 3002


def test_no_more_photos_are_asked_for_than_milvus_returns_and_what_lies_within_the_bound_is_answered() -> None:
    count = MOST + 500
    cosines = np.linspace(0.9999, 0.95, count)
    found, client = gallery_of(near(QUERY, cosines, 2), [*["many"] * (count - 1), "beyond"])
    assert [item_id for _, item_id in nearest(found, 2)[0]] == ["many"]
    assert client.asked[-1] == MOST


def test_answers_are_exact_although_the_cosines_of_milvus_are_not() -> None:
    """Photos whose cosines differ by less than the error of Milvus come in the order of their exact distances."""
    count = 400
    cosines = 0.9 + np.random.default_rng(7).uniform(-1, 1, count) * SLACK
    vectors = near(QUERY, cosines, 4)
    found, _ = gallery_of(vectors, [f"i{place}" for place in range(count)], error=0.9 * SLACK)
    exact = np.sort(plain_distance(QUERY[None], vectors))
    for k in (1, 3):
        assert nearest(found, k)[1] == exact[:k].tolist()


def test_of_photos_at_one_distance_the_first_id_comes_first() -> None:
    vectors = np.repeat(near(QUERY, np.array([0.7]), 2), 5, axis=0)
    found, _ = gallery_of(vectors, [f"i{place}" for place in range(5)])
    assert [photo_id for photo_id, _ in nearest(found, 5)[0]] == ["0", "1", "2", "3", "4"]


def test_an_update_keeps_thumbnail_and_vector() -> None:
    vectors = near(QUERY, np.array([0.7, 0.6, 0.5]), 2)
    found, client = gallery_of(vectors, ["c", "a", "b"])
    ids = list(client.rows)
    for name in ids:
        client.rows[name]["thumbnail"] = base64.b64encode(f"jpeg {name}".encode()).decode()
    assert found.update([ids[2], ids[0]], ["new", "newer"], [{"price": 3}, {}]) == 2
    assert [found.thumbnail(name) for name in ids] == [f"jpeg {name}".encode() for name in ids]
    assert [client.rows[name]["vector"] for name in ids] == vectors.tolist()
    assert found.photo(ids[2]) == (ids[2], "new", {"price": 3})
    assert found.photo(ids[0]) == (ids[0], "newer", {})


def test_a_gallery_of_a_later_format_is_refused() -> None:
    client = MemoryClient()
    facts = json.loads(client.texts[FACTS]["value"])
    client.texts[FACTS]["value"] = json.dumps({**facts, "format": FORMAT + 1})
    with pytest.raises(Exception, match="later"):
        MilvusGallery(client)  # type: ignore[arg-type]


def test_thumbnails_and_ids_have_at_most_the_length_that_milvus_holds() -> None:
    found, client = gallery_of(near(QUERY, np.array([0.7]), 2), ["c"])
    largest = 49_149  # bytes: base64 makes 65,532 characters of them, of 65,535
    found.add(["é" * 256], ["ü" * 256], QUERY[None], thumbnails=[bytes(largest)])
    assert found.thumbnail("é" * 256) == bytes(largest)
    with pytest.raises(InvalidParameter, match="thumbnail of new must have at most 49,149 bytes in Milvus"):
        found.add(["new"], ["x"], QUERY[None], thumbnails=[bytes(largest + 1)])
    for photo_id, item_id in (("é" * 256 + "x", "x"), ("new", "ü" * 256 + "x")):
        with pytest.raises(InvalidParameter, match="ids must have at most 512 bytes in Milvus"):
            found.add([photo_id], [item_id], QUERY[None])
    assert len(client.rows) == 2


def test_a_walk_yields_photos_by_the_hash_of_their_ids_with_thumbnails_where_they_are_asked_for() -> None:
    found, client = gallery_of(near(QUERY, np.linspace(0.9, 0.1, 7), 2), ["a", "b", "a", "c", "b", "a", "a"])
    for name, row in client.rows.items():
        row["thumbnail"] = base64.b64encode(name.encode()).decode()
    for count in (1, 3, 7, 9):
        blocks = list(found.walk(count, whole=True))
        assert [len(block) for block in blocks[:-1]] == [count] * (len(blocks) - 1)
        photos = [photo for block in blocks for photo in block]
        order = sorted(client.rows, key=key_of)
        assert [photo.photo_id for photo in photos] == order
        assert [photo.thumbnail for photo in photos] == [name.encode() for name in order]
        assert [photo.item_id for photo in photos] == [client.rows[name]["item_id"] for name in order]
        assert [photo.vector.tolist() for photo in photos] == [client.rows[n]["vector"] for n in order]
    assert all(photo.thumbnail is None for block in found.walk(3) for photo in block)


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingDependency, match="pymilvus"):
        MilvusGallery.open("milvus+http://127.0.0.1:1/shop")
