"""Pages of other origins may call the API only where the server allows their origin."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from retrieval.errors import InvalidParameter
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.app import create_app
from serving.settings import ServeSettings

from ...world import draw, encode
from ..live_page import serving

SHOP, APP, STRANGER = "https://shop.example", "capacitor://localhost", "https://shop.example.evil"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
PHOTO = encode(draw(3, 5))


@pytest.fixture(scope="module")
def server(retriever: Retriever, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """Return a client of a server that allows two origins, and a key for searches."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = add_key(file, "shop", "search")
    settings = ServeSettings(keys=file, allow_origin=(SHOP, APP))
    with (
        serving(create_app(retriever, settings=settings, page=False)) as address,
        httpx.Client(base_url=address) as client,
    ):
        yield client, key


@pytest.mark.parametrize("origin", [SHOP, APP])
def test_the_preflight_of_an_allowed_origin_needs_no_key(server: tuple[httpx.Client, str], origin: str) -> None:
    client, _ = server
    answer = client.options("/v1/search", headers={**PREFLIGHT, "Origin": origin})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == origin
    assert "Origin" in answer.headers["vary"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "x-api-key"} <= set(allowed)


def test_an_allowed_origin_reads_answers_and_refusals(server: tuple[httpx.Client, str]) -> None:
    client, key = server
    given = {"Origin": SHOP, "Content-Type": "image/jpeg"}
    for headers, status in (({**given, "Authorization": f"Bearer {key}"}, 200), (given, 401)):
        answer = client.post("/v1/search", content=PHOTO, headers=headers)
        assert answer.status_code == status
        assert answer.headers.get_list("access-control-allow-origin") == [SHOP]
        assert answer.headers["access-control-expose-headers"] == "Retry-After, X-Request-ID"
    assert client.get("/v1/info", headers=headers).headers["access-control-allow-origin"] == SHOP


@pytest.mark.parametrize("origin", [STRANGER, "null", "http://shop.example", "https://SHOP.example:8443", ""])
def test_any_other_origin_is_refused_with_the_way_to_allow_it(server: tuple[httpx.Client, str], origin: str) -> None:
    client, key = server
    headers = {"Origin": origin, "Authorization": f"Bearer {key}", "Content-Type": "image/jpeg"}
    for answer in (
        client.options("/v1/search", headers={**PREFLIGHT, "Origin": origin}),
        client.post("/v1/search", content=PHOTO, headers=headers),
    ):
        assert answer.status_code == 403
        assert "--allow-origin ORIGIN" in answer.json()["detail"]
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/manage", "/docs", "/metrics", "/openapi.json", "/healthz"])
def test_an_allowed_origin_may_call_the_api_only(server: tuple[httpx.Client, str], path: str) -> None:
    client, key = server
    answer = client.get(path, headers={"Origin": SHOP, "Authorization": f"Bearer {key}"})
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "shop.example", "https://shop.example/", "https://a b", "https://É.fr"),
        *("https://shop.example:443", "http://shop.example:80"),
    ],
)
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidParameter, match="--allow-origin must be a scheme and a host"):
        ServeSettings(allow_origin=(origin,))


def test_an_origin_with_another_port_than_the_default_is_taken() -> None:
    origins = ("https://shop.example:80", "http://localhost:3000", "http://[::1]:443")
    assert ServeSettings(allow_origin=origins).allow_origin == origins
