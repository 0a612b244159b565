"""ASGI application of endpoint and page; the page loads in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.retriever import Retriever
from serving.api.problems import problem_response
from serving.api.routes import create_api
from serving.http.guard import ENDPOINT, PROBES, Guard
from serving.http.keys import KeyRing
from serving.http.limits import TRY_AGAIN, BodyLimit, Busy, Rates

from .config import ServeSettings
from .service import Service

log = logging.getLogger("retrieval.serving")
SEARCH_PATH = "/v1/search"
LOADING = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="1">'
    "<title>Retrieval</title>"
    '<body style="font-family:system-ui;margin:4rem auto;max-width:30rem"><p role="status">The page is loading…</p>'
)


class Dispatcher:
    """ASGI application that dispatches to the endpoint or the page. A search is refused early if the queue is full."""

    def __init__(self, service: Service, endpoint: ASGIApp, load_page: Callable[[], Any] | None) -> None:
        self._service, self._endpoint, self._load_page = service, endpoint, load_page
        self.page: ASGIApp | None = None
        self._loading: asyncio.Task[None] | None = None
        self._exit_stack = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path; refuse a search when the queue is full."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif self._service.pool.is_full and scope["path"] == SEARCH_PATH and scope["method"] == "POST":
            self._service.telemetry.busy.inc()  # nothing is read or parsed yet: a refusal is cheap
            await problem_response(Busy("the queue is full", remedy=TRY_AGAIN))(scope, receive, send)
        elif self._load_page is None or scope["path"] in PROBES or scope["path"].startswith(ENDPOINT):
            await self._endpoint(scope, receive, send)
        elif self.page is not None:
            await self.page(scope, receive, send)
        else:
            await HTMLResponse(LOADING, 503, headers={"Retry-After": "1"})(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint's lifespan; load the page once it has started, and close it at shutdown."""

        async def send_and_load(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete" and self._load_page is not None:
                self._loading = asyncio.create_task(self._open_page(self._load_page))
            await send(message)

        async def receive_and_close() -> Any:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                if self._loading is not None:
                    self._loading.cancel()
                await self._exit_stack.aclose()
            return message

        await self._endpoint(scope, receive_and_close, send_and_load)

    async def _open_page(self, load: Callable[[], Any]) -> None:
        try:
            page = await asyncio.to_thread(load)
            await self._exit_stack.enter_async_context(page.router.lifespan_context(page))
            self.page = page
        except Exception as error:
            log.error("the page could not be loaded", exc_info=error)
            raise


def create_app(
    retriever: Retriever,
    *,
    settings: ServeSettings | None = None,
    page: bool = True,
    examples: Sequence[Path] = (),
    reopen: Callable[[], Retriever] | None = None,
) -> ASGIApp:
    """Return the ASGI application of one bundle and one gallery, with the page at / unless `page` is false.

    `reopen` opens both for a reload; the default opens the same paths.
    """
    settings = settings or ServeSettings()
    service = Service(retriever, settings, reopen=reopen)
    keys = None if settings.keys is None else KeyRing(settings.keys)
    rates = Rates.of(settings.rate)
    load = None
    if page:

        def load() -> Any:
            from serving.ui.page import load_page

            return load_page(service, examples, rates=rates)

    dispatcher = Dispatcher(service, create_api(service), load)
    limited = BodyLimit(
        dispatcher, max_bytes=settings.max_bytes, max_batch_bytes=settings.max_batch_bytes, seconds=settings.body_s
    )
    return Guard(limited, telemetry=service.telemetry, keys=keys, rates=rates, local=settings.local)
