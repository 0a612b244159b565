"""The facts of a gallery in SQLite: photos, items, metadata, thumbnails, and which segments are in force.

Every change is one transaction (write-ahead log, full sync). A photo's row says in which segment and at which
row its vector lies; a removed photo's row is gone, its vector stays until a merge.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import GalleryCorrupt, GalleryError, InvalidParameter

FORMAT = 1
RESTORE = "Restore the gallery from a copy, or index the photos again"
SCHEMA = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segments (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, rows INTEGER NOT NULL, sha256 TEXT NOT NULL
);
CREATE TABLE photos (
    photo_id TEXT PRIMARY KEY, item_id TEXT NOT NULL, segment INTEGER NOT NULL REFERENCES segments (id),
    row INTEGER NOT NULL, metadata TEXT NOT NULL, UNIQUE (segment, row)
) WITHOUT ROWID;
CREATE INDEX photos_by_item ON photos (item_id);
CREATE TABLE thumbnails (photo_id TEXT PRIMARY KEY, jpeg BLOB NOT NULL);
"""
CHECKS = {
    "photos have no vector": (
        "SELECT count(*) FROM photos LEFT JOIN segments ON id = segment "
        "WHERE id IS NULL OR row < 0 OR row >= segments.rows"
    ),
    "photos have metadata that is not JSON": "SELECT count(*) FROM photos WHERE NOT json_valid(metadata)",
    "thumbnails have no photo": (
        "SELECT count(*) FROM thumbnails LEFT JOIN photos USING (photo_id) WHERE item_id IS NULL"
    ),
}


@dataclass(frozen=True)
class Segment:
    """A vector file in force."""

    id: int
    name: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class Row:
    """One live photo."""

    photo_id: str
    item_id: str
    segment: int
    row: int
    metadata: str  # JSON

    def decoded(self) -> dict[str, Any]:
        """Return the metadata as values."""
        try:
            return dict(json.loads(self.metadata))
        except (TypeError, ValueError) as error:
            raise GalleryCorrupt(f"the metadata of photo {self.photo_id} is not JSON", remedy=RESTORE) from error


