"""Middleware for every request: keys, origin checks, security headers, access log and request metrics."""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrieval.errors import command
from serving.ops.metrics import Metrics
from serving.problems import problem

from .keys import ADMIN, CALLER, SEARCH, Caller, Key, KeyRing

log = logging.getLogger("retrieval.access")
PROBES = ("/healthz", "/readyz")  # open without a key: they reveal nothing
REPORT_PATH, BUNDLE_REPORT_PATH, DOCS_PATH = "/v1/report", "/v1/report/bundle", "/docs"
MANAGE_PATH = "/manage"  # and its files, for admins
PAGES = ("/", REPORT_PATH, BUNDLE_REPORT_PATH, DOCS_PATH, MANAGE_PATH)  # for browsers
UNROUTED = ("/metrics", "/openapi.json", DOCS_PATH)  # logged by their names wherever a request ends
LOCAL = ("localhost", "127.0.0.1", "::1")  # host names that a foreign DNS record cannot claim (DNS rebinding)
READING = ("GET", "HEAD")
API = "/v1/"
VERDICTS = "/v1/feedback/"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")  # a client's request id that is accepted
HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._~-]{0,255})(:[0-9]{0,5})?")  # host with optional port
COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CSP = "default-src 'none'; frame-ancestors 'none'"
CORS = [  # headers for pages of other origins that may call the API
    (b"vary", b"Origin"),
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (
        b"access-control-allow-headers",
        b"Authorization, Content-Type, If-Match, If-None-Match, X-API-Key, X-Request-ID",
    ),
    (b"access-control-expose-headers", b"Retry-After, X-Request-ID"),
    (b"access-control-max-age", b"600"),
]
SECURITY_HEADERS = [
    *((name.lower().encode(), value.encode()) for name, value in COMMON_HEADERS.items()),
    (b"content-security-policy", CSP.encode()),  # the last, which a response may replace
]


@dataclass
class _Request:
    """Facts about a request, collected for the log and the metrics."""

    request_id: str
    method: str
    path: str
    started: float
    is_utf8: bool = True  # whether its address is
    origin: str = ""  # of the page that sent it, if it is another one that may
    client: str = ""  # name of the key, or the address without keys
    key: str = ""
    status: int = 500


