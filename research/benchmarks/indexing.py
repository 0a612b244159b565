"""Throughput of `retrieval index`, compared with a bare loop of the same decode, resize and ONNX Runtime calls.

    python -m research.benchmarks.indexing BUNDLE

The bare loop decodes, resizes and embeds batches on the same cores with as many threads, and discards the results. Both
take turns, with photos as they are (168 pixels) and with photos of 12 megapixels. The threshold of the gallery is set
after its photos have been written; this is timed apart. Scaling is the throughput of `retrieval index` with as many
threads as cores, divided by that with one thread.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from PIL import Image

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.indexing import pipeline
from retrieval.indexing.pipeline import index_catalogue

from .tables import NONE, Recorder, parser_of

BATCH = 16
LARGE, LARGE_SIZE, LARGE_FILES = (
    "12 MP",
    (4000, 3000),
    4,
)  # photos of a phone: files that are indexed many times under different ids
BARS = ("what", "photos per second (wall clock)", "photos per CPU second")
SCALING = ("photos", "threads", "photos per second", "times one thread, median (least to most)")


class Spent(NamedTuple):
    """Seconds by wall clock and of CPU time."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> Spent:
        """Measure some work."""
        started, spent = time.perf_counter(), time.process_time()
        work()
        return cls(time.perf_counter() - started, time.process_time() - spent)


class Rates(NamedTuple):
    """Photos per second by wall clock and by CPU time, and the seconds that setting the threshold took."""

    wall: float
    cpu: float
    threshold: float


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--photos", type=int, default=1500)
    parser.add_argument("--large", type=int, default=64, help="Photos of 12 megapixels.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos = read_catalogue(data / "data/grocery/grocery.csv")[: arguments.photos]
    bundle = Bundle.open(arguments.bundle)
    with tempfile.TemporaryDirectory() as name, Recorder("indexing", arguments) as record:
        folder = Path(name)
        kinds = {"168 px": photos, LARGE: large_photos(photos, arguments.large, folder)}
        record.table("indexing", BARS)
        scaling: list[tuple[str, ...]] = []
        for kind, chosen in kinds.items():
            turns = [take_turn(bundle, chosen, folder, arguments.threads) for _ in range(arguments.rounds)]
            for row in bar_rows(kind, turns, arguments.threads):
                record.add(*row)
            scaling += scaling_rows(kind, turns, arguments.threads)
        record.table("scaling", SCALING, scaling)


def large_photos(photos: Sequence[Photo], count: int, folder: Path) -> list[Photo]:
    """Return photos of 12 megapixels with the items of others."""
    places = []
    for number in range(LARGE_FILES):
        source = photos[number * len(photos) // LARGE_FILES].path
        places.append(folder / f"{number}.jpg")
        picture = np.asarray(Image.open(source).convert("RGB").resize(LARGE_SIZE, Image.Resampling.BICUBIC))
        noise = np.random.default_rng(0).normal(0, 6, (*picture.shape[:2], 1))  # of the sensor
        Image.fromarray(np.clip(picture + noise, 0, 255).astype(np.uint8)).save(places[-1], "JPEG", quality=88)
    return [replace(photos[number], path=places[number % LARGE_FILES], bbox=None) for number in range(count)]


def take_turn(bundle: Bundle, photos: Sequence[Photo], folder: Path, threads: int) -> tuple[Rates, Rates, Rates]:
    """Return the rates of the bare loop, of indexing, and of indexing with one thread."""
    bare = measured(len(photos), lambda: bare_loop(bundle, photos, threads))
    whole = measured(len(photos), lambda: index(bundle, photos, folder, threads))
    return bare, whole, measured(len(photos), lambda: index(bundle, photos, folder, 1))


def measured(photos: int, work: Callable[[], Spent]) -> Rates:
    """Return the rates of work on photos, which returns the time that setting the threshold took."""
    apart: list[Spent] = []
    whole = Spent.of(lambda: apart.append(work()))
    return Rates(photos / (whole.wall - apart[0].wall), photos / (whole.cpu - apart[0].cpu), apart[0].wall)


def bare_loop(bundle: Bundle, photos: Sequence[Photo], threads: int) -> Spent:
    embedder = bundle.embedder(threads=1)
    batches = [[photo.path for photo in photos[i : i + BATCH]] for i in range(0, len(photos), BATCH)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(embedder.embed, batches):
            pass
    return Spent(0, 0)


def index(bundle: Bundle, photos: Sequence[Photo], folder: Path, threads: int) -> Spent:
    """Index photos into a new gallery and remove it; return the time that setting the threshold took."""
    gallery, threshold, measure = folder / "gallery", list[Spent](), pipeline._measure

    def timed_measure(*given: Any, **how: Any) -> None:
        threshold.append(Spent.of(lambda: measure(*given, **how)))

    try:
        with patch.object(pipeline, "_measure", timed_measure):
            index_catalogue(bundle, photos, gallery, threads=threads, batch_size=BATCH, progress=False)
    finally:
        shutil.rmtree(gallery, ignore_errors=True)
    return threshold[0]


def bar_rows(kind: str, turns: Sequence[tuple[Rates, Rates, Rates]], threads: int) -> list[tuple[str, ...]]:
    """Compare indexing with the bare loop."""
    rows: list[tuple[str, ...]] = []
    for name, place in ((f"bare loop, {threads} threads", 0), ("retrieval index", 1)):
        walls, cpus = ([turn[place][i] for turn in turns] for i in (0, 1))
        rows.append((f"{kind}: {name}", f"{statistics.median(walls):.4g}", f"{statistics.median(cpus):.4g}"))
    ratios = [spread([turn[1][i] / turn[0][i] for turn in turns]) for i in (0, 1)]
    threshold = statistics.median(turn[1].threshold for turn in turns)
    rows.append((f"{kind}: ratio, median of {len(turns)} pairs (least to most)", *ratios))
    rows.append((f"{kind}: setting the threshold afterwards", f"{threshold:.2f} s", NONE))
    return rows


def scaling_rows(kind: str, turns: Sequence[tuple[Rates, Rates, Rates]], threads: int) -> list[tuple[str, ...]]:
    """Compare indexing with several threads and with one."""
    one, several = (statistics.median(turn[place].wall for turn in turns) for place in (2, 1))
    gain = spread([turn[1].wall / turn[2].wall for turn in turns])
    return [(kind, "1", f"{one:.4g}", NONE), (kind, str(threads), f"{several:.4g}", gain)]


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    main()
