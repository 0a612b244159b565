"""Fetch a photo over https, from public addresses only, within limits on bytes and time."""

from __future__ import annotations

import base64
import time
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from retrieval.errors import ImageUnreadable, MissingDependency

if TYPE_CHECKING:
    import httpcore
    import httpx

ATTEMPTS, REDIRECTS = 3, 3
STEP_S, TOTAL_S = 10.0, 60.0  # seconds for each step of a connection, and for a photo
WAIT_S = 0.5  # before the second attempt, and twice that before the third
OK, AGAIN, MOVED = 200, frozenset((429, 500, 502, 503, 504)), frozenset((301, 302, 303, 307, 308))
_MAKING = Lock()


def fetch(url: str, *, limit: int) -> bytes:
    """Return up to `limit` bytes of an answer; raise ImageUnreadable if there is none."""
    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise MissingDependency.of_extra("httpx", "sources") from error
    from .connections import deadline

    token = deadline.set(time.monotonic() + TOTAL_S)
    try:
        return _fetch(url, limit, deadline.get())
    finally:
        deadline.reset(token)


def shown(url: str) -> str:
    """Return scheme, host and path of an address, for messages: the rest may hold a password or a token."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}".partition("?")[0].partition("#")[0]


def _fetch(url: str, limit: int, until: float) -> bytes:
    import httpcore
    import httpx

    failures = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, httpcore.UnsupportedProtocol)
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(max(0.0, min(WAIT_S * attempt, until - time.monotonic())))
        if time.monotonic() >= until:
            break
        try:
            status, data = _follow(url, limit)
        except (*failures, httpx.InvalidURL, OSError, UnicodeError) as error:
            reason = str(error) or type(error).__name__
            continue
        if status == OK:
            return data
        reason = f"the server answered with the status {status}"
        if status not in AGAIN:
            break
    if time.monotonic() >= until:
        reason = f"it takes longer than {TOTAL_S:g} seconds"
    raise ImageUnreadable(f"{shown(url)} cannot be read: {reason}", remedy="Check the address")


def _follow(url: str, limit: int) -> tuple[int, bytes]:
    """Return status and body of an address, following redirects."""
    import httpcore
    import httpx

    from .connections import ALLOWED, is_allowed, seconds_left

    address = httpx.URL(url)
    for _ in range(REDIRECTS + 1):
        host = address.raw_host.decode()
        if address.scheme != "https" and not (address.scheme == "http" and is_allowed(host)):
            raise ImageUnreadable(
                f"{shown(str(address))} is not an https address", remedy=f"Use https, or name the host in {ALLOWED}"
            )
        target = httpcore.URL(
            scheme=address.raw_scheme, host=address.raw_host, port=address.port, target=address.raw_path
        )
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), seconds_left(STEP_S))
        with _pool().stream("GET", target, headers=_headers(address), extensions={"timeout": timeouts}) as answer:
            place = next((value for name, value in answer.headers if name.lower() == b"location"), b"")
            if answer.status not in MOVED or not place:
                return answer.status, _body(answer, limit)
            address = address.join(place.decode("latin-1"))
    raise ImageUnreadable(f"{shown(url)} redirects more than {REDIRECTS} times")


def _headers(address: httpx.URL) -> dict[bytes | str, bytes | str]:
    headers: dict[bytes | str, bytes | str] = {
        "Host": address.netloc.decode(),
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "User-Agent": "retrieval",
    }
    if address.userinfo:
        user = base64.b64encode(f"{address.username}:{address.password}".encode()).decode()
        headers["Authorization"] = f"Basic {user}"
    return headers


def _body(answer: httpcore.Response, limit: int) -> bytes:
    data = bytearray()
    for part in answer.iter_stream():
        data += part
        if len(data) >= limit:
            break
    return bytes(data[:limit])


def _pool() -> httpcore.ConnectionPool:
    """Return the one pool of all threads."""
    with _MAKING:
        return _new_pool()


@cache
def _new_pool() -> httpcore.ConnectionPool:
    import httpx

    from .connections import new_pool

    return new_pool(httpx.create_ssl_context(trust_env=False))
