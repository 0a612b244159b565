"""Rebuilds: rewrite the files of a gallery into fewer segments, without removed vectors and with a new index.

New files are written from a snapshot while searches and additions go on; `Gallery` adopts them in one transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np

from index.ann.candidates import Candidates
from index.ann.kinds import FLAT, IVF, Choice
from index.ann.recall import Probe, Recall, reference_search, settings_of, tune

from .densities import Densities
from .errors import GalleryError
from .files import IndexFile, Segment
from .segments import Part, new_file, sha256, sync_folder, write_segment
from .snapshot import Snapshot

FANOUT = 16  # segments of one size that are combined into one
SMALLEST = 16  # rows of the smallest size
MANY_REMOVED = 0.1  # share of removed photos above which a rebuild rewrites a large segment
BLOCK = 16_384  # rows rewritten at a time
FEATURES_BLOCK = 256  # the same in a gallery with features, about 40 KB per photo
FAISS, SEQS, PARTIAL = ".faiss", ".npy", ".partial"
INDEX_ENDINGS = (FAISS, SEQS, PARTIAL)  # of the files of indexes


@dataclass(frozen=True)
class Rewritten:
    """A new segment and the segments that it replaces."""

    replaced: list[int]  # segment ids
    segment: tuple[str, int, int, str] | None  # name, rows, first, sha256; None if no photo is left
    dropped: list[int]  # seqs whose vectors were dropped


@dataclass(frozen=True)
class Rebuilt:
    """The outcome of a rebuild."""

    choice: Choice
    recall: Recall | None  # for approximate index kinds
    dropped: int  # vectors of removed photos


def segments_to_combine(segments: Sequence[Segment]) -> list[Segment]:
    """Return the newest segments to combine into one, keeping sizes a factor of sixteen apart."""
    chosen: list[Segment] = []
    size = SMALLEST * FANOUT
    while True:
        newest = list(takewhile(lambda segment: segment.rows < size, reversed(segments)))  # noqa: B023
        if len(newest) - len(chosen) + bool(chosen) < FANOUT:
            return chosen[::-1]
        chosen, size = newest, size * FANOUT


def segments_to_rewrite(snapshot: Snapshot, *, purge: bool) -> set[int]:
    """Return the ids of the segments that a rebuild combines; large ones with few removed photos stay."""
    sizes = [len(segment.seqs) for segment in snapshot.segments]
    ends = np.cumsum([0, *sizes])
    for place in range(len(sizes)):
        dead = sizes[place] - int(snapshot.live[ends[place] : ends[place + 1]].sum())
        if dead > (0 if purge else MANY_REMOVED * sizes[place]) or sizes[place] < sum(sizes[place + 1 :]):
            return {segment.id for segment in snapshot.segments[place:]}
    return set()


def rewrite(snapshot: Snapshot, chosen: set[int], folder: Path) -> Rewritten:
    """Write the live photos of some adjacent segments as one segment."""
    ends = np.cumsum([0, *(len(segment.seqs) for segment in snapshot.segments)])
    segments = [
        (segment, snapshot.live[ends[i] : ends[i + 1]])
        for i, segment in enumerate(snapshot.segments)
        if segment.id in chosen
    ]
    rows = sum(int(live.sum()) for _, live in segments)
    dropped = [int(seq) for segment, live in segments for seq in segment.seqs[~live]]
    replaced = [segment.id for segment, _ in segments]
    if not rows:
        return Rewritten(replaced, None, dropped)

    features = any(segment.features is not None for segment, _ in segments)
    block = FEATURES_BLOCK if features else BLOCK

    def parts() -> Iterator[Part]:
        for segment, live in segments:
            places = np.flatnonzero(live)
            for start in range(0, len(places), block):
                yield segment.part(places[start : start + block])

    first = next(int(segment.seqs[live][0]) for segment, live in segments if live.any())
    name, digest = write_segment(folder, parts(), rows=rows, dim=snapshot.dim, features=features)
    return Rewritten(replaced, (name, rows, first, digest), dropped)


def build_index(
    choice: Choice,
    folder: Path,
    densities: Densities,
    snapshot: Snapshot,
    *,
    probe: Probe,
    min_recall: float,
    threads: int,
) -> tuple[IndexFile | None, Recall | None]:
    """Build and write an index over all live photos; return None for a kind that exists only in memory.

    Raise GalleryError if the recall of the items within the threshold is below `min_recall`.
    """
    positions = np.flatnonzero(snapshot.live)
    if choice.kind == FLAT or not len(positions):
        return None, None
    candidates = Candidates.build(
        choice.kind, lambda: snapshot.blocks(positions), len(positions), snapshot.dim, threads=threads
    )
    seqs, recall = snapshot.seqs[positions], None
    if choice.kind == IVF:
        reference = reference_search(snapshot, probe, snapshot.densities(probe.distance_form, densities))
        candidates, recall = tune(snapshot, candidates, positions, reference)
        if recall.found < recall.expected and recall.lower < min_recall:
            raise GalleryError(
                f"an index of the kind {choice.kind} finds {recall.value:.4f} of the items within the threshold (at "
                f"least {recall.lower:.4f}, with 95 % confidence), less than {min_recall:g}",
                remedy="Choose the kind fp16 or flat, or accept a smaller recall",
            )
    name = new_file(folder)
    paths = [folder / f"{name}{ending}" for ending in (FAISS, SEQS)]
    partial_paths = [path.with_name(path.name + PARTIAL) for path in paths]
    candidates.write(partial_paths[0])
    with partial_paths[1].open("wb") as file:
        np.save(file, seqs, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    digest = sha256(*partial_paths)
    for partial_path, path in zip(partial_paths, paths, strict=True):
        partial_path.replace(path)
    sync_folder(folder)
    return IndexFile(name, choice.kind, settings_of(candidates, recall, probe), digest), recall