class Store:
    """One connection to a gallery's database."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        if not path.exists():
            raise GalleryError(f"{path.parent} is not a gallery", remedy="`retrieval index` makes one")
        self._path = path
        self._connect(path, read_only=read_only)
        try:
            found = self.fact("format")
            if found != str(FORMAT):
                raise GalleryError(
                    f"{path.parent} has format {found}, this program reads {FORMAT}",
                    remedy="Index the photos again",
                )
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, object]) -> None:
        """Write an empty database."""
        connection = sqlite3.connect(path)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                connection.executescript(SCHEMA)
                rows = [(key, str(value)) for key, value in ({"format": FORMAT, "version": 0} | dict(facts)).items()]
                connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)
        finally:
            connection.close()

    def _connect(self, path: Path, *, read_only: bool) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        if read_only:
            self._connection.execute("PRAGMA query_only = ON")
        else:
            self._connection.execute("PRAGMA synchronous = FULL")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Commit what happens inside as one change, or nothing of it; DEFERRED gives one consistent view."""
        with self._explained():
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what SQLite says into an error of ours: what fails now and may work later, or damage."""
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, full, not readable
            raise GalleryError(
                f"the database {self._path} cannot be used: {error}",
                remedy="Check disk space and permissions, and that no other program holds it; then try again",
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise GalleryCorrupt(f"the database {self._path} is damaged: {error}", remedy=RESTORE) from error

    def _query(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._explained():
            return self._connection.execute(query, values).fetchall()

    def facts(self) -> dict[str, str]:
        """Return what is true of the gallery as a whole: format, version, dim, embedding_id, created."""
        return {str(key): str(value) for key, value in self._query("SELECT key, value FROM facts")}

    def fact(self, key: str) -> str:
        """Return one of the facts."""
        rows = self._query("SELECT value FROM facts WHERE key = ?", (key,))
        if not rows:
            raise GalleryCorrupt(f"the database {self._path} lacks the fact {key}", remedy=RESTORE)
        return str(rows[0][0])

    def number(self, key: str) -> int:
        """Return a fact that is a whole number."""
        value = self.fact(key)
        if not value.isdecimal():
            raise GalleryCorrupt(f"the fact {key} of {self._path} is {value!r}, not a number", remedy=RESTORE)
        return int(value)

    def version(self) -> int:
        """Return the number of changes so far."""
        return self.number("version")

    def next_version(self) -> None:
        """Count one change; readers see from it that they must look again."""
        self._connection.execute("UPDATE facts SET value = value + 1 WHERE key = 'version'")

    def segments(self) -> list[Segment]:
        """Return the vector files in force, oldest first."""
        return [Segment(*row) for row in self._query("SELECT id, name, rows, sha256 FROM segments ORDER BY id")]

    def photos(self) -> list[Row]:
        """Return every live photo in the order of its vector."""
        rows = self._query("SELECT photo_id, item_id, segment, row, metadata FROM photos ORDER BY segment, row")
        return [Row(*row) for row in rows]

    def existing(self, photo_ids: Sequence[str]) -> set[str]:
        """Return which of the ids are in the gallery."""
        return {row[0] for row in self._each("SELECT photo_id FROM photos WHERE photo_id IN", photo_ids)}

    def photos_of_items(self, item_ids: Sequence[str]) -> set[str]:
        """Return the photos of some items."""
        return {row[0] for row in self._each("SELECT photo_id FROM photos WHERE item_id IN", item_ids)}

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return a photo's thumbnail, None where it has none."""
        rows = self._query("SELECT jpeg FROM thumbnails WHERE photo_id = ?", (photo_id,))
        return bytes(rows[0][0]) if rows else None

    def add_segment(self, name: str, rows: int, digest: str) -> int:
        """Put a vector file in force and return its number."""
        cursor = self._connection.execute(
            "INSERT INTO segments (name, rows, sha256) VALUES (?, ?, ?)", (name, rows, digest)
        )
        return int(cursor.lastrowid or 0)

    def add_photos(self, rows: Iterable[Row]) -> None:
        """Insert photos."""
        self._connection.executemany(
            "INSERT INTO photos VALUES (?, ?, ?, ?, ?)",
            [(r.photo_id, r.item_id, r.segment, r.row, r.metadata) for r in rows],
        )

    def add_thumbnails(self, thumbnails: Iterable[tuple[str, bytes]]) -> None:
        """Insert thumbnails."""
        self._connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", thumbnails)

    def remove_photos(self, photo_ids: Iterable[str]) -> None:
        """Forget photos and their thumbnails."""
        ids = [(photo_id,) for photo_id in photo_ids]
        self._connection.executemany("DELETE FROM photos WHERE photo_id = ?", ids)
        self._connection.executemany("DELETE FROM thumbnails WHERE photo_id = ?", ids)

    def forget_places(self) -> None:
        """Forget every photo's row, and keep the thumbnails: the first half of a merge."""
        self._connection.execute("DELETE FROM photos")

    def drop_segments(self, numbers: Iterable[int]) -> None:
        """Take vector files out of force."""
        self._connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in numbers])

    def integrity(self) -> list[str]:
        """Return what is wrong inside the database."""
        try:
            problems = [str(row[0]) for row in self._query("PRAGMA integrity_check") if row[0] != "ok"]
            for what, query in CHECKS.items():
                ((count,),) = self._query(query)
                problems += [f"{count} {what}"] if count else []
        except GalleryError as error:
            return [error.message]
        return [f"database: {problem}" for problem in problems]

    def _each(self, query: str, values: Sequence[str]) -> Iterator[Any]:
        for start in range(0, len(values), 500):
            chunk = values[start : start + 500]
            marks = ", ".join("?" * len(chunk))
            yield from self._query(f"{query} ({marks})", chunk)  # marks only


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Return metadata as JSON text with sorted keys."""
    try:
        text = json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidParameter("metadata", f"hold JSON values ({error})", metadata) from error
    return text
