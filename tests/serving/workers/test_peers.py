"""Requests between the workers of one server over Unix sockets."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.errors import BundleCorrupt, GalleryLocked
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import read_feedback
from serving.app import create_app
from serving.config import ServeSettings
from serving.http.callers import CALLER
from serving.http.limits import Busy
from serving.http.rates import Rate, SharedRate
from serving.service import Service
from serving.workers import peers as peers_module
from serving.workers.connections import CLOSED, Teller, pass_connection, take_connection
from serving.workers.internal import WorkerApp
from serving.workers.peers import SWITCH, Peers

from ...world import draw, encode, make_bundle

pytestmark = pytest.mark.slow

MINE = encode(draw(3, 5))


@contextmanager
def listening(app: ASGIApp, path: Path) -> Iterator[None]:
    """Serve an application on a Unix socket, on a thread."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()


class Shop:
    """Two workers in one process, and what each opens at a reload."""

    def __init__(self, world: Path, folder: Path, feedback: Path, stack: ExitStack) -> None:
        self.opens: list[Retriever | Exception] = []  # or the error with which it fails
        self.apps: list[WorkerApp] = []
        self.clients: list[TestClient] = []
        for number in range(2):
            self.opens.append(retriever := Retriever.open(world / "bundle", world / "gallery"))
            app = create_app(
                retriever,
                settings=ServeSettings(feedback=feedback, deadline_s=1.0),
                page=number > 0,  # the second forwards it to the first
                reopen=lambda number=number: self._open(number),  # type: ignore[misc]
                peers=Peers(folder, number, 2),
            )
            assert isinstance(app, WorkerApp)
            stack.enter_context(listening(app, folder / f"worker-{number}"))
            self.apps.append(app)
            self.clients.append(stack.enter_context(TestClient(app)))
        self.folder = folder

    def _open(self, number: int) -> Retriever:
        found = self.opens[number]
        if isinstance(found, Exception):
            raise found
        return found

    def bundles(self) -> list[str]:
        return [client.get("/v1/info").json()["bundle_id"] for client in self.clients]


@pytest.fixture
def shop(world: Path, tmp_path: Path) -> Iterator[Shop]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:  # a short path, for sockets
        yield Shop(shutil.copytree(world, tmp_path / "world"), Path(folder), tmp_path / "feedback.jsonl", stack)


def test_a_verdict_reaches_the_worker_that_answered(shop: Shop, tmp_path: Path) -> None:
    asked, other = shop.clients
    asked.post("/v1/search", content=MINE, headers={"x-request-id": "mine"})
    assert other.post("/v1/feedback", json={"request_id": "mine", "verdict": "right"}).status_code == 200
    assert [entry.request_id for entry in read_feedback(tmp_path / "feedback.jsonl")] == ["mine"]
    refused = other.post("/v1/feedback", json={"request_id": "mine", "verdict": "wrong", "item_id": "nothing"})
    assert (refused.status_code, refused.json()["title"]) == (404, "the gallery does not have this item")
    assert other.post("/v1/feedback", json={"request_id": "another", "verdict": "right"}).status_code == 404
    assert len(read_feedback(tmp_path / "feedback.jsonl")) == 1


def test_searches_of_all_workers_count_in_drift_and_metrics(shop: Shop) -> None:
    for client, count in zip(shop.clients, (2, 3), strict=True):
        for _ in range(count):
            assert client.post("/v1/search", content=MINE).status_code == 200
    for client in shop.clients:
        assert {drift["searches"] for drift in client.get("/v1/info").json()["drift"]["statistics"]} == {5}
        assert "retrieval_workers 2.0" in client.get("/metrics").text


