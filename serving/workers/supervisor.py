"""The main process of a server with several workers: starts and stops them, and passes connections to them."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval.errors import InvalidParameter
from retrieval.process import bind
from serving.http.server import EXIT_S
from serving.launch import BACKLOG, METRICS_FOLDER, ServePlan, log_to_stderr

from .connections import CLOSED, READY, pass_connection
from .folder import private_folder
from .process import run_worker

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext
    from multiprocessing.process import BaseProcess

log = logging.getLogger("retrieval.serving")
# Processes forked from one that has imported everything share its memory; forks are not safe on macOS.
PROCESSES: ForkServerContext | SpawnContext = (
    multiprocessing.get_context("forkserver") if sys.platform == "linux" else multiprocessing.get_context("spawn")
)
PROCESSES.set_forkserver_preload(["serving.workers.preload"])
FAILED = 1  # exit status if the first worker cannot serve
QUIET_S = 5.0  # a worker without a message for so long gets connections only if no other one responds
SILENT_S = 60.0  # a worker without a message for so long hangs, and is killed
CHECK_S = 5.0
STABLE_S = 60.0  # after so long, earlier failures of a worker no longer count
LEAST_DELAY_S, MOST_DOUBLINGS = 1.0, 5  # delay of a restart, and how often it doubles
FULL_S = 1.0  # pause if this process has too many open files
MOST_BYTES = 64  # of the path of the temporary folder; sockets allow 103 with their names
MESSAGES = 4096  # bytes read at a time


class Worker:
    """A worker process and its state in the main process."""

    def __init__(self, plan: ServePlan, folder: Path, number: int) -> None:
        self.number, self.ready, self.connections = number, False, 0
        self.started = self.heard = time.monotonic()
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        peers = (folder, number, plan.settings.workers)
        self.process: BaseProcess = PROCESSES.Process(
            target=run_worker, args=(plan, peers, theirs), name=f"worker {number}"
        )
        with theirs:
            self.process.start()

    def hear(self) -> None:
        """Read the worker's messages."""
        with suppress(OSError):
            messages = self.channel.recv(MESSAGES)
            self.ready = self.ready or READY in messages
            self.connections -= messages.count(CLOSED)
            if messages:
                self.heard = time.monotonic()

    @property
    def load(self) -> tuple[bool, int]:
        """Return whether the worker is silent, and its number of connections; the least pair gets the next one."""
        return time.monotonic() - self.heard > QUIET_S, self.connections


class Supervisor:
    """Starts workers, passes each new connection to the one with the fewest, and restarts workers that ended."""

    def __init__(self, plan: ServePlan, host: str, listeners: Sequence[socket.socket], folder: Path) -> None:
        self._plan, self._host, self._listeners, self._folder = plan, host, listeners, folder
        self._workers: dict[int, Worker] = {}
        self._failures: dict[int, int] = {}
        self._listening = self._stopping = False
        self._done = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.status = 0

    async def run(self) -> int:
        """Run until a signal; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop)
        self._start(0)
        checks = asyncio.create_task(self._check())
        await self._done.wait()
        checks.cancel()
        return self.status

    def _start(self, number: int) -> None:
        if self._stopping:
            return
        try:
            worker = self._workers[number] = Worker(self._plan, self._folder, number)
        except OSError as error:  # too many open files or processes
            if not self._listening:
                raise
            log.error("worker %d cannot be started: %s", number, error)
            self._start_later(number)
            return
        self._loop.add_reader(worker.channel, self._hear, worker)
        self._loop.add_reader(worker.process.sentinel, self._ended, worker)

    def _start_later(self, number: int) -> None:
        """Start a worker after a delay that doubles with each failure."""
        failures = self._failures.get(number, 0)
        self._failures[number] = min(failures + 1, MOST_DOUBLINGS)
        self._loop.call_later(LEAST_DELAY_S * 2**failures, self._start, number)

    def _hear(self, worker: Worker) -> None:
        worker.hear()
        if worker.ready and not self._listening:
            self._listen()

    def _listen(self) -> None:
        """Accept connections, now that the first worker serves, and start the other workers."""
        self._listening = True
        for listener in self._listeners:
            listener.listen(BACKLOG)
            listener.setblocking(False)
        self._accept_from_now()
        self._plan.announce_address(self._host, self._listeners)
        log_to_stderr()
        for number in range(1, self._plan.settings.workers):
            self._start(number)

    def _accept_from_now(self) -> None:
        if not self._stopping:
            for listener in self._listeners:
                self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept waiting connections and pass them to workers."""
        for _ in range(BACKLOG):  # then signals and messages are handled
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("connections cannot be accepted: %s", error)
                for each in self._listeners:
                    self._loop.remove_reader(each)
                self._loop.call_later(FULL_S, self._accept_from_now)
                return
            with connection:
                self._pass(connection)

    def _pass(self, connection: socket.socket) -> None:
        """Pass a connection to the worker with the fewest; with no worker ready, it is closed."""
        ready = [worker for worker in self._workers.values() if worker.ready]
        for worker in sorted(ready, key=lambda worker: worker.load):
            if pass_connection(worker.channel, connection):
                worker.connections += 1
                return

    def _ended(self, worker: Worker) -> None:
        """Clean up after a worker that ended, and start another one in its place."""
        self._loop.remove_reader(worker.process.sentinel)
        self._loop.remove_reader(worker.channel)
        worker.process.join()
        worker.channel.close()
        del self._workers[worker.number]
        if not self._listening and not self._stopping:
            self._stopping, self.status = True, FAILED
        if self._stopping:
            if not self._workers:
                self._done.set()
            return
        if time.monotonic() - worker.started > STABLE_S:
            self._failures[worker.number] = 0
        log.error("worker %d ended with status %s; it is started again", worker.number, worker.process.exitcode)
        self._start_later(worker.number)

    def _stop(self) -> None:
        """End all workers; kill those that do not end in time."""
        if self._stopping:
            return
        self._stopping = True
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        for worker in self._workers.values():
            worker.process.terminate()
        self._loop.call_later(EXIT_S + 1, self._kill)
        if not self._workers:
            self._done.set()

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()

    async def _check(self) -> None:
        """Kill workers that hang."""
        while True:
            await asyncio.sleep(CHECK_S)
            for worker in self._workers.values():
                if worker.ready and time.monotonic() - worker.heard > SILENT_S:
                    log.error("worker %d does not answer and is killed", worker.number)
                    worker.process.kill()


def check_temporary_folder() -> None:
    """Raise InvalidParameter if the path of the temporary folder is too long for sockets."""
    place = tempfile.gettempdir()
    if len(os.fsencode(place)) > MOST_BYTES:
        raise InvalidParameter("TMPDIR", f"have at most {MOST_BYTES} bytes, for the sockets of the workers", place)


def serve_by_workers(plan: ServePlan, host: str, port: int) -> int:
    """Serve by several processes until signalled to stop; return the exit status."""
    check_temporary_folder()
    listeners = bind(host, port)
    try:
        with private_folder() as folder:
            os.environ[METRICS_FOLDER] = str(folder)  # read by the metrics of the workers

            async def run() -> int:
                return await Supervisor(plan, host, listeners, folder).run()

            return asyncio.run(run())
    finally:
        for listener in listeners:
            listener.close()
