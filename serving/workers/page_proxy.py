"""The page in workers other than the first: a proxy to the first worker, which keeps the sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serving.api.problems import problem
from serving.dispatcher import loading_page
from serving.http.callers import CALLER

from .peers import COUNTED, FORWARDED

HOPS = (b"connection", b"keep-alive", b"transfer-encoding", b"date", FORWARDED)  # headers of one connection
SECONDS = 60.0
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # requests wait in the first worker alone


def page_proxy(path: Path) -> Starlette:
    """Return an application that forwards requests to the page of the first worker.

    Parameters
    ----------
    path:
        Unix socket of the first worker.
    """
    client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path), limits=LIMITS), timeout=SECONDS)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(routes=[Route("/{path:path}", _Proxy(client))], lifespan=lifespan)


class _Proxy:
    """ASGI application that forwards requests."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request and its answer; return the loading page if the first worker is not ready."""
        state = scope["state"]
        facts = {"client": state["client"], "request_id": state["request_id"], "caller": asdict(CALLER.get())}
        headers = [(name, value) for name, value in scope["headers"] if name not in HOPS]
        headers.append((FORWARDED, json.dumps(facts).encode()))
        query = scope["query_string"]
        url = httpx.URL("http://worker", raw_path=scope["raw_path"] + (b"?" + query if query else b""))
        content = _body(receive) if scope["method"] == "POST" else None
        request = self._client.build_request(scope["method"], url, headers=headers, content=content)
        try:
            response = await self._client.send(request, stream=True)
        except HTTPException as error:  # the body is too large or too slow
            refusal = problem(error.status_code, str(error.detail))
            refusal.headers.update(error.headers or {})
            await refusal(scope, receive, send)
            return
        except httpx.HTTPError:
            await loading_page()(scope, receive, send)
            return
        try:
            await _pass_on(response, state, send)
        finally:
            await response.aclose()


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise httpx.RequestError("the client disconnected")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def _pass_on(response: httpx.Response, state: dict[str, Any], send: Send) -> None:
    """Pass on an answer of the first worker, and note its route and status for the metrics."""
    headers = [(name.lower(), value) for name, value in response.headers.raw]
    for name, value in headers:
        if name in COUNTED:
            state[COUNTED[name]] = int(value) if value.isdigit() else value.decode()
    passed = [header for header in headers if header[0] not in (*HOPS, *COUNTED)]
    await send({"type": "http.response.start", "status": response.status_code, "headers": passed})
    async for part in response.aiter_raw():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
