"""Fetch a photo over https, from public addresses only, within limits on bytes and time."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from functools import cache
from typing import TYPE_CHECKING

from retrieval.errors import ImageUnreadable, MissingDependency

if TYPE_CHECKING:
    import httpx

ALLOWED = "RETRIEVAL_ALLOW_HOSTS"
ATTEMPTS, REDIRECTS = 3, 3
STEP_S, TOTAL_S = 10.0, 60.0  # seconds for each step of a connection, and for a photo
WAIT_S = 0.5  # before the second attempt, and twice that before the third
AGAIN = frozenset((429, 500, 502, 503, 504))


def fetch(url: str, *, limit: int) -> bytes:
    """Return up to `limit` bytes of an answer; raise ImageUnreadable if there is none."""
    try:
        import httpx
    except ImportError as error:
        raise MissingDependency.of_extra("httpx", "sources") from error
    until, reason = time.monotonic() + TOTAL_S, ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(WAIT_S * attempt)
        try:
            status, data = _follow(url, limit, until)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
            reason = str(error) or type(error).__name__
            continue
        if status == httpx.codes.OK:
            return data
        reason = f"the server answered with the status {status}"
        if status not in AGAIN:
            break
    raise ImageUnreadable(f"{url} cannot be read: {reason}", remedy="Check the address")


def _follow(url: str, limit: int, until: float) -> tuple[int, bytes]:
    """Return status and body of an address, following redirects."""
    import httpx

    address = httpx.URL(url)
    for _ in range(REDIRECTS + 1):
        pinned = address.copy_with(host=_address_of(address))
        headers = {"Host": address.netloc.decode(), "Accept-Encoding": "identity"}
        names = {"sni_hostname": address.host}
        with _client().stream("GET", pinned, headers=headers, extensions=names) as answer:
            if not answer.has_redirect_location:
                return answer.status_code, _body(answer, limit, until)
            address = address.join(answer.headers["location"])
    raise ImageUnreadable(f"{url} redirects more than {REDIRECTS} times")


def _body(answer: httpx.Response, limit: int, until: float) -> bytes:
    data = b""
    for part in answer.iter_raw():
        data += part
        if len(data) >= limit:
            break
        if time.monotonic() > until:
            raise ImageUnreadable(f"the photo takes longer than {TOTAL_S:g} seconds")
    return data[:limit]


def _address_of(url: httpx.URL) -> str:
    """Return the IP address to connect to; raise ImageUnreadable if the host is not public or there is no TLS."""
    if url.host in os.environ.get(ALLOWED, "").split(","):
        allowed = True
    elif url.scheme != "https":
        raise ImageUnreadable(f"{url} is not an https address", remedy=f"Use https, or name the host in {ALLOWED}")
    else:
        allowed = False
    found = socket.getaddrinfo(url.host, url.port or url.scheme, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in found]
    if not allowed and not all(_is_public(address) for address in addresses):
        raise ImageUnreadable(f"{url.host} has a private address", remedy=f"Name the host in {ALLOWED} if you trust it")
    return addresses[0]


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    embedded = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    return ip.is_global and not ip.is_multicast and (embedded is None or embedded.is_global)


@cache
def _client() -> httpx.Client:
    import httpx

    return httpx.Client(timeout=STEP_S, follow_redirects=False, trust_env=False)
