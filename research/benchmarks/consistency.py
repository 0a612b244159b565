"""Time and memory of OPIS on many pairs, compared with a bare matrix product and a loop over classes.

    python -m research.benchmarks.consistency [--device cuda]
    python -m research.benchmarks.consistency --embeddings 12000 --classes 2200 --loop

The default is 60,000 embeddings of 11,000 classes, d = 512, and all pairs.

The baseline computes the same tiles of the cosine matrix on the same threads without evaluating them. It alternates
with OPIS, and medians are compared. Memory is the peak of the process above its level before the computation.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from retrieval.metrics import pairs
from retrieval.metrics.consistency import PairSource, opis
from training.evaluation import pair_counts

from .devices import CUDA, add_device, device_of, seconds_of
from .tables import NONE, Recorder, parser_of


def embeddings(count: int, classes: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit embeddings (n, d) as float32 and labels (n,) in random order."""
    generator = np.random.default_rng(0)
    labels = generator.integers(classes, size=count)
    vectors = generator.normal(size=(classes, dim)).astype(np.float32)[labels]
    spread = generator.uniform(0.5, 3, size=(classes, 1)).astype(
        np.float32
    )  # different spreads per class, for an OPIS above zero
    vectors += spread[labels] * generator.normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


def bare_product(vectors: np.ndarray, threads: int) -> None:
    """Compute every tile above the diagonal of the cosine matrix."""
    n, rows, columns = len(vectors), pairs.ROWS, pairs.COLUMNS

    def tile(place: tuple[int, int]) -> None:
        i, j = place
        np.matmul(vectors[i : i + rows], vectors[j : j + columns].T)

    places = ((i, j) for i in range(0, n, rows) for j in range(i, n, columns))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(tile, places):
            pass


def bare_product_on(device: torch.device, vectors: np.ndarray) -> None:
    """Compute every tile above the diagonal of the cosine matrix on a GPU."""
    unit, side = torch.from_numpy(vectors).to(device), pair_counts.TILE
    for row in range(0, len(unit), side):
        for column in range(row, len(unit), side):
            torch.matmul(unit[row : row + side], unit[column : column + side].T)


def loop_over_classes(vectors: np.ndarray, labels: np.ndarray, low: float, high: float) -> float:
    """Return OPIS computed per class, with the photos of the class against all."""
    points, rows = low + (high - low) * np.arange(1, 101) / 100, []
    for label in np.unique(labels):
        same_label = labels == label
        if same_label.sum() < 2:
            continue
        distances = np.sqrt(np.clip(2 - 2 * vectors[same_label] @ vectors.T, 0, 4))
        inside = np.sort(distances[:, same_label][np.triu_indices(same_label.sum(), 1)])
        outside = np.sort(distances[:, ~same_label].ravel())
        phi = 1 - np.searchsorted(outside, points, side="right") / len(outside)
        psi = np.searchsorted(inside, points, side="right") / len(inside)
        rows.append(np.divide(2 * phi * psi, phi + psi, out=np.zeros(100), where=phi + psi > 0))
    return float(np.var(rows, axis=0).mean())


def resident(field: str) -> float:
    """Return a memory figure of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--embeddings", type=int, default=60_000)
    parser.add_argument("--classes", type=int, default=11_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loop", action="store_true", help="Also the loop over classes.")
    add_device(parser)
    arguments = parser.parse_args()
    device = device_of(arguments)
    vectors, labels = embeddings(arguments.embeddings, arguments.classes, arguments.dim)

    def floor_of() -> None:
        if device.type == CUDA:
            bare_product_on(device, vectors)
        else:
            bare_product(vectors, arguments.threads)

    def counter(unit: np.ndarray, codes: np.ndarray) -> PairSource:
        if device.type == CUDA:
            return pair_counts.GpuPairs(unit, codes, device=CUDA)
        return pairs.Pairs(unit, codes, threads=arguments.threads)

    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current memory
    before, floors, times = resident("VmRSS"), [], []
    for _ in range(arguments.rounds):
        floors.append(seconds_of(floor_of, device))
        times.append(seconds_of(lambda: opis(vectors, labels, counter=counter), device))
    floor, ours = statistics.median(floors), statistics.median(times)
    ratio = statistics.median(time / floor for time, floor in zip(times, floors, strict=True))
    peak = resident("VmHWM") - before
    with Recorder("consistency-loop" if arguments.loop else "consistency", arguments) as record:
        record.table("OPIS of many pairs", ("what", "result", "of the bare product"))
        record.add("bare matrix product over the same pairs", f"{floor:.1f} s", "1")
        record.add("OPIS, range and counts", f"{ours:.1f} s", f"{ratio:.2f}")
        record.add("peak memory above the embeddings", f"{peak:.0f} MiB", NONE)
        if arguments.loop:
            result = opis(vectors, labels, counter=counter)
            started = time.perf_counter()
            value = loop_over_classes(vectors, labels, result.d_min, result.d_max)
            seconds = time.perf_counter() - started
            record.add("loop over classes, range given", f"{seconds:.1f} s", f"{seconds / floor:.0f}")
            print(f"\nOPIS {result.value:.8f}, by the loop {value:.8f}")


if __name__ == "__main__":
    main()
