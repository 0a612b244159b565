from __future__ import annotations

import asyncio
import base64
import inspect
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval.client import models as client_answers
from retrieval.client.client import ApiError, AsyncRetrievalClient, RetrievalClient, Unreachable
from retrieval.errors import ImageTooLarge, ImageUnreadable, InvalidParameter, MissingDependency
from retrieval.images import MAX_BYTES, open_image
from retrieval.search.result import Explanation, Match, SearchResult
from serving.api import schemas, sync_route

from ...conftest import ROOT
from ...world import draw, encode

URL = "http://shop.example"
JPEG, PNG, WEBP = (encode(draw(1, 0), kind) for kind in ("JPEG", "PNG", "WEBP"))
AWKWARD = "möbel/a b/100%41?#.jpg"
ENCODED = b"m%C3%B6bel%2Fa%20b%2F100%2541%3F%23.jpg"
MATCH = {"item_id": "mug", "photo_id": "mugs/1.jpg", "distance": 0.25, "metadata": {"brand": "x"}}
ANSWER = {
    "decision": "match",
    "reason": "",
    "matches": [MATCH],
    "nearest": MATCH,
    "threshold": 0.5,
    "nearest_distance": 0.25,
    "margin": 0.25,
    "certainty": 20,
    "request_id": "r-1",
    "timings_ms": {"embed": 7.5},
    "bundle_id": "b",
    "gallery_version": 12,
    "explanation": None,
}
SYNCED = {
    "updated": 1,
    "unchanged": 0,
    "missing": 1,
    "missing_photos": ["b"],
    "gone": 2,
    "gone_photos": ["c", "d"],
    "gallery_version": 7,
}
NOTHING = {**ANSWER, "decision": "no_match", "reason": "gallery_empty", "matches": [], "nearest": None} | {
    "nearest_distance": None,
    "margin": None,
}
PROBLEM = {"type": "/problems/image-unreadable", "title": "not an image", "status": 400, "detail": "Convert it"}
GALLERY = {"version": 3, "photos": 20, "items": 10, "index": {"kind": "flat"}, "columns": {"brand": "text"}}
INFO = {
    "bundle_id": "b",
    "embedding_id": "e",
    "threshold": 0.5,
    "status": "certified",
    "target_fpir": 0.05,
    "distance": "plain",
    "min_certainty": 1.5,
    "evidence": {"errors": 0},
    "threshold_status": "unanchored",
    "in_gallery": None,
    "gallery": GALLERY,
    "drift": {},
}
RELOADED = {
    "swapped": False,
    "bundle_id": {"before": "a", "after": "b"},
    "gallery_version": {"before": 1, "after": 2},
    "threshold": {"before": 0.5, "after": 0.4},
    "threshold_status": {"before": "unanchored", "after": "certified"},
    "asked": 2,
    "changed": [{"query": 1, "before": ["mug", "cup"], "after": []}],
}
REMOVED = {"photos": 2, "gallery_version": 5}
STORED = {"photo_id": "p", "item_id": "i", "replaced": True, "gallery_version": 6}
PHOTO = {"photo_id": "p", "item_id": "i", "metadata": {"price": 3}}

Ask = Callable[..., Any]
Reply = httpx.Response | Exception


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

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("retrieval.client.client.sleep", clock.sleep)
    monkeypatch.setattr("retrieval.client.async_client.async_sleep", clock.async_sleep)
    monkeypatch.setattr("retrieval.client.retries.monotonic", lambda: clock.now)
    monkeypatch.setattr("retrieval.client.retries.jitter", lambda least, most: most)
    return clock


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture(params=["waits", "awaited"])
def ask(request: pytest.FixtureRequest, server: Server) -> Ask:
    """Return a function that calls a method of either client."""

    def waits(method: str, *args: Any, settings: dict[str, Any], **options: Any) -> Any:
        with RetrievalClient(settings.pop("url", URL), transport=httpx.MockTransport(server), **settings) as client:
            return getattr(client, method)(*args, **options)

    async def awaited(method: str, *args: Any, settings: dict[str, Any], **options: Any) -> Any:
        transport = httpx.MockTransport(server)
        async with AsyncRetrievalClient(settings.pop("url", URL), transport=transport, **settings) as client:
            return await getattr(client, method)(*args, **options)

    def call(*args: Any, settings: dict[str, Any] | None = None, **options: Any) -> Any:
        if request.param == "waits":
            return waits(*args, settings={**(settings or {})}, **options)
        return asyncio.run(awaited(*args, settings={**(settings or {})}, **options))

    return call


