"""Verification of a gallery: its database, the hashes of its files, and the checksum of each row."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import closing
from pathlib import Path

import numpy as np

from index.database import DATABASE, FEATURES_KEY, FOLDS_FILE, INDEXES, SEGMENTS, Database
from index.errors import GalleryCorrupt
from index.files import sha256
from index.folder import FAISS, SEQS
from index.segments import OpenSegment, encode_row, open_segment, reading, segment_paths
from index.snapshot import removed_seqs

COMPARED = 10_000  # photos compared at a time
FOLDS = "folds"  # the name under which the hash of the fold vectors is kept
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
    """Return the problems of a gallery's database and files, read over a connection of its own.

    Raises GalleryError if they cannot be read now, such as for lack of open files.
    """
    try:
        with closing(Database(path / DATABASE, read_only=True)) as database:
            return verify(path, database, rows=False)
    except GalleryCorrupt as error:
        return [error.message]
    except FileNotFoundError as error:  # the gallery was removed
        return [f"{error.filename} is gone"]


def fold_problems(path: Path) -> list[str]:
    """Return the problem of the fold vectors of a gallery: missing, or not those that were written; [] if intact."""
    with closing(Database(path / DATABASE, read_only=True)) as database:
        return _check_folds(path, database)


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
    except GalleryCorrupt as error:
        return [error.message]
    return [f"database: {problem}" for problem in problems]


def files_in_use(path: Path, database: Database) -> Iterator[tuple[str, list[Path], str]]:
    """Yield each segment, and the index if there is one: what it is, its files, and their hash."""
    features = bool(database.fact(FEATURES_KEY))
    for segment in database.segments():
        paths = segment_paths(path / SEGMENTS, segment.name, features=features)
        yield f"segment {segment.name}", paths, segment.sha256
    index = database.index()
    if index is not None:
        paths = [path / INDEXES / f"{index.name}{ending}" for ending in (FAISS, SEQS)]
        yield f"index {index.name}", paths, index.sha256


def _check_files(path: Path, database: Database) -> list[str]:
    """Return the files in use whose hashes differ."""
    return [problem for part in files_in_use(path, database) for problem in _check_file(*part)]


def _check_file(what: str, paths: list[Path], digest: str) -> list[str]:
    try:
        with reading(what):
            same = sha256(*paths) == digest
    except GalleryCorrupt as error:
        return [error.message]
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
