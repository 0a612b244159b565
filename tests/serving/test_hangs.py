"""Threads that hang: the server says that it is not ready, is ready again when they go on, and ends when it is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from serving.access.limits import BODY_S
from serving.launch import EXIT_S, GRACE_S

from ..world import encode
from .conftest import PROGRAM, Served, launch, until

WHITE = encode(Image.new("RGB", (40, 40), "white"), "PNG")  # the photo that hangs
SOON = 60.0  # s that a slow machine may take for what is a matter of one
LIMIT_S = 25  # in which a server that is told to end ends by its own watchdog

# What hangs: {where} names it, {how} is a call that does not return; {limits} are the server's for its end.
HANGING = (
    """
import ctypes, os, time
import index.gallery, retrieval.bundle.embedder, serving.page.examples, serving.launch, serving.service

serving.launch.GRACE_S, serving.launch.EXIT_S = {limits}

def hang():
    open(os.environ["HANGING_PIPE"] + ".begun", "w").close()
    while True:
        {how}

def native():
    ctypes.CDLL(None).pause()

def pipe():
    os.close(os.open(os.environ["HANGING_PIPE"], os.O_RDONLY))
    raise SystemError("gone on")

embed = retrieval.bundle.embedder.Embedder.embed_pixels

def embed_pixels(self, pixels):
    if {where!r} == "start" or ({where!r} == "search" and pixels.mean() > 250):
        hang()
    return embed(self, pixels)

retrieval.bundle.embedder.Embedder.embed_pixels = embed_pixels
if {where!r} == "check":
    index.gallery.verify_files = lambda *_: hang()
if {where!r} == "page":
    serving.page.examples.gallery_examples = lambda *_: hang()
if {where!r} == "feedback":
    serving.service.Service.feedback = lambda *_, **__: hang()
if {where!r} == "loop":
    import serving.access.limits
    call = serving.access.limits.BodyLimit.__call__
    serving.access.limits.BodyLimit.__call__ = lambda self, scope, *others: (
        hang() if scope.get("path") == "/v1/search" else call(self, scope, *others)
    )
"""
    + PROGRAM
)


@contextmanager
def hanging(
    world: Path,
    folder: Path,
    *options: str,
    where: str = "search",
    how: str = "native()",
    limits: tuple[int, int] = (1, 3),  # a tenth of the server's own, so that tests do not wait for them
) -> Iterator[tuple[Served, Path]]:
    """Serve in a process in which something hangs; return the pipe whose other end lets it go on."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANGING_PIPE", str(pipe))
        served = launch(world, folder, *options, program=HANGING.format(where=where, how=how, limits=limits))
    try:
        yield served, pipe
    finally:
        served.process.kill()
        served.process.wait()


def status(served: Served, path: str) -> int:
    """Return what a path answers; 0 where nobody does."""
    try:
        return httpx.get(f"{served.address}{path}", timeout=SOON).status_code
    except httpx.ConnectError:
        assert served.process.poll() is None, served.log.read_text()
        return 0


def send(served: Served, path: str = "/v1/search", **parts: Any) -> None:
    """Ask on a thread of its own; the answer does not matter."""

    def ask() -> None:
        with suppress(httpx.TransportError):  # the server has ended
            httpx.post(f"{served.address}{path}", timeout=SOON, **parts)

    threading.Thread(target=ask, daemon=True).start()


def test_the_watchdog_ends_the_server_in_time_and_lets_requests_end_first() -> None:
    assert BODY_S < GRACE_S < EXIT_S < LIMIT_S  # a body that arrives in time is answered


@pytest.mark.slow
def test_a_server_whose_threads_hang_is_not_ready_until_they_go_on(world: Path, tmp_path: Path) -> None:
    options = ("--no-page", "--threads", "2", "--deadline", "1")
    with hanging(world, tmp_path, *options, how="pipe()") as (served, pipe):
        until(lambda: status(served, "/readyz") == 200)
        with ThreadPoolExecutor(2) as others:
            ask = [others.submit(httpx.post, f"{served.address}/v1/search", content=WHITE, timeout=SOON)] * 2
            assert [answer.result().status_code for answer in ask] == [503, 503]
        told = httpx.get(f"{served.address}/readyz")
        assert (told.status_code, told.json()["title"]) == (503, "not ready")
        assert "exceeded the deadline and may be stuck" in told.json()["detail"]
        assert status(served, "/healthz") == 200
        assert "retrieval_overdue_threads" in httpx.get(f"{served.address}/metrics").text
        with pipe.open("wb"):  # whoever reads goes on
            until(lambda: status(served, "/readyz") == 200)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["native()", "pipe()"])
def test_a_search_that_hangs_does_not_keep_the_server_from_ending(world: Path, tmp_path: Path, how: str) -> None:
    options = ("--no-page", "--threads", "1", "--deadline", "1")
    with hanging(world, tmp_path, *options, how=how, limits=(GRACE_S, EXIT_S)) as (served, _):
        until(lambda: status(served, "/readyz") == 200)
        send(served, content=WHITE)
        until(lambda: status(served, "/readyz") == 503)
        assert ended(served) != 0  # it did not end as it should: an operator sees that, and where it hung
        assert "embed_pixels" in served.log.read_text()


@pytest.mark.end_to_end
@pytest.mark.parametrize("where", ["start", "check", "page", "feedback", "loop"])
def test_nothing_that_hangs_keeps_the_server_from_ending(world: Path, tmp_path: Path, where: str) -> None:
    options = () if where == "page" else ("--no-page",)
    how = "time.sleep(9)" if where == "loop" else "native()"
    with hanging(world, tmp_path, *options, where=where, how=how) as (served, pipe):
        if where != "start":
            until(lambda: status(served, "/readyz") == 200)
        if where == "feedback":
            send(served, "/v1/feedback", json={"request_id": "a", "verdict": "right"})
        if where == "loop":
            send(served, content=WHITE)
        until(pipe.with_name("pipe.begun").exists)
        ended(served)


@pytest.mark.slow
def test_a_request_that_never_ends_does_not_keep_the_server_from_ending(world: Path, tmp_path: Path) -> None:
    head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n"
    with hanging(world, tmp_path, "--no-page", where="nothing") as (served, _):
        until(lambda: status(served, "/readyz") == 200)
        host, port = served.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=SOON) as connection:
            connection.sendall(head)
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the server waits for the body
            ended(served)


def ended(served: Served) -> int:
    """Tell the server to end, and return its exit status."""
    served.process.send_signal(signal.SIGTERM)
    try:
        code = served.process.wait(timeout=LIMIT_S + SOON)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it still runs: {served.log.read_text()}")
    return code
