"""A hostile user of the page: its addresses open no file, and other sites and keys get nothing of it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from retrieval.feedback import read_feedback
from serving.access.keys import add_key
from serving.problems import MEDIA_TYPE

from ...world import draw, encode
from ..conftest import WATCHED, Served, bearer, operations, start, stop, until

pytestmark = pytest.mark.slow

SEARCH = "/v1/search"
JPEG = {"content-type": "image/jpeg"}
LEAK = re.compile(r"hunter2|TOP SECRET|bundle_id|SQLite|Traceback|File \"|site-packages|root:|/tmp/|/home/|/usr/")


@pytest.fixture(scope="module")
def server(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server that nothing else asks, whose log says what it opens."""
    folder = tmp_path_factory.mktemp("hostile page")
    (folder / "secret.jpg").write_text("hunter2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.chdir(folder)
        running = start(world, folder, "--feedback", str(folder / "feedback.jsonl"), program=WATCHED)
    with httpx.Client(base_url=running.address, timeout=20) as client:
        until(lambda: "data-example" in client.get("/").text)
        client.post(f"/page/examples/{example_of(client)}?find=windows")  # what Python loads at first use is loaded
        client.get("/page/examples/x")
    assert running.touched()  # it is watched
    yield running
    stop(running)


@pytest.fixture
def page(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=20) as client:
        yield client


def example_of(client: httpx.Client) -> str:
    return client.get("/").text.split('data-example="')[1].split('"')[0]


NAMED = re.compile(r"passwd|/dev/zero|environ|secret\.jpg|/note'|/pipe'|manifest|example\.com|Popen|system")


@contextmanager
def opening_nothing(server: Served) -> Iterator[None]:
    """Check that a server opens nothing that a client names, and starts no program; it measures in the background."""
    before = server.log.stat().st_size
    yield
    assert [line for line in server.touched(before) if NAMED.search(line)] == []
    assert server.strangers() == []


def test_no_path_that_a_client_names_is_opened(server: Served, page: httpx.Client, world: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("TOP SECRET")
    os.mkfifo(tmp_path / "pipe")
    up = "/".join([".."] * 10)
    paths = ["/etc/passwd", "/dev/zero", "/proc/self/environ", "secret.jpg", "./secret.jpg", "", "\0", "a" * 5000]
    paths += [str(path) for path in (tmp_path / "note", tmp_path / "pipe", world / "bundle" / "manifest.json")]
    paths += [f"{up}{path}" for path in paths[:3]] + ["http://example.com/a.jpg", "file:///etc/passwd"]
    name = example_of(page)
    with opening_nothing(server):
        for path in (*paths, f"{name}/", name.upper(), f"{name}\0"):
            for route in ("/page/", "/page/examples/", f"/page/examples/{name}/", "/file=", "/"):
                for told in (quote(path, safe=""), f"%2e%2e%2f{quote(path, safe='')}"):
                    for method in ("GET", "POST"):
                        answer = page.request(method, route + told)
                        assert answer.status_code in (400, 404, 405, 307) or (route, told) == ("/", ""), (route, told)
                        assert answer.status_code == 200 or LEAK.search(answer.text) is None, (route, told)
    for query in ("bbox=0,0,1,nan", "bbox=0,0,9e9,1", "find=/etc/passwd", "top_k=0", "top_k=x", "image=/etc/passwd"):
        with opening_nothing(server):
            refused = page.post(f"/page/examples/{name}?{query}", content=b"x")
        assert refused.status_code in (400, 422), query
        assert refused.headers["content-type"] == MEDIA_TYPE
    assert page.post(f"/page/examples/{name}", content=b"x" * 10**6).json()["decision"] == "match"  # no body is read


@pytest.mark.timeout(300)
def test_another_key_neither_judges_an_answer_nor_undoes_a_verdict(world: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = [add_key(file, name, "search") for name in ("ann", "bob")]
    running = start(world, tmp_path, "--keys", str(file), "--feedback", str(tmp_path / "feedback.jsonl"), "--page")
    ann, bob = (httpx.Client(base_url=running.address, timeout=20, headers=bearer(key)) for key in keys)
    with ann, bob:
        request_id = ann.post(SEARCH, content=encode(draw(3, 5)), headers=JPEG).json()["request_id"]
        verdict, address = {"request_id": request_id, "verdict": "right"}, f"/v1/feedback/{request_id}"
        assert [client.post("/v1/feedback", json=verdict).status_code for client in (bob, ann)] == [404, 200]
        assert [client.delete(address).status_code for client in (bob, ann)] == [404, 200]
    stop(running)
    lines = read_feedback(tmp_path / "feedback.jsonl")
    assert [(line.key, line.asked_by, line.verdict) for line in lines] == [
        ("ann", "ann", "right"),
        ("ann", "ann", "undone"),
    ]


# what a browser is told


def test_every_answer_says_what_a_browser_may_do(server: Served, page: httpx.Client) -> None:
    origins = ["http://shop.example", "null", "http://localhost:9", "http://127.0.0.1:9", server.address]
    asked = [*operations(server), ("GET", "/"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json")]
    asked += [("GET", "/nothing"), ("GET", "/page/page.js"), ("GET", "/page/page.css"), ("OPTIONS", SEARCH)]
    asked += [(method, f"/page/examples/{example_of(page)}") for method in ("GET", "POST", "OPTIONS")]
    asked += [("GET", "/v1/thumbnails/item-00%2F0.png"), ("POST", f"{SEARCH}?top_k=0")]
    statuses: Counter[int] = Counter()
    for method, path in asked:
        for origin in ("", *origins):
            headers = {"origin": origin, "access-control-request-method": "POST"} if origin else {}
            response = page.request(method, path, headers=headers)
            statuses[response.status_code] += 1
            told, where = response.headers, (method, path, origin, response.status_code)
            assert [name for name in told if name.startswith("access-control-")] == [], where
            assert told["x-content-type-options"] == "nosniff", where
            assert told["x-frame-options"] == "DENY", where
            assert told["referrer-policy"] == "no-referrer", where
            assert "frame-ancestors 'none'" in told["content-security-policy"], where
            assert "unsafe" not in told["content-security-policy"], where
            assert re.fullmatch(r"[\w.-]+", told["x-request-id"]), where
            assert "server" not in told, where
            if path.startswith("/v1/") and "thumbnails" not in path:
                assert told["cache-control"] == "no-store", where
    assert {200, 400, 403, 404, 422} <= set(statuses)


def test_a_page_of_another_origin_may_change_nothing(server: Served, page: httpx.Client) -> None:
    port = server.address.rpartition(":")[2]
    foreign = ["http://shop.example", "null", "http://localhost:9", "http://127.0.0.1:9", f"http://127.0.0.1.x:{port}"]
    changing = [(m, p) for m, p in operations(server) if m not in ("GET", "HEAD")]
    changing += [("POST", f"/page/examples/{example_of(page)}"), ("DELETE", "/v1/feedback/x")]
    for method, path in changing:
        for origin in foreign:
            refused = page.request(method, path, headers={"origin": origin}, content=encode(draw(3, 5)))
            assert (refused.status_code, refused.headers["content-type"]) == (403, MEDIA_TYPE), (path, origin)
    answer = page.post(SEARCH, content=encode(draw(3, 5)), headers={**JPEG, "origin": server.address})
    assert answer.json()["matches"][0]["item_id"] == "item-03"


def test_a_name_that_was_made_to_lead_here_is_not_answered(server: Served, page: httpx.Client) -> None:
    port = server.address.rpartition(":")[2]
    for host, status in ((f"evil.example:{port}", 403), (f"localhost:{port}", 200), (f"127.0.0.1:{port}", 200)):
        headers = {"host": host, "origin": f"http://{host}"}
        answer = httpx.post(f"{server.address}{SEARCH}", content=encode(draw(3, 5)), headers={**JPEG, **headers})
        assert answer.status_code == status, host
