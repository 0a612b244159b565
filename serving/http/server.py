"""Uvicorn server with a bounded shutdown time."""

from __future__ import annotations

import faulthandler
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

import uvicorn

GRACE_S = 10  # time for running requests after SIGTERM
EXIT_S = 14  # then the process exits even if threads hang
STARTUP_FAILURE = 3  # same exit status as uvicorn's command


class Server(uvicorn.Server):
    """Server whose shutdown cannot be blocked by a thread, a connection or the event loop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown and its watchdog, which needs no Python thread and prints every thread's traceback."""
        if not self.should_exit:  # a second signal does not extend the time
            faulthandler.dump_traceback_later(EXIT_S, exit=True)
        super().handle_exit(sig, frame)


def run(config: uvicorn.Config, listeners: Sequence[socket.socket]) -> None:
    """Serve on bound sockets until SIGTERM or SIGINT."""
    run_server(Server(config), listeners)


def run_server(server: Server, listeners: Sequence[socket.socket]) -> None:
    """Run a server on bound sockets until SIGTERM or SIGINT."""
    with suppress(KeyboardInterrupt):
        server.run(sockets=list(listeners))
    if not server.started:
        sys.exit(STARTUP_FAILURE)
