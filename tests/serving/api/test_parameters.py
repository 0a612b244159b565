"""Query parameters and filters that no route knows are refused, with what is meant."""

from __future__ import annotations

import base64

import pytest
from fastapi.testclient import TestClient

from ...world import draw, encode

MINE = encode(draw(3, 5))


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("POST", "/v1/search?topk=3", "top_k"),
        ("POST", "/v1/search?top_k=3&explian=true", "explain"),
        ("POST", "/v1/search/boxes?box=1,1,9,9", "bbox"),
        ("PUT", "/v1/photos/p?item=x", "item_id"),
        ("GET", "/v1/items?limits=7", "limit"),
        ("GET", "/v1/info?verbose=1", ""),
        ("DELETE", "/v1/items/item-03?dry_run=true", ""),
    ],
)
def test_an_unknown_query_parameter_is_refused_with_the_nearest_name(
    client: TestClient, method: str, path: str, near: str
) -> None:
    answer = client.request(method, path, content=MINE if method in ("POST", "PUT") else None)
    assert answer.status_code == 422
    assert answer.json()["title"].startswith("query parameter must be one of")
    assert answer.json()["detail"] == (f"Did you mean {near}?" if near else "")
    assert client.get("/v1/items/item-03").status_code == 200


def test_options_beside_a_json_body_are_refused_because_they_would_be_ignored(client: TestClient) -> None:
    body = {"image": base64.b64encode(MINE).decode()}
    answer = client.post("/v1/search?top_k=3", json=body)
    assert answer.status_code == 422
    assert "JSON body" in answer.json()["title"]
    assert client.post("/v1/search", json={**body, "top_k": 3}).status_code == 200
