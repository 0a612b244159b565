"""Work that is done ahead of its use: by one thread, item by item, or by several that share each item."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from retrieval.cores import threads_of_share

T = TypeVar("T")


def core_threads(threads: int) -> int:
    """Return how many threads to use: as asked, or for 0 one a core, shared with the processes beside this one."""
    return threads or threads_of_share()


def shared_ahead(jobs: Iterable[tuple[T, list[Callable[[], None]]]], *, threads: int, depth: int) -> Iterator[T]:
    """Yield the results of jobs (result, parts that fill it) in order, with `depth` of them under way meanwhile.

    The parts run in `threads` threads, in the order of the jobs. Jobs are drawn in the thread that uses the results,
    and errors of parts arrive there. Closing waits for the parts that run; those that have not begun never do.
    """
    waiting: deque[tuple[T, list[Future[None]]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
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


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yield what `items` yields, produced `depth` ahead by a thread; its errors arrive here."""
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
            for item in items:
                if not put((item, None)):
                    return
            put((None, StopIteration()))
        except BaseException as error:  # raised again where the items are used
            put((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
