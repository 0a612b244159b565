"""The API as it is documented: each route's own errors, a page for people, values in errors, ids of any text."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from retrieval.client import RetrievalClient
from retrieval.retriever import Retriever
from serving.access.guard import PROBES
from serving.access.keys import add_key
from serving.app import create_app
from serving.problems import MEDIA_TYPE
from serving.settings import ServeSettings
from tests.serving.live_page import serving

from ...world import draw, encode

MINE = encode(draw(3, 5))


@pytest.fixture(scope="module")
def paths(client: TestClient) -> dict[str, dict[str, Any]]:
    return dict(client.get("/openapi.json").json()["paths"])


def errors(operation: dict[str, Any]) -> dict[str, Any]:
    return {status: told for status, told in operation["responses"].items() if int(status) >= 400}


def test_every_error_is_a_problem(paths: dict[str, dict[str, Any]]) -> None:
    seen = set()
    for path, operations in paths.items():
        for operation in operations.values():
            for status, told in errors(operation).items():
                assert told["content"].keys() == {MEDIA_TYPE}, (path, status)
                body = told["content"][MEDIA_TYPE]
                assert body["schema"] == {"$ref": "#/components/schemas/Problem"}
                seen.add(status)
    assert seen == {"400", "401", "403", "404", "408", "409", "412", "413", "415", "422", "500", "503", "507"}


def test_no_route_is_left_out(paths: dict[str, dict[str, Any]]) -> None:
    assert {path for path, operations in paths.items() if not all(map(errors, operations.values()))} == {"/healthz"}
    assert set(errors(paths["/readyz"]["get"])) == {"503"}
    assert set(PROBES) == {"/healthz", "/readyz"}


def test_the_document_holds_what_it_refers_to(client: TestClient) -> None:
    document = client.get("/openapi.json")
    named = set(re.findall(r'"#/components/schemas/(\w+)"', document.text))
    assert named <= document.json()["components"]["schemas"].keys()
    assert "HTTPValidationError" not in document.text


def test_people_read_the_api_without_another_host(client: TestClient, paths: dict[str, dict[str, Any]]) -> None:
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page.text))
    for path, operations in paths.items():
        assert path in text
        for operation in operations.values():
            assert " ".join(operation["description"].split()) in " ".join(text.split())
    for words in ("top_k", "A filter over columns. Example: brand = 'x' and price < 10", "multipart"):
        assert words in text
    assert re.findall(r"<script.*?>", page.text) == ['<script src="docs.js" defer>']
    assert client.get("/docs.js").status_code == 200
    assert re.findall(r"""(?:src|href)=["'](?!#|openapi\.json|docs\.js)""", page.text) == []
    links = set(re.findall(r'href="#(\w+)"', page.text))
    assert links
    assert links <= set(re.findall(r'id="(\w+)"', page.text))
    assert "style-src 'sha256-" in page.headers["content-security-policy"]


def test_every_parameter_has_a_description_and_an_example(paths: dict[str, dict[str, Any]]) -> None:
    bare = [
        (path, method, each["name"])
        for path, operations in paths.items()
        for method, operation in operations.items()
        for each in operation.get("parameters", [])
        if not (each.get("description") and (each["schema"].get("examples") or each.get("example")))
    ]
    assert bare == []


def test_every_field_of_a_body_has_a_description(client: TestClient, paths: dict[str, dict[str, Any]]) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    contents = [o["requestBody"]["content"] for each in paths.values() for o in each.values() if "requestBody" in o]
    told = [each["schema"] for content in contents for each in content.values()]
    bodies = [schemas[each["$ref"].split("/")[-1]] if "$ref" in each else each for each in told]
    fields = [pair for body in (*bodies, schemas["TableRow"]) for pair in body.get("properties", {}).items()]
    assert len(fields) > 20
    assert {name for name, field in fields if not field.get("description")} == set()


