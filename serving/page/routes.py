"""The filter between requests and Gradio: paths on an allow list, and events rebuilt from checked values.

Gradio has about ninety routes, which serve files, fetch URLs, join queues and share sessions, and its components open
the paths and URLs that a client sends. The page uses its HTML, scripts, styles and event runner. Each kind of input
component has a check here; a page with an event of another kind fails to load. Uploads go through `Uploads`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.bundle.text_embedder import checked_text
from retrieval.errors import ImageUnreadable, InvalidParameter, RetrievalError
from retrieval.images import MAX_BYTES
from retrieval.images.formats import format_of
from serving.api.bodies import images_of
from serving.problems import ProblemResponse, problem, problem_response

from .uploads import Uploads

if TYPE_CHECKING:
    import gradio

log = logging.getLogger("retrieval.serving")
UNSTATED = 10 * 2**20  # bytes reserved for an upload that does not state its size
API = "/gradio_api"
RUN_PATH = f"{API}/run/predict"
SHOWN = ("/config", "/theme.css", "/favicon.ico")
FILES = ("/assets", "/static")
PLAIN_PATH = re.compile(r"/|(/(?!\.)[\w.-]{1,200}){1,8}", re.ASCII)  # no segment is empty, long or begins with a dot
PART = re.compile(r"(?:(?:0\.\d{1,6}|[01])(?:,(?!$)|$)){4}|", re.ASCII)
PREVIEW_TAG = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>|<link rel="manifest"[^>]*>')  # of Gradio
ROOT = re.compile(rb'("root":|const root =)\s*"[^"]*"')  # in scripts: the address below which Gradio's lie
OWN_ROOT = rb'\1 new URL(".", location.href).href.replace(/\/$/, "")'  # a proxy may serve it under another path
EVENT_BYTES = 16 * 1024  # size limit of an event request, which holds tokens and numbers only
MISLEADING = (b"x-forwarded-host", b"x-forwarded-prefix", b"x-direct-url", b"cookie", b"authorization", b"referer")
SWEEP_S = 60.0
PHOTO_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'; sandbox"}
RELOAD = "Reload the page"


@dataclass
class EventContext:
    """Client, session and outcome of a running event."""

    client: str
    session: str
    request_id: str
    status: int = 200


EVENT: ContextVar[EventContext] = ContextVar("event")  # of the current event
Check = Callable[[Any, EventContext], Any]


class EventRequest(BaseModel):
    """Event request of the page's script; other fields are dropped."""

    model_config = ConfigDict(strict=True)

    fn_index: int
    session_hash: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    data: list[Any]


@dataclass(frozen=True)
class Preview:
    """What a link to the page shows in a chat: texts, and the token of a photo, "" for none."""

    title: str
    description: str
    picture: str = ""


@dataclass(frozen=True)
class Event:
    """A page event: its name in the log and a check for each input."""

    name: str
    checks: tuple[Check, ...]

    def payload(self, number: int, data: list[Any], event: EventContext) -> bytes:
        """Return the request body for Gradio, made of checked values only."""
        if len(data) != len(self.checks):
            raise InvalidParameter("data", f"have {len(self.checks)} values", len(data), remedy=RELOAD)
        checked = [check(value, event) for check, value in zip(self.checks, data, strict=True)]
        return json.dumps({"data": checked, "fn_index": number, "session_hash": None}).encode()


def events_of(page: gradio.Blocks, uploads: Uploads) -> Mapping[int, Event]:
    """Return the events of a page by number; raise TypeError if an input has no check."""
    return {
        number: Event(str(function.api_name).partition("_")[0], tuple(_check_of(i, uploads) for i in function.inputs))
        for number, function in page.fns.items()
    }


