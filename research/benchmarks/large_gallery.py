"""A gallery of ten million photos on disk: filling, index, opening, searches and memory.

    python -m research.benchmarks.large_gallery --output runs/large [--photos 10000000] [--kind disk]

Photos are simulated as in `research.benchmarks.gallery`, and written in blocks. Every measurement is a fresh process.
Memory is without file-backed pages, and its peak must stay below --most. Queries are other photos of items from the
whole gallery; one pass over other queries precedes them. Nothing clears the page cache. Filling and indexing take long:
their figures are kept in --output, and `--searches-only` measures only searches, in the gallery of an earlier run.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.ann.recall import Probe
from index.gallery import Gallery

from .gallery import DIM, STEPS, THRESHOLD, K, Peak, gallery_parser, parse, resident, step, timed
from .tables import Recorder

GIB, GB = 2**30, 1e9
QUERIES, BATCH = 1000, 40
COLUMNS = (
    "photos × d",
    "kind",
    "fill s",
    "index s",
    "peak of filling, GB",
    "peak of the index, GB",
    "index on disk, GB",
    "gallery on disk, GB",
    "decision recall [lower]",
    "open s",
    "p50 ms",
    "p99 ms",
    "batches of 40, ms per query",
    "resident, GB",
)


def fill(path: Path, count: int, dim: int) -> dict[str, float]:
    """Write the gallery; return the seconds and the peak of the memory."""
    with Peak() as peak:
        found = STEPS["fill"](path, count, dim)
    return found | {"fill_peak": peak.bytes}


def index(path: Path, kind: str) -> dict[str, Any]:
    """Build an index of a kind; return the seconds, the peak of the memory and the recall."""
    started = time.perf_counter()
    with Gallery.open(path) as gallery, Peak() as peak:
        made = gallery.rebuild(kind=kind, probe=Probe(THRESHOLD))
    seconds = time.perf_counter() - started
    recall = None if made.recall is None else made.recall.to_dict()
    return {"index_s": seconds, "index_peak": peak.bytes, "recall": recall}


def search(path: Path) -> dict[str, float]:
    """Open the gallery and search for the items within the threshold."""
    before, started = resident(), time.perf_counter()
    with Gallery.open(path, read_only=True) as gallery:
        now = gallery.snapshot()
        opened = time.perf_counter() - started
        generator = np.random.default_rng(1)
        vectors = now.vectors(np.sort(generator.choice(now.photos, size=2 * QUERIES, replace=False)))
        vectors = vectors + 0.3 * generator.normal(size=vectors.shape) / vectors.shape[1] ** 0.5
        queries = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        queries = generator.permutation(queries)
        for query in queries[QUERIES:]:
            gallery.search(query[None], K, within=THRESHOLD)
        one = [timed(partial(gallery.search, query[None], K, within=THRESHOLD)) for query in queries[:QUERIES]]
        batches = (queries[start : start + BATCH] for start in range(0, QUERIES, BATCH))
        together = [timed(partial(gallery.search, batch, K, within=THRESHOLD)) for batch in batches]
        return {
            "open_s": opened,
            "p50_ms": 1e3 * float(np.median(one)),
            "p99_ms": 1e3 * float(np.percentile(one, 99)),
            "batch_ms": 1e3 * float(np.median(together)) / BATCH,
            "resident": resident() - before,
        }


LARGE_STEPS: dict[str, Callable[..., dict[str, Any]]] = {"fill": fill, "index": index, "search": search}


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def check_disk(folder: Path, count: int) -> None:
    """Exit if the disk has too little space for the gallery, an index and the files of a rebuild."""
    needed, free = count * (2 * 4 * DIM + 2 * DIM + 400), shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(f"{folder} has {free / GB:.0f} GB free, {needed / GB:.0f} GB are needed: choose --output")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the table cells of a row."""
    return (
        f"{row['photos']:,} × {DIM}",
        row["kind"],
        f"{row['fill_s']:.0f}",
        f"{row['index_s']:.0f}",
        *(f"{row[key] / GB:.2f}" for key in ("fill_peak", "index_peak", "index_bytes", "gallery_bytes")),
        "exact" if row["recall"] is None else "{value:.4f} [{lower:.4f}]".format(**row["recall"]),
        f"{row['open_s']:.2f}",
        f"{row['p50_ms']:.2f}",
        f"{row['p99_ms']:.2f}",
        f"{row['batch_ms']:.2f}",
        f"{row['resident'] / GB:.2f}",
    )


def main() -> None:
    parser = gallery_parser(__doc__, output="runs/large", photos=10_000_000)
    parser.add_argument("--kind", default="disk")
    parser.add_argument("--searches-only", action="store_true", help="Search the gallery of an earlier run.")
    parser.add_argument("--most", type=float, default=6.0, help="Largest peak of the memory in GiB.")
    arguments = parse(parser, LARGE_STEPS)
    check_disk(arguments.output, arguments.photos)
    path, kept = arguments.output / f"gallery-{arguments.photos}", arguments.output / f"built-{arguments.photos}.json"
    run = partial(step, module="large_gallery")
    if not arguments.searches_only:
        shutil.rmtree(path, ignore_errors=True)
        built = {"photos": arguments.photos, "kind": arguments.kind, **run("fill", path, arguments.photos, DIM)}
        built |= run("index", path, arguments.kind)
        built |= {"index_bytes": size_of(path / "indexes"), "gallery_bytes": size_of(path)}
        kept.write_text(json.dumps(built))
    row = json.loads(kept.read_text()) | run("search", path)
    print(json.dumps(row), flush=True)
    with Recorder("large_gallery", arguments) as record:
        record.table("large gallery", COLUMNS)
        record.add(*cells(row))
    if max(row["fill_peak"], row["index_peak"]) > arguments.most * GIB:
        raise SystemExit(f"the peak of the memory exceeds {arguments.most:g} GiB")


if __name__ == "__main__":
    main()
