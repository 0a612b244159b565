"""Connections that the main process accepts and passes to its workers, over one socket pair per worker."""

from __future__ import annotations

import socket
from contextlib import suppress

READY, CLOSED, ALIVE = b"R", b"C", b"A"  # messages of a worker: it is ready, a connection ended, it is alive
PASSED = b"P"  # message that carries a connection


def pass_connection(channel: socket.socket, connection: socket.socket) -> bool:
    """Pass a connection to a worker; return False if the worker does not take it."""
    try:
        socket.send_fds(channel, [PASSED], [connection.fileno()])
    except OSError:  # the worker ended, or does not read its channel
        return False
    return True


class Teller:
    """Sends messages to the main process, and keeps those that it does not read in time for the next call."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._unsent = channel, b""

    def tell(self, message: bytes) -> None:
        """Send a message; if the main process has ended, `take_connection` notices."""
        self._unsent += message
        with suppress(OSError):
            self._unsent = self._unsent[self._channel.send(self._unsent) :]


def take_connection(channel: socket.socket) -> socket.socket | None:
    """Return the next connection, or None if this process has too many open files to take it.

    Raises
    ------
    BlockingIOError
        If no connection is waiting.
    EOFError
        If the main process ended.
    """
    message, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not message:
        raise EOFError
    return socket.socket(fileno=descriptors[0]) if descriptors else None
