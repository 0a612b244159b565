"""HTTP for clients that do not send one: a connection whose request does not arrive is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_S = 10.0  # that a request's head may take, from the connection or from its first byte


class PunctualProtocol(HttpToolsProtocol):
    """Uvicorn's protocol with a deadline for the head of every request: it has none of its own."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Start the clock again for a further request on the same connection."""
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._start_clock()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Stop the clock: bodies have their own (`limits.BodyLimit`)."""
        self._stop_clock()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def _start_clock(self) -> None:
        self._deadline = self.loop.call_later(HEADER_S, self._hang_up)

    def _stop_clock(self, *_: Any) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _hang_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()