def only(server: Server) -> httpx.Request:
    (request,) = server.asked
    return request


def assert_asked(server: Server, method: str, target: bytes, body: bytes = b"") -> None:
    request = only(server)
    assert (request.method, request.url.raw_path, request.content) == (method, target, body)


def parts(request: httpx.Request) -> list[tuple[str, bytes]]:
    """Return the header lines and the body of each part of a form."""
    kind, boundary = request.headers["content-type"].split("; boundary=")
    assert kind == "multipart/form-data"
    chunks = request.content.split(f"--{boundary}".encode())
    assert chunks[-1] == b"--\r\n"
    split = [chunk.removeprefix(b"\r\n").removesuffix(b"\r\n").split(b"\r\n\r\n", 1) for chunk in chunks[1:-1]]
    return [(head.decode(), body) for head, body in split]


def test_a_search_sends_the_photo_and_reads_the_answer(ask: Ask, server: Server) -> None:
    server.will(ANSWER)
    answer = ask("search", JPEG, top_k=3, where="brand = 'x y'", explain=True)
    assert_asked(server, "POST", only(server).url.raw_path, JPEG)
    assert only(server).url.path == "/v1/search"
    assert dict(only(server).url.params) == {"top_k": "3", "explain": "true", "where": "brand = 'x y'"}
    assert only(server).headers["content-type"] == "image/jpeg"
    mug = Match("mug", "mugs/1.jpg", 0.25, {"brand": "x"})
    assert answer == SearchResult((mug,), "match", "", 0.5, 0.25, 20.0, mug, "b", gallery_version=12)
    assert (answer.margin, answer.request_id, answer.timings_ms) == (0.25, "r-1", {"embed": 7.5})
    assert answer.matched
    assert isinstance(answer.certainty, float)
    with pytest.raises(FrozenInstanceError):
        answer.decision = "no_match"


def test_a_no_match_and_an_explanation_are_read(ask: Ask, server: Server) -> None:
    why = {"distance_form": "plain", "plain_nearest": MATCH, "density": 0.5, "min_certainty": 1.0}
    server.will({**NOTHING, "explanation": {**why, "photos": 4, "items": 2, "index": "flat"}})
    answer = ask("search", JPEG)
    assert_asked(server, "POST", b"/v1/search?top_k=10&explain=false", JPEG)
    assert (answer.matched, answer.matches, answer.nearest, answer.margin) == (False, (), None, None)
    mug = Match("mug", "mugs/1.jpg", 0.25, {"brand": "x"})
    assert answer.explanation == Explanation("plain", 0.5, mug, 1.0)


def test_what_a_newer_server_says_besides_is_passed_over(ask: Ask, server: Server) -> None:
    newer = {**MATCH, "colour": "red"}
    server.will({**ANSWER, "matches": [newer], "nearest": newer, "weather": {"rain": True}}, ANSWER)
    assert ask("search", JPEG) == ask("search", JPEG)
    assert len(server.asked) == 2


def test_what_may_be_left_out_may_be_left_out(ask: Ask, server: Server) -> None:
    server.will({name: value for name, value in ANSWER.items() if name != "explanation"})
    assert ask("search", JPEG).explanation is None
    server.will({"photo_id": "p", "item_id": "i"})
    assert ask("photo", "p").metadata == {}


@pytest.mark.parametrize(("data", "kind"), [(JPEG, "image/jpeg"), (PNG, "image/png"), (WEBP, "image/webp")])
def test_bytes_and_paths_travel_as_they_are(ask: Ask, server: Server, tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "photo").write_bytes(data)
    for image in (data, tmp_path / "photo", str(tmp_path / "photo")):
        server.will(ANSWER)
        ask("search", image)
        assert (only(server).content, only(server).headers["content-type"]) == (data, kind)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "CMYK", "turned"])
def test_a_pil_image_travels_as_what_a_search_sees_of_it(ask: Ask, server: Server, mode: str) -> None:
    image = draw(3, 0).crop((0, 0, 40, 24))
    if mode == "turned":
        image.getexif()[0x0112] = 6  # a camera held upright
    else:
        image = image.convert(mode)
    server.will(ANSWER)
    ask("search", image)
    assert only(server).headers["content-type"] == "image/png"
    sent = Image.open(io.BytesIO(only(server).content))
    assert sent.format == "PNG"
    np.testing.assert_array_equal(np.asarray(sent), np.asarray(open_image(image)))
    assert sent.size == ((24, 40) if mode == "turned" else (40, 24))


