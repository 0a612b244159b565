"""Maintenance of a gallery: rewrite its segments, build its index, and verify its files, rows and checksums.

New files are written from a snapshot while searches and additions go on; `Gallery` adopts them in one transaction.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.ann.faiss_index import Candidates
from index.ann.kinds import FLAT, IVF, Choice
from index.ann.recall import Recall, reference_search, settings_of, tune

from .database import DATABASE, FEATURES_KEY, INDEXES, RESTORE, SEGMENTS, Database, IndexFile, Segment
from .errors import GalleryCorrupt, GalleryError
from .files import load_arrays, new_file, sha256, sync_folder
from .search.distance import Rows
from .search.leave_one_out import FOLDS_FILE, WINDOWS, FoldVectors, Windows
from .segments import OpenSegment, Part, encode_row, open_segment, segment_paths, write_segment
from .snapshot import Snapshot, removed_seqs

if TYPE_CHECKING:
    from .gallery import Gallery
    from .location import AnyGallery

Kept = TypeVar("Kept", Windows, FoldVectors)

FANOUT = 16  # segments of one size that are combined into one
SMALLEST = 16  # rows of the smallest size
MANY_REMOVED = 0.1  # share of removed photos above which a rebuild rewrites a large segment
BLOCK = 16_384  # rows rewritten at a time
FEATURES_BLOCK = 256  # the same in a gallery with features, about 40 KB per photo
FAISS, SEQS, PARTIAL = ".faiss", ".npy", ".partial"
INDEX_ENDINGS = (FAISS, SEQS, PARTIAL)  # of the files of indexes
MIN_RECALL = 0.99  # an index whose recall has a smaller lower bound is refused
COMPARED = 10_000  # photos compared at a time
FOLDS = "folds"  # the name under which the hash of the fold vectors is kept
DRAWN = (FOLDS, WINDOWS)  # what is kept under these names has the seqs of photos
MOVES = "moves"  # the name under which the old and the new seqs of updated photos are kept
SHOWN = 5  # damaged rows listed per segment
LINES = """SELECT seq, photo_id, item_id, metadata FROM photos JOIN items ON number = item
WHERE seq BETWEEN ? AND ? ORDER BY seq"""
CHECKS = {
    "photos have metadata that is not JSON": "SELECT count(*) FROM photos WHERE NOT json_valid(metadata)",
    "photos have no item": "SELECT count(*) FROM photos LEFT JOIN items ON number = item WHERE number IS NULL",
    "photos are removed as well": "SELECT count(*) FROM photos JOIN removed USING (seq)",
    "items count other photos than they have": (
        "SELECT count(*) FROM items WHERE photos != (SELECT count(*) FROM photos WHERE item = number)"
    ),
    "thumbnails have no photo": (
        "SELECT count(*) FROM thumbnails LEFT JOIN photos USING (photo_id) WHERE item IS NULL"
    ),
}


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
    return IndexFile(name, choice.kind, settings_of(candidates, recall), digest), recall


def verify(path: Path, database: Database, *, rows: bool = True) -> list[str]:
    """Return the problems of a gallery's database and files, and with `rows` of each photo, in words."""
    problems = check_database(database)
    while not problems:  # a damaged database says nothing reliable about its files
        state = database.state()
        found = _check_files(path, database)
        found = found or (_check_rows(path / SEGMENTS, database) + _check_folds(path, database) if rows else [])
        if not found or database.state() == state:  # otherwise a rebuild replaced a file meanwhile
            return found
    return problems


def verify_files(path: Path) -> list[str]:
    """Return the problems of a gallery's database and files, read over a connection of its own."""
    try:
        with closing(Database(path / DATABASE, read_only=True)) as database:
            return verify(path, database, rows=False)
    except GalleryError as error:
        return [error.message]


def write_folds(gallery: Gallery, folds: FoldVectors) -> dict[str, bytes]:
    """Replace the fold vectors of a gallery; return their hash, which it must keep (`Gallery.keep`)."""
    folds.write(gallery)
    return {FOLDS: sha256(gallery.path / FOLDS_FILE).encode()}


def fold_problems(path: Path) -> list[str]:
    """Return the problem of the fold vectors of a gallery: missing, or not those that were written; [] if intact."""
    with closing(Database(path / DATABASE, read_only=True)) as database:
        return _check_folds(path, database)


def require_folds(path: Path) -> None:
    """Raise GalleryCorrupt if the fold vectors of a gallery are missing, or not those that were written."""
    for problem in fold_problems(path):
        raise GalleryCorrupt(f"{path}: {problem}", remedy=RESTORE)


