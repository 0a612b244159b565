"""Compare the answers of every index kind with an exhaustive search over the same photos."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from index.distance import accepts
from index.gallery import Gallery
from index.sharded import ShardedSnapshot, shards_of
from index.snapshot import Base, Snapshot

from .candidates import Candidates
from .kinds import APPROXIMATE, FLAT, KINDS
from .recall import Probe, Reference, reference_search, tune

COMPARED = 10  # nearest items within the threshold


@dataclass(frozen=True)
class Difference:
    """A query that one index kind answers differently."""

    kind: str
    query: int
    missing: list[str]  # item_ids within the threshold that the index misses
    nearest: bool  # whether the nearest item differs


def compare_kinds(gallery: Gallery, probe: Probe) -> Iterator[tuple[str, list[Difference]]]:
    """Yield each index kind, built in memory over the live photos, with the queries that it answers differently.

    The queries are `probe.queries` (q, d); the reference is a flat index.
    """
    now = gallery.snapshot()
    queries = probe.queries
    if queries is None or not len(queries) or not now.photos:
        return
    densities = gallery.densities(probe.distance_form)
    around = now.around(probe.distance_form, densities) if isinstance(now, ShardedSnapshot) else [densities]
    references = [
        reference_search(shard, probe, some) if shard.photos else None
        for shard, some in zip(shards_of(now), around, strict=True)
    ]
    truth: list[dict[int, int]] = []
    for kind in (FLAT, *(kind for kind in KINDS if kind != FLAT)):
        trials = [_trial(shard, kind, reference) for shard, reference in zip(shards_of(now), references, strict=True)]
        trial = replace(now, shards=trials) if isinstance(now, ShardedSnapshot) else trials[0]

        answers: list[dict[int, int]] = []
        for found in trial.nearest(queries, COMPARED, probe.distance_form, densities, within=probe.threshold):
            within = [position for position, distance in found if accepts(distance, probe.threshold)]
            best = [position for position, _ in found[:1]]
            answers.append({int(now.items[position]): position for position in (*best, *within)})
        truth = truth or answers
        yield (
            kind,
            [
                Difference(
                    kind,
                    number,
                    [now.photo(right[item])[1] for item in right.keys() - got.keys()],
                    list(right)[:1] != list(got)[:1],
                )
                for number, (right, got) in enumerate(zip(truth, answers, strict=True))
                if right.keys() - got.keys() or list(right)[:1] != list(got)[:1]
            ],
        )


def _trial(shard: Snapshot, kind: str, reference: Reference | None) -> Snapshot:
    """Return a shard with an index in memory over its live photos; one without `reference` is empty and unchanged."""
    if reference is None:
        return shard
    positions = np.flatnonzero(shard.live)
    candidates = Candidates.build(
        kind, lambda: shard.blocks(positions), len(positions), shard.dim, threads=os.cpu_count() or 1
    )
    if kind in APPROXIMATE:
        candidates, _ = tune(shard, candidates, positions, reference)
    base = Base(candidates, shard.seqs[positions], "")
    nothing = Candidates.flat(np.zeros((0, shard.dim), dtype=np.float32))
    return replace(shard, base=base, base_positions=positions, tail=nothing, tail_start=len(shard.seqs))
