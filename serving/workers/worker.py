"""A worker: serves the connections from the main process and the requests of the other workers."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from typing import Any

import uvicorn

from retrieval.errors import BundleError
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.http.head_limits import HeadLimitProtocol
from serving.http.server import Server, run_server
from serving.launch import BACKLOG, ServePlan, log_to_stderr, server_config

from .connections import ALIVE, CLOSED, READY, Teller, take_connection
from .peers import Peers

HEARTBEAT_S = 1.0


class PassedProtocol(HeadLimitProtocol):
    """Protocol of a connection that the main process accepted; tells it when the connection ends."""

    main: Teller

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the main process, which counts the connections of each worker."""
        super().connection_lost(exc)
        self.main.tell(CLOSED)


class WorkerServer(Server):
    """Server of one worker.

    Parameters
    ----------
    channel:
        Socket over which connections arrive.
    """

    def __init__(self, config: uvicorn.Config, channel: socket.socket) -> None:
        super().__init__(config)
        self._channel, self._main = channel, Teller(channel)
        self._tasks: set[asyncio.Task[object]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then take connections."""
        await super().startup(sockets)
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._take)
        self._main.tell(READY)
        self._keep(self._send_heartbeats())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and end the others."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        await super().shutdown(sockets)

    def _take(self) -> None:
        try:
            connection = take_connection(self._channel)
        except BlockingIOError:
            return
        except (EOFError, OSError):  # the main process ended
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self.handle_exit(signal.SIGTERM, None)
            return
        if connection is None:
            self._main.tell(CLOSED)
        else:
            connection.setblocking(False)
            self._keep(asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection))

    def _protocol(self) -> PassedProtocol:
        protocol = PassedProtocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        protocol.main = self._main
        return protocol

    def _keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine and keep a reference to its task until it is done."""
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_heartbeats(self) -> None:
        while True:
            self._main.tell(ALIVE)
            await asyncio.sleep(HEARTBEAT_S)


def serve_passed(plan: ServePlan, peers: Peers, channel: socket.socket) -> None:
    """Serve the connections of a channel until the main process ends or tells this one to stop."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with peers.starting():
            retriever = _open(plan, peers)
            if peers.is_first and not peers.states():
                plan.announce(retriever)
            app = create_app(
                retriever, settings=plan.settings, page=plan.page, examples=plan.examples, reopen=plan.open, peers=peers
            )
            log_to_stderr()
            path = peers.socket(peers.number)
            path.unlink(missing_ok=True)  # of the process that ran before under this number
            listener.bind(str(path))
            listener.listen(BACKLOG)
        run_server(WorkerServer(server_config(app), channel), [listener])


def _open(plan: ServePlan, peers: Peers) -> Retriever:
    """Open the bundle and the gallery that the other workers serve, or those of the plan if no other worker serves.

    Raises
    ------
    BundleError
        If the bundle at that path is not the one that the others serve.
    """
    peers.settle()
    states = peers.states()
    if not states:
        return plan.open()
    serving = states[0]
    detector = plan.settings.detector
    retriever = Retriever.open(serving.bundle, serving.gallery, detector=detector)
    if retriever.bundle.bundle_id != serving.bundle_id:
        raise BundleError(
            f"{serving.bundle} has changed since the server opened it", remedy="Reload, or restart the server"
        )
    return retriever
