import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from retrieval.process import threads_of_share
from training.data.reader import prefetch_parallel

Jobs = Iterator[tuple[list[int], list[Callable[[], None]]]]


def numbered(count: int, *, drawn: list[int] | None = None, slow: float = 0.0) -> Jobs:
    def fill(result: list[int], place: int, value: int) -> None:
        time.sleep(slow * (value % 3))
        result[place] = value

    for number in range(count):
        if drawn is not None:
            drawn.append(number)
        result = [-1] * 4
        yield result, [partial(fill, result, place, 4 * number + place) for place in range(4)]


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_whole_and_in_order(threads: int) -> None:
    made = list(prefetch_parallel(numbered(6, slow=0.002), threads=threads, depth=2))
    assert made == [[4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3] for n in range(6)]


def test_no_more_jobs_are_drawn_than_the_depth() -> None:
    drawn: list[int] = []
    stream = prefetch_parallel(numbered(50, drawn=drawn), threads=2, depth=3)
    for number in range(3):
        next(stream)
        assert len(drawn) == number + 4
    stream.close()  # type: ignore[attr-defined]


def test_an_error_of_a_part_arrives_in_its_turn() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def jobs() -> Jobs:
        yield from numbered(2)
        yield [], [fail]
        yield from numbered(2)

    stream = prefetch_parallel(jobs(), threads=2, depth=4)
    assert [next(stream)[0] for _ in range(2)] == [0, 4]
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_closing_waits_for_what_runs_and_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    closing = threading.Event()
    shut_down = ThreadPoolExecutor.shutdown

    def shutdown(pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        shut_down(pool, wait=False, cancel_futures=cancel_futures)
        closing.set()
        shut_down(pool, wait=wait)

    def part(number: int) -> None:
        begun.append(number)
        assert number == 0 or closing.wait(60)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)
    jobs = (([number], [partial(part, number)]) for number in range(1000))
    stream = prefetch_parallel(jobs, threads=2, depth=100)
    assert next(stream) == [0]
    stream.close()  # type: ignore[attr-defined]
    assert sorted(begun) in ([0], [0, 1], [0, 1, 2])  # a thread that has not begun begins nothing
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_threads_are_one_a_core_shared_with_the_processes_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert threads_of_share() >= 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert threads_of_share() == 1