def test_a_reload_switches_all_workers_or_none(shop: Shop, world: Path, tmp_path: Path) -> None:
    before = shop.bundles()
    make_bundle(tmp_path, threshold=0.01, files={})
    new = [Retriever.open(tmp_path / "bundle", world / "gallery") for _ in range(2)]
    shop.opens[0] = new[0]  # the other worker still finds the old bundle
    assert shop.clients[0].post("/v1/admin/reload").status_code == 503
    assert shop.bundles() == before
    shop.opens[1] = BundleCorrupt("model.onnx was changed")
    assert shop.clients[0].post("/v1/admin/reload").status_code == 409
    assert shop.bundles() == before
    shop.opens[1] = OSError("the disk failed")  # no refusal, but a failure
    assert shop.clients[0].post("/v1/admin/reload").status_code == 409
    assert shop.bundles() == before
    shop.opens[1] = new[1]
    assert shop.clients[0].post("/v1/admin/reload?dry_run=true").json()["swapped"] is False
    assert shop.bundles() == before
    assert shop.clients[0].post("/v1/admin/reload").json()["swapped"] is True
    assert shop.bundles() == [new[0].bundle.bundle_id] * 2


def test_a_change_by_one_worker_is_found_by_the_other(world: Path, shop: Shop) -> None:
    one, other = shop.clients
    before = other.get("/v1/info").json()["gallery"]["version"]
    strange = encode(draw(77, 1))
    put = one.put("/v1/photos/strange?item_id=strange", content=strange)
    found = other.post("/v1/search", content=strange).json()
    assert (found["nearest"]["item_id"], found["gallery_version"]) == ("strange", put.json()["gallery_version"])
    assert other.delete("/v1/items/strange").json()["gallery_version"] == before + 2


def test_one_worker_writes_at_a_time(shop: Shop) -> None:
    one, other = Peers(shop.folder, 0, 2), Peers(shop.folder, 1, 2)
    with one.writing(1.0), pytest.raises(GalleryLocked), other.writing(0.05):
        pass
    with other.writing(0.05):
        pass
    with Peers().writing(0.0), Peers().writing(0.0):  # a server of one process has a lock of its own
        pass


def test_no_worker_starts_during_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, third = (Peers(tmp_path, number, 3) for number in range(3))
    monkeypatch.setattr(peers_module, "RELOAD_S", 0.05)
    with one.starting(), other.starting(), pytest.raises(Busy, match="a worker is starting"), third.reloading():
        pass
    steps = []

    def start() -> None:
        with other.starting():
            steps.append("started")

    thread = threading.Thread(target=start)
    with one.reloading():
        thread.start()
        with pytest.raises(Busy), third.reloading():
            pass
        steps.append("reloaded")
    thread.join()
    assert steps == ["reloaded", "started"]


class Killed(BaseException):
    """Raised where the worker that was asked to reload is killed."""


