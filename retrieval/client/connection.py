"""Client connection settings: server address and headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrieval.errors import InvalidParameter, MissingDependency

if TYPE_CHECKING:
    import httpx


def require_httpx() -> None:
    """Raise MissingDependency if httpx is not installed."""
    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise MissingDependency.of_extra("httpx", "client") from error


def address(base_url: str) -> httpx.URL:
    """Parse a server's URL; raise InvalidParameter if it is invalid."""
    import httpx

    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidParameter("base_url", "be an address", base_url) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidParameter("base_url", "begin with http:// or https:// and a host", base_url)
    return url


def headers(key: str | None) -> dict[str, str]:
    """Return the headers sent with each request."""
    secret = (key or "").strip()  # strip the newline of a key file
    if not secret:
        return {}
    if not (secret.isascii() and secret.isprintable()):
        raise InvalidParameter("key", "be printable ASCII", "something else")
    return {"Authorization": f"Bearer {secret}"}
