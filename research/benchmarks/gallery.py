"""Opening, searching, adding, removing and rebuilding a large gallery, compared with bare Faiss in the same run.

    python -m research.benchmarks.gallery --output runs/gallery [--photos 100000 1000000]

The gallery contains simulated embeddings: clusters of different widths, as for real items. Printed are times, memory
without file-backed pages, and recall. Every measurement is a fresh process. Searches by the item distance take turns
with searches for the nearest photo.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from index.ann.faiss_index import Candidates
from index.ann.kinds import FLAT, choose_kind
from index.gallery import Gallery
from index.location import open_or_create
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.measuring.measure import Material, draw

from .tables import Recorder, parser_of

PHOTOS_PER_ITEM, DIM = 5, 128
BLOCK = 10_000
QUERIES, BATCH, ROUNDS = 200, 40, 3
K = 10
EMBEDDING = "benchmark"


def embeddings(count: int, dim: int, *, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield blocks of unit vectors (n, d) and the item number of each vector."""
    generator = np.random.default_rng(seed)
    families = generator.normal(size=(2000, dim)).astype(np.float32)
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        items = np.arange(start, start + rows) // PHOTOS_PER_ITEM
        first = items[0]
        number = items[-1] - first + 1
        own = np.random.default_rng([seed, start])
        centres = families[own.integers(len(families), size=number)] + 0.7 * own.normal(size=(number, dim))
        widths = own.uniform(0.15, 0.55, size=(number, 1))  # items differ in the similarity of their photos
        vectors = centres[items - first] + widths[items - first] * own.normal(size=(rows, dim))
        yield (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), items


