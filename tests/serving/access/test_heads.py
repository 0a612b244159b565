"""Heads of requests: bounded in bytes and time, and few at once on a connection. Without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from serving.access import limits
from serving.access.limits import HEAD_BYTES, PIPELINED, HeadLimitProtocol


class Wire(asyncio.Transport):
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.aborted = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        """Do nothing: only an abort cuts a client off."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await Request(scope, receive).body()
    await PlainTextResponse("hello")(scope, receive, send)


async def stuck(_: Scope, __: Receive, ___: Send) -> None:
    await asyncio.Event().wait()


def connected(work: Callable[[HeadLimitProtocol, Wire], Awaitable[None]], app: Any = hello) -> Wire:
    """Return the connection after some work with a protocol that serves an app."""
    wire = Wire()

    async def run() -> None:
        config = Config(app, log_config=None, access_log=False)
        config.load()
        protocol = HeadLimitProtocol(config, ServerState(), {}, asyncio.get_running_loop())
        protocol.connection_made(wire)
        await work(protocol, wire)
        protocol.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(run())
    return wire


def head(size: int, *, name: str = "a") -> bytes:
    """Return a request whose target and header fields have this many bytes."""
    start, host = b"GET /", (b"host", b"x")
    fields = sum(map(len, host)) + len(name) + 1
    return b"%s HTTP/1.1\r\nhost: x\r\n%s: %s\r\n\r\n" % (start, name.encode(), b"y" * (size - fields))


async def answered(wire: Wire, count: int = 1) -> None:
    for _ in range(1000):
        if wire.written.count(b"hello") >= count or wire.aborted:
            return
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(("size", "aborted"), [(HEAD_BYTES, False), (HEAD_BYTES + 1, True)])
def test_a_head_of_the_most_bytes_is_answered_and_a_longer_one_is_cut_off(size: int, aborted: bool) -> None:
    async def work(protocol: HeadLimitProtocol, wire: Wire) -> None:
        data = head(size)
        for start in range(0, len(data), 60_000):  # as it arrives
            protocol.data_received(data[start : start + 60_000])
            protocol._head = 0  # only the fields count, not the bytes between them
        await answered(wire)

    wire = connected(work)
    assert (wire.aborted, b"200 OK" in wire.written) == (aborted, not aborted)


def test_a_head_that_does_not_end_is_cut_off_before_it_has_many_bytes() -> None:
    async def work(protocol: HeadLimitProtocol, wire: Wire) -> None:
        protocol.data_received(b"GET / HTTP/1.1\r\na: ")
        for _ in range(100):
            protocol.data_received(b"y" * 2048)
            if wire.aborted:
                return

    assert connected(work).aborted


def test_a_connection_that_sends_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.01)

    async def work(_: HeadLimitProtocol, wire: Wire) -> None:
        for _ in range(1000):
            if wire.aborted:
                return
            await asyncio.sleep(0.001)

    assert connected(work).aborted


def test_a_request_that_is_answered_is_not_cut_off_while_its_connection_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.05)

    async def work(protocol: HeadLimitProtocol, wire: Wire) -> None:
        protocol.data_received(head(20))
        await answered(wire)
        await asyncio.sleep(0.1)

    wire = connected(work)
    assert b"200 OK" in wire.written
    assert not wire.aborted


def test_a_request_whose_connection_was_cut_off_writes_nothing() -> None:
    """Uvicorn tells only the last of several requests that the client is gone; the first one failed as it answered."""
    answers = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await answers.wait()
        await PlainTextResponse("late")(scope, receive, send)

    async def work(protocol: HeadLimitProtocol, wire: Wire) -> None:
        for _ in range(PIPELINED + 2):
            protocol.data_received(head(20))
            await asyncio.sleep(0)
        answers.set()
        await asyncio.sleep(0.01)

    wire = connected(work, slow)
    assert wire.aborted
    assert wire.written == b""


def test_requests_that_are_sent_ahead_are_few() -> None:
    async def work(protocol: HeadLimitProtocol, wire: Wire) -> None:
        for number in range(PIPELINED + 2):
            assert wire.aborted == (number > PIPELINED + 1)
            protocol.data_received(head(20))
            await asyncio.sleep(0)

    assert connected(work, stuck).aborted
