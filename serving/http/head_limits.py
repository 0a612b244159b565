"""HTTP protocol with limits on request heads; connections over a limit are closed."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0  # time limit of a request head, from the connection or its first byte
HEAD_BYTES = 128 * 1024  # size limit of a request head; uvicorn has neither limit
PIPELINED = 16  # pipelined requests accepted before the first is answered


class HeadLimitProtocol(HttpToolsProtocol):
    """Uvicorn's protocol with limits on time and size of request heads, and on pipelining."""

    _deadline: asyncio.TimerHandle | None = None
    _head = 0  # bytes since the last head ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Count the bytes of a head; start the timer of the next head on a kept-alive connection."""
        in_body = self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete
        if self._deadline is None and not in_body:
            self._start_timer()
        self._head = 0 if in_body else self._head + len(data)
        super().data_received(data)
        if self._head > HEAD_BYTES and self._deadline is not None:  # the head has not ended yet
            self._abort()

    def on_headers_complete(self) -> None:
        """Stop the timer and check the limits; `limits.BodyLimit` has its own timer for bodies."""
        self._stop_timer()
        head, self._head = sum(len(name) + len(value) for name, value in self.headers) + len(self.url), 0
        if len(self.pipeline) >= PIPELINED or head > HEAD_BYTES or self.transport.is_closing():
            self._abort()
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Pass on the end of a request unless the connection is closing."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and drop unanswered requests."""
        self._stop_timer()
        self.pipeline.clear()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._abort)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self._stop_timer()
        self.pipeline.clear()
        if not self.transport.is_closing():
            self.transport.abort()
