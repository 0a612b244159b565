"""A hostile user of the page: whatever is sent, nothing is opened but uploads, and nobody sees another's."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import numpy as np
import pytest

from retrieval.feedback import read_feedback
from serving.access.keys import add_key
from serving.problems import MEDIA_TYPE

from ...world import draw, encode
from ..conftest import WATCHED, Served, operations, start, stop
from ..test_hostile import growing_less_than
from .page_client import META, RUN, UPLOAD, ask, event, run, upload

pytestmark = pytest.mark.slow

SEARCH = "/v1/search"
JPEG = {"content-type": "image/jpeg"}
FUZZ = int(os.environ.get("RETRIEVAL_FUZZ", "1000"))
MB = 2**20
LEAK = re.compile(r"hunter2|TOP SECRET|bundle_id|SQLite|Traceback|File \"|site-packages|root:|/tmp/|/home/|/usr/")
ROUTES = {  # all that the page answers; each of Gradio's others is 404
    *(("GET", path) for path in ("/", "/config", "/theme.css", "/favicon.ico", "/assets/{path:path}")),
    *(("GET", path) for path in ("/static/{path:path}", "/gradio_api/upload_progress")),
    ("POST", "/gradio_api/upload"),
    ("POST", "/gradio_api/run/{api_name}"),
    ("GET", "/gradio_api/file={path_or_url:path}"),
}


@pytest.fixture(scope="module")
def server(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server that nothing else asks, whose log says what it opens."""
    folder = tmp_path_factory.mktemp("hostile page")
    (folder / ".env").write_text("PASSWORD=hunter2")
    (folder / "secret.jpg").write_text("hunter2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.chdir(folder)
        running = start(world, folder, "--feedback", str(folder / "feedback.jsonl"), program=WATCHED)
    with httpx.Client(base_url=running.address, timeout=20) as client:
        warm(client)
    assert running.touched()  # it is watched
    yield running
    stop(running)


@pytest.fixture
def page(server: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=20) as client:
        yield client


@pytest.fixture
def folder(server: Served) -> Path:
    """Return the folder that the server works in."""
    return server.log.parent


@pytest.fixture
def link(folder: Path, secrets: list[str]) -> Iterator[Path]:
    """Return a link in that folder which leads out of it."""
    link = folder / "link"
    link.symlink_to(secrets[0])
    yield link
    link.unlink()


@contextmanager
def opening_nothing_outside(server: Served, folder: Path) -> Iterator[None]:
    """Check that a server opens no file, and starts no program."""
    before = server.log.stat().st_size
    yield
    known = re.compile(rf"open ('{re.escape(str(folder))}/feedback.jsonl'|\d+)")  # a number: is open
    assert [line for line in server.touched(before) if not known.fullmatch(line)] == []
    assert server.strangers() == []


def warm(page: httpx.Client) -> None:
    """Use everything once, so that what Python loads at first use is loaded."""
    for kind in ("JPEG", "PNG", "WEBP"):
        token = upload(page, encode(draw(3, 5), kind))
        assert "This is item-03" in ask(page, path=token)
        assert page.get(f"/gradio_api/file={token}").status_code == 200
    for dependency in page.get("/config").json()["dependencies"]:
        run(page, dependency["id"], *[None] * len(dependency["inputs"]))
    assert run(page, event(page, "search_whole"), {"path": "/etc/passwd"}).status_code == 404
    page.get("/nothing")


@pytest.fixture(scope="module")
def secrets(world: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return places that a client may not have opened: each would be read, or hang whoever reads it."""
    place = tmp_path_factory.mktemp("secrets")
    (place / "note").write_text("TOP SECRET")
    os.mkfifo(place / "pipe")
    photo = next((world / "photos").rglob("*.png"))
    found = [place / "note", place / "pipe", photo, photo.relative_to("/"), photo.parent]
    found += [world / "bundle" / "manifest.json", world / "gallery" / "gallery.sqlite"]
    devices = ["/etc/passwd", "/dev/zero", "/dev/stdin", "/proc/self/environ", "/proc/self/fd/0", "/proc/self/fd/5"]
    return [*(str(path) for path in found), *devices]


def forged(path: str) -> list[Any]:
    """Return the values that a client could send in the place of an upload."""
    plain = {"path": path}
    return [
        path,
        [path],
        plain,
        {**plain, "meta": META},
        {**plain, "meta": {}},
        {**plain, "meta": None},
        {**plain, "url": f"/gradio_api/file={path}", "meta": META},
        {**plain, "url": f"file://{path}", "orig_name": path, "mime_type": "image/png", "size": 5},
        {**plain, "is_stream": True, "meta": META},
        {"url": path, "meta": META},
        {"value": {**plain, "meta": META}},
        {"data": "data:image/png;base64,iVBORw0KGgo=", "name": path, "is_file": True},
        {"__type__": "update", "value": plain},
        {"composite": plain, "background": plain, "layers": [plain]},
    ]


@pytest.mark.timeout(300)
def test_no_path_that_a_client_names_is_opened(
    server: Served, page: httpx.Client, folder: Path, secrets: list[str], link: Path
) -> None:
    token = upload(page, encode(draw(1, 1)))
    up = "/".join([".."] * 10)
    paths = [*secrets, *(f"{folder}/{up}{path}" for path in secrets), *(f"{token}/{up}{path}" for path in secrets)]
    paths += [".env", "secret.jpg", str(folder / ".env"), str(link), "link", str(folder / token), f"./{token}"]
    paths += [f"{token}/", f"{folder}/{up}", ""]
    paths += ["http://example.com/a.jpg", "data:image/png;base64,iVBORw0KGgo=", f"{token}\0", token.upper(), "a" * 5000]
    change = event(page, "search_whole")
    with opening_nothing_outside(server, folder):
        for path in paths:
            for value in forged(path):
                answer = run(page, change, value)
                assert answer.status_code in (404, 422), (value, answer.text)
                assert LEAK.search(answer.text) is None, value
            for route in ("/gradio_api/file=", "/file=", "/gradio_api/stream/", "/static/", "/assets/", "/proxy="):
                for told in (quote(path, safe=""), f"%2e%2e%2f{quote(path, safe='')}"):
                    answer = page.get(route + told)
                    assert answer.status_code in (403, 404, 405, 422), (route, told)
                    assert LEAK.search(answer.text) is None, (route, told)
    assert "This is item-01" in ask(page, path=token, url="http://example.com/a.jpg")  # the token is what counts
    refused = run(page, change, {"path": "/etc/passwd"})
    assert refused.headers["content-type"] == MEDIA_TYPE
    assert refused.json()["error"]  # which the page's script shows


def test_each_route_of_gradio_that_the_page_does_not_need_is_not_there(
    server: Served, page: httpx.Client, folder: Path
) -> None:
    spec = find_spec("gradio")  # which imports nothing
    assert spec.origin is not None
    source = Path(spec.origin).with_name("routes.py").read_text()
    found = re.findall(r'@(app|router)\.(\w+)\(\s*f?"(/[^"]*)"', source)
    prefixes = {"app": "", "router": "/gradio_api"}
    theirs = {(method.upper(), prefixes[place] + path.rstrip("/") or "/") for place, method, path in found}
    theirs = {(method, path) for method, path in theirs if method in ("GET", "POST", "PUT", "DELETE", "PATCH")}
    assert len(theirs) > 60
    with opening_nothing_outside(server, folder):
        for method, path in sorted(theirs - ROUTES):
            values = ("0", "../../etc/passwd", "http:%2F%2Fexample.com")
            for where in {re.sub(r"\{[^}]*\}", value, path) for value in values}:
                answer = page.request(
                    method, where, json={"data": [], "session_hash": "a"} if method == "POST" else None
                )
                assert answer.status_code in (404, 405, 422), (method, where, answer.status_code)
    assert {("POST", "/gradio_api/queue/join"), ("GET", "/gradio_api/queue/data")} <= theirs - ROUTES
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        assert page.request(method, RUN).status_code == page.request(method, UPLOAD).status_code == 405


def test_the_page_has_only_checked_inputs_and_keeps_no_session(page: httpx.Client) -> None:
    config = page.get("/config").json()
    kinds = {component["id"]: component["type"] for component in config["components"]}
    for dependency in config["dependencies"]:
        assert not dependency["queue"], dependency["api_name"]
        assert {kinds[number] for number in dependency["inputs"]} <= {"image", "textbox", "dataset"}
    assert "state" not in kinds.values()
    assert not config["connect_heartbeat"]
    assert LEAK.search(json.dumps(config)) is None


@pytest.mark.parametrize(
    "value",
    [
        *[-1, 101, True, None, "50", "/etc/passwd", [1], {"path": "/etc/passwd"}, 1e400, 10**400, float("nan")],
        *["0,0,1", "0,0,1,2", "0,0,1,1,1", "0,0,1,1\n", "0,0,1,nan", "0,0,1,-1", "0,0,1,1e9", "0,0,1,0.1234567"],
    ],
)
def test_parts_and_numbers_of_examples_are_in_their_range(page: httpx.Client, value: Any) -> None:
    by_name = {d["api_name"]: d["id"] for d in page.get("/config").json()["dependencies"]}
    token = upload(page, encode(draw(1, 1)))

    def status(name: str, *data: Any) -> int:
        body = json.dumps({"data": data, "fn_index": by_name[name], "session_hash": "test"})
        return page.post(RUN, content=body.encode(), headers={"content-type": "application/json"}).status_code

    assert status("search_part", {"path": token}, "0,0.5,0.25,1") == 200
    assert status("search_part", {"path": token}, "") == 200
    assert status("search_part", {"path": token}, value) == 422
    assert status("example", 0) == 200
    assert status("example", value) == 422


def test_an_upload_is_shown_as_an_image_or_as_nothing_that_runs(page: httpx.Client) -> None:
    for data, kind in (
        (encode(draw(1, 1), "PNG"), "image/png"),
        (encode(draw(1, 1)), "image/jpeg"),
        (encode(draw(1, 1), "WEBP"), "image/webp"),
        (b"<script>alert(1)</script>", "application/octet-stream"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "application/octet-stream"),
    ):
        shown = page.get(f"/gradio_api/file={upload(page, data, 'a.html')}")
        assert (shown.content, shown.headers["content-type"]) == (data, kind)
        assert "sandbox" in shown.headers["content-security-policy"]
        assert shown.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"data": ' + b"[" * 5000 + b"]" * 5000 + b', "fn_index": 1, "session_hash": "a"}',
        b'{"data": {}, "fn_index": 1, "session_hash": "a"}',
        b'{"data": [], "fn_index": "1", "session_hash": "a"}',
        b'{"data": [], "fn_index": true, "session_hash": "a"}',
        b'{"data": [], "fn_index": 99999999999999999999999999, "session_hash": "a"}',
        b'{"data": [], "fn_index": -1, "session_hash": "a"}',
        b'{"data": [], "fn_index": 1}',
        b'{"data": [], "fn_index": 1, "session_hash": null}',
        b'{"data": [], "fn_index": 1, "session_hash": "../a"}',
        b'{"data": [], "fn_index": 1, "session_hash": "a\\n"}',
    ],
)
def test_a_malformed_event_is_refused(page: httpx.Client, body: bytes) -> None:
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=b", ""):
        answer = page.post(RUN, content=body, headers={"content-type": kind})
        assert (answer.status_code, answer.headers["content-type"]) == (422, MEDIA_TYPE)
        assert LEAK.search(answer.text) is None


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"files": ("", b"x")}, 400),
        ({"other": ("a.jpg", b"x")}, 400),
        ([("files", ("a.jpg", b"x")), ("files", ("b.jpg", b"x"))], 400),
        ({"files": ("../../../../tmp/x.jpg", b"x")}, 200),
        ({"files": ("/etc/cron.d/x", b"x")}, 200),
        ({"files": ("a" * 4000, b"x")}, 200),
    ],
)
def test_an_upload_has_one_file_whose_name_does_not_matter(
    server: Served, page: httpx.Client, folder: Path, files: Any, status: int
) -> None:
    with opening_nothing_outside(server, folder):
        answer = page.post(UPLOAD, files=files)
    assert answer.status_code == status
    if status == 200:
        assert re.fullmatch("[0-9a-f]{32}", answer.json()[0])
        assert page.get(f"/gradio_api/file={answer.json()[0]}").content == b"x"
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=", ""):
        assert page.post(UPLOAD, content=b"--b\r\n\r\n", headers={"content-type": kind}).status_code == 400, kind


@pytest.fixture
def two(world: Path, tmp_path: Path) -> Iterator[tuple[Served, httpx.Client, httpx.Client]]:
    """Return a server with two keys, and a client for each."""
    file = tmp_path / "keys.json"
    keys = [add_key(file, name, "search") for name in ("ann", "bob")]
    running = start(world, tmp_path, "--keys", str(file), "--feedback", str(tmp_path / "feedback.jsonl"))
    ann, bob = (httpx.Client(base_url=running.address, timeout=20, auth=("", key)) for key in keys)
    with ann, bob:
        while ann.get("/").status_code == 503:  # the page follows the endpoint
            time.sleep(0.1)
        yield running, ann, bob
    if running.process.poll() is None:
        stop(running)


@pytest.mark.timeout(300)
def test_another_key_sees_neither_photo_nor_answer_of_a_session(two: tuple[Served, httpx.Client, httpx.Client]) -> None:
    running, ann, bob = two
    token = upload(ann, encode(draw(3, 5)))
    assert bob.get(f"/gradio_api/file={token}").status_code == 404
    assert "no longer stored" in ask(bob, "shared", path=token)
    assert "This is item-03" in ask(ann, "shared", path=token)
    assert "no longer stored" in ask(bob, "shared", path=token)
    assert "no longer stored" in ask(ann, "another", path=token)  # a session of the same key
    (request_id,) = re.findall(r'data-request="(.*?)"', ask(ann, "shared", path=token))
    verdict = {"request_id": request_id, "verdict": "right"}
    assert [client.post("/v1/feedback", json=verdict).status_code for client in (bob, ann)] == [404, 200]
    (line,) = read_feedback(running.log.parent / "feedback.jsonl")
    assert (line.key, line.asked_by, line.request_id) == ("ann", "ann", request_id)
    assert run(bob, event(bob, "search_whole"), None, session="shared").status_code == 200  # clears nothing of ann's
    assert ann.get(f"/gradio_api/file={token}").content == encode(draw(3, 5))
    assert run(ann, event(ann, "search_whole"), None, session="shared").status_code == 200
    assert ann.get(f"/gradio_api/file={token}").status_code == 404
    stop(running)
    searches = [line for line in running.log.read_text().splitlines() if '"page/search"' in line]
    logged = [(told["key"], told["status"]) for told in map(json.loads, searches)]
    assert logged == [("bob", 404), ("ann", 200), ("bob", 404), ("ann", 404), ("ann", 200), ("bob", 200), ("ann", 200)]


# what a browser is told


def test_every_answer_says_what_a_browser_may_do(server: Served, page: httpx.Client) -> None:
    origins = ["http://shop.example", "null", "http://localhost:9", "http://127.0.0.1:9", server.address]
    asked = [*operations(server), ("GET", "/"), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/openapi.json")]
    asked += [("GET", "/nothing"), ("GET", "/config"), ("GET", "/gradio_api/info"), ("OPTIONS", SEARCH)]
    asked += [("OPTIONS", "/gradio_api/upload"), ("POST", "/gradio_api/upload"), ("GET", "/gradio_api/file=x")]
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
            assert re.fullmatch(r"[\w.-]+", told["x-request-id"]), where
            assert "server" not in told, where
            if path.startswith("/v1/") and "thumbnails" not in path:
                assert told["cache-control"] == "no-store", where
    assert {200, 400, 403, 404, 422} <= set(statuses)


def test_a_page_of_another_origin_may_change_nothing(server: Served, page: httpx.Client) -> None:
    port = server.address.rpartition(":")[2]
    foreign = ["http://shop.example", "null", "http://localhost:9", "http://127.0.0.1:9", f"http://127.0.0.1.x:{port}"]
    changing = [(m, p) for m, p in operations(server) if m not in ("GET", "HEAD")]
    changing += [
        ("POST", "/gradio_api/upload"),
        ("POST", "/gradio_api/queue/join"),
        ("POST", "/gradio_api/run/predict"),
    ]
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


# fuzz


class Fuzz:
    """Random requests: well-formed ones, and ones that are wrong in one place or many."""

    def __init__(self, page: httpx.Client, seed: int, leaves: list[Any], tokens: list[str]) -> None:
        self._page, self._generator, self._leaves = page, np.random.default_rng(seed), leaves
        config = page.get("/config").json()
        kinds = {component["id"]: component["type"] for component in config["components"]}
        self._events = [(d["id"], [kinds[number] for number in d["inputs"]]) for d in config["dependencies"]]
        self._tokens = tokens
        assert len(self._events) == 6

    def pick(self, some: list[Any]) -> Any:
        return some[int(self._generator.integers(len(some)))]

    def chance(self, share: float) -> bool:
        return bool(self._generator.random() < share)

    def value(self, depth: int = 0) -> Any:
        """Return any JSON value."""
        if depth > 3 or self.chance(0.5):
            return self.pick(self._leaves)
        if self.chance(0.4):
            return [self.value(depth + 1) for _ in range(int(self._generator.integers(4)))]
        names = ["path", "url", "meta", "_type", "value", "data", "name", "is_stream", "__type__", "orig_name", "size"]
        return {self.pick(names): self.value(depth + 1) for _ in range(int(self._generator.integers(6)))}

    def fitting(self, kind: str) -> Any:
        """Return what an input takes, or nearly."""
        if kind == "image":
            path = self.pick(self._tokens) if self.chance(0.5) else self.pick(self._leaves)
            return self.pick([None, {"path": path}, {"path": path, "meta": META}, {"path": path, "url": path}])
        if kind == "dataset":
            return int(self._generator.integers(-1, 9))
        return ",".join(f"{side:g}" for side in np.round(self._generator.uniform(-0.02, 1.02, 4), 3))

    def body(self) -> dict[str, Any]:
        number, kinds = self.pick(self._events)
        data = [self.fitting(kind) if self.chance(0.8) else self.value() for kind in kinds]
        body = {"data": data, "fn_index": number, "session_hash": self.pick(["one", "two", "three"])}
        if self.chance(0.3):
            body[self.pick(["data", "fn_index", "session_hash"])] = self.value()
        if self.chance(0.1):
            body.pop(self.pick(list(body)))
        for name in ("event_data", "trigger_id", "event_id", "batched", "simple_format", "oauth_token", "request"):
            if self.chance(0.2):
                body[name] = self.value()
        return body

    def call(self) -> httpx.Response:
        """Send one request."""
        if self.chance(0.05):
            content = self._generator.bytes(int(self._generator.integers(2000)))
            return self._page.post(self.pick([RUN, UPLOAD]), content=content)
        if self.chance(0.05):
            name = f"/gradio_api/{self.pick(['file=', 'upload_progress?', 'stream/', 'queue/data?'])}"
            return self._page.get(name + str(self.value())[:500].replace("\0", "%00"))
        if self.chance(0.1):
            token = upload(self._page, self.pick([encode(draw(3, 5)), b"no image", b""]) or b"x")
            self._tokens[int(self._generator.integers(len(self._tokens)))] = token
        return self._page.post(RUN, content=json.dumps(self.body()).encode())


@pytest.mark.timeout(3600)
def test_no_json_for_any_event_opens_a_file_or_fails(
    server: Served, page: httpx.Client, folder: Path, secrets: list[str], link: Path
) -> None:
    up = "/".join([".."] * 10)
    leaves: list[Any] = [*secrets, *(f"{folder}/{up}{path}" for path in secrets), str(link), "link", META]
    leaves += [None, True, 0, -1, 1e308, 10**40, float("nan"), "", "\0", "é" * 50, "gradio.FileData", "update", [], {}]
    leaves += ["http://127.0.0.1:1/x", "file:///etc/passwd", "data:image/png;base64,iVBORw0KGgo=", "<script>"]
    fuzz = Fuzz(page, 0, leaves, [upload(page, encode(draw(3, 5))) for _ in range(4)])
    statuses: Counter[int] = Counter()
    for _ in range(200):  # what is made once is made
        fuzz.call()
    with opening_nothing_outside(server, folder), growing_less_than(server, 50 * MB):
        for number in range(FUZZ):
            answer = fuzz.call()
            statuses[answer.status_code] += 1
            assert answer.status_code in (200, 400, 404, 413, 422), (number, answer.status_code, answer.text[:200])
            assert "TOP SECRET" not in answer.text
            sent = f"{unquote(str(answer.request.url))} {answer.request.content!r}"
            leaks = {*LEAK.findall(answer.text)} - {*LEAK.findall(sent)}  # a refusal may show what was sent
            assert answer.status_code == 200 or not leaks, (number, answer.text[:200])
    assert min(statuses[status] for status in (200, 404, 422)) > FUZZ // 50, statuses
    assert "This is item-03" in ask(page, path=upload(page, encode(draw(3, 5))))
