"""The main process of a server with several workers, with workers that are no processes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retrieval.errors import InvalidParameter
from serving.config import ServeSettings
from serving.launch import ServePlan
from serving.workers import supervisor
from serving.workers.connections import ALIVE, CLOSED, READY, take_connection
from serving.workers.supervisor import LEAST_DELAY_S, MOST_DOUBLINGS, QUIET_S, Supervisor, Worker


class FakeWorker(Worker):
    """Worker whose process ended, with this end of its channel."""

    def __init__(self, number: int) -> None:
        self.number, self.ready, self.connections = number, True, 0
        self.started = self.heard = time.monotonic()
        self.channel, self.theirs = socket.socketpair()
        self.channel.setblocking(False)
        self.theirs.setblocking(False)
        self.process: Any = SimpleNamespace(sentinel=self.theirs.fileno(), exitcode=1, join=lambda: None)

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()


@pytest.fixture
def workers() -> Iterator[list[FakeWorker]]:
    both = [FakeWorker(number) for number in range(2)]
    yield both
    for worker in both:
        worker.close()


def main_process(delays: list[float]) -> Supervisor:
    """Return a supervisor that notes the delays of its restarts."""
    plan = ServePlan(Path("bundle"), Path("gallery"), ServeSettings(workers=2), False, ())
    found = Supervisor(plan, "127.0.0.1", [], Path())
    found._listening = True
    found._loop = SimpleNamespace(  # type: ignore[assignment]
        call_later=lambda delay, *_: delays.append(delay), remove_reader=lambda _: None
    )
    return found


def test_connections_go_to_the_worker_with_the_fewest_that_responds(workers: list[FakeWorker]) -> None:
    async def passed() -> list[int]:
        main, (first, second) = main_process([]), workers
        main._workers = {0: first, 1: second}
        taken = []
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for step in range(5):
                if step == 2:
                    second.theirs.send(CLOSED + ALIVE)
                    second.hear()
                if step == 4:
                    second.heard -= 2 * QUIET_S
                main._pass(ours)
                for worker in workers:
                    try:
                        connection = take_connection(worker.theirs)
                    except BlockingIOError:
                        continue
                    assert connection is not None
                    connection.close()
                    taken.append(worker.number)
        assert [worker.connections for worker in workers] == [3, 1]
        return taken

    assert asyncio.run(passed()) == [0, 1, 1, 0, 0]


def test_a_worker_that_keeps_failing_is_started_again_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> list[float]:
        delays: list[float] = []
        main = main_process(delays)
        for _ in range(1200):
            main._workers[0] = worker = FakeWorker(0)
            main._ended(worker)
            worker.theirs.close()

        def refused(*_: object) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(supervisor, "Worker", refused)
        main._start(0)
        return delays

    delays = asyncio.run(fail())
    assert delays[:3] == [LEAST_DELAY_S, 2 * LEAST_DELAY_S, 4 * LEAST_DELAY_S]
    assert delays[-1] == LEAST_DELAY_S * 2**MOST_DOUBLINGS
    assert len(delays) == 1201


def test_a_long_temporary_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * 40)
    supervisor.check_temporary_folder()
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/" + "x" * 90)
    with pytest.raises(InvalidParameter, match="TMPDIR"):
        supervisor.check_temporary_folder()


@pytest.mark.parametrize("workers", [0, 257])
def test_a_number_of_workers_that_makes_no_sense_is_refused(workers: int) -> None:
    with pytest.raises(InvalidParameter, match="workers"):
        ServeSettings(workers=workers)


def test_a_worker_is_ready_once_it_says_so(workers: list[FakeWorker]) -> None:
    worker = workers[0]
    worker.ready = False
    worker.hear()
    assert not worker.ready
    worker.theirs.send(READY)
    worker.hear()
    assert worker.ready
