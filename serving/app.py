"""ASGI application of the API and the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.retriever import Retriever

from .access.guard import Guard
from .access.keys import KeyRing
from .access.limits import BodyLimit, Lingering
from .api.routes import create_api
from .errors import TRY_AGAIN, Busy
from .page.page import page_routes
from .problems import problem_response
from .reloads import Places
from .service import Service
from .settings import ServeSettings

SEARCH_PATH = "/v1/search"


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

    api = create_api(service, on_start)
    if page:
        api.include_router(page_routes(service, examples))
    limited, origins = BodyLimit(Queue(api, service), max_bytes=settings.photo_bytes), settings.allow_origin
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


class Queue:
    """Middleware that refuses a search at once when the queue is full: nothing of it was read or parsed."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http":
            if self._service.pool.is_full and scope["path"] == SEARCH_PATH and scope["method"] == "POST":
                self._service.metrics.busy.inc()
                await problem_response(Busy("the queue is full", remedy=TRY_AGAIN))(scope, receive, send)
                return
            scope["path"] = scope.get("root_path", "") + scope["path"]  # as redirects need it
        await self._app(scope, receive, send)
