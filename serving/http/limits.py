"""Limits on requests: size and arrival time of bodies, rates per client, and the Busy error."""

from __future__ import annotations

import asyncio
import math
import re
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import ImageTooLarge, RetrievalError
from serving.api.problems import ProblemResponse, problem, problem_response

OVERHEAD = 64 * 1024  # allowance for multipart framing
BATCH_PATHS = ("/v1/search/batch", "/v1/search/photos", "/v1/admin/reload")
LENGTH = re.compile(rb"[0-9]{1,19}")  # Content-Length in bytes; int() rejects thousands of digits
TRY_AGAIN = "Try again in a second"
CLOSE = {"Connection": "close"}  # the rest of the body is not read


class Busy(RetrievalError):
    """The queue or the upload store is full, or a search passed its deadline."""


def too_many_requests(wait: float) -> ProblemResponse:
    """Return a 429 response that asks the client to wait `wait` seconds."""
    response = problem(429, "this client sends too many requests", f"Wait {wait:.1f} seconds.")
    response.headers["Retry-After"] = str(math.ceil(wait))
    return response


class BodyLimit:
    """Middleware that refuses bodies that are too large, declared or not, or arrive too slowly."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, max_batch_bytes: int, seconds: float) -> None:
        self._app = app
        self._limit, self._batch_limit, self._seconds = max_bytes, max_batch_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and enforce the limits while its body arrives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        limit = self._batch_limit if scope["path"] in BATCH_PATHS else self._limit
        if b"json" in headers.get(b"content-type", b""):
            limit = limit * 4 // 3  # base64
        limit += OVERHEAD
        declared = headers.get(b"content-length", b"0")
        if not LENGTH.fullmatch(declared):
            await problem(400, "the header Content-Length is not a number of bytes")(scope, receive, send)
            return
        if int(declared) > limit:
            await problem_response(_too_large(limit))(scope, receive, send)
            return
        received, complete, end = 0, False, time.monotonic() + self._seconds

        async def counted() -> Message:
            nonlocal received, complete
            if complete:  # the next message is the disconnect
                return await receive()
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the body did not arrive in time", CLOSE) from None
            received += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if received > limit:
                raise HTTPException(
                    413, _too_large(limit).message, CLOSE
                )  # the only exception that every parser lets through
            return message

        await self._app(scope, counted, send)


def _too_large(limit: int) -> ImageTooLarge:
    return ImageTooLarge(f"the request has more than {limit:,} bytes", remedy="Send a smaller image")
