"""Routes of the page: an allow list, by method and path, of requests that reach Gradio.

Gradio has about ninety routes, which serve files, fetch URLs, join queues and share sessions. The page uses only its
HTML, scripts, styles and event runner. Uploads go through `Uploads`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import ImageRefused, ImageUnreadable, InvalidParameter, RetrievalError
from retrieval.images.formats import format_of
from serving.api.problems import ProblemResponse, problem, problem_response
from serving.http.limits import OVERHEAD, Busy, too_many_requests
from serving.http.rates import Rates

from .page_events import EVENT, RELOAD, Event, EventContext, EventRequest
from .uploads import Uploads

log = logging.getLogger("retrieval.serving")
API = "/gradio_api"
RUN_PATH = f"{API}/run/predict"
SHOWN = ("/", "/config", "/theme.css", "/favicon.ico")
FILES = ("/assets", "/static")
PLAIN_PATH = re.compile(r"/|(/(?!\.)[\w.-]+)+", re.ASCII)  # no segment is empty or begins with a dot
EVENT_BYTES = 16 * 1024  # size limit of an event request, which holds tokens and numbers only
MISLEADING = (b"x-forwarded-host", b"x-forwarded-prefix", b"x-direct-url", b"cookie", b"authorization", b"referer")
SWEEP_S = 60.0
UNSHOWN = ("HEIF", "TIFF")  # formats that not every browser shows
PHOTO_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; sandbox"}

Preview = Callable[[bytes], Awaitable[bytes]]


def page_routes(
    gradio_app: FastAPI,
    events: Mapping[int, Event],
    uploads: Uploads,
    *,
    rates: Rates,
    max_bytes: int,
    preview: Preview | None = None,
) -> Starlette:
    """Return the page application: Gradio behind the allowed routes.

    `preview` returns a picture of a photo whose format browsers do not show.
    """
    static = _StaticFiles(gradio_app)
    run = _EventRunner(gradio_app, events, rates)
    photos = _Photos(uploads, rates, max_bytes, preview)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gradio_app.router.lifespan_context(gradio_app):
            sweeping = asyncio.create_task(_sweep(uploads))
            try:
                yield
            finally:
                sweeping.cancel()
                uploads.close()

    app = Starlette(
        routes=[
            *(Route(path, static, methods=["GET"]) for path in SHOWN),
            *(Route(f"{folder}/{{path:path}}", static, methods=["GET"]) for folder in FILES),
            Route(RUN_PATH, run, methods=["POST"]),
            Route(f"{API}/upload", photos.upload, methods=["POST"]),
            Route(f"{API}/upload_progress", photos.progress, methods=["GET"]),
            Route(f"{API}/file={{token}}", photos.show, methods=["GET"]),
        ],
        exception_handlers={
            RetrievalError: _refused,
            HTTPException: _http,
            ClientDisconnect: _disconnected,
            Exception: _refused,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def is_shown(data: bytes) -> bool:
    """Return whether browsers show a photo; also if its format is unknown."""
    form = format_of(data)
    return form is None or form.name not in UNSHOWN


class _StaticFiles:
    """Pass-through for HTML, scripts and styles, without the query and misleading headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not PLAIN_PATH.fullmatch(scope["path"]):
            raise HTTPException(404)
        await self._app(_plain(scope), receive, send)


class _EventRunner:
    """Event runner that passes only checked values to Gradio."""

    def __init__(self, app: ASGIApp, events: Mapping[int, Event], rates: Rates) -> None:
        self._app, self._events, self._rates = app, events, rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        request = EventRequest.parse(await _body(Request(scope, receive)))
        event = self._events.get(request.fn_index)
        if event is None:
            raise InvalidParameter("fn_index", "be an event of the page", request.fn_index, remedy=RELOAD)
        if event.is_counted:
            state["route"] = f"page/{event.name}"
            if wait := self._rates.requests.wait(state["client"]):
                await _with_page_error(too_many_requests(wait))(scope, receive, send)
                return
        event_context = EventContext(state["client"], request.session_hash, state["request_id"])
        payload = event.payload(request.fn_index, request.data, event_context)
        bodies = [payload]

        async def receive_checked() -> Message:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            return await receive()

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                state["status"] = event_context.status
            await send(message)

        token = EVENT.set(event_context)
        try:
            await self._app(_run_scope(scope, len(payload)), receive_checked, send_noting_status)
        finally:
            EVENT.reset(token)


