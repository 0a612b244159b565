"""Query parameters and filters that no route knows are refused, and so are texts and numbers that no database holds."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from index.errors import InvalidParameter
from index.gallery import Gallery
from retrieval.retriever import Retriever
from serving.app import create_app

from ...world import draw, encode

MINE = encode(draw(3, 5))


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/v1/search?topk=3", "topk"),
        ("POST", "/v1/search?top_k=3&explian=true", "explian"),
        ("POST", "/v1/search/boxes?box=1,1,9,9", "box"),
        ("POST", "/v1/search/photos?explain=true", "explain"),
        ("PUT", "/v1/photos/p?item=x", "item"),
        ("GET", "/v1/items?limits=7", "limits"),
        ("GET", "/v1/info?verbose=1", "query parameter"),
        ("GET", "/v1/photos/p?verbose=1", "query parameter"),
        ("DELETE", "/v1/photos/p?dry_run=true", "query parameter"),
        ("DELETE", "/v1/items/item-03?dry_run=true", "query parameter"),
        ("GET", "/v1/items/item-03?fields=name", "query parameter"),
        ("POST", "/v1/admin/sync?dry_run=true", "query parameter"),
    ],
)
def test_an_unknown_query_parameter_is_refused(client: TestClient, method: str, path: str, name: str) -> None:
    answer = client.request(method, path, content=MINE if method in ("POST", "PUT") else None)
    assert answer.status_code == 422
    assert answer.json()["title"].startswith(f"{name} must be left out")
    assert client.get("/v1/items/item-03").status_code == 200


def test_a_probe_may_have_any_parameter(client: TestClient) -> None:
    assert client.get("/healthz?ts=1").status_code == 200
    assert client.get("/readyz?ts=1").status_code == 200


def test_options_beside_a_json_body_are_refused_because_they_would_be_ignored(client: TestClient) -> None:
    body = {"image": base64.b64encode(MINE).decode()}
    answer = client.post("/v1/search?top_k=3", json=body)
    assert answer.status_code == 422
    assert "JSON body" in answer.json()["title"]
    assert client.post("/v1/search", json={**body, "top_k": 3}).status_code == 200


NUMBERS = ("99999999999999999999", "-99999999999999999999", "1e999", "9" * 1500)


@pytest.mark.parametrize("where", [f"price > {number}" for number in NUMBERS] + ["price in (1, 99999999999999999999)"])
def test_a_number_that_no_database_holds_is_refused_in_a_filter(shop: Path, where: str) -> None:
    with Gallery.open(shop / "gallery") as gallery:
        gallery.declare({"price": "number"})
    with TestClient(create_app(Retriever.open(shop / "bundle", shop / "gallery"), page=False)) as client:
        answer = client.post("/v1/search", params={"where": where}, content=MINE)
        assert (answer.status_code, answer.json()["title"].startswith("where must")) == (422, True)
        for largest in (2**63 - 1, -(2**63), 1e18):
            assert client.post("/v1/search", params={"where": f"price > {largest}"}, content=MINE).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/search", '{"image": "", "where": "brand = \'\\ud800\'"}'),
        ("POST", "/v1/feedback", '{"request_id": "\\ud800", "verdict": "right"}'),
        ("POST", "/v1/feedback", '{"\\ud800": "", "verdict": "right"}'),
        ("PUT", "/v1/photos/p", '{"image": "", "item_id": "i", "metadata": {"x": "\\udfff"}}'),
        ("POST", "/v1/admin/sync", '{"photos": [{"photo_id": "\\ud800", "item_id": "x"}]}'),
    ],
)
def test_half_a_surrogate_is_refused(client: TestClient, method: str, path: str, body: str) -> None:
    answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422


def test_half_a_surrogate_in_a_filter_of_a_program_is_refused(shop: Path) -> None:
    with Gallery.open(shop / "gallery") as gallery:
        gallery.declare({"brand": "text"})
        with pytest.raises(InvalidParameter, match="valid Unicode"):
            gallery.search(np.eye(gallery.dim, dtype=np.float32)[:1], 1, where="brand = '\ud800'")
