"""The bare loop of indexing in processes, compared with threads."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import Photo

from .tables import NONE

COLUMNS = ("photos", "workers", "photos per second", "processes / threads, median (least to most)")
_EMBEDDERS: list[Embedder] = []  # the one of this process


def process_rows(
    bundle: Bundle, kinds: Mapping[str, Sequence[Photo]], *, workers: int, batch: int, rounds: int
) -> Iterator[tuple[str, ...]]:
    """Yield the rates of threads and of as many processes; they take turns, and all have opened the model before."""
    with _started(ThreadPoolExecutor(workers), bundle) as threads, _started(_processes(workers), bundle) as processes:
        for kind, photos in kinds.items():
            paths = [[photo.path for photo in photos[i : i + batch]] for i in range(0, len(photos), batch)]
            turns = [(_rate(threads, paths), _rate(processes, paths)) for _ in range(rounds)]
            one, other = (statistics.median(turn[place] for turn in turns) for place in (0, 1))
            gains = sorted(turn[1] / turn[0] for turn in turns)
            yield kind, f"{workers} threads", f"{one:.4g}", NONE
            gain = f"{statistics.median(gains):.3f} ({gains[0]:.3f} to {gains[-1]:.3f})"
            yield kind, f"{workers} processes", f"{other:.4g}", gain


def _processes(workers: int) -> Executor:
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@contextmanager
def _started(pool: Executor, bundle: Bundle) -> Iterator[Executor]:
    """Yield a pool whose workers have opened the model."""
    with pool:
        list(pool.map(_open, [bundle.path] * 8))
        yield pool


def _open(bundle: Path) -> None:
    if not _EMBEDDERS:
        _EMBEDDERS.append(Bundle.open(bundle).embedder(threads=1))
        time.sleep(1)  # so that the other workers take part


def _embed(paths: Sequence[Path]) -> int:
    _EMBEDDERS[0].embed(paths)
    return len(paths)


def _rate(pool: Executor, paths: Sequence[Sequence[Path]]) -> float:
    """Return photos per second."""
    started = time.perf_counter()
    return sum(pool.map(_embed, paths)) / (time.perf_counter() - started)