def _plain(scope: Scope, *without: bytes) -> Scope:
    """Return the scope of a request without its query, credentials and forwarding headers."""
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in (*MISLEADING, *without) and not name.startswith(b"x-gradio-")
    ]
    return {**scope, "query_string": b"", "headers": headers}


def _run_scope(scope: Scope, length: int) -> Scope:
    """Return the scope of a rebuilt JSON request for Gradio."""
    plain = _plain(scope, b"content-length", b"content-type")
    plain["headers"] += [(b"content-type", b"application/json"), (b"content-length", str(length).encode())]
    return plain


class _Photos:
    """Upload and download of photos; clients see only their own."""

    def __init__(self, uploads: Uploads, rates: Rates, max_bytes: int, preview: Preview | None) -> None:
        self._uploads, self._rates, self._max_bytes, self._preview = uploads, rates, max_bytes, preview

    async def upload(self, request: Request) -> Response:
        """Store a photo and return its token where Gradio would return a path."""
        client = request.state.client
        request.scope["state"]["route"] = "page/upload"
        if wait := self._rates.uploads.wait(client):
            return _with_page_error(too_many_requests(wait))
        declared = request.headers.get("content-length", "")
        expected = int(declared) if declared.isdigit() else self._max_bytes
        with self._uploads.arriving(client, min(expected, self._max_bytes)):
            data = await self._file(request)
            return JSONResponse([self._uploads.store(client, data, await self._shown(data))])

    async def _shown(self, data: bytes) -> bytes | None:
        """Return a picture of a photo that browsers do not show, None if they do or it cannot be read."""
        if self._preview is None or is_shown(data):
            return None
        try:
            return await self._preview(data)
        except (ImageRefused, Busy):  # the search says why
            return None

    async def _file(self, request: Request) -> bytes:
        await request.body()  # first: the body is capped, and a truncated one leaves no temporary file
        parser = MultiPartParser(request.headers, request.stream(), max_files=1, max_fields=4)
        parser.spool_max_size = self._max_bytes + OVERHEAD  # parse in memory; only `Uploads` writes files
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError) as error:
            raise ImageUnreadable("this is not a form with one file", remedy="Send files=@photo.jpg") from error
        try:
            file = form.get("files")
            if file is None or isinstance(file, str):
                raise ImageUnreadable("the form has no file in the field `files`", remedy="Send files=@photo.jpg")
            return await file.read()
        finally:
            await form.close()

    async def progress(self, _: Request) -> Response:
        """Report the upload as done; the page shows no progress."""
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

    async def show(self, request: Request) -> Response:
        """Return an example or a photo uploaded by this client."""
        data = self._uploads.read(request.path_params["token"], request.state.client, preview=True)
        form = format_of(data)
        kind = "application/octet-stream" if form is None else form.media_type
        return Response(data, media_type=kind, headers=PHOTO_HEADERS)


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > EVENT_BYTES:
            raise HTTPException(413, f"an event has more than {EVENT_BYTES:,} bytes", {"Connection": "close"})
    return body


async def _sweep(uploads: Uploads) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(uploads.sweep)


def _with_page_error(response: ProblemResponse) -> ProblemResponse:
    """Return a problem with an added member `error`, which the page's script displays."""
    text = ". ".join(str(response.content[name]) for name in ("title", "detail") if response.content[name])
    extended = ProblemResponse({**response.content, "error": text})
    extended.headers.update(
        {name: response.headers[name] for name in ("retry-after", "connection") if name in response.headers}
    )
    return extended


async def _refused(_: Request, error: Exception) -> Response:
    response = problem_response(error) if isinstance(error, RetrievalError) else problem(500, "the request failed")
    if response.status_code >= 500 and response.status_code != 503:
        log.error("the page failed", exc_info=error)
    return _with_page_error(response)


async def _http(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return await _refused(_, error)
    response = problem(error.status_code, str(error.detail))
    response.headers.update(error.headers or {})
    return _with_page_error(response)


async def _disconnected(_: Request, __: Exception) -> Response:
    return problem(400, "the body is incomplete")
