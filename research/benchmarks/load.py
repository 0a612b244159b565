"""HTTP load generators: closed loops and Poisson arrivals.

A closed loop sends the next request after the answer; a slow server therefore receives less load, which flatters its
latency. Poisson arrivals are independent of the answers, and latency counts from the scheduled time of a request.
"""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

UNANSWERED = 0  # status of a request without an answer
PATIENCE_S = 60.0  # client timeout
IDLE_S = 3.0  # idle connections are not reused after this time: the server may be closing them
SPIN_S = 0.002  # busy wait before an arrival, because timers are too coarse
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """Result of one request; times are from `time.perf_counter`."""

    photo: int
    due: float
    sent: float
    done: float
    status: int
    body: bytes = b""
    retry_after: bool = False

    @property
    def seconds(self) -> float:
        """Return the latency from the scheduled time."""
        return self.done - self.due


class Connections:
    """A pool of keep-alive connections to one port, with little overhead of its own.

    Idle connections are used in turn, like those of many clients.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = deque()

    async def open(self, count: int) -> None:
        """Open connections in advance."""
        now = time.perf_counter()
        for _ in range(count):
            self._idle.append((*await asyncio.open_connection("127.0.0.1", self._port), now))

    async def ask(self, photo: int, body: bytes, *, due: float | None = None, path: str = "/v1/search") -> Answer:
        """Send a request and wait for its answer."""
        sent = time.perf_counter()
        due = sent if due is None else due
        try:
            async with asyncio.timeout(PATIENCE_S):
                head, told = await self._exchange(path, body)
        except (OSError, EOFError, TimeoutError):
            return Answer(photo, due, sent, time.perf_counter(), UNANSWERED)
        return Answer(photo, due, sent, time.perf_counter(), int(head[9:12]), told, b"retry-after:" in head.lower())

    async def _exchange(self, path: str, body: bytes) -> tuple[bytes, bytes]:
        reader, writer = await self._connection()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n"
        try:
            writer.write(head.encode() + b"\r\n" + body)
            head_of_answer = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head_of_answer)
            told = await reader.readexactly(int(length[1]) if length else 0)
        except BaseException:
            writer.close()
            raise
        self._idle.append((reader, writer, time.perf_counter()))
        return head_of_answer, told

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer, used = self._idle.popleft()
            if time.perf_counter() - used < IDLE_S and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        """Close all connections."""
        for _, writer, _ in self._idle:
            writer.close()


async def closed_loop(port: int, images: Sequence[bytes], numbers: Iterable[int], *, concurrency: int) -> list[Answer]:
    """Search the photos with these numbers from `concurrency` clients, each waiting for its answer."""
    connections, answers, coming = Connections(port), [], iter(numbers)
    await connections.open(concurrency)

    async def client() -> None:
        for number in coming:
            photo = number % len(images)
            answers.append(await connections.ask(photo, images[photo]))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    connections.close()
    return answers


async def poisson(
    port: int,
    images: Sequence[bytes],
    *,
    rate: float,
    seconds: float,
    generator: np.random.Generator,
    spin_s: float = SPIN_S,
) -> list[Answer]:
    """Send requests as a Poisson process, independent of the answers.

    With `spin_s=0`, waiting takes no CPU time from a server on the same cores, but requests may be a millisecond late.
    """
    due = np.cumsum(generator.exponential(1 / rate, size=round(rate * seconds)))
    connections, asked = Connections(port), []
    await connections.open(8)
    start = time.perf_counter() + 0.01
    for number, moment in enumerate((start + due).tolist()):
        while (left := moment - time.perf_counter()) > 0:
            await asyncio.sleep(left - spin_s if left > spin_s else 0)
        photo = number % len(images)
        asked.append(asyncio.create_task(connections.ask(photo, images[photo], due=moment)))
    answers = await asyncio.gather(*asked)
    connections.close()
    return answers


def latencies_of(answers: Sequence[Answer]) -> list[float]:
    """Return the latencies of the answers; every status must be 200."""
    wrong = [answer.status for answer in answers if answer.status != 200]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(answers)} requests failed, with {sorted(set(wrong))}")
    return [answer.seconds for answer in answers]


def ideal_queue(
    answers: Sequence[Answer],
    services: Sequence[float],
    generator: np.random.Generator,
    *,
    places: int = 1,
    queues: int = 1,
) -> list[float]:
    """Return the latencies of ideal queues with `places` servers each and these service times, for the same arrivals.

    With several queues, each arrival joins one at random, not the shortest: a connection stays with its worker.
    """
    free, latencies = [[0.0] * places for _ in range(queues)], []
    chosen = generator.integers(queues, size=len(answers)).tolist() if queues > 1 else [0] * len(answers)
    times = generator.choice(services, size=len(answers)).tolist()
    for answer, service, queue in zip(answers, times, chosen, strict=True):
        done = max(free[queue][0], answer.due) + service
        heapq.heapreplace(free[queue], done)
        latencies.append(done - answer.due)
    return latencies
