"""Searches by words over HTTP: as searches by photos, except that there is nothing to keep and no drift to observe."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from fastapi.testclient import TestClient

from retrieval.catalogue.read import read_catalogue
from retrieval.client import ApiError
from retrieval.errors import InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.plan import SyncSettings
from retrieval.retriever import Retriever
from retrieval.search.result import SearchResult
from serving.access.keys import add_key
from serving.app import create_app
from serving.errors import Busy
from serving.page.page import page_html
from serving.service import Service
from serving.settings import ServeSettings

from ..retrieval.test_client import Recorded
from ..words import looks, word_bundle, write_shop
from ..world import draw, encode
from .conftest import bearer


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    photos = read_catalogue(write_shop(folder / "photos"))
    bundle = word_bundle(folder, looks())
    index_catalogue(bundle, photos, folder / "gallery", progress=False, sync=SyncSettings(names="name"))
    return folder


@pytest.fixture(scope="module")
def words(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return a client of a server that answers words, and keeps answers for feedback."""
    file = tmp_path_factory.mktemp("judged") / "feedback.jsonl"
    settings = ServeSettings(feedback=file)
    with (
        Retriever.open(shop / "bundle", shop / "gallery") as retriever,
        TestClient(create_app(retriever, settings=settings, page=False)) as client,
    ):
        yield client


def test_words_are_answered_as_photos_are(words: TestClient) -> None:
    answer = words.post("/v1/search", params={"text": "thing3", "top_k": 2, "fields": "name"}).json()
    assert (answer["decision"], answer["matches"][0]["item_id"]) == ("match", "item-3")
    assert answer["matches"][0]["metadata"] == {"name": "thing3"}
    assert set(answer["timings_ms"]) == {"queue", "embed", "search"}
    assert words.post("/v1/search", params={"text": "no such word"}).json()["decision"] == "no_match"
    filtered = words.post("/v1/search", params={"text": "thing3", "where": "half = 1"}).json()
    assert filtered["matches"][0]["item_id"] == "item-3"
    assert words.get("/openapi.json").json()["paths"]["/v1/search"]["post"]["requestBody"]["required"] is False


def test_words_beside_a_photo_and_words_that_are_none_are_refused(words: TestClient) -> None:
    photo, body = encode(draw(3, 0)), json.dumps({"image": "", "text": "thing3"})
    jpeg, is_json = {"content-type": "image/jpeg"}, {"content-type": "application/json"}
    for given, status, told in (
        ({"params": {"text": "thing3"}, "content": photo, "headers": jpeg}, 422, "without an image"),
        ({"params": {"text": "thing3"}, "files": {"image": photo}}, 422, "without an image"),
        ({"params": {"text": "thing3", "bbox": "0,0,20,20"}}, 422, "without an image, bbox"),
        ({"params": {"text": "thing3", "explain": True}}, 422, "explain"),
        ({"content": body, "headers": is_json}, 422, "text must be left out"),
        ({"params": {"text": ""}}, 422, "text must be a text of 1 to 1,000"),
        ({"params": {"text": "\x00 \n"}}, 422, "text must be a text of 1 to 1,000"),
        ({"params": {"text": "a" * 1001}}, 422, "text must have at most 1000 characters"),
        ({"params": {"text": "thing3", "where": "half = 'a' or"}}, 422, "where"),
        ({"params": {"text": "thing3", "top_k": 101}}, 422, "top_k"),
        ({}, 400, "no image"),
    ):
        response = words.post("/v1/search", **given)
        assert response.status_code == status, given
        assert told in response.text, response.text
    assert words.post("/v1/search?text=%ff").status_code == 400
    assert words.post("/v1/search/batch", params={"text": "thing3"}).status_code == 422


@pytest.mark.parametrize(
    "text",
    [
        "'; DROP TABLE photos; --",
        '{"$gt": ""}',
        "\u202eelttek\u202c",
        "a\x00b\x1b[31m\r\nX-Injected: 1",
        "<script>alert(1)</script>",
        "קומקום",
        "红色水壶",
        "x" * 1000,
        "🫖" * 1000,
    ],
)
def test_any_text_is_a_text(words: TestClient, text: str) -> None:
    response = words.post("/v1/search", params={"text": text})
    assert response.status_code == 200
    assert response.json()["decision"] in ("match", "perhaps", "no_match")
    assert "x-injected" not in response.headers


def test_words_move_no_drift_and_are_not_kept_for_feedback(words: TestClient) -> None:
    before = words.get("/v1/info").json()["drift"]
    answer = words.post("/v1/search", params={"text": "thing3"}).json()
    assert words.get("/v1/info").json()["drift"] == before
    judged = words.post("/v1/feedback", json={"request_id": answer["request_id"], "verdict": "right"})
    assert judged.status_code == 404
    assert "retrieval_norm_count 0.0" in words.get("/metrics").text


def test_keys_are_needed_as_for_photos(shop: Path, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", "shop", "search")
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        settings = ServeSettings(keys=tmp_path / "keys.json")
        with TestClient(create_app(retriever, settings=settings, page=False)) as client:
            assert client.post("/v1/search", params={"text": "thing3"}).status_code == 401
            assert client.post("/v1/search", params={"text": "thing3"}, headers=bearer(key)).status_code == 200


def test_words_wait_in_the_queue_of_photos(shop: Path) -> None:
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        service, started, free = Service(retriever, ServeSettings(threads=1, queue=1)), Event(), Event()

        async def ask() -> SearchResult:
            running = [asyncio.create_task(service.pool.run(lambda: (started.set(), free.wait(60)))) for _ in "ab"]
            await asyncio.to_thread(started.wait, 60)
            with pytest.raises(Busy):
                await service.search_text("thing3")
            free.set()
            await asyncio.gather(*running)
            return await service.search_text("thing3")

        assert asyncio.run(ask()).matches[0].item_id == "item-3"
        assert "retrieval_busy_total 1.0" in service.metrics.text().decode()


def test_the_client_searches_by_words(words: TestClient) -> None:
    with Recorded(words) as client:
        answer = client.search_text("thing3", top_k=1, where="half = 1", fields=["name"])
        assert answer.matches[0].item_id == "item-3"
        for text in ("", "a" * 10**6):
            with pytest.raises(InvalidParameter, match="text must be"):
                client.search_text(text)


def test_a_bundle_without_a_text_tower_says_what_to_do(client: TestClient) -> None:
    response = client.post("/v1/search", params={"text": "red kettle"})
    assert response.status_code == 422
    assert "text tower" in response.json()["title"]
    assert "retrieval export --pretrained" in response.json()["detail"]
    with Recorded(client) as caller, pytest.raises(ApiError, match="text tower"):
        caller.search_text("red kettle")


def test_the_page_has_a_field_for_words_where_there_is_a_text_tower(shop: Path, client: TestClient) -> None:
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        assert 'id="words"' in page_html(Service(retriever), ())
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever, TestClient(create_app(retriever)) as words:
        assert "Or search by words" in words.get("/").text