@pytest.mark.parametrize("killed_at", ["the decision", "the second switch"])
def test_all_workers_switch_or_none_if_the_asking_one_is_killed(
    shop: Shop, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    make_bundle(tmp_path, threshold=0.01, files={})
    before = shop.bundles()[0]
    shop.opens = [Retriever.open(tmp_path / "bundle", world / "gallery") for _ in range(2)]
    after = shop.opens[0].bundle.bundle_id  # type: ignore[union-attr]
    asking, starting = Peers(shop.folder, 2, 4), Peers(shop.folder, 3, 4)
    ask_one = asking._ask_one

    def ask(number: int, path: str, *rest: Any, **named: Any) -> dict[str, Any] | None:
        if killed_at == "the second switch" and (number, path) == (1, SWITCH):
            raise Killed
        return ask_one(number, path, *rest, **named)

    def decide(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(asking, "_ask_one", ask)
    if killed_at == "the decision":
        monkeypatch.setattr(peers_module, "write_file", decide)
    with closing(asking), pytest.raises(Killed), asking.reloading():
        asking.switch(after)
    with closing(starting), starting.starting():  # a worker that starts finds one bundle at the others
        starting.settle()
        found = {state.bundle_id for state in starting.states()}
    assert found == ({after} if killed_at == "the second switch" else {before})
    assert set(shop.bundles()) == found


def test_a_prepared_worker_settles_when_the_reload_ends(world: Path, tmp_path: Path) -> None:
    opened = [Retriever.open(world / "bundle", world / "gallery") for _ in range(3)]
    bundle_id = opened[0].bundle.bundle_id
    asking = Peers(tmp_path, 1, 2)
    service = Service(opened[0], reopen=iter(opened[1:]).__next__, peers=Peers(tmp_path, 0, 2))
    with asking.reloading():
        service.reloads.prepare(bundle_id, "first")
    while not opened[1]._closed:  # nothing was decided
        time.sleep(0.01)
    with asking.reloading():
        service.reloads.prepare(bundle_id, "second")
        (tmp_path / "decided").write_text("second")
    while service.retriever is not opened[2]:
        time.sleep(0.01)
    assert not service.reloads.switch()
    service.stop()


def test_workers_that_do_not_answer_are_left_out(tmp_path: Path) -> None:
    peers = Peers(tmp_path, 0, 3)
    assert peers.states() == []
    assert peers.feedback(CALLER.get(), "mine", "right", "") is False
    peers.switch("bundle")  # the others open it when they start
    assert Peers().states() == []


def test_a_worker_refuses_a_reload_to_a_bundle_that_it_does_not_find(shop: Shop) -> None:
    with closing(Peers(shop.folder, 0, 2)) as peers, pytest.raises(Busy, match="the bundle changed during the reload"):
        peers.switch("another")


def test_the_page_is_forwarded_with_who_asks(shop: Shop) -> None:
    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        scope["state"]["route"], scope["state"]["status"] = "page/search", 418
        facts = {"client": scope["state"]["client"], "body": (await request.body()).decode(), "url": str(request.url)}
        await JSONResponse(facts, headers={"x-kept": "yes"})(scope, receive, send)

    first, second = shop.clients
    assert second.get("/").status_code == 503  # the first has no page yet
    shop.apps[0]._dispatcher._page = page
    while second.get("/").status_code == 503:  # the proxy loads in the background
        time.sleep(0.01)
    path = "/gradio_api/run/predict?of=a%20b"
    answer = second.post(path, content=b"data", headers={"x-retrieval-forwarded": "forged"})
    assert answer.json() == {"client": "testclient", "body": "data", "url": f"http://testserver{path}"}
    assert len(answer.headers.get_list("date")) <= 1
    assert answer.headers["x-kept"] == "yes"
    assert "x-retrieval-route" not in answer.headers
    assert first.get("/", headers={"x-retrieval-forwarded": "{}"}).status_code == 404  # from a client, it means nothing


def test_connections_are_passed_between_processes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            take_connection(theirs)
        with socket.create_connection(listener.getsockname()) as client:
            accepted, _ = listener.accept()
            with accepted:
                assert pass_connection(ours, accepted)
            taken = take_connection(theirs)
            assert taken is not None
            with taken:
                taken.sendall(b"hello")
            assert client.recv(5) == b"hello"
            ours.close()
            with pytest.raises(EOFError):
                take_connection(theirs)
            assert not pass_connection(ours, client)


def test_no_message_to_the_main_process_is_lost() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        worker, count = Teller(theirs), 5000  # more than the socket holds
        for _ in range(count):
            worker.tell(CLOSED)
        heard = len(ours.recv(1 << 20))
        assert heard < count
        worker.tell(CLOSED)
        assert heard + len(ours.recv(1 << 20)) == count + 1
    worker.tell(CLOSED)  # the main process has ended


def test_a_shared_rate_allows_as_much_as_one_of_a_process(tmp_path: Path) -> None:
    rates = [SharedRate(tmp_path / "rates.sqlite", 2e-6), SharedRate(tmp_path / "rates.sqlite", 2e-6)]
    alone = Rate(2e-6)
    for number in range(3):
        shared, own = rates[number % 2].wait("a"), alone.wait("a")
        assert shared == pytest.approx(own, rel=0.01)
    assert rates[1].wait("b") == 0
