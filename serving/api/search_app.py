"""FastAPI application whose search routes are answered without FastAPI's routing.

Between the application and a route, FastAPI has layers for telemetry, limits, dependencies and files, and it compares
the path with that of each route. None of this affects the search routes, but it takes CPU time in every search.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from .query_parameters import SearchRoute


class SearchApp(FastAPI):
    """Application that finds its search routes by their exact path; all other requests go through FastAPI."""

    _direct: dict[str, ASGIApp] = {}  # noqa: RUF012 (replaced, never changed)

    def answer_directly(self, routes: Iterable[BaseRoute]) -> None:
        """Answer POST requests to the search routes among these, with the exception handlers that were added before."""
        self._direct = {route.path: self._app_of(route) for route in routes if isinstance(route, SearchRoute)}

    def _app_of(self, route: SearchRoute) -> ASGIApp:
        """Return the application of one route: its handler within Starlette's handling of errors."""
        handle = route.get_route_handler()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            scope["app"], scope["route"] = self, route  # for errors of forms, and for the name in logs and metrics
            response = await handle(Request(scope, receive, send))
            await response(scope, receive, send)

        expected = {kind: handler for kind, handler in self.exception_handlers.items() if kind is not Exception}
        return ServerErrorMiddleware(ExceptionMiddleware(answer, expected), self.exception_handlers[Exception])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a search, or pass the request to FastAPI."""
        direct = self._direct.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (direct or super().__call__)(scope, receive, send)
