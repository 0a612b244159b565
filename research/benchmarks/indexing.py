"""Throughput of `retrieval index`, compared with a bare loop of the same decode, resize and ONNX Runtime calls.

    python -m research.benchmarks.indexing BUNDLE

The bare loop decodes, resizes and embeds batches on the same cores with as many threads, and discards the results.
"""

from __future__ import annotations

import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.indexing.pipeline import index_catalogue

from .tables import Recorder, parser_of

BATCH = 16


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos = read_catalogue(data / "data/grocery/grocery.csv")[: arguments.photos]
    bundle = Bundle.open(arguments.bundle)
    bare: list[tuple[float, float]] = []
    full: list[tuple[float, float]] = []
    for _ in range(arguments.rounds):
        bare.append(rates(bare_loop, bundle, photos, arguments.threads))
        full.append(rates(index, bundle, photos, arguments.threads))
    ratios = [sorted(f[i] / b[i] for f, b in zip(full, bare, strict=True)) for i in (0, 1)]
    bare_name = f"bare loop: decode, resize, ONNX Runtime, {arguments.threads} threads"
    with Recorder("indexing", arguments) as record:
        record.table("indexing", ("what", "photos per second (wall clock)", "photos per CPU second"))
        for name, rounds in ((bare_name, bare), ("retrieval index, the same cores", full)):
            record.add(name, *(f"{statistics.median(values):.0f}" for values in zip(*rounds, strict=True)))
        cells = (f"{statistics.median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})" for values in ratios)
        record.add(f"ratio, median of {arguments.rounds} pairs (least to most)", *cells)


def rates(
    work: Callable[[Bundle, list[Photo], int], None], bundle: Bundle, photos: list[Photo], threads: int
) -> tuple[float, float]:
    """Return photos per second (wall clock, CPU)."""
    started, spent = time.perf_counter(), time.process_time()
    work(bundle, photos, threads)
    return len(photos) / (time.perf_counter() - started), len(photos) / (time.process_time() - spent)


def bare_loop(bundle: Bundle, photos: list[Photo], threads: int) -> None:
    embedder = bundle.embedder(threads=1)
    batches = [[photo.path for photo in photos[i : i + BATCH]] for i in range(0, len(photos), BATCH)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(embedder.embed, batches):
            pass


def index(bundle: Bundle, photos: list[Photo], threads: int) -> None:
    gallery = Path(tempfile.mkdtemp()) / "gallery"
    atexit.register(shutil.rmtree, gallery.parent)
    index_catalogue(bundle, photos, gallery, threads=threads, batch_size=BATCH, progress=False)


if __name__ == "__main__":
    main()