def test_images_that_cannot_be_sent_are_refused_here(ask: Ask, server: Server, tmp_path: Path) -> None:
    with pytest.raises(ImageUnreadable, match="none"):
        ask("search", tmp_path / "none.jpg")
    with pytest.raises(ImageTooLarge, match="10,485,761 bytes"):
        ask("search_batch", [JPEG, bytes(MAX_BYTES + 1)])
    with pytest.raises(InvalidParameter, match="at least one image"):
        ask("search_batch", [])
    server.will(ANSWER)
    ask("search", JPEG + bytes(MAX_BYTES - len(JPEG)))
    assert len(only(server).content) == MAX_BYTES


@pytest.mark.parametrize(("fields", "sent"), [(None, []), (["name", "a b"], ["name", "a b"]), ([], [""])])
def test_a_search_names_the_fields_that_it_wants(
    ask: Ask, server: Server, fields: list[str] | None, sent: list[str]
) -> None:
    server.will(ANSWER)
    ask("search", JPEG, fields=fields)
    assert only(server).url.params.get_list("fields") == sent
    server.will({"answers": [ANSWER], "request_id": "r"})
    ask("search_batch", [JPEG], fields=fields)
    assert only(server).url.params.get_list("fields") == sent
    with pytest.raises(InvalidParameter, match="fields must be a sequence"):
        ask("search", JPEG, fields="name")


def test_a_batch_has_the_error_of_a_refused_photo_in_its_place(ask: Ask, server: Server) -> None:
    server.will({"answers": [ANSWER, PROBLEM, NOTHING], "request_id": "r-9"}, headers={"X-Request-ID": "r-9"})
    found, refused, nothing = ask("search_batch", [JPEG, b"?", draw(1, 0)], top_k=2, where="a = 1")
    assert (only(server).method, only(server).url.path) == ("POST", "/v1/search/batch")
    assert dict(only(server).url.params) == {"top_k": "2", "explain": "false", "where": "a = 1"}
    heads, bodies = zip(*parts(only(server)), strict=True)
    assert [body[:4] for body in bodies] == [JPEG[:4], b"?", PNG[:4]]
    assert bodies[0] == JPEG
    assert all('name="images"; filename="' in head for head in heads)
    assert ["image/png" in head for head in heads] == [False, False, True]
    assert (found.matched, nothing.matched) == (True, False)
    assert isinstance(refused, ApiError)
    assert (refused.status, refused.title, refused.detail) == (400, "not an image", "Convert it")
    assert (refused.type, refused.request_id) == ("/problems/image-unreadable", "r-9")


def test_several_photos_of_one_thing_are_one_query(ask: Ask, server: Server) -> None:
    server.will(ANSWER)
    answer = ask("search_photos", [JPEG, PNG], top_k=2, where="a = 1", fields=["name"])
    assert (only(server).method, only(server).url.path) == ("POST", "/v1/search/photos")
    assert dict(only(server).url.params) == {"top_k": "2", "where": "a = 1", "fields": "name"}
    assert [body for _, body in parts(only(server))] == [JPEG, PNG]
    assert answer.matches[0].item_id == "mug"
    for refused in ([JPEG], [JPEG] * 5, JPEG):
        with pytest.raises(InvalidParameter, match="images must be"):
            ask("search_photos", refused)


def test_items_and_photos_are_read(ask: Ask, server: Server) -> None:
    server.will({"items": ["a", "b"], "next": "b"})
    assert ask("items") == client_answers.ItemPage(("a", "b"), "b")
    assert_asked(server, "GET", b"/v1/items?limit=100")
    server.will({"items": [], "next": None})
    assert ask("items", "ä&b", 5).next is None
    assert_asked(server, "GET", b"/v1/items?after=%C3%A4%26b&limit=5")
    photo = client_answers.Photo("p", "i", {"price": 3})
    server.will({"item_id": "i", "photos": [PHOTO, PHOTO]})
    assert ask("item", AWKWARD) == client_answers.Item("i", (photo, photo))
    assert_asked(server, "GET", b"/v1/items/" + ENCODED)
    server.will(PHOTO)
    assert ask("photo", AWKWARD) == photo
    assert_asked(server, "GET", b"/v1/photos/" + ENCODED)
    server.will(httpx.Response(200, content=JPEG))
    assert ask("thumbnail", AWKWARD) == JPEG
    assert_asked(server, "GET", b"/v1/thumbnails/" + ENCODED)