def resident() -> int:
    """Return the memory of this process without file-backed pages, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell RssAnon")


class Peak:
    """Peak of `resident` within the context, sampled twenty times per second."""

    def __enter__(self) -> Peak:
        self.bytes, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.05):
            self.bytes = max(self.bytes, resident())


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(ways: Sequence[Callable[[np.ndarray], Any]], queries: Sequence[np.ndarray]) -> np.ndarray:
    """Return the seconds (ways, rounds x queries) of searches.

    Each way answers all queries before the next one does, so that no way profits from what another one has just read
    into the caches. The first round of each way is not counted.
    """
    seconds = np.zeros((len(ways), 1 + ROUNDS, len(queries)))
    for turn in range(1 + ROUNDS):
        for number, way in enumerate(ways):
            seconds[number, turn] = [timed(partial(way, query)) for query in queries]
    return seconds[:, 1:].reshape(len(ways), -1)


def bare_search(candidates: Candidates) -> Callable[[np.ndarray], Any]:
    """Return the search of the Faiss index itself, on one thread, which searches as many lists as ours."""
    index, parameters = candidates._index, candidates._parameters(None)

    def search(queries: np.ndarray) -> Any:
        candidates._faiss.omp_set_num_threads(1)
        return index.search(queries, K, params=parameters)

    return search


def unit_queries(dim: int, count: int) -> np.ndarray:
    """Return other photos (count, dim) of items that are in every gallery of this benchmark."""
    vectors = next(embeddings(10_000, dim))[0][:: 10_000 // count][:count]
    moved = vectors + 0.3 * np.random.default_rng(2).normal(size=vectors.shape) / dim**0.5
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True), np.float32)


def fill(path: Path, count: int, dim: int) -> dict[str, float]:
    """Write a gallery with this number of photos."""
    started = time.perf_counter()
    with Gallery.create(path, dim=dim, embedding_id=EMBEDDING, columns={"brand": "text"}) as gallery:
        for block, (vectors, items) in enumerate(embeddings(count, dim)):
            photos = range(block * BLOCK, block * BLOCK + len(vectors))
            gallery.add(
                [f"photo-{i}" for i in photos],
                [f"item-{i}" for i in items.tolist()],
                vectors,
                metadata=[{"brand": f"brand-{i % 50}"} for i in items.tolist()],
            )
    return {"fill_s": time.perf_counter() - started}


def build(path: Path, kind: str) -> dict[str, Any]:
    """Rebuild with an index kind while a search keeps the old index open."""
    before = resident()
    with Gallery.open(path) as gallery, Peak() as peak:
        query = unit_queries(gallery.dim, 1)
        gallery.search(query, K)
        started = time.perf_counter()
        made = gallery.rebuild(kind=kind)
        seconds = time.perf_counter() - started
        gallery.search(query, K)
    found: dict[str, Any] = {"kind": made.choice.kind, "rebuild_s": seconds, "rebuild_peak": peak.bytes - before}
    if made.recall is not None:
        found["recall"] = made.recall.to_dict()
    return found


def serve(path: Path) -> dict[str, Any]:
    """Open, search and change a gallery, compared with bare Faiss if it has an equivalent."""
    before = resident()
    started = time.perf_counter()
    gallery = Gallery.open(path)
    queries = unit_queries(gallery.dim, QUERIES)
    gallery.search(queries[:1], K)
    found: dict[str, Any] = {"open_s": time.perf_counter() - started, "resident": resident() - before}
    now = gallery.snapshot()
    base = now.base.candidates if now.base is not None else now.tail
    ways: tuple[Callable[[np.ndarray], Any], ...] = (
        bare_search(base),
        lambda query: gallery.search(query, K, item_distance=ItemDistance()),
        lambda query: gallery.search(query, K),
        lambda query: gallery.search(query, 1, item_distance=NEAREST_PHOTO),
        lambda query: gallery.search(query, 1, item_distance=ItemDistance()),
    )
    bare, served, ours, nearest, first = in_turns(ways, np.split(queries, QUERIES))
    filtered = [timed(partial(gallery.search, query[None], K, where="brand = 'brand-7'")) for query in queries]
    apart, together = in_turns(ways[:2], np.split(queries, QUERIES // BATCH))
    found |= {
        "beyond_ms": 1e3 * float(np.median(served - bare)),
        "beyond_batch_ms": 1e3 * float(np.median(together - apart)) / BATCH,
        "batch_ms": 1e3 * float(np.median(together)) / BATCH,
        "bare_batch_ms": 1e3 * float(np.median(apart)) / BATCH,
        "bare_ms": 1e3 * float(np.median(bare)),
        "search_ms": 1e3 * float(np.median(ours)),
        "served_ms": 1e3 * float(np.median(served)),
        "added_ms": 1e3 * float(np.median(first - nearest)),
        "first_filtered_ms": 1e3 * filtered[0],
        "filtered_ms": 1e3 * float(np.median(filtered)),
    }
    new, items = next(embeddings(1000, gallery.dim, seed=3))
    ids = [f"new-{i}" for i in range(1000)]
    found["add_1000_s"] = timed(lambda: (gallery.add(ids, [f"new-item-{i}" for i in items], new), len(gallery)))
    found["search_after_add_ms"] = 1e3 * timed(lambda: gallery.search(new[:1], K))
    found["remove_1000_s"] = timed(lambda: (gallery.remove(photo_ids=ids), len(gallery)))
    gallery.close()
    return found


def draws(path: Path) -> dict[str, float]:
    """Make all draws of a gallery, and return the seconds of one core that they take."""
    with Gallery.open(path, read_only=True) as gallery:
        started = time.process_time()
        draw(gallery.snapshot(), ItemDistance(), Material())
        return {"draws_s": time.process_time() - started}


def bare_flat(path: Path) -> dict[str, float]:
    """Search a flat Faiss index over the same vectors."""
    with Gallery.open(path, read_only=True) as gallery:
        now = gallery.snapshot()
        index = Candidates.build(FLAT, lambda: now.blocks(np.flatnonzero(now.live)), now.photos, gallery.dim, threads=1)
        queries = now.vectors(np.arange(0, now.photos, max(1, now.photos // 50)))
        seconds = [timed(partial(index.search, query[None], K)) for query in queries]
    return {"bare_flat_ms": 1e3 * float(np.median(seconds))}


def milvus(path: Path, count: int, dim: int) -> dict[str, float]:
    """Fill a collection in a file of Milvus Lite, search it and make its draws, and compare with a local gallery."""
    address = f"milvus+{path.resolve()}/lite.db/photos"
    with Gallery.open(path / "local") as local, open_or_create(address, dim=dim, embedding_id=EMBEDDING) as gallery:
        started = time.perf_counter()
        for vectors, items in embeddings(count, dim):
            first = len(gallery)
            ids = [f"photo-{i}" for i in range(first, first + len(vectors))]
            gallery.add(ids, [f"item-{i}" for i in items.tolist()], vectors)
        filled = time.perf_counter()
        queries, distance = np.split(unit_queries(dim, QUERIES), QUERIES), ItemDistance()
        ours, there = (
            [each.search(query, K, item_distance=distance) for query in queries] for each in (local, gallery)
        )
        seconds = [timed(partial(gallery.search, query, K, item_distance=distance)) for query in queries]
        begun = time.perf_counter()
        draw(gallery.snapshot(), distance, Material())
        draws_s = time.perf_counter() - begun
    same = [[match.item_id for match in found[0]] for found in ours] == [
        [match.item_id for match in found[0]] for found in there
    ]
    return {
        "fill_s": filled - started,
        "search_ms": 1e3 * float(np.median(seconds)),
        "draws_s": draws_s,
        "same": same,
    }


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "fill": fill,
    "build": build,
    "serve": serve,
    "draws": draws,
    "bare_flat": bare_flat,
    "milvus": milvus,
}


def step(name: str, *words: object) -> dict[str, Any]:
    """Run one measurement in a fresh process."""
    command = [sys.executable, "-m", "research.benchmarks.gallery", "--step", name, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_step(steps: Mapping[str, Callable[..., dict[str, Any]]], words: Sequence[str]) -> None:
    """Run the measurement of a process started by `step`, and print its figures."""
    name, path, *rest = words
    print(json.dumps(steps[name](Path(path), *[int(word) if word.isdecimal() else word for word in rest])))


def measure(output: Path, count: int, dim: int, kinds: list[str]) -> list[dict[str, Any]]:
    """Return the figures for one gallery size, one row per index kind."""
    path = output / f"gallery-{count}"
    shutil.rmtree(path, ignore_errors=True)
    common = {"photos": count, "dim": dim} | step("fill", path, count, dim)
    common |= step("bare_flat", path)
    rows = []
    for kind in kinds:
        step("build", path, kind)  # the next measurement then has an index of the same kind in use
        row = common | step("build", path, kind) | step("serve", path)
        if row["kind"] == choose_kind(count, dim).kind:  # as `retrieval index` does
            row |= step("draws", path)
        files = sum(file.stat().st_size for file in (path / "indexes").glob("*.faiss")) if row["kind"] != FLAT else 0
        row["index_bytes"] = files or 4 * dim * count
        rows.append(row)
        print(json.dumps(row), flush=True)
    shutil.rmtree(path)
    return rows


def milvus_cells(output: Path, count: int) -> tuple[str, ...]:
    """Return the cells of a collection of this number of photos."""
    path = output / f"milvus-{count}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    step("fill", path / "local", count, DIM)
    found = step("milvus", path, count, DIM)
    shutil.rmtree(path)
    same = "yes" if found["same"] else "no"
    return f"{count:,} × {DIM}", *(f"{found[key]:.1f}" for key in ("fill_s", "search_ms", "draws_s")), same


MILVUS = ("photos × d", "adding all, s", "search, ms", "all draws, s", "items as in a local gallery")
ADDED = ("photos × d", "kind", "item distance adds, ms", "all draws, s of one core")
COLUMNS = (
    "photos × d",
    "kind",
    "open s",
    "bare Faiss ms",
    "search ms (of bare)",
    "by item distance ms (beyond bare)",
    "batches of 40, ms per query (beyond bare)",
    "× bare flat",
    "recall [lower]",
    "add 1,000 s",
    "remove 1,000 s",
    "resident / index",
    "peak of a rebuild / index",
    "rebuild s",
)


def added_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of what the item distance costs."""
    return *named(row), f"{row['added_ms']:.3f}", f"{row['draws_s']:.1f}"


