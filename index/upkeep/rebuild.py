"""Rebuilding a gallery: combining its segments, dropping the vectors of removed photos, and building its index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.ann.faiss_index import Candidates, release_memory
from index.ann.kinds import FLAT, IVF, Choice, choose_kind
from index.ann.recall import Recall, reference_search, settings_of, tune
from index.database import DATABASE, INDEXES, SEGMENTS, IndexFile, Segment, empty_log
from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.features import check_size
from index.files import new_file, sha256, sync_folder, write_errors
from index.folder import ASIDE, FAISS, SEQS, GalleryFolder
from index.segments import Part, write_segment
from index.snapshot import TAIL, Snapshot, in_file

FANOUT = 16  # segments of one size that are combined into one
SMALLEST = 16  # rows of the smallest size
MANY_REMOVED = 0.1  # share of removed photos above which a rebuild rewrites a large segment
BLOCK = 16_384  # rows rewritten at a time
FEATURES_BLOCK = 256  # the same in a gallery with features, about 40 KB per photo
MIN_RECALL = 0.99  # an index whose recall has a smaller lower bound is refused
UNINDEXED = 0.2  # share of photos outside the index above which a rebuild is due


@dataclass(frozen=True)
class Rewritten:
    """A new segment and the segments that it replaces."""

    replaced: Sequence[int] = ()  # segment ids
    segment: Segment | None = None  # None if no photo is left
    dropped: Sequence[int] = ()  # seqs whose vectors were dropped


@dataclass(frozen=True)
class Rebuilt:
    """The outcome of a rebuild."""

    choice: Choice
    recall: Recall | None  # for approximate index kinds
    dropped: int  # vectors of removed photos


def rebuild(
    folder: GalleryFolder,
    *,
    kind: str | None,
    max_memory: int | None,
    queries: NDArray[np.float32] | None,
    min_recall: float = MIN_RECALL,
    purge: bool = True,
    threads: int | None = None,
    actor: str,
) -> Rebuilt:
    """Rebuild as `index.gallery.Gallery.rebuild` describes."""
    if not 0 <= min_recall <= 1:
        raise InvalidParameter("min_recall", "be between 0 and 1", min_recall)
    with write_errors(folder.path), folder.rebuilding:
        with folder.guard:
            folder.start_writing()
            photos, facts = folder.database.number("photos"), folder.database.facts()
        check_size(photos, folder.features_key)
        kind, max_memory = kind or facts["kind"], _memory_limit(facts) if max_memory is None else max_memory
        choice = choose_kind(photos, folder.dim, kind=kind, max_memory=max_memory)
        now = folder.unindexed()
        chosen = segments_to_rewrite(now, purge=purge)
        rewritten = rewrite(now, chosen, folder.path / SEGMENTS) if chosen else Rewritten()
        with _index_in_file(folder):
            index, recall = build_index(
                choice,
                folder.path / INDEXES,
                now,
                queries=queries,
                min_recall=min_recall,
                threads=threads or os.cpu_count() or 1,
            )
            with folder.guard:
                with folder.database.transaction():
                    folder.database.replace_segments(rewritten.replaced, rewritten.segment, rewritten.dropped)
                    folder.database.set_index(index)
                    folder.database.set_fact("kind", kind)
                    if max_memory is not None:
                        folder.database.set_fact("max_memory", max_memory)
                    folder.database.log(f"rebuild as {choice.kind}", photos, actor=actor)
                    folder.database.increase("layout")
                folder.delete_unused_files()
                empty_log(folder.path / DATABASE, pages=purge)
    return Rebuilt(choice, recall, len(rewritten.dropped))


def rebuild_if_due(
    folder: GalleryFolder,
    *,
    kind: str | None,
    max_memory: int | None,
    queries: NDArray[np.float32] | None,
    actor: str,
) -> Rebuilt | None:
    """Rebuild as `index.gallery.Gallery.rebuild_if_due` describes."""
    if kind is not None or max_memory is not None:
        return rebuild(folder, kind=kind, max_memory=max_memory, queries=queries, actor=actor)
    now, facts = folder.snapshot(), folder.database.facts()
    recommended = choose_kind(now.photos, folder.dim, kind=facts["kind"], max_memory=_memory_limit(facts)).kind
    covered = now.scanned_photos <= max(TAIL, UNINDEXED * now.photos)
    same = now.kind == recommended or not now.photos
    if same and (covered or recommended == FLAT):
        return None
    return rebuild(folder, kind=None, max_memory=None, queries=queries, purge=False, actor=actor)


def compact(folder: GalleryFolder) -> None:
    """Combine small segments if there are many; during a rebuild this is postponed until it has finished."""
    chosen = {segment.id for segment in segments_to_combine(folder.database.segments())}
    if not chosen or not folder.rebuilding.acquire(blocking=False):
        return
    try:
        rewritten = rewrite(folder.unindexed(), chosen, folder.path / SEGMENTS)
        with folder.database.transaction():
            folder.database.replace_segments(rewritten.replaced, rewritten.segment, rewritten.dropped)
            folder.database.increase("layout")
        folder.delete_unused_files()
    except (OSError, GalleryError) as error:
        if isinstance(error, GalleryCorrupt):
            raise
        # disk full: the addition itself is committed, and the next addition tries again
    finally:
        folder.rebuilding.release()


@contextmanager
def _index_in_file(folder: GalleryFolder) -> Iterator[None]:
    """Search the index in its file within the context, to save memory."""
    with folder.guard:
        known = folder.newest
        if known is not None:
            folder.newest = in_file(known, folder.database.index(), folder.path / INDEXES)
        changed = folder.newest is not known
        del known
    if changed:
        release_memory()
    try:
        yield
    except BaseException:
        if changed:
            with folder.guard:
                folder.newest = None  # the next search reads the index into memory again
        raise


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
    return Rewritten(replaced, Segment(0, name, rows, first, digest), dropped)


def build_index(
    choice: Choice,
    folder: Path,
    snapshot: Snapshot,
    *,
    queries: NDArray[np.float32] | None = None,
    min_recall: float,
    threads: int,
) -> tuple[IndexFile | None, Recall | None]:
    """Build and write an index over all live photos; return None for a kind that exists only in memory.

    Raise GalleryError if the recall of the nearest items is below `min_recall`.
    """
    positions = np.flatnonzero(snapshot.live)
    if choice.kind == FLAT or not len(positions):
        return None, None
    candidates = Candidates.build(
        choice.kind, lambda: snapshot.blocks(positions), len(positions), snapshot.dim, threads=threads
    )
    seqs, recall = snapshot.seqs[positions], None
    if choice.kind == IVF:
        reference = reference_search(snapshot, queries)
        candidates, recall = tune(snapshot, candidates, positions, reference)
        if recall.found < recall.expected and recall.lower < min_recall:
            raise GalleryError(
                f"an index of the kind {choice.kind} finds {recall.value:.4f} of the nearest items (at "
                f"least {recall.lower:.4f}, with 95 % confidence), less than {min_recall:g}",
                remedy="Choose the kind fp16 or flat, or accept a smaller recall",
            )
    name = new_file(folder)
    paths = [folder / f"{name}{ending}" for ending in (FAISS, SEQS)]
    partial_paths = [path.with_name(path.name + ASIDE) for path in paths]
    candidates.write(partial_paths[0])
    with partial_paths[1].open("wb") as file:
        np.save(file, seqs, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    digest = sha256(*partial_paths)
    for partial_path, path in zip(partial_paths, paths, strict=True):
        partial_path.replace(path)
    sync_folder(folder)
    return IndexFile(name, choice.kind, settings_of(candidates, recall), digest), recall


def _memory_limit(facts: Mapping[str, str]) -> int | None:
    """Return the memory limit that the last rebuild was given."""
    return int(facts["max_memory"]) if "max_memory" in facts else None