class Guard:
    """Access-control middleware around API and pages."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, keys: KeyRing | None, local: bool = False, origins: Sequence[str] = ()
    ) -> None:
        self._app, self._metrics, self._keys, self._local, self._origins = app, metrics, keys, local, origins
        self._ids = _RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse requests that fail a check and pass the others on."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # not supported
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id = headers.get("x-request-id", "")
        request = _Request(
            client_id if REQUEST_ID.fullmatch(client_id) else next(self._ids),
            scope["method"],
            scope["path"],
            time.perf_counter(),
            _is_utf8(scope),
        )
        scope.setdefault("state", {})["request_id"] = request.request_id
        request.client = (scope.get("client") or ("",))[0]
        if request.path.startswith(API) and headers.get("origin") in self._origins:
            request.origin = headers["origin"]
        CALLER.set(Caller())  # requests of one connection may share a context

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                message["headers"] = _with_headers(message.get("headers", ()), request)
            await send(message)

        try:
            refusal = self._refusal(request, headers)
            scope["state"]["client"] = request.client
            if refusal is not None:
                await refusal(scope, receive, send_noting_status)
            else:
                await self._app(scope, receive, send_noting_status)
        finally:
            self._record(request, scope)

    def _refusal(self, request: _Request, headers: Headers) -> Response | None:
        if request.path in PROBES:
            return None
        if not request.is_utf8:
            return problem(400, "the address is not UTF-8", "Percent-encode ids as UTF-8.")
        refusal = self._origin_answer(request, headers)
        if refusal is not None:
            return refusal
        if self._keys is not None:
            key = self._keys.find(_key_of(headers))
            if key is None:
                return _missing_key(request)
            request.key = request.client = key.name
            CALLER.set(Caller(key.name, is_admin=key.may(ADMIN)))
            return _missing_scope(request, key)
        return None

    def _origin_answer(self, request: _Request, headers: Headers) -> Response | None:
        """Refuse a bad Host header or a page of another origin, and answer the preflight of a page that may ask."""
        host = HOST.fullmatch(headers.get("host", ""))
        if host is None:
            return problem(
                400,
                "the header Host is not a host name with an optional port",
                "Send one, such as Host: example.org:7860.",
            )
        if self._local and host[1].strip("[]").lower() not in LOCAL:
            return problem(
                403, "this server accepts requests from its own machine only", "Use the host 127.0.0.1 or localhost."
            )
        if request.origin and "access-control-request-method" in headers:  # a preflight, which has no key
            return Response(status_code=204)
        origin = headers.get("origin")
        if origin is None or request.origin or request.method in READING:
            return None
        # a proxy may terminate TLS
        if origin not in [f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")]:
            return problem(
                403,
                "the request came from a page of another origin",
                "Send it from this server's page or without an Origin header, or allow the origin: "
                f"{command('serve', 'BUNDLE', 'GALLERY', '--allow-origin', 'ORIGIN')}",
            )
        return None

    def _record(self, request: _Request, scope: Scope) -> None:
        """Count and log a request by its route, which clients cannot make up."""
        named = "preflight" if request.method == "OPTIONS" else "refused"
        if request.path in (*PROBES, *UNROUTED):
            named = request.path
        route = getattr(scope.get("route"), "path", named)
        seconds = time.perf_counter() - request.started
        self._metrics.request(route, request.status, seconds)
        level = logging.DEBUG if request.path in PROBES else logging.INFO
        facts = {"method": request.method, "route": route, "status": request.status, "ms": round(1e3 * seconds, 2)}
        log.log(level, "request", extra={"facts": {"request_id": request.request_id, "key": request.key, **facts}})


def _is_utf8(scope: Scope) -> bool:
    """Return whether path and query are UTF-8; other bytes would all become the same character."""
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode()
        unquote_to_bytes(scope["query_string"]).decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_headers(headers: Sequence[tuple[bytes, bytes]], request: _Request) -> list[tuple[bytes, bytes]]:
    """Return the response headers with security headers, and with CORS headers for a page that may have them."""
    names = {name for name, _ in headers}
    kept = [*headers, *SECURITY_HEADERS[: -1 if b"content-security-policy" in names else None]]
    kept.append((b"x-request-id", request.request_id.encode()))
    if request.origin:
        kept += [(b"access-control-allow-origin", request.origin.encode()), *CORS]
    if b"cache-control" not in names:
        kept.append((b"cache-control", b"no-store"))
    return kept


class _RequestIds:
    """Random request ids, drawn in blocks: a system call for each would release the GIL."""

    def __init__(self) -> None:
        self._left = ""

    def __next__(self) -> str:
        if not self._left:
            self._left = os.urandom(4096).hex()
        request_id, self._left = self._left[:16], self._left[16:]
        return request_id


def _missing_scope(request: _Request, key: Key) -> Response | None:
    """Return the refusal of a request that the key's scope does not cover, or None."""
    changes = request.method in ("PUT", "DELETE") and not request.path.startswith(VERDICTS)  # one's own can be undone
    for_admins = changes or request.path.startswith(("/v1/admin/", MANAGE_PATH))
    scope = ADMIN if for_admins else SEARCH
    if key.may(scope):
        return None
    return problem(
        403,
        f"this key does not have the scope {scope}",
        f"Ask for one: {command('keys', 'add', 'FILE', 'NAME', '--scope', scope)}",
    )


def _missing_key(request: _Request) -> Response:
    response = problem(401, "an API key is required", "Send it as Authorization: Bearer KEY.")
    asks = 'Basic realm="Retrieval", charset="UTF-8"'  # browsers prompt for the key as a password
    response.headers["WWW-Authenticate"] = asks if request.path in PAGES else "Bearer"
    return response


def _key_of(headers: Headers) -> str:
    """Return the key of a request: bearer token, basic-auth password or X-API-Key header."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get("x-api-key", "")
