from __future__ import annotations

import base64
import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from retrieval.errors import GalleryCorrupt, InvalidParameter, RetrievalError
from retrieval.retriever import Retriever
from serving.access.limits import DROPPED, OVERHEAD
from serving.app import create_app
from serving.errors import Busy
from serving.problems import MEDIA_TYPE, STATUS
from serving.settings import ServeSettings
from tests.serving.live_page import serving

from ...world import draw, encode

JPEG = {"content-type": "image/jpeg"}
PHOTO_BYTES = ServeSettings().photo_bytes


def assert_problem(response: Any, status: int, words: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == MEDIA_TYPE
    body = response.json()
    assert body.keys() == {"type", "title", "status", "detail"}
    assert body["status"] == status
    assert words in f"{body['title']} {body['detail']}"


def test_an_answer_is_the_retrievers_own(client: TestClient, retriever: Retriever) -> None:
    for image in (encode(draw(3, 5)), encode(draw(77, 0))):
        expected = retriever.search(image, top_k=4).to_dict()
        for match in [*expected["matches"], expected["nearest"]]:
            match["metadata"] = {k: v for k, v in match["metadata"].items() if not k.startswith("_")}
        encoded = {"image": base64.b64encode(image).decode(), "top_k": 4}
        answers = [
            client.post("/v1/search?top_k=4", content=image, headers=JPEG),
            client.post("/v1/search?top_k=4", files={"image": ("a.jpg", image, "image/jpeg")}),
            client.post("/v1/search", json=encoded),
        ]
        assert {answer.status_code for answer in answers} == {200}
        for answer in answers:
            told = answer.json()
            assert told.pop("request_id") == answer.headers["x-request-id"]
            assert told["timings_ms"].keys() == {"queue", "decode", "embed", "search"}
            assert told | {"timings_ms": None, "request_id": ""} == expected | {"timings_ms": None}
    assert expected["decision"] == "no_match"
    assert expected["nearest_distance"] > expected["threshold"]


def test_what_cannot_be_searched_is_refused_with_a_reason(client: TestClient) -> None:
    cases: list[tuple[bytes, int, str]] = [
        (b"", 400, "no image"),
        (b"no image", 400, "this is not a JPEG, PNG"),
        (encode(draw(0, 0))[:600], 400, "damaged"),
        (encode(draw(0, 0), "TGA"), 400, "Convert"),
        (encode(Image.new("L", (4, 400))), 415, "at least 8"),
        (encode(Image.new("1", (8000, 8000)), "PNG"), 413, "pixels"),
        (b"\xff" * (PHOTO_BYTES + 1), 413, "bytes"),
    ]
    for body, status, words in cases:
        assert_problem(client.post("/v1/search", content=body, headers=JPEG), status, words)
    assert_problem(client.post("/v1/search", data={"image": "text"}, files={"other": b"x"}), 400, "`image`")
    assert_problem(client.post("/v1/search?top_k=0", content=b"x"), 422, "top_k")
    assert_problem(client.post("/v1/search?top_k=many", content=b"x"), 422, "top_k")
    assert_problem(client.get("/v1/search"), 405, "Method")
    assert_problem(client.get("/nothing"), 404, "Not Found")


PACKAGES = ("index.", "retrieval.errors", "serving.")


def test_every_leaf_of_the_error_tree_has_a_status() -> None:
    def leaves(kind: type[RetrievalError]) -> Iterator[str]:
        below = [child for child in kind.__subclasses__() if child.__module__.startswith(PACKAGES)]
        if not below:
            yield kind.__name__
        for child in below:
            yield from leaves(child)

    assert sorted(leaves(RetrievalError)) == sorted(STATUS)
    assert Busy.__name__ in STATUS


class StandIn(Retriever):
    """A retriever whose search is what the test says, after the first that warms it up."""

    def __init__(self, retriever: Retriever) -> None:
        vars(self).update(vars(retriever))
        self.warm = False
        self.started = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.threads: set[str] = set()

    def search(self, image: Any, *, top_k: int = 10, **_: Any) -> Any:
        if not self.warm:
            self.warm = True
            return None
        self.threads.add(threading.current_thread().name)
        self.started.release()
        assert self.go_on.wait(20)
        raise InvalidParameter("top_k", "be what the test wants", top_k)


@pytest.fixture
def slow(retriever: Retriever) -> StandIn:
    return StandIn(retriever)


def test_a_full_queue_is_told_to_come_back_and_the_loop_stays_free(slow: StandIn) -> None:
    app = create_app(slow, settings=ServeSettings(threads=1, queue=1), page=False)
    with serving(app) as address, httpx.Client(base_url=address) as client, ThreadPoolExecutor(2) as others:
        taken = [others.submit(httpx.post, f"{address}/v1/search", content=b"x") for _ in range(2)]
        assert slow.started.acquire(timeout=10)
        while "retrieval_queue_depth 1.0" not in client.get("/metrics").text:  # until the second has arrived
            pass
        refused = client.post("/v1/search", content=b"x")
        assert_problem(refused, 503, "queue")
        assert refused.headers["retry-after"] == "1"
        assert client.get("/healthz").json() == {"status": "alive"}  # while a search runs
        slow.go_on.set()
        assert [f.result().status_code for f in taken] == [422, 422]
    assert all(name.startswith("search") for name in slow.threads)


def test_a_search_has_a_deadline_and_leaves_the_queue_then(slow: StandIn) -> None:
    app = create_app(slow, settings=ServeSettings(threads=1, queue=2, deadline_s=0.3), page=False)
    with serving(app) as address:
        with ThreadPoolExecutor(3) as others:
            answers = list(others.map(lambda _: httpx.post(f"{address}/v1/search", content=b"x"), range(3)))
        assert {answer.status_code for answer in answers} == {503}
        assert all("deadline" in answer.json()["title"] for answer in answers)
        slow.go_on.set()
    begun = [slow.started.acquire(blocking=False) for _ in range(3)]
    assert begun.count(True) <= 1  # the first; those that waited had not begun when the server ended


def test_what_the_operator_must_mend_is_not_told_to_the_client(
    slow: StandIn, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(slow, page=False)
    with TestClient(app, raise_server_exceptions=False) as client:
        for error in (GalleryCorrupt("/srv/secret is damaged"), OSError("/srv/secret")):
            monkeypatch.setattr(slow, "search", Mock(side_effect=error))
            response = client.post("/v1/search", content=b"x")
            assert_problem(response, 500, "log")
            assert "secret" not in response.text
            assert "secret" in caplog.text
            caplog.clear()


def test_ready_means_that_a_search_would_be_answered(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(retriever, page=False)
    assert_problem(TestClient(app).get("/readyz"), 503, "not ready")  # not started
    with TestClient(app) as client:
        assert client.get("/readyz").json() == {"status": "ready"}

        def damaged(_: object) -> int:
            raise GalleryCorrupt("a segment is missing")

        monkeypatch.setattr(type(retriever.gallery), "__len__", damaged)
        assert_problem(client.get("/readyz"), 503, "cannot be opened")
    assert_problem(TestClient(app).get("/readyz"), 503, "not ready")  # stopped


def test_a_model_that_does_not_run_never_becomes_ready(slow: StandIn) -> None:
    slow.warm = True  # so that the first search is the test's
    slow.go_on.set()
    with pytest.raises(InvalidParameter), TestClient(create_app(slow, page=False)):
        pass


def test_thumbnails_come_from_the_gallery_and_are_only_ever_images(client: TestClient, retriever: Retriever) -> None:
    photo_id = sorted({photo[0] for photo in retriever.gallery.photos()})[0]
    assert "/" in photo_id
    for path in (photo_id, photo_id.replace("/", "%2F")):
        response = client.get(f"/v1/thumbnails/{path}")
        assert response.content == retriever.gallery.thumbnail(photo_id)
        assert (response.headers["content-type"], response.headers["x-content-type-options"]) == (
            "image/jpeg",
            "nosniff",
        )
    for path in ("nothing", "..%2F..%2Fmanifest.json", "%2Fetc%2Fpasswd"):
        assert_problem(client.get(f"/v1/thumbnails/{path}"), 404, "thumbnail")


FORM = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'


@pytest.mark.parametrize(("kind", "head"), [("image/jpeg", b""), ("multipart/form-data; boundary=b", FORM)])
def test_a_body_is_cut_off_while_it_arrives(retriever: Retriever, kind: str, head: bytes) -> None:
    sent = 0
    with serving(create_app(retriever, page=False)) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/search")
        connection.putheader("Content-Type", kind)
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders(head and b"%x\r\n%s\r\n" % (len(head), head))
        with suppress(ConnectionError):  # the server has hung up
            while sent < 20 * PHOTO_BYTES:
                connection.send(b"100000\r\n" + bytes(2**20) + b"\r\n")
                sent += 2**20
        connection.close()
        assert PHOTO_BYTES <= sent < 2 * DROPPED
        assert httpx.get(f"{address}/readyz").status_code == 200


def test_a_form_in_an_unknown_character_set_is_refused(client: TestClient) -> None:
    kind = {"content-type": "multipart/form-data; boundary=b; charset=undefined"}
    answer = client.post("/v1/search/batch", content=FORM + b"x\r\n--b--\r\n", headers=kind)
    assert_problem(answer, 400, "this is not a form with files")


def test_a_body_that_declares_too_much_is_not_waited_for(retriever: Retriever) -> None:
    with serving(create_app(retriever, page=False)) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/search")
        connection.putheader("Content-Length", str(PHOTO_BYTES + OVERHEAD + 1))
        connection.endheaders()
        response = connection.getresponse()
        assert (response.status, response.headers["content-type"]) == (413, MEDIA_TYPE)
        connection.close()


def test_info_states_the_promise(client: TestClient, retriever: Retriever) -> None:
    info = client.get("/v1/info").json()
    assert (info["status"], info["threshold"], info["target_fpir"]) == ("estimated", 0.5, 0.05)
    gallery = {name: info["gallery"][name] for name in ("version", "photos", "items")}
    assert gallery == {"version": retriever.gallery.version, "photos": 30, "items": 10}
    assert info["gallery"]["index"]["kind"] == "flat"
    assert info["drift"]["warning"] == ""


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidParameter, match="queue"):
        ServeSettings(queue=0)
