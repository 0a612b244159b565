"""A closed loop of HTTP searches: each client sends the next request after its answer."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor


def closed_loop(port: int, images: Sequence[bytes], count: int, *, concurrency: int) -> tuple[list[float], float]:
    """Search `count` photos from several clients; return the seconds of each answer, and of all together."""

    def client(first: int) -> list[float]:
        connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=60), []
        for number in range(first, count, concurrency):
            started = time.perf_counter()
            connection.request("POST", "/v1/search", images[number % len(images)], {"Content-Type": "image/jpeg"})
            answer = connection.getresponse()
            answer.read()
            seconds.append(time.perf_counter() - started)
            if answer.status != 200:
                raise SystemExit(f"a search was answered with {answer.status}")
        connection.close()
        return seconds

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        seconds = [second for several in pool.map(client, range(concurrency)) for second in several]
    return seconds, time.perf_counter() - started
