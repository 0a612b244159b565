"""Searching and adding to a gallery that is divided into shards, compared with one that is not.

    python -m research.benchmarks.shards --output runs/shards [--photos 400000]

All galleries have the same photos and answer the same queries in turns. The search goes to the threshold, as in
serving. Shards are searched one after the other, or in threads, which only this benchmark does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from index.ann.recall import Probe
from index.distance import PLAIN
from index.gallery import Gallery
from index.sharded import ShardedSnapshot, shards_of

from .gallery import DIM, THRESHOLD, K, embeddings, fill, timed, unit_queries
from .tables import NONE, Recorder, parser_of

SHARDS = (1, 2, 4)
QUERIES, ADDED, ROUNDS = 200, 1000, 7
COLUMNS = ("kind", "shards", "search, ms", "shards in threads, ms", "adding 1,000 photos, s")


def main() -> None:
    """Divide a gallery, and print the times of each division."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/shards"))
    parser.add_argument("--photos", type=int, default=400_000)
    parser.add_argument("--kinds", nargs="*", default=["fp16", "ivf"])
    arguments = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    arguments.output.mkdir(parents=True, exist_ok=True)
    paths = {shards: arguments.output / f"{arguments.photos}-{shards}" for shards in SHARDS}
    for path in paths.values():
        shutil.rmtree(path, ignore_errors=True)
    fill(paths[1], arguments.photos, DIM)
    for shards in SHARDS[1:]:
        shutil.copytree(paths[1], paths[shards])
    with Recorder("shards", arguments) as record:
        record.table("shards", COLUMNS)
        for kind in arguments.kinds:
            for row in rows(kind, paths):
                record.add(*row)
    for path in paths.values():
        shutil.rmtree(path)


def rows(kind: str, paths: dict[int, Path]) -> list[tuple[str, ...]]:
    """Return a row for each number of shards."""
    galleries = {shards: Gallery.open(path) for shards, path in paths.items()}
    for shards, gallery in galleries.items():
        gallery.rebuild(kind=kind, shards=shards, probe=Probe(THRESHOLD))
    ways: dict[tuple[int, str], Callable[[np.ndarray], object]] = {}
    with ThreadPoolExecutor(max(SHARDS)) as pool:
        for shards, gallery in galleries.items():
            ways[shards, "in turn"] = partial(gallery.search, k=K, within=THRESHOLD)
            if shards > 1:
                ways[shards, "in threads"] = partial(in_threads, pool, gallery)
        queries = unit_queries(DIM, QUERIES)
        for way in ways.values():
            way(queries)
        seconds = [[timed(partial(way, query[None])) for way in ways.values()] for query in queries]
    medians = dict(zip(ways, 1e3 * np.median(seconds, axis=0), strict=True))
    adding = np.median([[added(gallery) for gallery in galleries.values()] for _ in range(ROUNDS)], axis=0)
    found: list[tuple[str, ...]] = []
    for (shards, gallery), each in zip(galleries.items(), adding.tolist(), strict=True):
        threads = f"{medians[shards, 'in threads']:.3f}" if shards > 1 else NONE
        found.append((kind, str(shards), f"{medians[shards, 'in turn']:.3f}", threads, f"{each:.3f}"))
        gallery.close()
    return found


def in_threads(pool: ThreadPoolExecutor, gallery: Gallery, vectors: np.ndarray) -> None:
    """Search all shards at the same time; merging their answers and reading the names is left out."""
    now = gallery.snapshot()
    if not isinstance(now, ShardedSnapshot):
        raise TypeError("the gallery has no shards")
    around = now.around(PLAIN, gallery.densities(PLAIN))

    def search(shard: int) -> object:
        return shards_of(now)[shard].nearest(vectors, K, PLAIN, around[shard], within=THRESHOLD)

    list(pool.map(search, range(len(around))))


def added(gallery: Gallery) -> float:
    """Add photos, remove them again, and return the seconds that adding took."""
    vectors, items = next(embeddings(ADDED, gallery.dim, seed=3))
    ids = [f"new-{i}" for i in range(ADDED)]
    seconds = timed(lambda: gallery.add(ids, [f"new-item-{i}" for i in items.tolist()], vectors))
    gallery.remove(photo_ids=ids)
    return seconds


if __name__ == "__main__":
    main()
