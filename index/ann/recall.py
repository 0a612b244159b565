"""Decision recall: the share of items within the threshold that an approximate index still finds.

The queries are those of the calibration and photos of the gallery, each excluded from its own result. The reference is
an exhaustive search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.distance import PLAIN, DistanceForm, Floats, accepts
from index.search.filters import Filter
from index.snapshot import Base, Snapshot

from .faiss_index import Candidates

OWN_QUERIES = 2000  # gallery photos used as queries
SHOWN = 10  # nearest items within the threshold that are counted
ENOUGH, LEAST = 0.999, 0.998  # target recall and target for its lower 95 % bound when the search width is tuned
QUERIES = 256  # queries per exhaustive search


@dataclass(frozen=True)
class Probe:
    """Queries and settings for measuring the recall of an index."""

    threshold: float = np.inf  # infinity counts the ten nearest items
    distance_form: DistanceForm = PLAIN
    queries: NDArray[np.float32] | None = None  # (q, d) unit vectors in addition to photos of the gallery


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
    skip: NDArray[np.int64]  # (q,) position of the query's own photo, -1 for an external query
    items: list[set[int]]
    probe: Probe
    densities: tuple[Floats, float]


def reference_search(snapshot: Snapshot, probe: Probe, densities: tuple[Floats, float], *, seed: int = 0) -> Reference:
    """Compute the expected items by comparing the queries with every live photo."""
    live = np.flatnonzero(snapshot.live)
    chosen = np.random.default_rng(seed).permutation(live)[:OWN_QUERIES]
    vectors, skip = snapshot.vectors(chosen), chosen
    if probe.queries is not None and len(probe.queries):
        vectors = np.concatenate([vectors, probe.queries.astype(np.float32)])
        skip = np.concatenate([skip, np.full(len(probe.queries), -1)])
    everything = Filter(snapshot.live, live, None, None, ("", []))  # which is scanned
    items: list[set[int]] = []
    for start in range(0, len(vectors), QUERIES):
        block = slice(start, start + QUERIES)
        found = snapshot.nearest(
            vectors[block],
            SHOWN,
            probe.distance_form,
            densities,
            only=everything,
            within=probe.threshold,
            skip=skip[block],
        )
        near = ([position for position, distance in best if accepts(distance, probe.threshold)] for best in found)
        items += [{int(snapshot.items[position]) for position in positions} for positions in near]
    return Reference(vectors, skip, items, probe, densities)


def recall_of(snapshot: Snapshot, reference: Reference) -> Recall:
    """Return how many of the expected items a snapshot finds."""
    found = 0
    for number in range(len(reference.items)):  # each query with k = its number of expected items
        row, items = slice(number, number + 1), reference.items[number]
        if items:
            (nearest,) = snapshot.nearest(
                reference.vectors[row],
                len(items),
                reference.probe.distance_form,
                reference.densities,
                within=reference.probe.threshold,
                skip=reference.skip[row],
            )
            found += len(items & {int(snapshot.items[position]) for position, _ in nearest})
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


def settings_of(candidates: Candidates, recall: Recall | None, probe: Probe) -> Mapping[str, Any]:
    """Return the settings stored with an index."""
    settings: dict[str, Any] = {"slack": candidates.slack, "probes": candidates.probes}
    if recall is not None:
        threshold = probe.threshold if np.isfinite(probe.threshold) else None
        settings["recall"] = {**recall.to_dict(), "threshold": threshold}
    return settings
