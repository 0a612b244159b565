"""ASGI application of endpoint and page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.process import no_collection
from retrieval.retriever import Retriever

from .access.guard import ENDPOINT, PROBES, Guard
from .access.keys import KeyRing
from .access.limits import BodyLimit, Lingering
from .api.routes import create_api
from .errors import TRY_AGAIN, Busy
from .problems import problem_response
from .reloads import Places
from .service import Service
from .settings import ServeSettings

log = logging.getLogger("retrieval.serving")
SEARCH_PATH = "/v1/search"
LOADING = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="1">'
    "<title>Retrieval</title>"
    '<body style="font-family:system-ui;margin:4rem auto;max-width:30rem"><p role="status">The page is loading…</p>'
)


def create_app(
    retriever: Retriever,
    *,
    settings: ServeSettings | None = None,
    page: bool = True,
    examples: Sequence[Path] = (),
    places: Places | None = None,
    on_start: Callable[[], None] | None = None,
) -> ASGIApp:
    """Return the ASGI application of one bundle and one gallery, with the page at / unless `page` is false.

    A reload opens `places`, by default the paths of the retriever. `on_start` is called when the server starts.
    """
    settings = settings or ServeSettings()
    service = Service(retriever, settings, places=places)
    keys = None if settings.keys is None else KeyRing(settings.keys)

    def load_page() -> Any:
        with no_collection():
            from .page.page import load_page

            return load_page(service, examples)

    dispatcher = Dispatcher(service, create_api(service, on_start), load_page if page else None)
    limited, origins = BodyLimit(dispatcher, max_bytes=settings.photo_bytes), settings.allow_origin
    guard = Guard(limited, metrics=service.metrics, keys=keys, local=settings.local, origins=origins)
    return Lingering(UnderPath(guard, settings.root_path))


class UnderPath:
    """Middleware for a server at a path of a host: the path is taken off where the proxy has left it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with the path below that of the server."""
        path = scope.get("path", "")
        if not self._root_path or scope["type"] != "http":
            await self._app(scope, receive, send)
        elif path == self._root_path:
            await RedirectResponse(f"{path}/")(scope, receive, send)  # or relative addresses would lead elsewhere
        else:
            if path.startswith(f"{self._root_path}/"):
                path = path.removeprefix(self._root_path)
            await self._app({**scope, "path": path, "root_path": self._root_path}, receive, send)


class Dispatcher:
    """ASGI application that dispatches to the endpoint or the page. A search is refused early if the queue is full.

    Parameters
    ----------
    load_page:
        Function that returns the page; called on a thread once the endpoint has started.
    """

    def __init__(self, service: Service, endpoint: ASGIApp, load_page: Callable[[], Any] | None) -> None:
        self._service, self._endpoint, self._load_page = service, endpoint, load_page
        self._page: ASGIApp | None = None
        self._loading: asyncio.Task[None] | None = None
        self._exit_stack = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch by path; refuse a search when the queue is full."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif self._service.pool.is_full and scope["path"] == SEARCH_PATH and scope["method"] == "POST":
            self._service.metrics.busy.inc()  # a refusal is cheap here: nothing was read or parsed
            await problem_response(Busy("the queue is full", remedy=TRY_AGAIN))(scope, receive, send)
        elif self._load_page is None or scope["path"] in PROBES or scope["path"].startswith(ENDPOINT):
            scope["path"] = scope.get("root_path", "") + scope["path"]  # as redirects need it
            await self._endpoint(scope, receive, send)
        else:
            await (self._page or HTMLResponse(LOADING, 503, headers={"Retry-After": "1"}))(scope, receive, send)

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
            self._page = page
        except Exception as error:  # of any package that the page needs
            log.error("the page could not be loaded", exc_info=error)
            self._page = PlainTextResponse(f"The page could not be loaded: {error}", 500)
