"""The bytes of the bodies that arrive at once are bounded, per client and in all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from serving.access import limits
from serving.access.limits import ALL_BYTES, BATCH_BYTES, CLIENT_BYTES, BodyLimit

MB = 2**20


class Client:
    """A request to the middleware alone, whose body arrives in pieces as the test says."""

    def __init__(self, limit: BodyLimit, name: str, *, declared: int | None = None) -> None:
        self._limit, self._name, self._declared = limit, name, declared
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.sent: list[Any] = []
        self.taken = 0  # bytes that the middleware has asked for

    async def run(self) -> None:
        headers = [(b"content-length", b"%d" % self._declared)] if self._declared is not None else []
        state = {"client": self._name}
        scope = {"type": "http", "method": "POST", "path": "/v1/search/batch", "headers": headers, "state": state}
        await self._limit(scope, self._receive, self._send)

    async def send(self, *pieces: bytes | None) -> None:
        """Send pieces of the body, None for its end, and let the middleware take them."""
        for piece in pieces:
            self._pieces.put_nowait(piece)
        for _ in range(5 * len(pieces)):
            await asyncio.sleep(0)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    async def _receive(self) -> Any:
        piece = await self._pieces.get()
        self.taken += len(piece or b"")
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def reads_all(scope: Scope, receive: Receive, send: Send) -> None:
    """Take the whole body, then answer 200; a refusal by the middleware becomes its status."""
    try:
        await Request(scope, receive).body()
        status = 200
    except HTTPException as error:
        status = error.status_code
    await send({"type": "http.response.start", "status": status, "headers": []})


@asynccontextmanager
async def arriving(clients: Sequence[Client]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(client.run()) for client in clients]
    await asyncio.sleep(0.01)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_bodies_of_one_key_beyond_its_bytes_are_refused_before_they_arrive() -> None:
    """Thirty batches of 63 MiB with one search key took 1.9 GB."""

    async def scenario() -> None:
        limit = BodyLimit(reads_all, max_bytes=MB)
        batches = [Client(limit, "shop", declared=63 * MB) for _ in range(30)]
        other = Client(limit, "other", declared=MB)
        async with arriving([*batches, other]):
            refused = [client for client in batches if client.status == 503]
            assert len(refused) == 28
            assert {client.taken for client in refused} == {0}
            assert dict(refused[0].sent[0]["headers"])[b"retry-after"] == b"1"
            assert "bytes" in json.loads(refused[0].sent[1]["body"])["title"]
            await other.send(b"x", None)
            assert other.status == 200
            for client in batches[:2]:
                await client.send(b"x", None)
            assert [client.status for client in batches[:2]] == [200, 200]
            again = Client(limit, "shop", declared=63 * MB)
            async with arriving([again]):
                assert again.status is None  # the room of the others is free again

    asyncio.run(scenario())


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_many_keys_together_have_a_bound_too(declared: bool) -> None:
    piece = bytes(4 * MB)

    async def scenario() -> None:
        limit = BodyLimit(reads_all, max_bytes=MB)
        clients = [Client(limit, f"key-{number}", declared=48 * MB if declared else None) for number in range(8)]
        async with arriving(clients):
            for _ in range(12):
                for client in clients:
                    if client.status is None:
                        await client.send(piece)
                        assert sum(client.taken for client in clients if client.status is None) <= ALL_BYTES
            assert [client.status for client in clients].count(503) >= 3
            assert [client.status for client in clients].count(None) >= 4

    asyncio.run(scenario())


@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413)])
def test_a_body_of_the_most_bytes_is_read_and_a_longer_one_is_refused(
    size: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES", 1000)
    monkeypatch.setattr(limits, "OVERHEAD", 0)

    async def scenario() -> None:
        client = Client(BodyLimit(reads_all, max_bytes=MB), "shop")
        async with arriving([client]):
            await client.send(bytes(size), None)
            assert client.status == status

    asyncio.run(scenario())


def test_the_refusal_of_a_body_whose_length_is_declared_says_its_length_and_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "BATCH_BYTES", 1000)
    monkeypatch.setattr(limits, "OVERHEAD", 0)

    async def scenario() -> None:
        client = Client(BodyLimit(reads_all, max_bytes=MB), "shop", declared=1234)
        async with arriving([client]):
            await client.send(None)
            assert client.status == 413
            assert b"1,234, the limit is 1,000 bytes" in client.sent[1]["body"]

    asyncio.run(scenario())


def test_bounds_leave_room_for_the_largest_batch() -> None:
    assert CLIENT_BYTES >= BATCH_BYTES
    assert ALL_BYTES >= 2 * CLIENT_BYTES
