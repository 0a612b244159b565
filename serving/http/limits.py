"""Limits that hold whatever a client sends: bytes and time of a body, and searches at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import ImageTooLarge, RetrievalError
from serving.api.problems import problem_response

Result = TypeVar("Result")
OVERHEAD = 64 * 1024  # what multipart may add to an image
BATCH_PATHS = ("/v1/search/batch", "/v1/admin/reload")
AGAIN = "Try again in a second"
CLOSE = {"Connection": "close"}  # the rest is not waited for


class Busy(RetrievalError):
    """As many searches wait as may wait, or one waited too long."""


class BodyLimit:
    """Refuses a body over the limit while it arrives, whether or not its length was declared, and one that drips."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_batch_bytes: int, seconds: float) -> None:
        self._app = app
        self._limit, self._batch_limit, self._seconds = max_bytes, max_batch_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body counted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        limit = self._batch_limit if scope["path"] in BATCH_PATHS else self._limit
        if b"json" in headers.get(b"content-type", b""):
            limit = limit * 4 // 3  # base64
        limit += OVERHEAD
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > limit:
            await problem_response(_too_large(limit))(scope, receive, send)
            return
        seen, whole, end = 0, False, time.monotonic() + self._seconds

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:  # what comes now is the client hanging up
                return await receive()
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time", CLOSE) from None
            seen += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if seen > limit:
                raise HTTPException(
                    413, _too_large(limit).message, CLOSE
                )  # the one kind that every parser lets through
            return message

        await self._app(scope, counted, send)


def _too_large(limit: int) -> ImageTooLarge:
    return ImageTooLarge(f"the request has more than {limit:,} bytes", remedy="Send a smaller image")


class SearchPool:
    """Runs searches on a few threads, one a core, with a bounded queue in front and a deadline for each."""

    def __init__(self, *, threads: int, queue: int, deadline_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")
        self._threads, self._places, self._deadline = threads, threads + queue, deadline_s
        self._taken = 0
        self._guard = Lock()

    @property
    def waiting(self) -> int:
        """How many searches wait for a thread."""
        return max(0, self._taken - self._threads)

    @property
    def is_full(self) -> bool:
        """Whether one more search would be refused."""
        return self._taken >= self._places

    async def run(self, work: Callable[[], Result], *, deadline_s: float | None = None) -> tuple[Result, float]:
        """Run the work on a thread; return its answer and the seconds it waited. Busy when the queue is full.

        Busy also when the deadline passes. A place is free again when its work has ended, not when its client has gone.
        """
        with self._guard:
            if self._taken >= self._places:
                raise Busy("every place in the queue is taken", remedy=AGAIN)
            self._taken += 1
        asked = time.perf_counter()

        def timed() -> tuple[Result, float]:
            waited = time.perf_counter() - asked
            return work(), waited

        try:
            running = self._pool.submit(timed)
        except RuntimeError as error:  # the pool is closed
            self._leave(None)
            raise Busy("the server is shutting down", remedy=AGAIN) from error
        running.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(deadline_s or self._deadline):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:  # what waits is taken out of the queue; what runs ends on its own
            raise Busy("the search did not end before its deadline", remedy=AGAIN) from error

    def _leave(self, _: Future[tuple[Result, float]] | None) -> None:
        with self._guard:
            self._taken -= 1

    def close(self) -> None:
        """Finish what was taken, and take nothing more."""
        self._pool.shutdown(wait=True)
