"""Limits of calls, shared by both clients."""

from __future__ import annotations

from typing import Any

from .calls import Call
from .connection import require_httpx
from .retries import Attempts, check_limits


class ClientLimits:
    """The limits of the calls of both clients."""

    def __init__(self, timeout: float, retries: int) -> None:
        check_limits(timeout, retries)
        require_httpx()
        self._timeout, self._retries = timeout, retries

    def _attempts(self, call: Call[Any]) -> Attempts:
        return Attempts(call, timeout=self._timeout, retries=self._retries)
