"""The routes of the page with something simpler than Gradio behind them: limits, keys and the log."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from retrieval.errors import InvalidParameter
from serving.api.problems import MEDIA_TYPE
from serving.http.guard import Guard
from serving.http.keys import KeyRing, add_key
from serving.http.limits import BodyLimit
from serving.http.rates import CLIENTS, Rate, Rates
from serving.ops.telemetry import Telemetry
from serving.ui.page_events import EVENT, Event, EventContext, SessionAnswer, SessionAnswers, photo_check
from serving.ui.page_routes import EVENT_BYTES, page_routes
from serving.ui.uploads import Uploads

from .page_client import META, RUN, UPLOAD, run, upload

MB = 2**20
ADDRESS = "http://127.0.0.1:7860"
SEARCH, PEEK = 0, 1  # events
PHOTO = b"\xff\xd8\xff photo"
Make = Callable[..., TestClient]


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Uploads(client_bytes=4 * MB, total_bytes=8 * MB)
    yield made
    made.close()


@pytest.fixture
def received() -> list[dict[str, Any]]:
    """Return what got through to Gradio."""
    return []


@pytest.fixture
def make(uploads: Uploads, received: list[dict[str, Any]]) -> Iterator[Make]:
    made: list[TestClient] = []

    def build(*, rate: float = math.inf, keys: Path | None = None) -> TestClient:
        behind = FastAPI(openapi_url=None)

        @behind.post(RUN)
        async def answer(request: Request) -> dict[str, Any]:
            sent = await request.json()
            received.append({**sent, "query": request.url.query, "type": request.headers["content-type"]})
            if sent["data"] and uploads.read(sent["data"][0]["path"], EVENT.get().client) != PHOTO:
                EVENT.get().status = 415
            return {"data": ["answer"]}

        @behind.get("/{path:path}")
        async def shown(request: Request) -> dict[str, Any]:
            names = sorted({*request.headers} - {"accept", "accept-encoding", "connection", "user-agent"})
            return {"path": request.url.path, "query": request.url.query, "headers": names}

        rates, telemetry = Rates.of(rate), Telemetry()
        events = {SEARCH: Event("search", (photo_check(uploads),)), PEEK: Event("peek", ())}
        page = page_routes(behind, events, uploads, rates=rates, max_bytes=MB)
        limited = BodyLimit(page, max_bytes=MB, max_batch_bytes=MB, seconds=5)
        ring = None if keys is None else KeyRing(keys)
        guard = Guard(limited, telemetry=telemetry, keys=ring, rates=rates, local=True)
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
        {
            "data": [{"path": token}],
            "fn_index": SEARCH,
            "session_hash": None,
            "query": "",
            "type": "application/json",
        }
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
        "/static",
        "/config/",
        "/gradio_api/run/other",
        "/gradio_api/file=a/b",
    ):
        answer = page.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, MEDIA_TYPE), path


def test_page_and_endpoint_have_one_limit_for_a_client(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    page = make(rate=1e-6)  # one of each kind, and no more while the test runs
    with caplog.at_level(logging.INFO, "retrieval.access"):
        token = upload(page, PHOTO)
        assert run(page, SEARCH, {"path": token}).status_code == 200
        refused = run(page, SEARCH, {"path": token})
        assert (refused.status_code, refused.headers["content-type"]) == (429, MEDIA_TYPE)
        assert int(refused.headers["retry-after"]) > 1
        assert "too many requests" in refused.json()["error"]  # which the page's script shows
        assert page.post("/v1/search", content=PHOTO).status_code == 429
        assert page.post(UPLOAD, files={"files": ("a.jpg", PHOTO)}).status_code == 429
        assert page.get("/v1/thumbnails/a").status_code == 404
        assert page.get("/v1/thumbnails/a").status_code == 429
    assert facts_of(caplog)[:5] == [
        ("", "page/upload", 200),
        ("", "page/search", 200),
        ("", "page/search", 429),
        ("", "refused", 429),
        ("", "page/upload", 429),
    ]
    for _ in range(5):  # what costs next to nothing is not counted
        assert run(page, PEEK).status_code == page.get("/").status_code == 200
        assert page.get(f"/gradio_api/file={token}").content == PHOTO


def test_searches_of_the_endpoint_count_for_the_page(make: Make) -> None:
    page = make(rate=1e-6)
    token = upload(page, PHOTO)
    assert page.post("/v1/search", content=PHOTO).status_code == 404  # nothing is there, but it was asked for
    assert run(page, SEARCH, {"path": token}).status_code == 429


def test_each_client_has_its_own_limit_and_their_number_is_bounded() -> None:
    rate = Rate(1e-6)
    assert [rate.wait("a"), rate.wait("b")] == [0, 0]
    assert rate.wait("a") > 0
    quick = Rate(1e9)
    for number in range(CLIENTS + 100):
        quick.wait(f"client {number}")
    assert len(quick._buckets) <= CLIENTS + 1


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
    assert len(uploads) == len(list(uploads.folder.iterdir())) == 1
    with uploads.arriving("127.0.0.9", 4 * MB):
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


def test_a_verdict_is_about_the_newest_answer_of_its_own_session() -> None:
    answered = SessionAnswers(most=2)
    ann, bob = EventContext("ann", "one", "1"), EventContext("bob", "one", "2")
    answered.record(ann, SessionAnswer("first"))
    answered.record(ann, second := SessionAnswer("second", ("mug", "cup")))
    assert (answered.of(ann), answered.of(bob)) == (second, None)
    assert [second.item(number) for number in range(2)] == ["mug", "cup"]
    for number in (-1, 2):
        with pytest.raises(InvalidParameter, match="cards"):
            second.item(number)
    answered.record(ann, None)  # an answer that nobody can judge
    assert answered.of(ann) is None
    for number in range(3):
        answered.record(EventContext("ann", str(number), ""), second)
    assert [answered.of(EventContext("ann", str(number), "")) for number in range(3)] == [None, second, second]
