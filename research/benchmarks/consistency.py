"""OPIS of many pairs, beside the bare matrix product over the same pairs, and beside a loop over classes.

    python research/benchmarks/consistency.py                        # 60,000 embeddings of 11,000 classes, d = 512, exhaustive
    python research/benchmarks/consistency.py --embeddings 12000 --loop

The floor makes the same tiles of the cosine matrix on the same threads and looks at none of them; it takes turns with
OPIS, and medians are compared. Memory is the peak of the process above what it held before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from retrieval.metrics import pairs
from retrieval.metrics.consistency import opis


def embeddings(count: int, classes: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit embeddings (n, d) as float32 and labels (n,) in random order."""
    generator = np.random.default_rng(0)
    labels = generator.integers(classes, size=count)
    vectors = generator.normal(size=(classes, dim)).astype(np.float32)[labels]
    spread = generator.uniform(0.5, 3, size=(classes, 1)).astype(np.float32)  # classes differ: OPIS is not zero
    vectors += spread[labels] * generator.normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def bare_product(vectors: np.ndarray, threads: int) -> None:
    """Make every tile above the diagonal of the cosine matrix."""
    n, rows, columns = len(vectors), pairs.ROWS, pairs.COLUMNS

    def tile(place: tuple[int, int]) -> None:
        i, j = place
        np.matmul(vectors[i : i + rows], vectors[j : j + columns].T)

    places = ((i, j) for i in range(0, n, rows) for j in range(i, n, columns))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(tile, places):
            pass


def loop_over_classes(vectors: np.ndarray, labels: np.ndarray, low: float, high: float) -> float:
    """Return OPIS class by class, each class's photos against all."""
    points, rows = low + (high - low) * np.arange(1, 101) / 100, []
    for label in np.unique(labels):
        mine = labels == label
        if mine.sum() < 2:
            continue
        distances = np.sqrt(np.clip(2 - 2 * vectors[mine] @ vectors.T, 0, 4))
        inside = np.sort(distances[:, mine][np.triu_indices(mine.sum(), 1)])
        outside = np.sort(distances[:, ~mine].ravel())
        phi = 1 - np.searchsorted(outside, points, side="right") / len(outside)
        psi = np.searchsorted(inside, points, side="right") / len(inside)
        rows.append(np.divide(2 * phi * psi, phi + psi, out=np.zeros(100), where=phi + psi > 0))
    return float(np.var(rows, axis=0).mean())


def timed(work: object, *arguments: object, **named: object) -> tuple[float, object]:
    started = time.perf_counter()
    result = work(*arguments, **named)  # type: ignore[operator]
    return time.perf_counter() - started, result


def resident(field: str) -> float:
    """Return a memory figure of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", type=int, default=60_000)
    parser.add_argument("--classes", type=int, default=11_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", action="store_true", help="Also the loop over classes.")
    arguments = parser.parse_args()
    vectors, labels = embeddings(arguments.embeddings, arguments.classes, arguments.dim)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark falls to what is there now
    before, floors, times = resident("VmRSS"), [], []
    for _ in range(arguments.rounds):
        floors.append(timed(bare_product, vectors, arguments.threads)[0])
        seconds, result = timed(opis, vectors, labels, counter=lambda *a: pairs.Pairs(*a, threads=arguments.threads))
        times.append(seconds)
    floor, ours = statistics.median(floors), statistics.median(times)
    print(f"{arguments.embeddings} embeddings, {arguments.classes} classes, d = {arguments.dim}")
    print(f"{arguments.threads} threads, medians of {arguments.rounds} rounds\n")
    print("| what | seconds | ratio |\n| --- | --- | --- |")
    print(f"| bare matrix product over the same pairs | {floor:.1f} | 1 |")
    print(f"| OPIS, exhaustive, range and counts | {ours:.1f} | {ours / floor:.2f} |")
    if arguments.loop:
        seconds, value = timed(loop_over_classes, vectors, labels, result.d_min, result.d_max)  # type: ignore[attr-defined]
        print(f"| loop over classes (range given) | {seconds:.1f} | {seconds / floor:.2f} |")
        print(f"\nOPIS {result.value:.8f}, by the loop {value:.8f}")  # type: ignore[attr-defined]
    print(f"\nPeak memory above the embeddings: {resident('VmHWM') - before:.0f} MiB")


if __name__ == "__main__":
    main()