def page_routes(gradio_app: FastAPI, events: Mapping[int, Event], uploads: Uploads, preview: Preview) -> Starlette:
    """Return the page application: Gradio behind the allowed routes."""
    static, run, photos = _StaticFiles(gradio_app), _EventRunner(gradio_app, events), _Photos(uploads)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gradio_app.router.lifespan_context(gradio_app):
            sweeping = asyncio.create_task(_sweep(uploads))
            try:
                yield
            finally:
                sweeping.cancel()

    app = Starlette(
        routes=[
            Route("/", _FrontPage(static, preview), methods=["GET"]),
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


class _StaticFiles:
    """Pass-through for HTML, scripts and styles, without the query and misleading headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not PLAIN_PATH.fullmatch(scope["path"]):
            raise HTTPException(404)
        await self._app(_plain(scope), receive, send)


class _FrontPage:
    """The page's HTML with the title, description and picture of link previews, in place of Gradio's."""

    def __init__(self, app: ASGIApp, preview: Preview) -> None:
        self._app, self._preview = app, preview

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started: Message = {}
        parts: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
                return
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                body = self._with_preview(b"".join(parts), Request(scope))
                headers = [(name, value) for name, value in started["headers"] if name != b"content-length"]
                length = (b"content-length", str(len(body)).encode())
                await send({**started, "headers": [*headers, length]})
                await send({"type": "http.response.body", "body": body})

        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await self._app({**scope, "headers": plain}, receive, collect)

    def _with_preview(self, html: bytes, request: Request) -> bytes:
        told = {"og:type": "website", "og:title": self._preview.title, "og:description": self._preview.description}
        if self._preview.picture:
            told["og:image"] = f"{request.base_url}gradio_api/file={self._preview.picture}"
        tags = [f'<meta property="{name}" content="{escape(text)}" />' for name, text in told.items()]
        tags.append(f'<meta name="description" content="{escape(self._preview.description)}" />')
        return ROOT.sub(OWN_ROOT, PREVIEW_TAG.sub(b"", html)).replace(
            b"</head>", "".join(tags).encode() + b"</head>", 1
        )


class _EventRunner:
    """Event runner that passes only checked values to Gradio."""

    def __init__(self, app: ASGIApp, events: Mapping[int, Event]) -> None:
        self._app, self._events = app, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        request = _parsed(await _body(Request(scope, receive)))
        event = self._events.get(request.fn_index)
        if event is None:
            raise InvalidParameter("fn_index", "be an event of the page", request.fn_index, remedy=RELOAD)
        if event.name == "search":
            state["route"] = "page/search"
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


class _Photos:
    """Upload and download of photos; clients see only their own."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads

    async def upload(self, request: Request) -> Response:
        """Store a photo and return its token where Gradio would return a path."""
        client = request.state.client
        request.scope["state"]["route"] = "page/upload"
        declared = request.headers.get("content-length", "")
        expected = int(declared) if declared.isdigit() else UNSTATED
        with self._uploads.arriving(client, min(expected, MAX_BYTES)):
            files = await images_of(request, "files", most=1)
            if not files:
                raise ImageUnreadable("the form has no file in the field `files`", remedy="Send files=@photo.jpg")
            return JSONResponse([self._uploads.store(client, files[0])])

    async def progress(self, _: Request) -> Response:
        """Report the upload as done; the page shows no progress."""
        return Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")

    async def show(self, request: Request) -> Response:
        """Return an example or a photo uploaded by this client."""
        data = self._uploads.read(request.path_params["token"], request.state.client)
        form = format_of(data)
        kind = "application/octet-stream" if form is None else form.media_type
        return Response(data, media_type=kind, headers=PHOTO_HEADERS)


def photo_check(uploads: Uploads) -> Check:
    """Return the check of a photo input: a token stored for this client, which the session claims."""

    def check(value: Any, event: EventContext) -> dict[str, str] | None:
        if value is None:
            return None
        token = value.get("path") if isinstance(value, dict) else None
        if not isinstance(token, str):
            raise InvalidParameter("photo", "be an upload", type(value).__name__, remedy=RELOAD)
        uploads.claim(token, event.client, event.session)
        return {"path": token}

    return check


def _check_of(component: Any, uploads: Uploads) -> Check:
    kind = component.get_block_name()
    if kind == "image":
        return photo_check(uploads)
    if kind == "textbox":
        return _check_part if component.elem_id == "part" else _check_words
    if kind == "dataset":
        return _number_check(len(component.samples) - 1)
    raise TypeError(f"the page has no check for inputs of kind {kind!r}")


def _number_check(most: int) -> Check:
    def check(value: Any, _: EventContext) -> int:
        if type(value) is not int or not 0 <= value <= most:
            told = f"{value}"[:40] if type(value) in (int, float) else type(value).__name__
            raise InvalidParameter("number", f"lie between 0 and {most}", told, remedy=RELOAD)
        return value

    return check


def _check_part(value: Any, _: EventContext) -> str:
    """Return a part of a photo: four shares from 0 to 1, or "" for the whole photo."""
    if not isinstance(value, str) or not PART.fullmatch(value):
        told = value[:40] if isinstance(value, str) else type(value).__name__
        raise InvalidParameter("part", "be four numbers from 0 to 1, with commas", told, remedy=RELOAD)
    return value


def _check_words(value: Any, _: EventContext) -> str:
    """Return the words of a search."""
    return checked_text(value)


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


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > EVENT_BYTES:
            raise HTTPException(413, f"an event has more than {EVENT_BYTES:,} bytes")
    return body


def _parsed(body: bytes) -> EventRequest:
    """Return the event request of a body; raise InvalidParameter for the first invalid field."""
    try:
        return EventRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidParameter(name, "be as the page sends it", first["msg"], remedy=RELOAD) from None


async def _sweep(uploads: Uploads) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        uploads.sweep()


def _with_page_error(response: ProblemResponse) -> ProblemResponse:
    """Return a problem with an added member `error`, which the page's script displays."""
    text = ". ".join(str(response.content[name]) for name in ("title", "detail") if response.content[name])
    extended = ProblemResponse({**response.content, "error": text})
    if wait := response.headers.get("retry-after"):
        extended.headers["retry-after"] = wait
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
