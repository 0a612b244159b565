"""The page as the server sends it: the header, its files, keys, and that no photo is written."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi.testclient import TestClient

from retrieval.galleries.points import GalleryPoint
from retrieval.measuring.point import GALLERY, Perhaps, Point, Rates
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.app import create_app
from serving.page.page import header_of
from serving.settings import ServeSettings

from ...world import draw, encode
from ..conftest import bearer, start, stop


@pytest.fixture(scope="module")
def page(retriever: Retriever) -> TestClient:
    return TestClient(create_app(retriever))


def test_the_first_view_names_the_catalogue_and_its_rates_without_a_script(page: TestClient) -> None:
    answer = page.get("/")
    text = re.sub(r"\s+", " ", re.sub("<.*?>", "", answer.text))
    assert "10 items, 30 photos. Of things we do not have, about 1 of 20 is called something." in text
    assert "measured on other items, not in this catalogue" in text
    assert 'href="v1/report"' in answer.text
    assert "%" not in text
    assert answer.headers["cache-control"] == "no-cache"


def test_the_page_loads_nothing_but_its_own_files_and_runs_nothing_inline(page: TestClient) -> None:
    answer = page.get("/")
    named = re.findall(r'(?:src|href)="([^"#]+)"', answer.text)
    assert not [name for name in named if ":" in name or name.startswith("/")]  # relative, also under a path
    for name in named:
        assert page.get(f"/{name}").status_code == 200, name
    assert re.search(r"<[^>]+\s(style|on\w+)=|<style|<script(?! type=\"module\" src)", answer.text) is None
    for path in ("/", "/page/page.js", "/page/page.css", "/page/icon.svg"):
        policy = page.get(path).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in policy
    assert "javascript" in page.get("/page/page.js").headers["content-type"]


def test_a_link_to_the_page_is_previewed_with_its_own_title_and_words(page: TestClient) -> None:
    html = page.get("/").text
    assert 'property="og:title" content="Which catalogue item is this?"' in html
    assert html.count('name="description"') == html.count("og:description") == 1


@pytest.mark.parametrize(
    "path", ["/page/", "/page/page.py", "/page/..%2f..%2fsettings.py", "/page/examples/", "/gradio"]
)
def test_nothing_else_is_there(page: TestClient, path: str) -> None:
    assert page.get(path).status_code == 404


def test_a_server_without_the_page_has_none_of_its_routes(client: TestClient) -> None:
    assert [client.get(path).status_code for path in ("/", "/page/page.js", "/page/examples/x")] == [404] * 3


def test_the_sides_of_a_promise_and_its_bound_are_in_the_header(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = Point(
        0.7, "estimated", 0.05, GALLERY, rates=Rates(tpir=0.62), perhaps=Perhaps(0.8, known=0.1, unknown=0.05)
    )
    rates = SimpleNamespace(broken=lambda _: False, expected=lambda _: 0.04, fpir_upper=lambda _: 0.11)
    monkeypatch.setattr(GalleryPoint, "measured", lambda _: (point, rates))
    header = header_of(retriever)
    assert header["rates"].startswith("Says for sure in 6 of 10, asks in 1 of 10")
    assert "of things we do not have, 1 of 25 is called something, 1 of 20 is asked about." in header["rates"]
    assert header["bound"] == "At worst, 1 of 9 is called something (95 % confidence)."


def test_an_outgrown_promise_is_a_warning_on_the_page(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.open(world / "bundle", world / "gallery")
    assert header_of(retriever)["warnings"] == []
    monkeypatch.setattr(GalleryPoint, "outgrown", True)
    (warning,) = header_of(retriever)["warnings"]
    assert "more than intended, because the catalogue has grown" in warning
    assert "recalibrate" not in warning  # commands are for operators
    with TestClient(create_app(retriever)) as page:
        assert warning in page.get("/").text


def test_drift_is_a_warning_in_words_for_visitors(retriever: Retriever) -> None:
    assert "Recent photos look different" in header_of(retriever, drift=True)["warnings"][0]


def test_browsers_ask_for_a_key_and_only_admins_are_led_to_the_desk(retriever: Retriever, tmp_path: Path) -> None:
    keys = {scope: add_key(tmp_path / "keys.json", scope, scope) for scope in ("search", "admin")}
    with TestClient(create_app(retriever, settings=ServeSettings(keys=tmp_path / "keys.json"))) as page:
        assert page.get("/").headers["www-authenticate"].startswith("Basic")
        assert page.get("/page/page.js").status_code == page.post("/page/examples/x").status_code == 401
        shown = {scope: page.get("/", headers=bearer(key)).text for scope, key in keys.items()}
    assert "data-writes" not in shown["search"]
    assert "data-writes" in shown["admin"]
    assert 'href="manage"' in shown["admin"]
    with TestClient(create_app(retriever)) as page:
        assert "data-writes" not in page.get("/").text  # without keys, anybody may be a visitor


def test_columns_with_units_reach_the_script_whatever_they_are_called(retriever: Retriever) -> None:
    settings = ServeSettings(show='price=€, "><script>')
    with TestClient(create_app(retriever, settings=settings)) as page:
        html = page.get("/").text
    assert html.count("<script") == 1
    assert settings.shown_columns == [("price", "€"), ('"><script>', "")]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_when_asked_and_wrote_no_photo(
    how: signal.Signals, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    running = start(world, tmp_path, "--threads", "1", "--examples", str(world / "photos"))
    with httpx.Client(base_url=running.address, timeout=60) as client:
        assert client.get("/").status_code == 200
        assert client.post("/v1/search", content=encode(draw(1, 1))).json()["decision"] == "match"
    assert stop(running, how) in (0, -how)
    assert list(tmp_path.iterdir()) == [running.log]
    told = running.log.read_text()
    assert "30 photos of 10 items" in told
    assert f"page at {running.address}" in told
    assert "Traceback" not in told
