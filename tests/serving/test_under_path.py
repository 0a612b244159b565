"""A server under a path of a host, behind proxies that pass the path on and that leave it out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest

from retrieval.client import RetrievalClient
from retrieval.errors import InvalidParameter
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.settings import ServeSettings

from ..world import draw, encode
from .conftest import Served, start, stop
from .live_page import serving, under_path

ADDRESS = re.compile(r'(?:src|href)="([^"#]+)"')


@pytest.fixture(scope="module")
def server(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = start(world, tmp_path_factory.mktemp("server"), "--root-path", "/find")
    yield running
    stop(running)


@pytest.fixture(params=["passed on", "left out"])
def address(request: pytest.FixtureRequest, server: Served) -> Iterator[str]:
    """Return the address under the path, of the server itself and of a proxy that leaves out the path."""
    if request.param == "passed on":
        yield f"{server.address}/find/"
    else:
        with under_path(server.address, "/find") as address:
            yield address


@pytest.mark.parametrize("page", ["", "manage", "docs", "v1/report"])
def test_a_page_names_addresses_below_the_path_that_exist(address: str, page: str) -> None:
    text = httpx.get(address + page).raise_for_status().text
    named = {urljoin(address + page, name) for name in ADDRESS.findall(text)}
    assert named or page == "v1/report"
    for each in named:
        assert each.startswith(address), each
        assert httpx.get(each).status_code == 200, each


def test_the_api_and_its_document_are_below_the_path(address: str) -> None:
    document = httpx.get(f"{address}openapi.json").json()
    assert document["servers"] == [{"url": "/find"}]
    with RetrievalClient(address) as client:
        assert client.ready()
        assert client.search(encode(draw(3, 5))).matches[0].item_id == "item-03"
    assert httpx.get(f"{address}v1/none").status_code == 404


def test_a_redirect_stays_below_the_path(address: str) -> None:
    assert httpx.get(f"{address}docs/").headers["location"].endswith("/find/docs")


def test_the_path_without_its_slash_leads_to_the_page(retriever: Retriever) -> None:
    with serving(create_app(retriever, settings=ServeSettings(root_path="/find"), page=False)) as own:
        answer = httpx.get(f"{own}/find")
        assert (answer.status_code, answer.headers["location"]) == (307, "/find/")
        assert httpx.get(f"{own}/finder").status_code == 404


@pytest.mark.parametrize(
    "path", ["find", "/find/", "/", "//find", "/v1", "/v1/x", "/page", "/page/x", "/docs", "/?b", "/a b", "/..", "/é"]
)
def test_a_path_that_is_none_or_the_servers_own_is_refused(path: str) -> None:
    with pytest.raises(InvalidParameter, match="--root-path must begin with a /"):
        ServeSettings(root_path=path)


def test_paths_of_several_names_are_taken() -> None:
    for path in ("", "/find", "/shop/find", "/v10", "/pages", "/a.b_c~d-e"):
        assert ServeSettings(root_path=path).root_path == path
