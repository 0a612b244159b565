"""Limits that hold whatever a client sends: bytes of a body, searches at a time, and nothing fetched for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import ImageTooLarge, RetrievalError

from .problems import problem, problem_response

Answer = TypeVar("Answer")
OVERHEAD = 64 * 1024  # what multipart may add to an image
REMOTE = ("=http:", "=https:")  # Gradio's file and proxy routes would fetch these addresses


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


class NothingRemote:
    """Refuses the page's routes that would make the server fetch an address of the client's choice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what stays on this server."""
        if scope["type"] == "http" and any(mark in scope["path"].lower() for mark in REMOTE):
            await problem(403, "addresses are not fetched", "Upload the image.")(scope, receive, send)
            return
        await self._app(scope, receive, send)


class SearchPool:
    """Runs searches on a few threads, one a core, with a bounded queue in front."""

    def __init__(self, *, threads: int, queue: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")
        self._places = BoundedSemaphore(threads + queue)

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Run the work on a thread and return its answer; Busy when the queue is full.

        A place is free again when its work has ended, not when its client has gone.
        """
        if not self._places.acquire(blocking=False):
            raise Busy("every place in the queue is taken", remedy="Try again in a second")
        try:
            running = self._pool.submit(work)
        except RuntimeError as error:  # the pool is closed
            self._places.release()
            raise Busy("the server is shutting down", remedy="Try again in a second") from error
        running.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Finish what was taken, and take nothing more."""
        self._pool.shutdown(wait=True)
