"""The HTTP client: every route of the API against a server; retries and refusals against scripted answers."""

from __future__ import annotations

import base64
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from retrieval.client import ApiError, RetrievalClient, Unreachable
from retrieval.errors import ImageTooLarge, ImageUnreadable, InvalidParameter, MissingDependency
from retrieval.images import MAX_BYTES, open_image
from retrieval.retriever import Retriever
from retrieval.search.result import SearchResult
from serving.app import create_app
from serving.settings import ServeSettings

from ..conftest import ROOT
from ..world import WORLD, draw, encode

URL = "http://shop.example"
JPEG, PNG, WEBP = (encode(draw(3, 5), kind) for kind in ("JPEG", "PNG", "WEBP"))
STRANGER = encode(draw(77, 0))
AWKWARD = "möbel/a b/100%41?#.jpg"
ENCODED = b"m%C3%B6bel%2Fa%20b%2F100%2541%3F%23.jpg"
PROBLEM = {"type": "/problems/image-unreadable", "title": "not an image", "status": 400, "detail": "Convert it"}
REMOVED = {"photos": 2, "gallery_version": 5}
PAGE = {"items": [], "next": None}
Ask = Callable[..., Any]
Reply = httpx.Response | Exception


# against a server


class Recorded(RetrievalClient):
    """A client of an application in this process that notes the routes it asked."""

    def __init__(self, app: TestClient) -> None:
        self.routes: set[tuple[str, str]] = set()

        def forward(request: httpx.Request) -> httpx.Response:
            headers = {name: value for name, value in request.headers.items() if name != "host"}
            target = request.url.raw_path.decode()
            sent = app.request(request.method, target, content=request.read(), headers=headers)
            self.routes.add((request.method.lower(), request.url.path))
            kept = {name: sent.headers[name] for name in ("content-type", "x-request-id") if name in sent.headers}
            return httpx.Response(sent.status_code, content=sent.content, headers=kept)

        super().__init__("http://testserver", transport=httpx.MockTransport(forward))