def test_items_and_photos_are_removed(ask: Ask, server: Server) -> None:
    for method, collection in (("remove_item", b"items"), ("remove_photo", b"photos")):
        server.will(REMOVED)
        assert ask(method, AWKWARD) == client_answers.Removed(2, 5)
        assert_asked(server, "DELETE", b"/v1/" + collection + b"/" + ENCODED)


def test_an_empty_id_is_refused(ask: Ask, server: Server) -> None:
    with pytest.raises(InvalidParameter, match="id must not be empty"):
        ask("remove_item", "")
    assert server.asked == []


@pytest.mark.parametrize(("name", "sent"), [(".", b"%2E"), ("..", b"%2E%2E"), ("../x", b"..%2Fx"), ("a\n", b"a%0A")])
def test_an_id_never_changes_the_path(ask: Ask, server: Server, name: str, sent: bytes) -> None:
    server.will(REMOVED)
    ask("remove_item", name)
    assert_asked(server, "DELETE", b"/v1/items/" + sent)


def test_a_photo_is_put(ask: Ask, server: Server) -> None:
    server.will(STORED)
    assert ask("put_photo", AWKWARD, PNG, item_id="ä/1") == client_answers.Stored("p", "i", True, 6)
    assert_asked(server, "PUT", b"/v1/photos/" + ENCODED + b"?item_id=%C3%A4%2F1", PNG)
    assert only(server).headers["content-type"] == "image/png"


def test_a_photo_with_metadata_is_put_as_json(ask: Ask, server: Server) -> None:
    server.will(STORED)
    ask("put_photo", "p", PNG, item_id="ä/1", metadata={"price": 3})
    assert (only(server).method, only(server).url.raw_path) == ("PUT", b"/v1/photos/p")
    assert only(server).headers["content-type"] == "application/json"
    sent = schemas.PhotoRequest.model_validate_json(only(server).content)
    assert (sent.item_id, sent.metadata, base64.b64decode(sent.image)) == ("ä/1", {"price": 3}, PNG)
    for value in (float("nan"), {1}):
        with pytest.raises(InvalidParameter, match="metadata must hold plain JSON"):
            ask("put_photo", "p", PNG, item_id="i", metadata={"price": value})


def test_info_is_read(ask: Ask, server: Server) -> None:
    server.will(INFO)
    info = ask("info")
    assert_asked(server, "GET", b"/v1/info")
    assert info.gallery == client_answers.GalleryInfo(3, 20, 10, {"kind": "flat"}, {"brand": "text"})
    assert (info.threshold, info.status) == (0.5, "certified")


def test_feedback_names_the_answer(ask: Ask, server: Server) -> None:
    server.will(ANSWER, {"recorded": True})
    answer = ask("search", JPEG)
    for about, request_id in ((answer, "r-1"), ("r-2", "r-2")):
        server.will({"recorded": True})
        assert ask("feedback", about, "unknown") is True
        assert (only(server).method, only(server).url.raw_path) == ("POST", b"/v1/feedback")
        assert json.loads(only(server).content) == {"request_id": request_id, "verdict": "unknown"}
        assert only(server).headers["content-type"] == "application/json"


def test_a_table_is_synchronized(ask: Ask, server: Server) -> None:
    server.will(SYNCED, SYNCED)
    rows = [{"photo_id": "a", "item_id": "mug", "metadata": {"price": 9.5}}, {"photo_id": "b", "item_id": "cup"}]
    found = ask("sync", rows, prune=True, prune_at_most=0.2)
    assert found == client_answers.Synced(1, 0, 1, ("b",), 2, ("c", "d"), 7)
    assert only(server).url.path == "/v1/admin/sync"
    sent = {"photos": rows, "prune": True, "dry_run": False, "prune_at_most": 0.2}
    assert json.loads(only(server).content) == sent
    with pytest.raises(InvalidParameter, match="photos must hold plain JSON values"):
        ask("sync", [{"photo_id": "a", "item_id": "mug", "metadata": {"price": math.nan}}])


