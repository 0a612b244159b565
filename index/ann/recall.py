"""Recall of an approximate index: the share of the nearest items that it still finds.

The queries are those of the calibration and photos of the gallery, whose own item does not count. The reference is an
exhaustive search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.photos import NONE
from index.search.filters import Filter
from index.snapshot import Base, Snapshot

from .faiss_index import Candidates

OWN_QUERIES = 2000  # gallery photos used as queries
SHOWN = 10  # nearest items that are counted
ENOUGH, LEAST = 0.999, 0.998  # target recall and target for its lower 95 % bound when the search width is tuned
QUERIES = 256  # queries per exhaustive search


@dataclass(frozen=True)
class Recall:
    """The number of items found, of those expected."""

    found: int
    expected: int

    @property
    def value(self) -> float:
        """Return the share found; 1 if nothing was expected."""
        return self.found / self.expected if self.expected else 1.0

    @property
    def lower(self) -> float:
        """Return the lower 95 % bound of the share (Wilson, one-sided); 0 if nothing was expected."""
        if not self.expected:
            return 0.0
        z, n, share = 1.645, self.expected, self.value
        middle, spread = share + z * z / (2 * n), z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
        return float((middle - spread) / (1 + z * z / n))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"value": self.value, "lower": self.lower, "expected": self.expected}


@dataclass(frozen=True)
class Reference:
    """Queries of a measurement and the expected items of each."""

    vectors: NDArray[np.float32]  # (q, d)
    own: NDArray[np.int64]  # (q,) number of the query's item, NONE for an external query
    items: list[set[int]]


def reference_search(snapshot: Snapshot, queries: NDArray[np.float32] | None = None, *, seed: int = 0) -> Reference:
    """Compute the expected items by comparing photos of the gallery, and unit vectors (q, d), with every live photo."""
    live = np.flatnonzero(snapshot.live)
    chosen = np.random.default_rng(seed).permutation(live)[:OWN_QUERIES]
    vectors, own = snapshot.vectors(chosen), snapshot.items[chosen].astype(np.int64)
    if queries is not None:
        vectors = np.concatenate([vectors, queries.astype(np.float32)])
        own = np.concatenate([own, np.full(len(queries), NONE)])
    everything = Filter(snapshot.live, live, None, None, ("", []))  # which is scanned
    items: list[set[int]] = []
    for start in range(0, len(vectors), QUERIES):
        block = slice(start, start + QUERIES)
        nearest, _ = snapshot.nearest(vectors[block], SHOWN + 1, only=everything)
        for best, number in zip(snapshot.items_at(nearest).tolist(), own[block].tolist(), strict=True):
            items.append({*best} - {NONE, number})
    return Reference(vectors, own, items)


def recall_of(snapshot: Snapshot, reference: Reference) -> Recall:
    """Return how many of the expected items a snapshot finds."""
    found = 0
    for number, items in enumerate(reference.items):  # each query with k = its number of expected items
        if items:
            count = len(items) + int(reference.own[number] != NONE)
            nearest, _ = snapshot.nearest(reference.vectors[[number]], count)
            found += len(items & {*snapshot.items_at(nearest)[0].tolist()})
    return Recall(found, sum(len(items) for items in reference.items))


def tune(
    snapshot: Snapshot, candidates: Candidates, positions: NDArray[np.int64], reference: Reference
) -> tuple[Candidates, Recall]:
    """Return an index over the photos at `positions` with the smallest sufficient search width, and its recall."""
    nothing = Candidates.flat(np.zeros((0, candidates.dim), dtype=np.float32))
    while True:
        base = Base(candidates, snapshot.seqs[positions], "")
        trial = replace(snapshot, base=base, base_positions=positions, tail=nothing, tail_start=len(snapshot.seqs))
        recall = recall_of(trial, reference)
        wide = candidates.probes >= candidates.most_probes
        if wide or (recall.value >= ENOUGH and (recall.lower >= LEAST or recall.found == recall.expected)):
            return candidates, recall
        candidates = candidates.with_probes(min(2 * candidates.probes, candidates.most_probes))


def settings_of(candidates: Candidates, recall: Recall | None) -> Mapping[str, Any]:
    """Return the settings stored with an index."""
    settings: dict[str, Any] = {"slack": candidates.slack, "probes": candidates.probes}
    if recall is not None:
        settings["recall"] = recall.to_dict()
    return settings
