"""Search routes that are answered without FastAPI's routing."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from retrieval.retriever import Retriever
from serving.api.search_app import SearchApp
from serving.app import create_app

from ...world import draw, encode

IMAGE = encode(draw(3, 5))
BOUNDARY = {"content-type": "multipart/form-data; boundary=b"}
REQUESTS: dict[str, dict[str, Any]] = {
    "an answer": {"url": "/v1/search?top_k=2", "content": IMAGE},
    "a part": {"url": "/v1/search?bbox=0,0,40,40", "content": IMAGE},
    "a form": {"url": "/v1/search", "files": {"image": ("a.jpg", IMAGE)}},
    "a batch": {"url": "/v1/search/batch", "files": [("images", ("a.jpg", IMAGE)), ("images", ("b.jpg", b"no"))]},
    "photos": {"url": "/v1/search/photos", "files": [("images", ("a.jpg", IMAGE)), ("images", ("b.jpg", IMAGE))]},
    "boxes": {"url": "/v1/search/boxes", "content": IMAGE},
    "no image": {"url": "/v1/search", "content": b""},
    "a broken image": {"url": "/v1/search", "content": IMAGE[:100]},
    "a broken form": {"url": "/v1/search", "content": b"--c\r\n", "headers": BOUNDARY},
    "no boundary": {"url": "/v1/search", "content": b"x", "headers": {"content-type": "multipart/form-data"}},
    "a broken rule": {"url": "/v1/search?top_k=0", "content": IMAGE},
    "broken JSON": {"url": "/v1/search", "content": b"{", "headers": {"content-type": "application/json"}},
    "another path": {"url": "/v1/search/", "content": IMAGE},
    "a path that does not exist": {"url": "/v1/search/none", "content": IMAGE},
    "another method": {"url": "/v1/search", "method": "PUT", "content": IMAGE},
}


def told(client: TestClient, request: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    """Return the status, the headers and the content of an answer, without its length and its times."""
    answer = client.request(**{"method": "POST", "headers": {"x-request-id": "one"}, **request})
    headers = {name: value for name, value in answer.headers.items() if name not in ("content-length", "x-request-id")}
    return answer.status_code, headers, without_times(answer.json() if answer.content else None)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        hidden = ("timings_ms", "request_id")
        return {name: without_times(part) for name, part in value.items() if name not in hidden}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def counts(client: TestClient) -> list[str]:
    """Return the counts of requests by route and status."""
    lines = client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("retrieval_requests_total{")]


def test_answers_and_errors_are_those_of_fastapis_routing(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [TestClient(create_app(retriever, page=False), raise_server_exceptions=False)]
    monkeypatch.setattr(SearchApp, "answer_directly", lambda *_: None)
    clients.append(TestClient(create_app(retriever, page=False), raise_server_exceptions=False))
    with clients[0] as direct, clients[1] as routed:
        for name, request in REQUESTS.items():
            assert told(direct, request) == told(routed, request), name
        monkeypatch.setattr(retriever, "search", lambda *_, **__: 1 / 0)
        failed = told(direct, REQUESTS["an answer"])
        assert failed == told(routed, REQUESTS["an answer"])
        assert failed[0] == 500
        assert counts(direct) == counts(routed)


def test_a_search_does_not_pass_fastapis_layers(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestClient(create_app(retriever, page=False)) as client:
        monkeypatch.setattr(FastAPI, "__call__", None)
        for name in ("an answer", "a form", "a batch", "photos", "boxes"):
            assert told(client, REQUESTS[name])[0] == 200, name
        with pytest.raises(TypeError):
            client.get("/v1/info")