def test_a_reload_may_replay_images(ask: Ask, server: Server) -> None:
    server.will(RELOADED)
    made = ask("reload")
    assert_asked(server, "POST", b"/v1/admin/reload?dry_run=false")
    assert "content-type" not in only(server).headers
    assert made.changed == (client_answers.Change(1, ("mug", "cup"), ()),)
    assert (made.swapped, made.asked, made.threshold["after"]) == (False, 2, 0.4)
    assert made.threshold_status == {"before": "unanchored", "after": "certified"}
    server.will(RELOADED)
    ask("reload", images=[JPEG, PNG], dry_run=True)
    assert only(server).url.raw_path == b"/v1/admin/reload?dry_run=true"
    assert [body for _, body in parts(only(server))] == [JPEG, PNG]


def test_ready_is_a_question_not_an_error(ask: Ask, server: Server, clock: Clock) -> None:
    server.will({"status": "ready"})
    assert ask("ready") is True
    assert_asked(server, "GET", b"/readyz")
    server.will(PROBLEM, status=503)
    assert ask("ready") is False
    assert len(server.asked) == 1
    assert clock.pauses == []
    server.will(httpx.ConnectError("refused"))
    assert ask("ready", settings={"retries": 0}) is False
    server.will(PROBLEM, status=404)
    with pytest.raises(ApiError):
        ask("ready")


def test_the_key_is_sent_and_the_base_keeps_its_path(ask: Ask, server: Server) -> None:
    server.will(INFO)
    ask("info", settings={"key": "rk_abc\n", "url": "https://example.org/shop/"})
    assert only(server).headers["authorization"] == "Bearer rk_abc"
    assert str(only(server).url) == "https://example.org/shop/v1/info"
    for absent in (None, "", " \n"):
        server.will(INFO)
        ask("info", settings={"key": absent})
        assert "authorization" not in only(server).headers


def test_a_redirect_is_not_followed_with_the_key(ask: Ask, server: Server) -> None:
    server.will(httpx.Response(307, headers={"Location": "http://elsewhere.example/v1/info"}), INFO)
    with pytest.raises(ApiError, match="Temporary Redirect"):
        ask("info", settings={"key": "rk_abc"})
    assert only(server).url.host == "shop.example"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "shop.example"}, "http://"),
        ({"url": "ftp://shop.example"}, "http://"),
        ({"url": "http://"}, "a host"),
        ({"url": "http://shop.example:port"}, "be an address"),
        ({"timeout": 0}, "positive number of seconds"),
        ({"timeout": float("inf")}, "positive number of seconds"),
        ({"retries": -1}, "at least 0"),
        ({"key": "a\nb"}, "printable ASCII"),
        ({"key": "schlüssel"}, "printable ASCII"),
    ],
)
def test_settings_are_checked(ask: Ask, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words) as caught:
        ask("info", settings=settings)
    assert "schlüssel" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422, 500])
def test_a_refusal_is_the_problem_document_and_final(ask: Ask, server: Server, clock: Clock, status: int) -> None:
    server.will({**PROBLEM, "status": status, "new": 1}, status=status, headers={"X-Request-ID": "r-7"})
    with pytest.raises(ApiError, match=rf"not an image \(status {status}\)\. Convert it") as caught:
        ask("search", JPEG)
    error = caught.value
    assert (error.status, error.title, error.detail) == (status, "not an image", "Convert it")
    assert (error.type, error.request_id) == ("/problems/image-unreadable", "r-7")
    assert len(server.asked) == 1
    assert clock.pauses == []


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"status": "bad"}', b"\xff"])
def test_a_refusal_that_is_no_problem_document_says_its_status(ask: Ask, server: Server, body: bytes) -> None:
    server.will(httpx.Response(502, content=body))
    with pytest.raises(ApiError, match=r"Bad Gateway \(status 502\)") as caught:
        ask("info")
    assert (caught.value.status, caught.value.type, caught.value.request_id) == (502, "about:blank", "")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("info", {**INFO, "threshold": "0.5"}),
        ("info", {**INFO, "gallery": None}),
        ("info", {k: v for k, v in INFO.items() if k != "threshold"}),
        ("info", []),
        ("items", {"items": "abc", "next": None}),
        ("items", {"items": [1], "next": None}),
        ("feedback", {}),
        ("search_batch", {"answers": ["what"]}),
        ("search_batch", {"answers": [5]}),
        ("search_batch", [ANSWER]),
    ],
)
def test_an_answer_of_another_api_is_refused(ask: Ask, server: Server, method: str, answer: Any) -> None:
    given = {"info": (), "items": (), "feedback": ("r", "right"), "search_batch": ([JPEG],)}[method]
    server.will(answer)
    with pytest.raises(ApiError, match="not from this API"):
        ask(method, *given)


