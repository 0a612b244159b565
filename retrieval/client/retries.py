"""Retries of client requests: transient errors of idempotent calls, until a deadline."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from http import HTTPStatus
from random import SystemRandom
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from retrieval.errors import InvalidParameter

from .calls import Call

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
LEAST_TIMEOUT_S = 0.01
TRANSIENT = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

jitter = SystemRandom().uniform


class Attempts:
    """The attempts of one call, and its deadline."""

    def __init__(self, call: Call[Any], *, timeout: float, retries: int) -> None:
        self._call = call
        self._deadline = monotonic() + timeout
        self._retries = retries
        self._made = 0

    def request(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Build the request of the next attempt, limited to the remaining time."""
        return self._call.request(http, timeout=max(self._left(), LEAST_TIMEOUT_S))

    def pause(self, outcome: httpx.Response | httpx.RequestError) -> float | None:
        """Return the seconds to wait before the next attempt, None if this outcome is final.

        Uses exponential backoff with full jitter, added to the server's Retry-After. A pause beyond the deadline ends
        the attempts.
        """
        if self._made == self._retries or not _may_repeat(self._call, outcome):
            return None
        longest = min(FIRST_PAUSE_S * 2**self._made, LONGEST_PAUSE_S)
        self._made += 1
        pause = _retry_after(outcome) + jitter(0, longest)
        return pause if pause < self._left() else None

    def _left(self) -> float:
        return self._deadline - monotonic()


def check_limits(timeout: float, retries: int) -> None:
    """Raise InvalidParameter for an invalid timeout or number of retries."""
    if not 0 < timeout < float("inf"):
        raise InvalidParameter("timeout", "be a positive number of seconds", timeout)
    if retries < 0:
        raise InvalidParameter("retries", "be at least 0", retries)


def _may_repeat(call: Call[Any], outcome: httpx.Response | httpx.RequestError) -> bool:
    import httpx

    if isinstance(outcome, httpx.Response):
        return call.repeatable and outcome.status_code in TRANSIENT and outcome.status_code not in call.accepted
    if isinstance(outcome, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return True  # nothing was sent
    return call.repeatable and isinstance(
        outcome, (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError)
    )


def _retry_after(outcome: httpx.Response | httpx.RequestError) -> float:
    """Return the Retry-After of a response in seconds; the header may be a date."""
    if isinstance(outcome, Exception):
        return 0.0
    value = outcome.headers.get("Retry-After", "")
    try:
        return float(value) if value.isdecimal() else max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except (ValueError, OverflowError):  # neither seconds nor a date
        return 0.0
