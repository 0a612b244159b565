"""Prefetching in background threads: one thread for an iterator, or several that share each job."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch_parallel(jobs: Iterable[tuple[T, list[Callable[[], None]]]], *, threads: int, depth: int) -> Iterator[T]:
    """Yield the results of jobs (result, parts that fill it) in order, running `depth` jobs ahead.

    The parts run in `threads` threads, in the order of the jobs. Jobs are drawn in the consuming thread, which also
    receives the errors of parts. Closing waits for running parts and cancels the others.
    """
    waiting: deque[tuple[T, list[Future[None]]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch")
    try:
        for result, parts in jobs:
            waiting.append((result, [pool.submit(part) for part in parts]))
            if len(waiting) > depth:
                yield _done(*waiting.popleft())
        while waiting:
            yield _done(*waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done(result: T, futures: list[Future[None]]) -> T:
    for future in futures:
        future.result()
    return result


def prefetch(source: Iterator[T], depth: int) -> Iterator[T]:
    """Yield from an iterator that a thread runs `depth` elements ahead; its errors are raised here."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(entry: tuple[T | None, BaseException | None]) -> bool:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for element in source:
                if not put((element, None)):
                    return
            put((None, StopIteration()))
        except BaseException as error:  # raised again in the consuming thread
            put((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            element, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield element  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