def test_a_page_in_place_of_json_is_refused(ask: Ask, server: Server) -> None:
    server.will(httpx.Response(200, text="<html>please log in</html>"))
    with pytest.raises(ApiError, match="not from this API") as caught:
        ask("info")
    assert caught.value.status == 200


@pytest.mark.parametrize("status", [429, 503])
def test_what_passes_is_asked_again(ask: Ask, server: Server, clock: Clock, status: int) -> None:
    busy = httpx.Response(status, json=PROBLEM)
    server.will(busy, busy, ANSWER)
    assert ask("search", JPEG).matched
    assert [request.content for request in server.asked] == [JPEG] * 3
    assert clock.pauses == [0.2, 0.4]


def test_a_form_is_sent_again_whole(ask: Ask, server: Server) -> None:
    server.will(httpx.Response(503), {"answers": [ANSWER, ANSWER]})
    assert len(ask("search_batch", [JPEG, PNG])) == 2
    assert [[body for _, body in parts(request)] for request in server.asked] == [[JPEG, PNG]] * 2


def test_it_gives_up_after_the_retries(ask: Ask, server: Server, clock: Clock) -> None:
    server.will({**PROBLEM, "title": "busy", "status": 503}, status=503)
    with pytest.raises(ApiError, match="busy"):
        ask("info", settings={"retries": 2})
    assert len(server.asked) == 3
    assert clock.pauses == [0.2, 0.4]
    server.will(httpx.Response(503))
    with pytest.raises(ApiError):
        ask("info", settings={"retries": 0})
    assert len(server.asked) == 1


def test_pauses_grow_up_to_a_limit(ask: Ask, server: Server, clock: Clock) -> None:
    server.will(httpx.Response(503))
    with pytest.raises(ApiError):
        ask("info", settings={"retries": 7, "timeout": 1000})
    assert clock.pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_retry_after_is_honoured(ask: Ask, server: Server, clock: Clock) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": "3"}), httpx.Response(429), INFO)
    ask("info")
    assert clock.pauses == [3.2, 0.4]


def test_retry_after_may_be_a_date_or_nonsense(ask: Ask, server: Server, clock: Clock) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=50), usegmt=True)
    server.will(httpx.Response(503, headers={"Retry-After": soon}), INFO)
    ask("info", settings={"timeout": 100})
    assert 45 < clock.pauses.pop() <= 50.2
    for nonsense in ("-5", "soon", "", "Mon, 01 Jan 0001 00:00:00 -0000", "nan"):
        server.will(httpx.Response(503, headers={"Retry-After": nonsense}), INFO)
        ask("info")
        assert clock.pauses.pop() == 0.2


@pytest.mark.parametrize("seconds", ["10", "3600", "9" * 400])
def test_no_pause_outlasts_the_deadline(ask: Ask, server: Server, clock: Clock, seconds: str) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": seconds}))
    with pytest.raises(ApiError):
        ask("info", settings={"timeout": 10})
    assert len(server.asked) == 1
    assert clock.pauses == []


def test_each_attempt_has_what_is_left_of_the_time(ask: Ask, server: Server, clock: Clock) -> None:
    server.will(httpx.Response(503, headers={"Retry-After": "3"}))
    with pytest.raises(ApiError):
        ask("info", settings={"timeout": 10, "retries": 50})
    left = [request.extensions["timeout"] for request in server.asked]
    assert [round(timeouts["read"], 6) for timeouts in left] == [10, 6.8, 3.4]  # 3.2 and 3.4 s later; 3.8 is too long
    assert all(set(timeouts.values()) == {timeouts["read"]} for timeouts in left)
    assert clock.now - 100 < 10


BROKEN = [httpx.ReadTimeout, httpx.WriteTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError]
UNOPENED = [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout]


