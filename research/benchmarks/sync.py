"""Time to plan and apply a synchronization in which 1 % of the rows changed in each way, with random vectors.

    python -m research.benchmarks.sync

The photos are files of a few bytes, so the time to embed the new ones is not part of it.
"""

from __future__ import annotations

import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from index.gallery import Gallery
from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.plan import SyncPlan, sync_plan
from retrieval.indexing.worker import stored_metadata

from .tables import Recorder, parser_of

DIM, BLOCK = 128, 10_000
Result = TypeVar("Result")
HEADER = ("path", "item_id", "group", "bbox", "price", "brand", "since")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--photos", type=int, default=100_000)
    parser.add_argument("--share", type=float, default=0.01, help="Share of the photos with each kind of change.")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count, some = arguments.photos, round(arguments.photos * arguments.share)
    with tempfile.TemporaryDirectory() as place, Recorder("sync", arguments) as record:
        folder = Path(place)
        table = write_photos(folder, count + some)
        with Gallery.create(folder / "gallery", dim=DIM, embedding_id="random") as gallery:
            fill(gallery, write_table(table, rows(count)))
            changed = write_table(table, change(rows(count + some), some, count))
            touch(folder, some, count)
            read, compared = [], []
            for _ in range(arguments.rounds):
                photos, seconds = timed(partial(read_catalogue, changed))
                read.append(seconds)
                plan, seconds = timed(partial(sync_plan, photos, gallery))
                compared.append(seconds)
            updated, removed = timed(partial(update, gallery, plan))[1], timed(partial(remove, gallery, plan))[1]
        record.table("changes", ("change", "photos"))
        for name, number in (
            ("added", len(plan.new)),
            ("file or bounding box changed", len(plan.read)),
            ("item or metadata changed", len(plan.updates)),
            ("gone", len(plan.gone)),
            ("unchanged", plan.unchanged),
        ):
            record.add(name, f"{number:,}")
        record.table("sync", ("step", "seconds, median (least to most)", "CPU seconds, median (least to most)"))
        both = [(one[0] + other[0], one[1] + other[1]) for one, other in zip(read, compared, strict=True)]
        for step, times in (
            ("read the table", read),
            ("compare it with the gallery", compared),
            ("plan: both", both),
            ("update items and metadata", [updated]),
            ("remove what is gone", [removed]),
        ):
            record.add(step, *map(spread, zip(*times, strict=True)))


def write_photos(folder: Path, count: int) -> Path:
    """Write files of different content and return the path of their table."""
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(str(number).encode())
    return folder / "table.csv"


def rows(count: int) -> list[list[str]]:
    """Return the rows of a table: five photos an item, and metadata of every kind."""
    return [
        [
            f"{n}.jpg",
            f"item-{n // 5}",
            f"group-{n // 500}",
            "",
            f"{n % 97}.5",
            f"brand {n % 13}",
            f"2026-01-{1 + n % 28:02}",
        ]
        for n in range(count)
    ]


def change(table: list[list[str]], some: int, count: int) -> list[list[str]]:
    """Return the table with `some` rows changed in each way; those from `count` on are new."""
    for row in table[:some]:
        row[1] = "another"
    for row in table[some : 2 * some]:
        row[4] = "0.25"
    for row in table[2 * some : 3 * some]:
        row[2] = "another"
    for row in table[3 * some : 4 * some]:
        row[3] = "0 0 20 20"
    return table[: count - some] + table[count:]


def touch(folder: Path, some: int, count: int) -> None:
    """Change the time of `some` files."""
    for number in range(4 * some, 5 * some):
        os.utime(folder / f"{number}.jpg", ns=(count, count))


def write_table(path: Path, table: list[list[str]]) -> Path:
    """Write a table as a CSV and return its path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *table])
    return path


def fill(gallery: Gallery, table: Path) -> None:
    """Add the photos of a table with vectors at random."""
    photos, generator = read_catalogue(table), np.random.default_rng(0)
    for start in range(0, len(photos), BLOCK):
        block = photos[start : start + BLOCK]
        vectors = generator.normal(size=(len(block), DIM))
        gallery.add(
            [photo.photo_id for photo in block],
            [photo.item_id for photo in block],
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            metadata=[stored_metadata(p, content_hash(p.read(), p.bbox), p.state()) for p in block],
        )


def update(gallery: Gallery, plan: SyncPlan) -> None:
    """Apply the updates of a plan."""
    gallery.update(
        [change.photo.photo_id for change in plan.updates],
        [change.photo.item_id for change in plan.updates],
        [change.stored for change in plan.updates],
    )


def remove(gallery: Gallery, plan: SyncPlan) -> None:
    """Remove the photos that are gone."""
    gallery.remove(photo_ids=plan.gone)


def timed(work: Callable[[], Result]) -> tuple[Result, tuple[float, float]]:
    """Return the result of some work, and its seconds and CPU seconds."""
    started, spent = time.perf_counter(), time.process_time()
    result = work()
    return result, (time.perf_counter() - started, time.process_time() - spent)


def spread(times: Sequence[float]) -> str:
    """Return the median of some times, and the least and greatest if there are several."""
    between = f" ({min(times):.2f} to {max(times):.2f})" if len(times) > 1 else ""
    return f"{statistics.median(times):.2f}{between}"


if __name__ == "__main__":
    main()
