"""Odd heads, large metadata and the fields of an answer: what a request may hold, and what comes back of it."""

from __future__ import annotations

import asyncio
import base64
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.app import create_app
from serving.problems import MEDIA_TYPE
from serving.settings import ServeSettings

from ..world import draw, encode

STRANGER = encode(draw(77, 0))


@pytest.fixture(params=["local", "keyed"])
def guarded(shop: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """Return a client, without a key, of a server for its own machine, and of one that asks for keys."""
    keys = shop / "keys.json" if request.param == "keyed" else None
    if keys:
        add_key(keys, "shop", "search")
    settings = ServeSettings(keys=keys, local=keys is None)
    app = create_app(Retriever.open(shop / "bundle", shop / "gallery"), settings=settings, page=False)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("host", ["[::1", "::1]", "[x]", "a b", "evil@localhost", "localhost:port", "a/b", "[::1]x"])
def test_a_host_that_is_none_is_refused_before_anything_is_asked(guarded: TestClient, host: str) -> None:
    answer = guarded.get("/v1/items", headers={"host": host})
    assert (answer.status_code, answer.headers["content-type"]) == (400, MEDIA_TYPE)
    assert "Host" in answer.json()["title"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7860", "127.0.0.1:1", "[::1]:7860", "[::1]"])
def test_names_of_this_machine_are_answered(guarded: TestClient, host: str) -> None:
    assert guarded.get("/v1/items", headers={"host": host}).status_code in (200, 401)
    assert guarded.get("/v1/items", headers={"host": f"x{host}"}).status_code in (400, 401, 403)


@pytest.mark.parametrize("length", ["9" * 5000, "0" * 5000, "+1", "1_0", "1e3", ""])
def test_a_length_that_is_none_is_refused(shop: Path, length: str) -> None:
    app = create_app(Retriever.open(shop / "bundle", shop / "gallery"), page=False)
    with TestClient(app) as client:
        answer = client.post("/v1/search", content=b"x", headers={"content-length": length})
        assert (answer.status_code, answer.headers["content-type"]) == (400, MEDIA_TYPE)
        assert client.post("/v1/search", content=b"x", headers={"content-length": "9" * 19}).status_code == 413


def test_a_websocket_is_closed_at_once(guarded: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect) as ended, guarded.websocket_connect("/page/queue"):
        pass
    assert ended.value.code == 1008  # by policy


@pytest.fixture
def client(shop: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Retriever.open(shop / "bundle", shop / "gallery"), page=False)) as client:
        yield client


def put(client: TestClient, metadata: object) -> httpx.Response:
    body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new", "metadata": metadata}
    return client.put("/v1/photos/new.jpg", json=body)


def test_the_metadata_of_a_photo_is_bounded(client: TestClient) -> None:
    assert put(client, {"text": "a" * 65_000}).status_code == 200
    for large in ({"text": "a" * 66_000}, {"text": "é" * 33_000}, {f"key-{n}": n for n in range(5000)}):
        answer = put(client, large)
        assert answer.status_code == 422
        assert "65,536 bytes" in answer.json()["title"]
        assert len(answer.content) < 1000
    assert len(client.get("/v1/photos/new.jpg").json()["metadata"]["text"]) == 65_000  # the first is still there


def test_a_body_of_many_unknown_fields_is_refused_without_listing_them(client: TestClient) -> None:
    names = ",".join(f'"{number}": 1' for number in range(2000))
    answer = client.post("/v1/search", content=f"{{{names}}}", headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["title"] == "body must keep to the fields of the API, got '2,001 errors'"


@pytest.mark.parametrize(
    ("path", "field", "status"),
    [
        ("search", "image", 422),
        ("search/batch", "images", 400),
        ("feedback", "", 413),
        ("admin/sync", "photos", 422),
    ],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(
    client: TestClient, path: str, field: str, status: int
) -> None:
    """Each empty object would take 150 bytes: a body of 80 MB took 4 GB."""
    content = b'{"%s": [' % field.encode() + b"{}," * 600_000 + b"{}]}"
    tracemalloc.start()
    try:
        answer = client.post(f"/v1/{path}", content=content, headers={"content-type": "application/json"})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status_code == status
    assert status in (400, 413) or "values" in answer.json()["title"]
    assert peak < 10 * len(content)
    assert len(answer.content) < 1000


def test_an_answer_holds_the_fields_that_were_asked_for(client: TestClient) -> None:
    assert put(client, {"name": "cup", "price": 3, "text": "a" * 10_000}).status_code == 200
    encoded = base64.b64encode(STRANGER).decode()

    def told(*answers: dict[str, Any]) -> list[list[str]]:
        return [
            sorted(match["metadata"])
            for answer in answers
            for match in (*answer["matches"], answer["nearest"])
            if match
        ]

    for query, fields, expected in (
        ("", None, ["name", "price", "text"]),
        ("&fields=name&fields=nothing", ["name", "nothing"], ["name"]),
        ("&fields=", [], []),
        ("&fields=_content_sha256", ["_content_sha256"], []),
    ):
        raw = client.post(f"/v1/search?explain=true{query}", content=STRANGER).json()
        body = {"image": encoded, "explain": True, "fields": fields}
        assert told(raw, client.post("/v1/search", json=body).json()) == [expected] * 4
        batch = client.post(f"/v1/search/batch?top_k=9{query}", files=[("images", ("a", STRANGER))]).json()
        assert told(*batch["answers"]) == [expected] * 2
    assert client.post("/v1/search?fields=" + "a" * 201, content=STRANGER).status_code == 422
    assert client.post("/v1/search", json={"image": encoded, "fields": ["a"] * 65}).status_code == 422


@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/batch", "/v1/feedback"])
def test_a_client_that_leaves_is_no_error_of_the_server(
    client: TestClient, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Any] = []
    arriving = iter([{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(arriving)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-length", b"9"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    asyncio.run(client.app({**scope, "state": {}, "server": ("localhost", 80)}, receive, send))
    assert sent[0]["status"] == 400
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
