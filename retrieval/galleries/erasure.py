"""Erasure: what a gallery keeps of removed photos and items beside them, and a search of its files for what is left.

A rebuild drops what is held back of removed photos. It also drops vectors of parts, names, fold vectors, labelled
queries and draws of photos and items that the gallery no longer has, and the feedback and kept answers beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.database import DATABASE, POINT, empty_log
from index.files import pack_arrays
from index.gallery import Gallery
from index.photos import CONTENT
from retrieval.bundle.bundle import pack_features, unpack_features
from retrieval.errors import GalleryError, command
from retrieval.measuring.draws import OWN

from .held import contents, drop
from .kept import Kept, read, read_draws

FEEDBACK, ANSWERS = ".feedback.jsonl", ".feedback.jsonl.answers.sqlite"  # beside a gallery, by default
OLD_ANSWERS = "DROP TABLE IF EXISTS verdicts; DROP TABLE IF EXISTS photos; DROP TABLE IF EXISTS answers;"  # of 0.2.0
NEEDLE = 64  # bytes of a thumbnail or vector that are searched for
BLOCK = 2**24  # bytes of a file searched at a time
BEYOND = (
    "bundles whose calibration photos show the item: export them again without it",
    "promise files that were made with the item: make them again",
    "backups and exports of the gallery, and copies of the catalogue's photos: delete them",
    "feedback files and folders of judged photos in other places (--feedback, --feedback-photos)",
    "free blocks of the file system, until they are overwritten",
)


@dataclass(frozen=True)
class Searched:
    """What is left of erased photos in a file."""

    file: str
    bytes: int
    thumbnails: int  # photos whose thumbnail is in the file
    vectors: int  # photos whose vector is in the file


@dataclass(frozen=True)
class Erasure:
    """The outcome of an erasure."""

    items: list[str]
    photos: int
    searched: list[Searched]
    copies: list[str]  # photos of other items that are the same file, and stay
    readers: list[str]  # processes that hold the log of the database, which may have the photos until they end
    beyond: Sequence[str] = BEYOND

    @property
    def is_complete(self) -> bool:
        """Whether nothing was found in any file that was searched."""
        return not self.readers and not any(each.thumbnails or each.vectors for each in self.searched)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values."""
        return {**asdict(self), "is_complete": self.is_complete}


def erase(gallery: Gallery, item_ids: Sequence[str]) -> Erasure:
    """Remove items, rebuild the gallery, drop all that it keeps of them, and search its files for their photos."""
    now, item_ids = gallery.snapshot(), list(dict.fromkeys(item_ids))
    photo_ids = [photo_id for item in item_ids for photo_id, *_ in gallery.photos(item)]
    vectors = now.vectors(now.positions(photo_ids)) if photo_ids else np.zeros((0, gallery.dim), np.float32)
    thumbnails = [gallery.thumbnail(photo_id) or b"" for photo_id in photo_ids]
    held_back = contents(gallery, item_ids)
    files = {photo_id: digest for photo_id, _, digest in gallery.values(CONTENT) if digest}
    del now
    gallery.remove(item_ids=item_ids)
    gallery.rebuild()
    held = forget(gallery)
    others = {files[photo_id]: photo_id for photo_id, *_ in gallery.photos() if photo_id in files}
    copies = [others[files[photo_id]] for photo_id in photo_ids if files.get(photo_id) in others]
    own = [files.get(photo_id) not in others for photo_id in photo_ids]
    needles = [
        [_needle(content) for content, is_own in zip(found, own, strict=True) if is_own] + list(map(_needle, more))
        for found, more in zip((thumbnails, [vector.tobytes() for vector in vectors]), held_back, strict=True)
    ]
    places = [*(path for path in sorted(gallery.path.rglob("*")) if path.is_file()), *_beside(gallery.path)]
    searched = [Searched(str(file), file.stat().st_size, *(_count(file, each) for each in needles)) for file in places]
    return Erasure(item_ids, len(photo_ids) + len(held_back[0]), searched, copies, held)


def forget(gallery: Gallery) -> list[str]:
    """Drop what a gallery keeps of photos and items that it no longer has; return the processes that hold its log."""
    drop(gallery)
    new = {name: content for name, content in _without_gone(gallery) if content != gallery.kept(name)}
    if new:
        gallery.keep(new, "erase what is kept of removed photos")
    known = {item for _, item, _ in gallery.photos()}
    for path in _beside(gallery.path):
        (_forget_answers if path.name.endswith(ANSWERS) else _forget_feedback)(path, known)
    database = gallery.path / DATABASE
    return [] if empty_log(database, pages=True) else readers(database)


