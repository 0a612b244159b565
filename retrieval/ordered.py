"""Work on parts of a list in threads, with the results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Sequence[Part]], Result], parts: Sequence[Part], *, size: int, threads: int
) -> Iterator[Result]:
    """Yield the results of `work` on runs of `size` parts, in order; at most `threads` + 2 are in progress."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: list[Future[Result]] = []
        for start in range(0, len(parts), size):
            waiting.append(pool.submit(work, parts[start : start + size]))
            if len(waiting) > threads + 1:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