def test_a_browser_is_asked_for_the_key_of_a_page(world: Path, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", "shop", "search")
    settings = ServeSettings(keys=tmp_path / "keys.json")
    app = create_app(Retriever.open(world / "bundle", world / "gallery"), settings=settings, page=False)
    with TestClient(app) as client:
        for path, kind in (("/docs", "Basic"), ("/v1/report", "Basic"), ("/v1/items", "Bearer")):
            refused = client.get(path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith(kind), path
        assert client.get("/docs", auth=("any", key)).status_code == 200


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (
            ("GET", "/v1/items?limit=many", None),
            "limit must be a valid integer, unable to parse string as an integer, got 'many'",
        ),
        (("POST", "/v1/search?top_k=500", None), "top_k must be less than or equal to 100, got '500'"),
        (("POST", "/v1/search", {"image": "aaaa", "top_k": 500}), "top_k must be less than or equal to 100, got 500"),
        (("POST", "/v1/search", {"image": "aaaa", "a": 5}), "a must be left out: the API has no such field, got 5"),
        (("POST", "/v1/search", {}), "image must be given, got None"),
        (("POST", "/v1/search", {"image": 7}), "image must be a valid string, got 7"),
        (
            ("POST", "/v1/feedback", {"request_id": "a", "verdict": 7}),
            "verdict must be 'right', 'wrong' or 'unknown', got 7",
        ),
        (("POST", "/v1/feedback", {"verdict": "right"}), "request_id must be given, got None"),
        (("POST", "/v1/search", b'{"image": '), "body must be JSON (EOF while parsing"),
        (("POST", "/v1/feedback", b"{"), "body must be JSON"),
    ],
)
def test_an_error_shows_the_value_and_the_rule(client: TestClient, request_: tuple[str, str, Any], words: str) -> None:
    method, path, body = request_
    headers = {"content-type": "application/json"}
    sent = {"content": body, "headers": headers} if isinstance(body, bytes) else {"json": body}
    refused = client.request(method, path, **({} if body is None else sent))
    told = refused.json()
    assert (refused.status_code, refused.headers["content-type"], told["type"]) == (
        422,
        MEDIA_TYPE,
        "/problems/invalid-parameter",
    )
    assert told["title"].startswith(words)


def test_a_long_value_is_cut(client: TestClient) -> None:
    refused = client.post("/v1/search", json={"image": {"a": "b" * 100_000}})
    assert refused.status_code == 422
    assert len(refused.content) < 1000


IDS = [
    *("a/b", "/a", "a/", "a//b", "..", ".", "../x", "x/..", "100%", "a%2Fb", "a?b=c", "a#b", "a b", "a;b", "a\\b"),
    *("a\nb", "a\n", "\r\n", "a\tb", "a\x00b", "ü/漢字", "=http://x", "\"'<>"),
]


@pytest.fixture(scope="module")
def address(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server whose gallery may be changed."""
    folder = tmp_path_factory.mktemp("ids")
    shutil.copytree(world / "gallery", folder / "gallery")
    with serving(create_app(Retriever.open(world / "bundle", folder / "gallery"), page=False)) as address:
        yield address


@pytest.mark.parametrize("name", IDS)
def test_ids_of_any_text_are_written_read_and_removed(address: str, name: str) -> None:
    with RetrievalClient(address, timeout=60) as retrieval:
        assert retrieval.put_photo(f"photo {name}", MINE, item_id=name).item_id == name
        assert [photo.photo_id for photo in retrieval.item(name).photos] == [f"photo {name}"]
        assert retrieval.put_photo(name, MINE, item_id="other").photo_id == name
        assert retrieval.photo(name).item_id == "other"
        assert retrieval.thumbnail(name).startswith(b"\xff\xd8")
        assert name in retrieval.items(limit=1000).items
        assert retrieval.remove_item(name).photos == 1
        assert retrieval.remove_photo(name).photos == 1