def moves_after(moves: bytes | None, old: Rows, new: Rows) -> bytes:
    """Return what a gallery keeps of its updated photos after another update, which gave `new` seqs to the `old` ones.

    Vectors that draws need (`Windows`, `FoldVectors`) have the seqs from when they were made, see `with_moves`.
    """
    known = {} if moves is None else load_arrays(moves)
    step = dict(zip(old.tolist(), new.tolist(), strict=True))
    before = zip(known["old"].tolist(), known["new"].tolist(), strict=True) if known else ()
    after = {first: step.pop(last, last) for first, last in before} | step
    file = io.BytesIO()
    np.savez(file, old=np.array(list(after), np.int64), new=np.array(list(after.values()), np.int64))
    return file.getvalue()


def with_moves(gallery: AnyGallery, vectors: Kept) -> Kept:
    """Return kept vectors of photos with the seqs that these have now, ascending."""
    moves = gallery.kept(MOVES)
    if moves is None:
        return vectors
    arrays = load_arrays(moves)
    seqs = vectors.seqs.copy()
    _, places, rows = np.intersect1d(seqs, arrays["old"], return_indices=True)
    seqs[places] = arrays["new"][rows]
    order = np.argsort(seqs)
    return replace(vectors, seqs=seqs[order], vectors=vectors.vectors[order])


def check_database(database: Database) -> list[str]:
    """Return the problems found inside the database."""
    try:
        with database.transaction("DEFERRED"):  # one consistent view while other processes write
            problems = [str(row[0]) for row in database.rows("PRAGMA integrity_check") if row[0] != "ok"]
            for what, query in CHECKS.items():
                ((count,),) = database.rows(query)
                problems += [f"{count} {what}"] if count else []
            for (name,) in database.rows("SELECT name FROM kept ORDER BY name"):
                database.kept(name)
            for fact in ("photos", "items"):
                ((count,),) = database.rows(f"SELECT count(*) FROM {fact}")  # noqa: S608 (two names)
                if count != database.number(fact):
                    problems.append(f"there are {count} {fact}, the facts say {database.fact(fact)}")
    except GalleryError as error:
        return [error.message]
    return [f"database: {problem}" for problem in problems]


def _check_files(path: Path, database: Database) -> list[str]:
    """Return the files in use whose hashes differ."""
    problems, features = [], bool(database.fact(FEATURES_KEY))
    for segment in database.segments():
        paths = segment_paths(path / SEGMENTS, segment.name, features=features)
        problems += _check_file(f"segment {segment.name}", paths, segment.sha256)
    index = database.index()
    if index is not None:
        paths = [path / INDEXES / f"{index.name}{ending}" for ending in (FAISS, SEQS)]
        problems += _check_file(f"index {index.name}", paths, index.sha256)
    return problems


def _check_file(what: str, paths: list[Path], digest: str) -> list[str]:
    try:
        same = sha256(*paths) == digest
    except OSError as error:
        return [f"{what} is missing or cannot be read: {error.strerror}"]
    return [] if same else [f"{what} has changed since it was written: its sha256 differs"]


def _check_folds(path: Path, database: Database) -> list[str]:
    """Return the problem of the fold vectors, if any; none for galleries that keep no hash of them."""
    digest = database.kept(FOLDS)
    what = f"{FOLDS_FILE}, the vectors by fold models,"
    return [] if digest is None else _check_file(what, [path / FOLDS_FILE], digest.decode())


def _check_rows(folder: Path, database: Database) -> list[str]:
    """Return photos on which database and segments disagree, and rows that fail their checksum."""
    problems: list[str] = []
    removed, placed = set(removed_seqs(database).tolist()), 0
    dim, features = database.number("dim"), bool(database.fact(FEATURES_KEY))
    for segment in database.segments():
        try:
            opened = open_segment(folder, segment, dim=dim, features=features)
        except GalleryCorrupt as error:
            problems.append(error.message)
            continue
        placed += sum(seq not in removed for seq in opened.seqs.tolist())
        wrong = list(_differing_rows(opened, database, removed))
        problems += [f"segment {segment.name}: {what}" for what in wrong[:SHOWN]]
        if len(wrong) > SHOWN:
            problems.append(f"segment {segment.name}: and {len(wrong) - SHOWN} more rows")
    if placed != database.number("photos"):
        problems.append(f"the segments hold {placed} live photos, the database {database.number('photos')}")
    return problems


def _differing_rows(opened: OpenSegment, database: Database, removed: Set[int]) -> Iterator[str]:
    """Yield the rows of a segment that fail their checksum or differ from the database, in words."""
    for start in range(0, len(opened.seqs), COMPARED):
        seqs = opened.seqs[start : start + COMPARED].tolist()
        known = {seq: facts for seq, *facts in database.rows(LINES, (seqs[0], seqs[-1]))}
        for row, seq in enumerate(seqs, start):
            facts = known.pop(seq, None)
            try:
                text = bytes(opened.texts_of(np.array([row]))[0])
            except GalleryCorrupt as error:
                yield error.message
                continue
            if facts is not None and encode_row(*facts) != text:
                yield f"photo number {seq} differs from the database"
            elif facts is None and seq not in removed:
                yield f"photo number {seq} is not in the database"
        yield from (f"photo number {seq} has no vector" for seq in known)
