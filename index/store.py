"""The facts of a gallery in SQLite: photos, items, metadata, thumbnails, and which files are in force.

Every change is one transaction (write-ahead log, full sync). Photos are numbered in the order of adding (`seq`), for
ever; a segment holds the vectors of a range of these numbers, and says of each row which it is. A removed photo's row
is gone; its number stays under `removed` until a merge drops its vector.
"""

from __future__ import annotations

import getpass
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import GalleryCorrupt, GalleryError, InvalidParameter
from .kinds import AUTO
from .where import Value, column_sql

FORMAT = 2
RESTORE = "Restore the gallery from a copy, or index the photos again"
SCHEMA = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, rows INTEGER NOT NULL, first INTEGER NOT NULL,
    sha256 TEXT NOT NULL
);
CREATE TABLE indexes (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, settings TEXT NOT NULL, sha256 TEXT NOT NULL
);
CREATE TABLE items (number INTEGER PRIMARY KEY, item_id TEXT NOT NULL UNIQUE, photos INTEGER NOT NULL);
CREATE TABLE photos (
    seq INTEGER PRIMARY KEY, photo_id TEXT NOT NULL UNIQUE, item INTEGER NOT NULL REFERENCES items (number),
    metadata TEXT NOT NULL
);
CREATE INDEX photos_by_item ON photos (item);
CREATE TABLE removed (seq INTEGER PRIMARY KEY);
CREATE TABLE thumbnails (photo_id TEXT PRIMARY KEY, jpeg BLOB NOT NULL);
CREATE TABLE columns (name TEXT PRIMARY KEY, kind TEXT NOT NULL);
CREATE TABLE changes (
    version INTEGER PRIMARY KEY, time TEXT NOT NULL, author TEXT NOT NULL, action TEXT NOT NULL, photos INTEGER NOT NULL
);
"""
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
class Segment:
    """A vector file in force."""

    id: int
    name: str
    rows: int
    first: int  # seq of its first row; the others ascend from there
    sha256: str


@dataclass(frozen=True)
class IndexFile:
    """The candidate index in force."""

    name: str
    kind: str
    settings: Mapping[str, Any]
    sha256: str


@dataclass(frozen=True)
class Change:
    """One line of the log."""

    version: int
    time: str  # ISO 8601, UTC
    author: str
    action: str
    photos: int


@dataclass(frozen=True)
class Entry:
    """A photo that is to be added."""

    photo_id: str
    item_id: str
    metadata: str  # JSON


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
        start = {"format": FORMAT, "version": 0, "layout": 0, "photos": 0, "items": 0, "next_seq": 0, "kind": AUTO}
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                connection.executescript(SCHEMA)
                rows = [(key, str(value)) for key, value in (start | dict(facts)).items()]
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

    # what is true of the gallery as a whole

    def facts(self) -> dict[str, str]:
        """Return the facts: format, version, layout, dim, embedding_id, created, photos, items, next_seq."""
        return {str(key): str(value) for key, value in self._query("SELECT key, value FROM facts")}

    def fact(self, key: str) -> str:
        """Return one of the facts."""
        rows = self._query("SELECT value FROM facts WHERE key = ?", (key,))
        if not rows:
            raise GalleryCorrupt(f"the database {self._path} lacks the fact {key}", remedy=RESTORE)
        return str(rows[0][0])

    def number(self, key: str) -> int:
        """Return a fact that is a whole number."""
        return self._whole(key, self.fact(key))

    def state(self) -> tuple[int, int]:
        """Return the version (changes so far) and the layout (rewrites of files so far)."""
        rows = self._query("SELECT value FROM facts WHERE key IN ('layout', 'version') ORDER BY key")
        if len(rows) != 2:
            raise GalleryCorrupt(f"the database {self._path} lacks its version", remedy=RESTORE)
        return self._whole("version", rows[1][0]), self._whole("layout", rows[0][0])

    def _whole(self, key: str, value: object) -> int:
        if not str(value).isdecimal():
            raise GalleryCorrupt(f"the fact {key} of {self._path} is {value!r}, not a number", remedy=RESTORE)
        return int(str(value))

    def set_fact(self, key: str, value: object) -> None:
        """Write one of the facts."""
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, str(value)))

    def increase(self, key: str, by: int = 1) -> None:
        """Add to a fact that is a number."""
        self._connection.execute("UPDATE facts SET value = value + ? WHERE key = ?", (by, key))

    def log(self, action: str, photos: int) -> None:
        """Count a change and write it down; readers see from it that they must look again."""
        self.increase("version")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._connection.execute(
            "INSERT INTO changes SELECT value, ?, ?, ?, ? FROM facts WHERE key = 'version'",
            (now, _author(), action, photos),
        )

    def changes(self, limit: int) -> list[Change]:
        """Return the newest changes, newest first."""
        rows = self._query("SELECT * FROM changes ORDER BY version DESC LIMIT ?", (limit,))
        return [Change(*row) for row in rows]

    # photos

    def add_photos(self, entries: Sequence[Entry]) -> tuple[int, list[int]]:
        """Insert photos; return the first seq, and the number of each one's item."""
        first = self.number("next_seq")
        new = dict.fromkeys(entry.item_id for entry in entries)
        self._connection.executemany(
            "INSERT INTO items (item_id, photos) VALUES (?, 0) ON CONFLICT DO NOTHING", [(item,) for item in new]
        )
        known = {
            item_id: (number, photos)
            for number, item_id, photos in self._each(
                "SELECT number, item_id, photos FROM items WHERE item_id IN", list(new)
            )
        }
        items = [known[entry.item_id][0] for entry in entries]
        self._connection.executemany(
            "INSERT INTO photos VALUES (?, ?, ?, ?)",
            [(first + i, e.photo_id, item, e.metadata) for i, (e, item) in enumerate(zip(entries, items, strict=True))],
        )
        self._connection.executemany(
            "UPDATE items SET photos = photos + 1 WHERE number = ?", [(number,) for number in items]
        )
        self.increase("next_seq", len(entries))
        self.increase("photos", len(entries))
        self.increase("items", sum(photos == 0 for _, photos in known.values()))
        return first, items

    def remove_photos(self, photo_ids: Sequence[str]) -> None:
        """Forget photos and their thumbnails; they must be there."""
        found = list(self._each("SELECT seq, item FROM photos WHERE photo_id IN", photo_ids))
        run = self._connection.executemany
        run("DELETE FROM photos WHERE seq = ?", [(seq,) for seq, _ in found])
        run("INSERT INTO removed VALUES (?)", [(seq,) for seq, _ in found])
        run("DELETE FROM thumbnails WHERE photo_id = ?", [(photo_id,) for photo_id in photo_ids])
        run("UPDATE items SET photos = photos - 1 WHERE number = ?", [(item,) for _, item in found])
        numbers = sorted({item for _, item in found})
        empty = [
            (number,) for (number,) in self._each("SELECT number FROM items WHERE photos = 0 AND number IN", numbers)
        ]
        run("DELETE FROM items WHERE number = ?", empty)
        self.increase("photos", -len(found))
        self.increase("items", -len(empty))

    def existing(self, photo_ids: Sequence[str]) -> set[str]:
        """Return which of the ids are in the gallery."""
        return {row[0] for row in self._each("SELECT photo_id FROM photos WHERE photo_id IN", photo_ids)}

    def photos_of_items(self, item_ids: Sequence[str]) -> set[str]:
        """Return the photos of some items."""
        query = "SELECT photo_id FROM photos JOIN items ON number = item WHERE item_id IN"
        return {row[0] for row in self._each(query, item_ids)}

    def photo_ids(self) -> list[str]:
        """Return every live photo in the order of adding."""
        return [row[0] for row in self._query("SELECT photo_id FROM photos ORDER BY seq")]

    def lines(self, first: int, last: int) -> list[tuple[int, str, str, str]]:
        """Return seq, photo_id, item_id and metadata of the live photos from `first` up to `last`, in order."""
        return self._query(
            "SELECT seq, photo_id, item_id, metadata FROM photos JOIN items ON number = item "
            "WHERE seq BETWEEN ? AND ? ORDER BY seq",
            (first, last),
        )

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, None where there is none."""
        rows = self._facts_of("photo_id = ?", photo_id)
        return rows[0] if rows else None

    def item(self, item_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return the same of all photos of an item, in the order of adding."""
        return self._facts_of("item_id = ?", item_id)

    def _facts_of(self, condition: str, value: str) -> list[tuple[str, str, dict[str, Any]]]:
        query = f"SELECT photo_id, item_id, metadata FROM photos JOIN items ON number = item WHERE {condition}"  # noqa: S608
        rows = self._query(f"{query} ORDER BY seq", (value,))
        return [(photo_id, item_id, json.loads(metadata)) for photo_id, item_id, metadata in rows]

    def item_ids(self, after: str, limit: int) -> list[str]:
        """Return ids of items that follow one in alphabetical order."""
        rows = self._query("SELECT item_id FROM items WHERE item_id > ? ORDER BY item_id LIMIT ?", (after, limit))
        return [row[0] for row in rows]

    def values(self, key: str) -> dict[str, Any]:
        """Return photo_id to the value of a metadata key, of the photos that have one."""
        query = "SELECT photo_id, json_extract(metadata, ?) AS v FROM photos WHERE v IS NOT NULL"
        rows = self._query(query, (f"$.{key}",))
        return dict(rows)

    def passing(self, condition: str, values: Sequence[Value]) -> NDArray[np.int64]:
        """Return the seqs of the photos for which a condition of `where.to_sql` holds, ascending."""
        rows = self._query(f"SELECT seq FROM photos WHERE {condition} ORDER BY seq", values)  # noqa: S608 (marks only)
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def removed(self) -> NDArray[np.int64]:
        """Return the seqs whose vectors are no longer in force, ascending."""
        rows = self._query("SELECT seq FROM removed ORDER BY seq")
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def forget_removed(self, seqs: Iterable[int]) -> None:
        """Forget that some photos were removed: their vectors are gone."""
        self._connection.executemany("DELETE FROM removed WHERE seq = ?", [(seq,) for seq in seqs])

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return a photo's thumbnail, None where it has none."""
        rows = self._query("SELECT jpeg FROM thumbnails WHERE photo_id = ?", (photo_id,))
        return bytes(rows[0][0]) if rows else None

    def add_thumbnails(self, thumbnails: Iterable[tuple[str, bytes]]) -> None:
        """Insert thumbnails."""
        self._connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", thumbnails)

    # columns that filters may use

    def columns(self) -> dict[str, str]:
        """Return declared columns and their kinds."""
        return dict(self._query("SELECT name, kind FROM columns ORDER BY name"))

    def declare(self, name: str, kind: str) -> None:
        """Let filters use a metadata key, and index it."""
        self._connection.execute("INSERT INTO columns VALUES (?, ?)", (name, kind))
        self._connection.execute(f"CREATE INDEX column_{name} ON photos ({column_sql(name)})")

    def photo_of_another_kind(self, name: str, types: Sequence[str]) -> str | None:
        """Return a photo whose value of a key is of none of these SQLite JSON types, None where there is none."""
        marks = ", ".join("?" * len(types))
        rows = self._query(
            f"SELECT photo_id FROM photos WHERE json_type(metadata, ?) NOT IN ({marks}) LIMIT 1",  # noqa: S608
            (f"$.{name}", *types),
        )
        return str(rows[0][0]) if rows else None

    # files in force

    def segments(self) -> list[Segment]:
        """Return the vector files in force, in the order of their photos."""
        return [
            Segment(*row) for row in self._query("SELECT id, name, rows, first, sha256 FROM segments ORDER BY first")
        ]

    def add_segment(self, name: str, rows: int, first: int, digest: str) -> None:
        """Put a vector file in force."""
        self._connection.execute(
            "INSERT INTO segments (name, rows, first, sha256) VALUES (?, ?, ?, ?)", (name, rows, first, digest)
        )

    def drop_segments(self, numbers: Iterable[int]) -> None:
        """Take vector files out of force."""
        self._connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in numbers])

    def index(self) -> IndexFile | None:
        """Return the candidate index in force."""
        rows = self._query("SELECT name, kind, settings, sha256 FROM indexes")
        return IndexFile(rows[0][0], rows[0][1], json.loads(rows[0][2]), rows[0][3]) if rows else None

    def set_index(self, index: IndexFile | None) -> None:
        """Put a candidate index in force, or none."""
        self._connection.execute("DELETE FROM indexes")
        if index is not None:
            settings = json.dumps(dict(index.settings))
            self._connection.execute(
                "INSERT INTO indexes VALUES (?, ?, ?, ?)", (index.name, index.kind, settings, index.sha256)
            )

    def integrity(self) -> list[str]:
        """Return what is wrong inside the database."""
        try:
            problems = [str(row[0]) for row in self._query("PRAGMA integrity_check") if row[0] != "ok"]
            for what, query in CHECKS.items():
                ((count,),) = self._query(query)
                problems += [f"{count} {what}"] if count else []
            for fact in ("photos", "items"):
                ((count,),) = self._query(f"SELECT count(*) FROM {fact}")  # noqa: S608 (two names)
                if count != self.number(fact):
                    problems.append(f"there are {count} {fact}, the facts say {self.fact(fact)}")
        except GalleryError as error:
            return [error.message]
        return [f"database: {problem}" for problem in problems]

    def _each(self, query: str, values: Sequence[object]) -> Iterator[Any]:
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


def _author() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"
