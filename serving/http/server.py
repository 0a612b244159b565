"""Uvicorn's server, which ends in a bounded time whatever hangs."""

from __future__ import annotations

import faulthandler
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import uvicorn

GRACE_S = 10  # that requests under way have after SIGTERM
EXIT_S = 14  # after which the process ends, though threads hang
STARTUP_FAILURE = 3  # as uvicorn's own command exits


class Server(uvicorn.Server):
    """A server whose end cannot be held up: not by a thread, a connection or the loop itself."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, and start the clock: it needs no Python thread, and prints where each of them stands."""
        if not self.should_exit:  # a second signal does not put it off
            faulthandler.dump_traceback_later(EXIT_S, exit=True)
        super().handle_exit(sig, frame)


def run(config: uvicorn.Config, listeners: Sequence[socket.socket]) -> None:
    """Serve on bound sockets until SIGTERM or SIGINT."""
    server = Server(config)
    with suppress(KeyboardInterrupt):
        server.run(sockets=list(listeners))
    if not server.started:
        sys.exit(STARTUP_FAILURE)