def named(row: dict[str, Any]) -> tuple[str, str]:
    """Return the size and the index kind of a row."""
    return f"{row['photos']:,} × {row['dim']}", row["kind"]


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the table cells of a row."""
    index = row["index_bytes"]
    return (
        *named(row),
        f"{row['open_s']:.2f}",
        f"{row['bare_ms']:.3f}",
        f"{row['search_ms']:.3f} ({row['bare_ms'] / row['search_ms']:.2f})",
        f"{row['served_ms']:.3f} ({row['beyond_ms']:+.3f})",
        f"{row['batch_ms']:.3f} ({row['beyond_batch_ms']:+.3f})",
        f"{row['bare_flat_ms'] / row['search_ms']:.1f}",
        "{value:.4f} [{lower:.4f}]".format(**row["recall"]) if "recall" in row else "exact",
        f"{row['add_1000_s']:.2f}",
        f"{row['remove_1000_s']:.2f}",
        f"{row['resident'] / index:.2f}",
        f"{row['rebuild_peak'] / index:.2f}",
        f"{row['rebuild_s']:.1f}",
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/gallery"))
    parser.add_argument("--photos", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="*", default=["flat", "fp16", "ivf"])
    parser.add_argument("--milvus", type=int, default=10_000, help="Photos in a collection of Milvus Lite.")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        run_step(STEPS, arguments.step)
        return
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    arguments.output.mkdir(parents=True, exist_ok=True)
    with Recorder("gallery", arguments) as record:
        rows = [row for count in arguments.photos for row in measure(arguments.output, count, DIM, arguments.kinds)]
        record.table("gallery", COLUMNS, map(cells, rows))
        record.table("item distance", ADDED, (added_cells(row) for row in rows if "draws_s" in row))
        record.table("milvus", MILVUS, [milvus_cells(arguments.output, arguments.milvus)])


if __name__ == "__main__":
    main()