def _without_gone(gallery: Gallery) -> Iterator[tuple[str, bytes | None]]:
    """Yield the contents of a gallery without the photos and items that it no longer has."""
    photos, items = {photo_id: item for photo_id, item, _ in gallery.photos()}, {""}
    items |= set(photos.values())
    for name in (Kept.LOOKS, Kept.WINDOWS, Kept.FOLDS, Kept.NAMES, Kept.QUERIES):
        arrays = read(gallery, name)
        if arrays is None:
            continue
        key, known = ("ids", photos) if name in (Kept.LOOKS, Kept.WINDOWS, Kept.FOLDS) else ("items", items)
        same = np.array([value in known for value in arrays.get(key, np.array([])).tolist()], dtype=bool)
        if key in arrays and not same.all():
            yield (
                name,
                _packed(arrays, same) if same.any() or name == Kept.LOOKS else None,
            )  # it says that there are two
    if (drawn := read_draws(gallery)) is not None:
        named = {text for own in drawn.sources.values() for text in own.nearest.tolist()}
        own = drawn.sources.get(OWN)
        if not named | set([] if own is None else own.ids.tolist()) <= {"", *photos}:
            yield Kept.DRAWS, None
    if (content := gallery.kept(POINT)) is not None:
        yield POINT, _without_twins(content, items)


def _without_twins(content: bytes, items: Set[str]) -> bytes:
    """Return operating points without the pairs of items that are not all in the gallery."""
    points = json.loads(content)
    for kept in points["points"]:
        evidence = kept["operating_point"]["evidence"]
        if "twins" in evidence:
            evidence["twins"] = [pair for pair in evidence["twins"] if items >= {*pair}]
    return json.dumps(points).encode()


def _packed(arrays: Mapping[str, Any], same: np.ndarray) -> bytes:
    """Return arrays with some of their rows as a content."""
    rows = {name: value[same] if value.shape[:1] == same.shape else value for name, value in arrays.items()}
    if "features" in arrays:
        ids, features = set(rows["ids"].tolist()), unpack_features(arrays["features"].tobytes())
        packed = pack_features({name: value for name, value in features.items() if name in ids})
        rows["features"] = np.frombuffer(packed, dtype=np.uint8)
    return pack_arrays(rows)


def _beside(gallery: Path) -> list[Path]:
    """Return the files of feedback and of kept answers beside a gallery."""
    return [path for end in (FEEDBACK, ANSWERS) if (path := gallery.with_name(gallery.name + end)).is_file()]


def _forget_feedback(path: Path, items: Collection[str]) -> None:
    """Take the verdicts that name items other than these out of a feedback file, which servers may append to."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.readlines()
        kept = [line for line in lines if not _names_gone(line, items)]
        if len(kept) < len(lines):
            file.seek(0)
            file.writelines(kept)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())


def _names_gone(line: bytes | str, items: Collection[str]) -> bool:
    try:
        facts = json.loads(line)
        named = {facts.get("item_id") or "", facts.get("right_item_id") or ""} - {""}
    except (ValueError, AttributeError, TypeError):  # no line of a server's
        return False
    return not named <= set(items)


def _forget_answers(path: Path, items: Collection[str]) -> None:
    """Take the answers about items other than these out of a table of kept answers, with their photos."""
    try:
        with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as table:
            table.execute("PRAGMA secure_delete = ON")
            table.executescript(OLD_ANSWERS)
            if not table.execute("SELECT 1 FROM sqlite_master WHERE name = 'recent'").fetchall():
                return
            rows = table.execute(
                "SELECT number, json_set(answer, '$.right_item_id', right_item_id) FROM recent"
            ).fetchall()
            gone = [(number,) for number, answer in rows if _names_gone(answer, items)]
            table.executemany("DELETE FROM recent WHERE number = ?", gone)
            table.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.DatabaseError as error:
        remedy = f"Remove it if it is damaged, then run `{command('gallery', 'rebuild', 'GALLERY')}`"
        raise GalleryError(f"{path}, the table of kept answers, cannot be used: {error}", remedy=remedy) from error


def readers(path: Path) -> list[str]:
    """Return the other processes that have a file open, where the system tells: "1234 retrieval"."""
    place, found = str(path.resolve()), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_open = any(str(link.readlink()) == place for link in (process / "fd").iterdir())
            if is_open and int(process.name) != os.getpid():
                found.append(f"{process.name} {(process / 'comm').read_text().strip()}")
        except OSError:  # it has ended, or is another user's
            continue
    return found or ["a process that is not known"]


def _needle(content: bytes) -> bytes:
    """Return the middle of a thumbnail or vector, by which it is found in a file; b"" if there is none."""
    start = max(0, len(content) // 2 - NEEDLE // 2)
    return content[start : start + NEEDLE]


def _count(path: Path, needles: Sequence[bytes]) -> int:
    """Return how many of some contents are in a file."""
    found, before = set[bytes](), b""
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found |= {needle for needle in needles if needle and needle in before + block}
            before = block[-NEEDLE:]
    return len(found)
