"""`retrieval index` beside a bare loop of the same decode, resize and ONNX Runtime calls on the same cores.

    python benchmarks/indexing.py BUNDLE

The bare loop decodes, resizes and embeds batches on as many threads, and keeps nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retrieval.bundle import Bundle
from retrieval.catalogue import Photo, read_catalogue
from retrieval.indexing import index_catalogue

BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos = read_catalogue(data / "data/grocery/grocery.csv")[: arguments.photos]
    bundle = Bundle.open(arguments.bundle)
    bare, full = [], []
    for _ in range(arguments.rounds):
        bare.append(bare_rate(bundle, photos, arguments.threads))
        full.append(index_rate(bundle, photos, arguments.threads))
    ratio = statistics.median(f / b for f, b in zip(full, bare, strict=True))
    print("| what | photos/s |\n| --- | --- |")
    print(f"| bare loop: decode, resize, ONNX Runtime, {arguments.threads} threads | {statistics.median(bare):.0f} |")
    print(f"| retrieval index, the same cores | {statistics.median(full):.0f} |")
    print(f"| ratio, median of {arguments.rounds} pairs | {ratio:.3f} |")


def bare_rate(bundle: Bundle, photos: list[Photo], threads: int) -> float:
    embedder = bundle.embedder(threads=1)
    batches = [[photo.path for photo in photos[i : i + BATCH]] for i in range(0, len(photos), BATCH)]
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(embedder.embed, batches):
            pass
    return len(photos) / (time.perf_counter() - started)


def index_rate(bundle: Bundle, photos: list[Photo], threads: int) -> float:
    folder = Path(tempfile.mkdtemp())
    started = time.perf_counter()
    index_catalogue(bundle, photos, folder / "gallery", threads=threads, batch_size=BATCH, progress=False)
    rate = len(photos) / (time.perf_counter() - started)
    shutil.rmtree(folder)
    return rate


if __name__ == "__main__":
    main()