@pytest.fixture(scope="module")
def app(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(world / "gallery", folder / "gallery")
    settings = ServeSettings(feedback=folder / "feedback.jsonl", feedback_photos=folder / "judged")
    retriever = Retriever.open(world / "bundle", folder / "gallery")
    with TestClient(create_app(retriever, settings=settings, page=False)) as client:
        yield client


def test_every_route_of_the_api_has_a_method_that_reads_its_answer(app: TestClient) -> None:
    with Recorded(app) as client:
        answer = client.search(JPEG, top_k=3, explain=True)
        assert (answer.matched, answer.matches[0].item_id, answer.threshold) == (True, "item-03", 0.5)
        assert answer.margin == 0.5 - answer.matches[0].distance
        assert answer.explanation is not None
        part = client.search(JPEG, bbox=(0, 0, 20, 20))
        assert part.nearest is not None
        found, refused = client.search_batch([JPEG, b"?"])
        assert not isinstance(found, ApiError)
        assert isinstance(refused, ApiError)
        assert (refused.status, found.request_id) == (400, f"{refused.request_id}-0")
        combined = client.search_photos([JPEG, PNG])
        assert combined.nearest.item_id == "item-03"
        (box,) = client.search_boxes(PNG, [(0, 0, 40, 40)])
        assert isinstance(box, SearchResult)
        assert box.box == (0, 0, 40, 40)
        assert len(client.search_boxes(PNG)) > 1
        client.feedback(answer, "wrong", item_id="item-04")
        (review,) = client.answers()
        assert (review.request_id, review.verdict, review.right_item_id) == (answer.request_id, "wrong", "item-04")
        client.undo_feedback(answer)
        assert client.answers() == []
        assert client.answer_photo(review.request_id) == JPEG
        assert client.put_photo("copy", JPEG, item_id="item-04").gallery_version > 0
        assert {"item-03", "item-04"} in [{pair.item_id, pair.other_item_id} for pair in client.look_alikes()]
        client.remove_photo("copy")
        with pytest.raises(ApiError, match="items"):
            client.calibrate()  # of ten items
        assert client.items(find="M-08").items == ["item-08"]
        assert client.put_photo("new/1", STRANGER, item_id="new").replaced is False
        assert client.put_photo("new/1", STRANGER, item_id="new", metadata={"brand": "x"}).replaced is True
        assert client.photo("new/1").metadata == {"brand": "x"}
        assert client.thumbnail("new/1").startswith(b"\xff\xd8")
        assert client.item("new").photos[0].photo_id == "new/1"
        assert client.items(after="item-08").items == ["item-09", "new"]
        rows = [{"photo_id": "new/1", "item_id": "newer"}, {"photo_id": "none", "item_id": "x"}]
        synced = client.sync(rows, dry_run=True)
        assert (synced.updated, synced.missing_photos, synced.gone) == (1, ["none"], 30)
        assert client.put_photo("new/2", STRANGER, item_id="new").replaced is False
        assert client.remove_photo("new/1", "new/2").photos == 2
        (removed,) = [each for each in client.removals() if each.item_ids == ["new"]]
        assert (client.restore(removed.removal).photos, client.photo("new/1").item_id) == (2, "new")
        assert client.remove_photo("new/1").photos == client.remove_photo("new/2").photos == 1
        with pytest.raises(ApiError, match="labels a photo"):
            client.calibrate(judged=True)
        assert client.remove_item("item-09").photos == WORLD[9]
        info = client.info()
        assert (info.threshold, info.gallery.items) == (0.5, 9)
        assert client.reload().bundle_id == {"before": info.bundle_id, "after": info.bundle_id}
        assert client.ready()
    known = {
        (method, path)
        for path, methods in app.get("/openapi.json").json()["paths"].items()
        for method in methods
        if path not in ("/metrics", "/healthz", "/v1/report", "/v1/report/bundle")
    }
    paths = {(method, path.partition("{")[0]) for method, path in known}
    assert {(method, start) for method, start in paths if not asked(client, method, start)} == set()


def asked(client: Recorded, method: str, start: str) -> bool:
    return any(method == used and path.startswith(start) for used, path in client.routes)


# against scripted answers


class Server:
    """Answers with what it was given, the last for ever, and keeps what it was asked."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def will(self, *replies: Reply | Any, status: int = 200, **options: Any) -> None:
        made = [r if isinstance(r, Reply) else httpx.Response(status, json=r, **options) for r in replies]
        self.replies, self.asked = made, []


class Clock:
    """Time that passes in pauses only."""

    def __init__(self) -> None:
        self.now, self.pauses = 100.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("retrieval.client.time.sleep", clock.sleep)
    monkeypatch.setattr("retrieval.client.time.monotonic", lambda: clock.now)
    monkeypatch.setattr("retrieval.client.jitter", lambda least, most: most)
    return clock


@pytest.fixture
def server(clock: Clock) -> Server:
    return Server()


@pytest.fixture
def ask(server: Server) -> Ask:
    """Return a function that calls a method of a client of the scripted server."""

    def call(method: str, *args: Any, settings: dict[str, Any] | None = None, **options: Any) -> Any:
        given = {"base_url": URL, **(settings or {})}
        with RetrievalClient(**given, transport=httpx.MockTransport(server)) as client:
            return getattr(client, method)(*args, **options)

    return call


def only(server: Server) -> httpx.Request:
    (request,) = server.asked
    return request


@pytest.mark.parametrize(("data", "kind"), [(JPEG, "image/jpeg"), (PNG, "image/png"), (WEBP, "image/webp")])
def test_bytes_and_paths_are_sent_as_they_are(ask: Ask, server: Server, tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "photo").write_bytes(data)
    for image in (data, tmp_path / "photo", str(tmp_path / "photo")):
        server.will({})
        with pytest.raises(ApiError, match="not from this API"):
            ask("search", image)
        assert (only(server).content, only(server).headers["content-type"]) == (data, kind)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "CMYK", "turned"])
def test_a_pil_image_is_sent_as_a_search_sees_it(ask: Ask, server: Server, mode: str) -> None:
    image = draw(3, 0).crop((0, 0, 40, 24))
    if mode == "turned":
        image.getexif()[0x0112] = 6  # a camera held upright
    else:
        image = image.convert(mode)
    server.will({"photo_id": "p", "item_id": "i", "replaced": False, "gallery_version": 1})
    ask("put_photo", "p", image, item_id="i")
    sent = Image.open(io.BytesIO(only(server).content))
    np.testing.assert_array_equal(np.asarray(sent), np.asarray(open_image(image)))


def test_images_that_cannot_be_sent_are_refused_here(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(ImageUnreadable, match="none"):
        ask("search", tmp_path / "none.jpg")
    with pytest.raises(ImageTooLarge, match=f"{MAX_BYTES + 1:,} bytes"):
        ask("search_batch", [JPEG, bytes(MAX_BYTES + 1)])
    for images in ([], JPEG):
        with pytest.raises(InvalidParameter, match="at least one image"):
            ask("search_batch", images)
    with pytest.raises(InvalidParameter, match="fields must be a sequence"):
        ask("search", JPEG, fields="name")
    with pytest.raises(InvalidParameter, match="bbox"):
        ask("search_boxes", JPEG, [(0, 0, 0, 0)])


@pytest.mark.parametrize(
    ("name", "sent"), [(AWKWARD, ENCODED), (".", b"%2E"), ("..", b"%2E%2E"), ("../x", b"..%2Fx"), ("a\n", b"a%0A")]
)
def test_an_id_never_changes_the_path(ask: Ask, server: Server, name: str, sent: bytes) -> None:
    server.will(REMOVED)
    ask("remove_item", name)
    assert (only(server).method, only(server).url.raw_path) == ("DELETE", b"/v1/items/" + sent)
    with pytest.raises(InvalidParameter, match="id must hold strings that are not empty"):
        ask("remove_item", "")


def test_text_that_utf8_cannot_encode_is_refused_here(ask: Ask, server: Server) -> None:
    for method, words, options in (
        ("item", ["\ud800"], {}),
        ("put_photo", ["\ud800", JPEG], {"item_id": "a"}),
        ("search", [JPEG], {"where": "\ud800"}),
    ):
        with pytest.raises(InvalidParameter, match="be valid Unicode"):
            ask(method, *words, **options)
    assert not server.asked


def test_metadata_is_plain_json(ask: Ask, server: Server) -> None:
    server.will({"photo_id": "p", "item_id": "i", "replaced": False, "gallery_version": 1})
    ask("put_photo", "p", PNG, item_id="ä/1", metadata={"price": 3})
    sent = json.loads(only(server).content)
    assert (sent["item_id"], sent["metadata"], base64.b64decode(sent["image"])) == ("ä/1", {"price": 3}, PNG)
    for value in (math.nan, {1}):
        with pytest.raises(InvalidParameter, match="metadata must hold plain JSON"):
            ask("put_photo", "p", PNG, item_id="i", metadata={"price": value})


def test_ready_is_a_question_not_an_error(ask: Ask, server: Server, clock: Clock) -> None:
    server.will(PROBLEM, status=503)
    assert ask("ready") is False
    assert (len(server.asked), clock.pauses) == (1, [])
    server.will(httpx.ReadTimeout("slow"))
    assert ask("ready") is False
    server.will(PROBLEM, status=404)
    with pytest.raises(ApiError):
        ask("ready")


def test_the_key_is_sent_and_the_base_keeps_its_path(ask: Ask, server: Server) -> None:
    server.will(PAGE)
    ask("items", settings={"key": "rk_abc\n", "base_url": "https://example.org/shop/"})
    assert only(server).headers["authorization"] == "Bearer rk_abc"
    assert str(only(server).url).startswith("https://example.org/shop/v1/items?")
    for absent in (None, "", " \n"):
        server.will(PAGE)
        ask("items", settings={"key": absent})
        assert "authorization" not in only(server).headers


def test_a_redirect_is_not_followed_with_the_key(ask: Ask, server: Server) -> None:
    server.will(httpx.Response(307, headers={"Location": "http://elsewhere.example/v1/items"}), PAGE)
    with pytest.raises(ApiError, match="Temporary Redirect"):
        ask("items", settings={"key": "rk_abc"})
    assert only(server).url.host == "shop.example"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_url": "shop.example"}, "http://"),
        ({"base_url": "ftp://shop.example"}, "http://"),
        ({"base_url": "http://"}, "a host"),
        ({"base_url": "http://shop.example:port"}, "a host"),
        ({"timeout": 0}, "positive number of seconds"),
        ({"timeout": float("inf")}, "positive number of seconds"),
        ({"retries": -1}, "at least 0"),
        ({"key": "a\nb"}, "printable ASCII"),
        ({"key": "schlüssel"}, "printable ASCII"),
    ],
)
def test_settings_are_checked(ask: Ask, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words) as caught:
        ask("items", settings=settings)
    assert "schlüssel" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422, 500])
def test_a_refusal_is_the_problem_document_and_final(ask: Ask, server: Server, status: int) -> None:
    server.will({**PROBLEM, "status": status, "new": 1}, status=status, headers={"X-Request-ID": "r-7"})
    with pytest.raises(ApiError, match=rf"not an image \(status {status}\)\. Convert it") as caught:
        ask("search", JPEG)
    error = caught.value
    assert (error.status, error.title, error.detail) == (status, "not an image", "Convert it")
    assert (error.type, error.request_id) == ("/problems/image-unreadable", "r-7")
    assert len(server.asked) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"status": "bad"}', b"\xff"])
def test_a_refusal_that_is_no_problem_document_says_its_status(ask: Ask, server: Server, body: bytes) -> None:
    server.will(httpx.Response(502, content=body))
    with pytest.raises(ApiError, match=r"Bad Gateway \(status 502\)") as caught:
        ask("items")
    assert (caught.value.status, caught.value.type, caught.value.request_id) == (502, "about:blank", "")


@pytest.mark.parametrize("body", [b"<html>please log in</html>", b"[]", b'{"items": "abc", "next": null}', b""])
def test_an_answer_of_another_api_is_refused(ask: Ask, server: Server, body: bytes) -> None:
    server.will(httpx.Response(200, content=body))
    with pytest.raises(ApiError, match="not from this API") as caught:
        ask("items")
    assert caught.value.status == 200


@pytest.mark.parametrize("status", [429, 503])
def test_what_passes_is_asked_again(ask: Ask, server: Server, clock: Clock, status: int) -> None:
    busy = httpx.Response(status, json=PROBLEM)
    server.will(busy, busy, {"answers": [], "request_id": "r"})
    assert ask("search_batch", [JPEG, PNG]) == []
    assert all(JPEG in request.content and PNG in request.content for request in server.asked)
    assert (len(server.asked), clock.pauses) == (3, [0.2, 0.4])


def test_it_gives_up_after_the_retries_and_pauses_grow_up_to_a_limit(ask: Ask, server: Server, clock: Clock) -> None:
    server.will({**PROBLEM, "title": "busy", "status": 503}, status=503)
    with pytest.raises(ApiError, match="busy"):
        ask("items", settings={"retries": 7, "timeout": 1000})
    assert clock.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    server.will(httpx.Response(503))
    with pytest.raises(ApiError):
        ask("items", settings={"retries": 0})
    assert len(server.asked) == 1


def test_retry_after_may_be_seconds_a_date_or_nonsense(ask: Ask, server: Server, clock: Clock) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": "3"}), httpx.Response(429), PAGE)
    ask("items")
    assert clock.pauses == [3.2, 0.4]
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=50), usegmt=True)
    server.will(httpx.Response(503, headers={"Retry-After": soon}), PAGE)
    ask("items", settings={"timeout": 100})
    assert 45 < clock.pauses.pop() <= 50.2
    for nonsense in ("-5", "soon", "", "Mon, 01 Jan 0001 00:00:00 -0000", "nan"):
        server.will(httpx.Response(503, headers={"Retry-After": nonsense}), PAGE)
        ask("items")
        assert clock.pauses.pop() == 0.2


@pytest.mark.parametrize("seconds", ["10", "3600", "9" * 400])
def test_no_pause_outlasts_the_deadline(ask: Ask, server: Server, clock: Clock, seconds: str) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": seconds}))
    with pytest.raises(ApiError):
        ask("items", settings={"timeout": 10})
    assert (len(server.asked), clock.pauses) == (1, [])


def test_each_attempt_has_what_is_left_of_the_time(ask: Ask, server: Server, clock: Clock) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": "3"}))
    with pytest.raises(ApiError):
        ask("items", settings={"timeout": 10, "retries": 50})
    left = [request.extensions["timeout"] for request in server.asked]
    assert [round(timeouts["read"], 6) for timeouts in left] == [10, 6.8, 3.4]  # 3.2 and 3.4 s later; 3.8 is too long
    assert all(set(timeouts.values()) == {timeouts["read"]} for timeouts in left)


BROKEN = [httpx.ReadTimeout, httpx.WriteTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError]
UNOPENED = [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout]


@pytest.mark.parametrize("kind", [*BROKEN, *UNOPENED])
def test_a_broken_connection_is_opened_again(ask: Ask, server: Server, kind: type[httpx.TransportError]) -> None:
    server.will(kind("gone"), REMOVED)
    assert ask("remove_item", "i").photos == 2
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("method", "args"), [("feedback", ("r-1", "right")), ("undo_feedback", ("r-1",)), ("reload", ())]
)
def test_feedback_and_reload_are_never_done_twice(
    ask: Ask, server: Server, clock: Clock, method: str, args: tuple[str, ...]
) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": "1"}))
    with pytest.raises(ApiError):
        ask(method, *args)
    assert len(server.asked) == 1
    for kind in BROKEN:
        server.will(kind("gone"))
        with pytest.raises(Unreachable):
            ask(method, *args)
        assert len(server.asked) == 1
    assert clock.pauses == []
    for kind in UNOPENED:
        names = ("bundle_id", "gallery_version", "threshold", "threshold_status")
        server.will(kind("refused"), {"recorded": True, **{name: {} for name in names}})
        ask(method, *args)
        assert len(server.asked) == 2


def test_a_server_that_is_not_there_is_named_without_secrets(ask: Ask, server: Server) -> None:
    server.will(httpx.ConnectError("connection refused"))
    with pytest.raises(Unreachable, match=r"http://shop\.example:81: ConnectError connection refused") as caught:
        ask("items", settings={"key": "rk_secret", "base_url": "http://me:hidden@shop.example:81"})
    assert len(server.asked) == 4
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    assert "hidden" not in str(caught.value)
    assert "rk_secret" not in str(caught.value)


def test_a_missing_httpx_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependency, match=r"pip install -c constraints.txt '\.\[client\]'"):
        RetrievalClient(URL)


def test_the_client_needs_nothing_of_the_server() -> None:
    script = "import sys, retrieval.client; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {"faiss", "fastapi", "httpx", "onnxruntime", "serving", "starlette", "torch"}
    assert heavy.isdisjoint(found.stdout.split())
