"""The routes of the page with something simpler than Gradio behind them: what gets through, keys and the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.testclient import TestClient

from serving.access.guard import Guard
from serving.access.keys import KeyRing, add_key
from serving.access.limits import BodyLimit
from serving.ops.metrics import Metrics
from serving.page.routes import EVENT, EVENT_BYTES, Event, Preview, page_routes, photo_check
from serving.page.uploads import Uploads
from serving.problems import MEDIA_TYPE

from .page_client import META, RUN, UPLOAD, run, upload

MB = 2**20
ADDRESS = "http://127.0.0.1:7860"
SEARCH, PEEK = 0, 1  # events
GRADIO_HTML = """<head><meta charset="utf-8" /><meta property="og:title" content="Gradio" />
<meta
    property="og:image"
    content="https://example.com/x.jpg"
/><meta name="twitter:creator" content="@Gradio" /><title>T</title></head><body>"""
PHOTO = b"\xff\xd8\xff photo"
Make = Callable[..., TestClient]


@pytest.fixture
def uploads() -> Uploads:
    return Uploads(client_bytes=40 * MB, total_bytes=80 * MB)


@pytest.fixture
def received() -> list[dict[str, Any]]:
    """Return what got through to Gradio."""
    return []


@pytest.fixture
def make(uploads: Uploads, received: list[dict[str, Any]]) -> Iterator[Make]:
    made: list[TestClient] = []

    def build(*, keys: Path | None = None, front: str = "") -> TestClient:
        behind = FastAPI(openapi_url=None)

        @behind.post(RUN)
        async def answer(request: Request) -> dict[str, Any]:
            sent = await request.json()
            received.append({**sent, "query": request.url.query, "type": request.headers["content-type"]})
            if sent["data"] and uploads.read(sent["data"][0]["path"], EVENT.get().client) != PHOTO:
                EVENT.get().status = 415
            return {"data": ["answer"]}

        if front:
            behind.get("/")(lambda: HTMLResponse(front))

        @behind.get("/{path:path}")
        async def shown(request: Request) -> dict[str, Any]:
            names = sorted({*request.headers} - {"accept", "accept-encoding", "connection", "user-agent"})
            return {"path": request.url.path, "query": request.url.query, "headers": names}

        events = {SEARCH: Event("search", (photo_check(uploads),)), PEEK: Event("peek", ())}
        page = page_routes(behind, events, uploads, Preview('A "title"', "Words.", "abc"))
        limited = BodyLimit(page, max_bytes=MB, seconds=5)
        ring = None if keys is None else KeyRing(keys)
        guard = Guard(limited, metrics=Metrics(), keys=ring, local=True)
        made.append(TestClient(guard, ADDRESS, client=("127.0.0.9", 5)))
        return made[-1]

    yield build
    for client in made:
        client.close()


def facts_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, int]]:
    """Return key, route and status of the requests in the access log."""
    facts = [record.facts for record in caplog.records if record.name == "retrieval.access"]  # type: ignore[attr-defined]
    return [(fact["key"], fact["route"], fact["status"]) for fact in facts]


def test_gradio_gets_checked_values_and_nothing_else(make: Make, received: list[dict[str, Any]]) -> None:
    page = make()
    token = upload(page, PHOTO)
    value = {"path": token, "url": "http://example.com/a.jpg", "meta": META, "is_stream": True, "orig_name": "/etc/x"}
    others = {
        "event_data": {"path": "/etc/passwd"},
        "trigger_id": 5,
        "batched": True,
        "oauth_token": "x",
        "event_id": "e",
    }
    body = {"data": [value], "fn_index": SEARCH, "session_hash": "s", **others}
    assert page.post(f"{RUN}?fn_index=9", content=json.dumps(body)).json() == {"data": ["answer"]}
    assert received == [
        {"data": [{"path": token}], "fn_index": SEARCH, "session_hash": None, "query": "", "type": "application/json"}
    ]


@pytest.mark.parametrize("count", [0, 2, 100])
def test_an_event_takes_its_number_of_values(make: Make, received: list[dict[str, Any]], count: int) -> None:
    answer = run(make(), SEARCH, *[None] * count)
    assert (answer.status_code, answer.headers["content-type"]) == (422, MEDIA_TYPE)
    assert "data must have 1 values" in answer.json()["error"]
    assert received == []


def test_what_is_shown_depends_on_the_path_alone(make: Make) -> None:
    page = make()
    names = (
        "x-forwarded-host",
        "x-gradio-server",
        "x-gradio-user",
        "x-direct-url",
        "referer",
        "cookie",
        "authorization",
    )
    for path in ("/", "/assets/a/index-Dphv_gB.js"):
        answer = page.get(f"{path}?deep_link=../x&page=y", headers=dict.fromkeys(names, "http://shop.example"))
        assert answer.json() == {"path": path, "query": "", "headers": ["host"]}


def test_other_paths_are_not_there(make: Make) -> None:
    page = make()
    for path in (
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/assets/..%2f..%2fetc/passwd",
        "/assets//etc/passwd",
        "/assets/.hidden",
        "/assets/a%00b",
        "/assets/a%5c..%5cb",
        "/assets/",
        "/static/" + "a" * 5000,  # longer than the name of a file may be
        "/static" + "/a" * 3000,
        "/static",
        "/config/",
        "/gradio_api/run/other",
        "/gradio_api/file=a/b",
    ):
        answer = page.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, MEDIA_TYPE), path


def test_the_log_says_who_searched_and_what_became_of_it(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    ann, bob = ({"authorization": f"Bearer {add_key(file, name, 'search')}"} for name in ("ann", "bob"))
    page = make(keys=file)
    with caplog.at_level(logging.INFO, "retrieval.access"):
        page.headers.update(ann)
        token = upload(page, PHOTO)
        assert run(page, SEARCH, {"path": token}).status_code == 200
        strange = upload(page, b"no image")
        assert run(page, SEARCH, {"path": strange}).status_code == 200  # the page says what is wrong with it
        page.headers.update(bob)
        assert run(page, SEARCH, {"path": token}).status_code == 404
        assert page.get(f"/gradio_api/file={token}").status_code == 404
        assert run(page, SEARCH, {"path": "/etc/passwd"}).status_code == 404
        assert run(page, SEARCH, 5).status_code == 422
    searches = [fact for fact in facts_of(caplog) if fact[1] == "page/search"]
    assert searches == [("ann", "page/search", 200), ("ann", "page/search", 415), *_refused("bob", 404, 404, 422)]
    del page.headers["authorization"]
    for method, path in (("GET", "/"), ("POST", RUN), ("POST", UPLOAD), ("GET", f"/gradio_api/file={token}")):
        assert page.request(method, path).status_code == 401, path


def _refused(key: str, *statuses: int) -> list[tuple[str, str, int]]:
    return [(key, "page/search", status) for status in statuses]


def test_an_upload_is_refused_before_it_is_held(make: Make, uploads: Uploads) -> None:
    page = make()
    for size, status in ((MB, 200), (MB + 2**17, 413)):
        assert page.post(UPLOAD, files={"files": ("a.jpg", bytes(size))}).status_code == status

    def endless() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n'
        for _ in range(100):
            yield bytes(MB // 10)

    kind = {"content-type": "multipart/form-data; boundary=b"}
    assert page.post(UPLOAD, content=endless(), headers=kind).status_code == 413  # type: ignore[arg-type]
    assert len(uploads) == 1
    with uploads.arriving("127.0.0.9", 40 * MB):
        busy = page.post(UPLOAD, files={"files": ("a.jpg", PHOTO)})
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")


def test_an_event_is_small(make: Make, received: list[dict[str, Any]]) -> None:
    body = json.dumps({"data": ["x" * EVENT_BYTES], "fn_index": PEEK, "session_hash": "a"}).encode()
    page = make()
    for content in (body, iter([body[:10_000], body[10_000:]])):
        answer = page.post(RUN, content=content)  # type: ignore[arg-type]
        assert (answer.status_code, answer.headers["content-type"]) == (413, MEDIA_TYPE)
    assert received == []


def test_only_this_page_may_have_an_event_run(make: Make, received: list[dict[str, Any]]) -> None:
    page = make()
    foreign = [
        "http://x127.0.0.1:7860",
        "http://127.0.0.1:78600",
        "http://127.0.0.1",
        "http://127.0.0.1:7860.x.example",
    ]
    foreign += ["null", "http://shop.example", "ftp://127.0.0.1:7860", "127.0.0.1:7860", "http://127.0.0.1:7860/", ""]
    foreign += ["x://http://127.0.0.1:7860", "http://shop.example/http://127.0.0.1:7860"]
    for origin in foreign:
        assert run_from(page, origin) == 403, origin
    assert received == []
    for origin in (ADDRESS, "https://127.0.0.1:7860"):  # a proxy may end the encryption
        assert run_from(page, origin) == 200, origin


def run_from(page: TestClient, origin: str) -> int:
    body = {"data": [], "fn_index": PEEK, "session_hash": "a"}
    return page.post(RUN, json=body, headers={"origin": origin}).status_code


def test_a_link_to_the_page_is_previewed_with_its_own_title_words_and_picture(make: Make) -> None:
    html = make(front=GRADIO_HTML).get("/").text
    assert html.startswith('<head><meta charset="utf-8" />')
    assert html.endswith("</head><body>")
    assert "Gradio" not in html
    assert "example.com" not in html
    assert html.count("og:title") == html.count("og:image") == 1
    assert 'property="og:title" content="A &quot;title&quot;"' in html
    assert f'property="og:image" content="{ADDRESS}/gradio_api/file=abc"' in html
    assert 'name="description" content="Words."' in html