@pytest.mark.parametrize("kind", [*BROKEN, *UNOPENED])
def test_a_broken_connection_is_opened_again(
    ask: Ask, server: Server, clock: Clock, kind: type[httpx.TransportError]
) -> None:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], Any]] = [
        ("search", (JPEG,), {}, ANSWER),
        ("put_photo", ("p", JPEG), {"item_id": "i"}, STORED),
        ("remove_item", ("i",), {}, REMOVED),
        ("info", (), {}, INFO),
    ]
    for method, args, options, answer in calls:
        server.will(kind("gone"), answer)
        ask(method, *args, **options)
        assert len(server.asked) == 2
    assert clock.pauses == [0.2] * 4


@pytest.mark.parametrize(("method", "args"), [("feedback", ("r-1", "right")), ("reload", ())])
def test_feedback_and_reload_are_never_done_twice(
    ask: Ask, server: Server, clock: Clock, method: str, args: tuple[str, ...]
) -> None:
    for status in (429, 503):
        server.will(httpx.Response(status, headers={"Retry-After": "1"}))
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
        server.will(kind("refused"), {**RELOADED, "recorded": True})
        assert ask(method, *args)
        assert len(server.asked) == 2


def test_a_server_that_is_not_there_is_named_without_secrets(ask: Ask, server: Server) -> None:
    server.will(httpx.ConnectError("connection refused"))
    with pytest.raises(Unreachable, match=r"http://shop\.example:81: ConnectError connection refused") as caught:
        ask("info", settings={"key": "rk_secret", "url": "http://me:hidden@shop.example:81"})
    assert len(server.asked) == 4
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    assert "hidden" not in str(caught.value)
    assert "rk_secret" not in str(caught.value)


def test_errors_that_stay_are_not_repeated(ask: Ask, server: Server) -> None:
    server.will(httpx.UnsupportedProtocol("gopher"))
    with pytest.raises(Unreachable, match="gopher"):
        ask("info")
    assert len(server.asked) == 1


def test_backoff_is_full_jitter(monkeypatch: pytest.MonkeyPatch, ask: Ask, server: Server, clock: Clock) -> None:
    asked = []
    monkeypatch.setattr("retrieval.client.retries.jitter", lambda *bounds: asked.append(bounds) or 0.0)
    server.will(httpx.Response(503), httpx.Response(503, headers={"Retry-After": "2"}), INFO)
    ask("info")
    assert asked == [(0, 0.2), (0, 0.4)]
    assert clock.pauses == [0.0, 2.0]


def methods(client: type) -> Iterator[tuple[str, Any]]:
    for name, method in inspect.getmembers(client, inspect.isfunction):
        if not name.startswith("_"):
            signature = inspect.signature(method)
            yield name, ([*signature.parameters.values()], signature.return_annotation, method.__doc__)


def test_both_clients_have_the_same_methods() -> None:
    assert dict(methods(RetrievalClient)) == dict(methods(AsyncRetrievalClient))
    assert len(dict(methods(RetrievalClient))) == 17
    assert all(
        inspect.iscoroutinefunction(method)
        for name, method in inspect.getmembers(AsyncRetrievalClient, inspect.isfunction)
        if not name.startswith("_")
    )


@pytest.mark.parametrize(
    ("mine", "servers"),
    [
        (client_answers.Change, schemas.Change),
        (client_answers.GalleryInfo, schemas.GalleryOut),
        (client_answers.Info, schemas.Info),
        (client_answers.Item, schemas.ItemOut),
        (client_answers.ItemPage, schemas.ItemsOut),
        (client_answers.Photo, schemas.PhotoOut),
        (client_answers.Reloaded, schemas.Reloaded),
        (client_answers.Removed, schemas.Removed),
        (client_answers.Stored, schemas.Stored),
        (client_answers.Synced, sync_route.Synced),
    ],
)
def test_answers_have_the_fields_of_the_servers_schemas(mine: type[Any], servers: type[Any]) -> None:
    assert {field.name for field in fields(mine)} == set(servers.model_fields)


@pytest.mark.parametrize("client", [RetrievalClient, AsyncRetrievalClient])
def test_a_missing_httpx_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, client: Callable[[str], object]
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependency, match=r"pip install -c constraints.txt '\.\[client\]'"):
        client(URL)


def test_the_client_needs_nothing_of_the_server() -> None:
    script = "import sys, retrieval.client.client; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {"faiss", "fastapi", "httpx", "onnxruntime", "serving", "starlette", "torch"}
    assert heavy.isdisjoint(found.stdout.split())
