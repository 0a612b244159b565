"""Galleries on a real Milvus server: requests and time of a search, of counts, of a change and of draws, by size.

    python -m research.benchmarks.milvus

One gallery grows to each size, filled with vectors (d = 128, five photos per item). Searches by item distance alternate
with the bare search of Milvus: the same limit at the same consistency, with and without the fields that a search needs.
Ratios and numbers of requests are what matters: server and client share the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.milvus.client import Access
from index.milvus.gallery import MilvusGallery
from index.milvus.photos import LISTED
from index.search.item_distance import ItemDistance
from retrieval.measuring.measure import measure
from tools.milvus_server import running

from .tables import NONE, Recorder, parser_of

DIM, PER_ITEM, BATCH = 128, 5, 4000
SEARCHES = (
    *("photos", "requests of a search, a batch of 10, with a filter", "p50 of a search"),
    *("bare search, same fields", "ratio", "bare search, ids alone", "ratio to this"),
)
REST = ("photos", "counts: requests", "a changed photo: requests", "p50", "draws", "requests")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("server", nargs="?", help="Address of a server. By default, one is started.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3000, 100_000, 300_000])
    parser.add_argument("--searches", type=int, default=60)
    arguments = parser.parse_args()
    with (
        nullcontext() if arguments.server else running() as own,
        Recorder("milvus", arguments) as record,
        MilvusGallery.create(
            f"{own.address if own else arguments.server}/benchmark_{int(time.time())}",
            dim=DIM,
            embedding_id="e",
            columns={"brand": "text"},
            access=Access(timeout_s=60),
        ) as gallery,
    ):
        rows = Rows(max(arguments.sizes))
        searches: list[tuple[str, ...]] = []
        rest: list[tuple[str, ...]] = []
        for size in arguments.sizes:
            rows.fill(gallery, size)
            searches.append(search_row(gallery, rows, arguments.searches))
            rest.append(rest_row(gallery, rows))
            print(searches[-1], rest[-1], flush=True)
        record.table("searches", SEARCHES, searches)
        record.table("rest", REST, rest)


class Rows:
    """Photos of items, to fill a gallery with."""

    def __init__(self, most: int) -> None:
        generator = np.random.default_rng(0)
        self.items = generator.permutation(np.repeat(np.arange(most // PER_ITEM), PER_ITEM))
        self.ids = generator.permutation(most).astype(str)
        self._seed = np.random.default_rng(1)
        self.centres = self._seed.normal(size=(most // PER_ITEM, DIM)).astype(np.float32)

    def vectors(self, items: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return new photos (n, d) of items."""
        vectors = self.centres[items] + 0.8 * self._seed.normal(size=(len(items), DIM))
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)

    def fill(self, gallery: MilvusGallery, size: int) -> None:
        """Add photos until a gallery has `size`."""
        started, before = time.perf_counter(), len(gallery)
        for start in range(before, size, BATCH):
            some = slice(start, min(start + BATCH, size))
            gallery.add(
                self.ids[some].tolist(),
                [f"i{item}" for item in self.items[some]],
                self.vectors(self.items[some]),
                metadata=[{"brand": "ab"[row % 2]} for row in range(some.start, some.stop)],
            )
        print(f"{size - before:,} photos in {time.perf_counter() - started:.0f} s", flush=True)


def requests_of(gallery: MilvusGallery, work: Callable[[], object]) -> int:
    gallery.version  # noqa: B018 - the facts are at hand
    before = gallery._store.client.requests
    work()
    return gallery._store.client.requests - before


def search_row(gallery: MilvusGallery, rows: Rows, count: int) -> tuple[str, ...]:
    """Compare searches with those of Milvus, one after the other."""
    queries, distance = rows.vectors(rows.items[: count + 10]), ItemDistance()
    time.sleep(2)  # the last change is no longer waited for
    counts = [
        requests_of(gallery, lambda: gallery.search(queries[:1], 10, item_distance=distance)),
        requests_of(gallery, lambda: gallery.search(queries[:10], 10, item_distance=distance)),
        requests_of(gallery, lambda: gallery.search(queries[:1], 10, where="brand = 'a'", item_distance=distance)),
    ]
    store, level = gallery._store, gallery._level(gallery._facts())
    ways: tuple[Callable[[Any], object], ...] = (
        lambda query: gallery.search(query, 10, item_distance=distance),
        lambda query: store.nearest(store.photos, query, LISTED, "FLAT", level),
        lambda query: store.client.ask("search", store.photos, query.tolist(), limit=LISTED, **level),
    )
    times = list(zip(*(tuple(seconds(way, query[None]) for way in ways) for query in queries[:count]), strict=True))
    whole, fields, ids = (statistics.median(each) for each in times)
    shown = [f"{1e3 * each:.1f} ms" for each in (whole, fields, ids)]
    told = ", ".join(map(str, counts))
    return (f"{len(gallery):,}", told, shown[0], shown[1], f"{whole / fields:.2f}", shown[2], f"{whole / ids:.2f}")


def seconds(work: Callable[[Any], object], query: NDArray[np.float32]) -> float:
    started = time.perf_counter()
    work(query)
    return time.perf_counter() - started


def rest_row(gallery: MilvusGallery, rows: Rows) -> tuple[str, ...]:
    """Return the requests and times of counts, of a photo that is replaced, and of draws."""
    counts = requests_of(gallery, lambda: (len(gallery), gallery.items, gallery.version, gallery.index()))
    photo, item = str(rows.ids[0]), rows.items[:1]

    def put() -> None:
        gallery.add([photo], [f"i{item[0]}"], rows.vectors(item), metadata=[{"brand": "a"}], upsert=True)

    puts = [(requests_of(gallery, put), 1e3 * each) for each in timed(put, 5)]
    started, before = time.perf_counter(), gallery._store.client.requests
    measured = measure(gallery.snapshot(), ItemDistance())
    spent, asked = time.perf_counter() - started, gallery._store.client.requests - before
    drawn = sum(len(draws.ids) for draws in measured.draws.sources.values())
    return (
        f"{len(gallery):,}",
        str(counts),
        str(max(number for number, _ in puts)),
        f"{statistics.median(spent for _, spent in puts):.0f} ms",
        f"{spent:.0f} s, {drawn:,} draws" if drawn else NONE,
        str(asked),
    )


def timed(work: Callable[[], object], count: int) -> Iterator[float]:
    for _ in range(count):
        started = time.perf_counter()
        work()
        yield time.perf_counter() - started


if __name__ == "__main__":
    main()
