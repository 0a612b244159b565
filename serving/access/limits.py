"""Limits on request bodies: their size, their arrival time and their number, and what is not read of them."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import ImageTooLarge
from serving.errors import TRY_AGAIN, Busy
from serving.problems import problem, problem_response

BATCH_BYTES = 64 * 2**20  # per batch of images
CLIENT_BYTES, ALL_BYTES = 2 * BATCH_BYTES, 4 * BATCH_BYTES  # of bodies at once, per key or address and in all
BODY_S = 15.0  # time limit for the arrival of a request body
OVERHEAD = 64 * 1024  # allowance for multipart framing
DROPPED = 4 * BATCH_BYTES  # of a body that is not read
LINGER_S, IDLE_S = 30.0, 5.0  # time limits for what is dropped: in all, and between its parts
BATCH_PATHS = ("/v1/search/batch", "/v1/search/photos")
VERDICT_PATH = "/v1/feedback"  # its body holds no photo
LENGTH = re.compile(rb"[0-9]{1,19}")  # Content-Length in bytes; int() rejects thousands of digits
TOO_MANY = "the requests that are arriving have too many bytes together"


class Lingering:
    """Middleware by which an answer before the end of a body reaches clients that send all of it before they read.

    It sends the answer at once, then drops the rest of the body, at most DROPPED bytes within LINGER_S seconds, and
    closes the connection. Closed earlier, most clients report a reset connection, not the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and drop what the application leaves of its body."""
        headers = dict(scope.get("headers", ()))
        complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"
        answered, left = False, DROPPED

        async def noting() -> Message:
            nonlocal complete
            message = await receive()
            complete = not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            nonlocal answered
            if not complete and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            elif not complete and not message.get("more_body", False):
                message, answered = {**message, "more_body": True}, True
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, noting, answer)
        if answered:
            end = time.monotonic() + LINGER_S
            with suppress(TimeoutError):
                while not complete and left > 0:
                    async with asyncio.timeout(min(IDLE_S, end - time.monotonic())):
                        left -= len((await noting()).get("body", b""))
            await send({"type": "http.response.body"})


class BodyLimit:
    """Middleware that refuses bodies that are too large, declared or not, arrive too slowly, or too many at once."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, seconds: float = BODY_S) -> None:
        self._app, self._limit, self._seconds = app, max_bytes, seconds
        self._taken: Counter[str] = Counter()  # bytes of the bodies that arrive or are worked on, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and enforce the limits while its body arrives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, limit = dict(scope["headers"]), self._limit_of(scope)
        declared = headers.get(b"content-length", b"0")
        if not LENGTH.fullmatch(declared):
            await problem(400, "the header Content-Length is not a number of bytes")(scope, receive, send)
            return
        if int(declared) > limit:
            await problem_response(_too_large(limit, f"{int(declared):,}, the limit is"))(scope, receive, send)
            return
        client, taken = scope["state"]["client"], int(declared)
        if not self._has_room(client, taken):
            await problem_response(Busy(TOO_MANY, remedy=TRY_AGAIN))(scope, receive, send)
            return
        self._taken[client] += taken
        received, complete, end = 0, False, time.monotonic() + self._seconds

        async def counted() -> Message:
            nonlocal received, complete, taken
            if complete:  # the next message is the disconnect
                return await receive()
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time") from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > limit:
                raise HTTPException(413, _too_large(limit).message)  # which every parser lets through
            if (more := received - taken) > 0:  # of a body whose length was not declared
                if not self._has_room(client, more):
                    raise HTTPException(503, TOO_MANY, {"Retry-After": "1"})
                self._taken[client] += more
                taken = received
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._taken[client] -= taken
            self._taken += Counter()  # drops zero counts

    def _limit_of(self, scope: Scope) -> int:
        """Return the most bytes that the body of a request may have."""
        limit = BATCH_BYTES if scope["path"] in BATCH_PATHS else self._limit
        if scope["path"] not in BATCH_PATHS and b"json" in dict(scope["headers"]).get(b"content-type", b""):
            limit = limit * 3 // 2  # base64, in lines
        return OVERHEAD + (0 if scope["path"] == VERDICT_PATH else limit)

    def _has_room(self, client: str, size: int) -> bool:
        return self._taken[client] + size <= CLIENT_BYTES and self._taken.total() + size <= ALL_BYTES


def _too_large(limit: int, size: str = "more than") -> ImageTooLarge:
    return ImageTooLarge(f"the request has {size} {limit:,} bytes", remedy="Send a smaller image, or less at once")
