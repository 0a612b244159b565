"""Decision recall: the share of answers that an approximate index leaves as they are.

The queries are those of the calibration and photos of the gallery, each without its own photo. The reference is an
exhaustive search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.distance import accepts
from index.search.filters import Filter
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from index.search.item_search import NOBODY, ItemSearch, Queries
from index.snapshot import Base, Snapshot

from .faiss_index import Candidates

OWN_QUERIES = 2000  # gallery photos used as queries
ENOUGH, LEAST = 0.999, 0.998  # target recall and target for its lower 95 % bound when the search width is tuned
RIGHT, WRONG = 1, 2  # answers: the own item, another one; 0 for no match


@dataclass(frozen=True)
class Probe:
    """Queries and settings for measuring the recall of an index."""

    threshold: float = np.inf  # with infinity, every first item is an answer
    item_distance: ItemDistance = NEAREST_PHOTO
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
    """Queries of a measurement and the answer to each."""

    queries: Queries
    answers: NDArray[np.int64]  # (q,)
    probe: Probe


def reference_search(snapshot: Snapshot, probe: Probe, *, seed: int = 0) -> Reference:
    """Search with the queries by comparing them with every live photo."""
    live = np.flatnonzero(snapshot.live)
    chosen = np.random.default_rng(seed).permutation(live)[:OWN_QUERIES]
    vectors, numbers, positions = snapshot.vectors(chosen), snapshot.items[chosen], chosen
    if probe.queries is not None and len(probe.queries):
        nobody = np.full(len(probe.queries), NOBODY)
        vectors = np.concatenate([vectors, probe.queries.astype(np.float32)])
        numbers, positions = np.concatenate([numbers, nobody]), np.concatenate([positions, nobody])
    queries = Queries(vectors, numbers.astype(np.int32), positions)
    everything = Filter(snapshot.live, live, None, None, ("", []))  # which is scanned
    answers = _answers(ItemSearch(snapshot, probe.item_distance, over=everything), queries, probe.threshold)
    return Reference(queries, answers, probe)


def _answers(search: ItemSearch, queries: Queries, threshold: float) -> NDArray[np.int64]:
    """Return the answer to each query (q,)."""
    draws = search.draws(queries, lambda *_: False)
    right, wrong, other = (
        accepts([getattr(draw, name) for draw in draws], threshold) for name in ("own", "wrong", "distance")
    )
    first = np.isinf([draw.wrong for draw in draws])
    alone = queries.numbers == NOBODY
    return np.where(np.where(alone, other, wrong & ~first), WRONG, np.where(right & first & ~alone, RIGHT, 0))


def recall_of(snapshot: Snapshot, reference: Reference) -> Recall:
    """Return how many of the expected answers a snapshot gives."""
    probe, expected = reference.probe, reference.answers > 0
    answers = _answers(ItemSearch(snapshot, probe.item_distance), reference.queries, probe.threshold)
    return Recall(int((answers == reference.answers)[expected].sum()), int(expected.sum()))


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
