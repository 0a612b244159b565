"""Limits that hold whatever a client sends: bytes of a body, and searches at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import ImageTooLarge, RetrievalError

from .problems import problem_response

Answer = TypeVar("Answer")
OVERHEAD = 64 * 1024  # what multipart may add to an image


class Busy(RetrievalError):
    """As many searches wait as may wait."""


class BodyLimit:
    """Refuses a body over the limit while it arrives, whether or not its length was declared."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._limit = max_bytes + OVERHEAD

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await problem_response(self._refusal())(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise self._refusal()
            return message

        await self._app(scope, counted, send)

    def _refusal(self) -> ImageTooLarge:
        return ImageTooLarge(f"the request has more than {self._limit:,} bytes", remedy="Send a smaller image")


class SearchPool:
    """Runs searches on a few threads, one a core, with a bounded queue in front."""

    def __init__(self, *, threads: int, queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")
        self._room = threads + queue
        self._taken = 0

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Run the work on a thread and return its answer; Busy when the queue is full."""
        if self._taken >= self._room:
            raise Busy("every place in the queue is taken", remedy="Try again in a second")
        self._taken += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._taken -= 1

    def close(self) -> None:
        """Finish what was taken, and take nothing more."""
        self._pool.shutdown(wait=True)
