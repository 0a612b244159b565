"""The SQLite database of a gallery: photos, items, files in use, facts, named contents and the change log.

Every change is one transaction (write-ahead log, full sync). Photos are numbered permanently in insertion order
(`seq`). A segment holds the vectors of a range of seqs and records the seq of each row. Removing a photo deletes its
database row; its seq stays in `removed` until a rebuild drops the vector.
"""

from __future__ import annotations

import getpass
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.ann.kinds import AUTO

from .errors import DiskFull, GalleryCorrupt, GalleryError, check_format
from .search.filters import column_sql

DATABASE, SEGMENTS, INDEXES = "gallery.sqlite", "segments", "indexes"  # file and folders of a gallery
FOLDS_FILE = "folds.npz"  # in the folder of a gallery whose model was trained on all its items
FORMAT = 5  # of what a gallery writes; every change of it is a new number
FEATURES_KEY = "features_key"  # name of the fact that identifies how features are computed
POINT = "operating point"  # name under which a gallery keeps its operating point
LOG_S = 0.5  # time to wait for processes that hold the log
CHECKSUM = "checksum"  # key in the settings of an index
ANEW = "Index the photos into a new gallery"
RESTORE = "Restore the gallery from a copy, or index the photos again"
PHOTO_SEQS = "SELECT photo_id, seq FROM photos WHERE photo_id IN"
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
CREATE TABLE kept (name TEXT PRIMARY KEY, content BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class Change:
    """An entry of the change log."""

    version: int
    time: str  # ISO 8601, UTC
    actor: str  # user or service that made the change
    action: str
    photos: int


@dataclass(frozen=True)
class Segment:
    """A vector file in use."""

    id: int
    name: str  # path without its ending, from the folder of all segments
    rows: int
    first: int  # seq of the first row; the others follow in ascending order
    sha256: str


@dataclass(frozen=True)
class IndexFile:
    """A candidate index in use."""

    name: str  # path without its ending, from the folder of all indexes
    kind: str
    settings: Mapping[str, Any]
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A photo to be added."""

    photo_id: str
    item_id: str
    metadata: str  # JSON
    thumbnail: bytes | None = None  # JPEG


class Database:
    """A connection to a gallery database; any number of threads may use it, one at a time."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        if not path.exists():
            raise GalleryError(f"{path.parent} is not a gallery", remedy="Index photos into it first")
        self._path = path
        self._connect(path, read_only=read_only)
        try:
            check_format(self.fact("format"), FORMAT, path.parent, GalleryError, remedy=ANEW)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, object]) -> None:
        """Create an empty database."""
        start = {"format": FORMAT, "version": 0, "layout": 0, "photos": 0, "items": 0, "next_seq": 0, "kind": AUTO}
        start |= {"live_seqs": 0, FEATURES_KEY: ""}
        with cls._explained(path), closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            with connection:
                connection.executescript(SCHEMA)
                rows = [(key, str(value)) for key, value in (start | dict(facts)).items()]
                connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)

    def _connect(self, path: Path, *, read_only: bool) -> None:
        sealed = read_only and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
        self._sealed = _stamp(path) if sealed else None  # on a read-only disk, where SQLite can make no files
        place = f"{path.resolve().as_uri()}?immutable=1" if sealed else str(path)
        self._connection = sqlite3.connect(place, check_same_thread=False, isolation_level=None, timeout=30, uri=sealed)
        self._connection.create_function("casefold", 1, lambda value: "" if value is None else str(value).casefold())
        self._state: tuple[tuple[int, int] | None, tuple[int, int]] = None, (0, 0)  # the last mark and its state
        with self._explained(path):
            self._connection.execute("PRAGMA query_only = ON" if read_only else "PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten

    def close(self) -> None:
        """Close the connection. No other thread may be in a query: SQLite would end the process."""
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):  # sqlite3 keeps it in a reference cycle, which may be collected much later
            self.close()

    def copy(self, path: Path) -> None:
        """Write this version (in a transaction, its version) to a new file, while other processes may write."""
        with self._explained(path), closing(sqlite3.connect(path)) as connection:
            self._connection.backup(connection)

    @contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        """Commit the enclosed statements as one change, or none of them; DEFERRED gives one consistent view."""
        with self._explained(self._path):
            if kind == "DEFERRED" and self._connection.in_transaction:  # part of the change that is being made
                yield
                return
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @staticmethod
    @contextmanager
    def _explained(path: Path) -> Iterator[None]:
        """Turn SQLite errors into GalleryError (temporary: locked, full) or GalleryCorrupt (damage)."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "malformed JSON" in str(error):
                raise GalleryCorrupt(f"the database {path} holds metadata that is not JSON", remedy=RESTORE) from error
            full = "disk is full" in str(error)
            raise (DiskFull if full else GalleryError)(  # full, or locked or not readable
                f"the database {path} cannot be used: {error}",
                remedy="Check disk space and permissions, and that no other program holds it; then try again",
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if "closed database" in str(error):
                raise GalleryError(f"the gallery {path.parent} is closed", remedy="Open it again") from error
            raise GalleryCorrupt(f"the database {path} is damaged: {error}", remedy=RESTORE) from error

    def _parse(self, text: str) -> dict[str, Any]:
        """Return a stored JSON object; raise GalleryCorrupt if it is none."""
        try:
            values: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise GalleryCorrupt(
                f"the database {self._path} holds {text[:60]!r}, which is not JSON", remedy=RESTORE
            ) from error
        return values

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Return all rows of a query."""
        with self._explained(self._path):
            return self._connection.execute(query, values).fetchall()

    # facts about the gallery

    def facts(self) -> dict[str, str]:
        """Return the facts: format, version, layout, dim, embedding_id, created, photos, items, next_seq."""
        return {str(key): str(value) for key, value in self.rows("SELECT key, value FROM facts")}

    def fact(self, key: str) -> str:
        """Return one fact."""
        rows = self.rows("SELECT value FROM facts WHERE key = ?", (key,))
        if not rows:
            raise GalleryCorrupt(f"the database {self._path} lacks the fact {key}", remedy=RESTORE)
        return str(rows[0][0])

    def number(self, key: str) -> int:
        """Return a fact that is a whole number."""
        return self._whole(key, self.fact(key))

    def state(self) -> tuple[int, int]:
        """Return the version (changes so far) and the layout (file rewrites so far)."""
        with self._explained(self._path):
            mark = self._mark()
        if mark is not None and mark == self._state[0]:
            return self._state[1]
        rows = self.rows("SELECT value FROM facts WHERE key IN ('layout', 'version') ORDER BY key")
        if len(rows) != 2:
            raise GalleryCorrupt(f"the database {self._path} lacks its version", remedy=RESTORE)
        state = self._whole("version", rows[1][0]), self._whole("layout", rows[0][0])
        self._state = mark, state
        return state

    def _mark(self) -> tuple[int, int] | None:
        """Return a value that differs after each commit of any connection, or None if it is not known."""
        if self._sealed is not None and self._sealed != _stamp(self._path):
            raise GalleryError(f"{self._path} on a read-only disk was changed from elsewhere", remedy="Open it again")
        if self._connection.in_transaction:  # the change may be rolled back
            return None
        try:
            ((commits_of_others,),) = self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error:
            return None
        return commits_of_others, self._connection.total_changes

    def _whole(self, key: str, value: object) -> int:
        if not str(value).isdecimal():
            raise GalleryCorrupt(f"the fact {key} of {self._path} is {value!r}, not a number", remedy=RESTORE)
        return int(str(value))

    def set_fact(self, key: str, value: object) -> None:
        """Set a fact."""
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, str(value)))

    def increase(self, key: str, by: int = 1) -> None:
        """Add `by` to a numeric fact."""
        self._connection.execute("UPDATE facts SET value = value + ? WHERE key = ?", (by, key))

    def log(self, action: str, photos: int, *, actor: str) -> None:
        """Record a change and increase the version; readers then reload."""
        self.increase("version")
        self._connection.execute(
            "INSERT INTO changes SELECT value, ?, ?, ?, ? FROM facts WHERE key = 'version'",
            (datetime.now(UTC).isoformat(timespec="seconds"), actor, action, photos),
        )

    def changes(self, limit: int) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        return [Change(*row) for row in self.rows("SELECT * FROM changes ORDER BY version DESC LIMIT ?", (limit,))]

    def each(self, query: str, values: Sequence[object]) -> Iterator[Any]:
        """Yield the rows of a query that ends in IN, for all values; they are passed in several parts."""
        for start in range(0, len(values), 500):
            chunk = values[start : start + 500]
            marks = ", ".join("?" * len(chunk))
            yield from self.rows(f"{query} ({marks})", chunk)  # the inserted text contains placeholders only

    # files in use

    def segments(self) -> list[Segment]:
        """Return the vector files in use, in insertion order of their photos."""
        return [Segment(*row) for row in self.rows("SELECT id, name, rows, first, sha256 FROM segments ORDER BY first")]

    def replace_segments(self, replaced: Iterable[int], segment: Segment | None, dropped: Iterable[int] = ()) -> None:
        """Put a segment into use in place of others, given by id, without the vectors of some removed photos (seqs)."""
        self._connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in replaced])
        self._connection.executemany("DELETE FROM removed WHERE seq = ?", [(seq,) for seq in dropped])
        if segment is not None:
            self._connection.execute(
                "INSERT INTO segments (name, rows, first, sha256) VALUES (?, ?, ?, ?)",
                (segment.name, segment.rows, segment.first, segment.sha256),
            )

    def index(self) -> IndexFile | None:
        """Return the candidate index in use, None if there is none."""
        for name, kind, text, digest in self.rows("SELECT name, kind, settings, sha256 FROM indexes"):
            settings = self._parse(text)
            if settings.pop(CHECKSUM, None) != _checksum(settings):
                raise GalleryCorrupt(
                    f"the settings of the index {name} have changed since they were written", remedy=RESTORE
                )
            return IndexFile(name, kind, settings, digest)
        return None

    def set_index(self, index: IndexFile | None) -> None:
        """Set the candidate index, or remove it with None."""
        self._connection.execute("DELETE FROM indexes")
        if index is not None:
            settings = json.dumps({**index.settings, CHECKSUM: _checksum(index.settings)})
            self._connection.execute(
                "INSERT INTO indexes VALUES (?, ?, ?, ?)", (index.name, index.kind, settings, index.sha256)
            )

    # photos

    def add_photos(self, entries: Sequence[Entry]) -> tuple[int, list[int]]:
        """Insert photos; return the first seq and the item number of each photo."""
        first = self.number("next_seq")
        new = dict.fromkeys(entry.item_id for entry in entries)
        self._connection.executemany(
            "INSERT INTO items (item_id, photos) VALUES (?, 0) ON CONFLICT DO NOTHING", [(item,) for item in new]
        )
        known = {
            item_id: (number, photos)
            for number, item_id, photos in self.each(
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
        thumbnails = [(entry.photo_id, entry.thumbnail) for entry in entries if entry.thumbnail]
        self._connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", thumbnails)
        self.increase("next_seq", len(entries))
        self.increase("photos", len(entries))
        self.increase("live_seqs", sum(range(first, first + len(entries))))
        self.increase("items", sum(photos == 0 for _, photos in known.values()))
        return first, items

    def remove_photos(self, photo_ids: Sequence[str]) -> None:
        """Delete photos and their thumbnails; all of them must exist."""
        rows = list(self.each("SELECT seq, item FROM photos WHERE photo_id IN", photo_ids))
        run = self._connection.executemany
        run("DELETE FROM photos WHERE seq = ?", [(seq,) for seq, _ in rows])
        run("INSERT INTO removed VALUES (?)", [(seq,) for seq, _ in rows])
        run("DELETE FROM thumbnails WHERE photo_id = ?", [(photo_id,) for photo_id in photo_ids])
        run("UPDATE items SET photos = photos - 1 WHERE number = ?", [(item,) for _, item in rows])
        items = sorted({item for _, item in rows})
        empty = list(self.each("SELECT number FROM items WHERE photos = 0 AND number IN", items))
        run("DELETE FROM items WHERE number = ?", empty)
        self.increase("photos", -len(rows))
        self.increase("live_seqs", -sum(seq for seq, _ in rows))
        self.increase("items", -len(empty))

    def seqs_of(self, photo_ids: Sequence[str]) -> dict[str, int]:
        """Return the seqs of the photos that are in the gallery."""
        return dict(self.each(PHOTO_SEQS, photo_ids))

    def photos(self, condition: str = "TRUE", *values: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos that satisfy a condition, in insertion order."""
        query = f"SELECT photo_id, item_id, metadata FROM photos JOIN items ON number = item WHERE {condition}"  # noqa: S608
        rows = self.rows(f"{query} ORDER BY seq", values)
        return [(photo_id, item_id, self._parse(metadata)) for photo_id, item_id, metadata in rows]

    def declare(self, name: str, kind: str | None) -> None:
        """Declare a metadata key for filters and create an SQL index on it; None removes both."""
        if kind is None:
            self._connection.execute("DELETE FROM columns WHERE name = ?", (name,))
            self._connection.execute(f"DROP INDEX column_{name}")
        else:
            self._connection.execute("INSERT INTO columns VALUES (?, ?)", (name, kind))
            self._connection.execute(f"CREATE INDEX column_{name} ON photos ({column_sql(name)})")

    # named contents, such as the operating point and the draws

    def kept(self, name: str) -> bytes | None:
        """Return the content kept under a name, or None; raise GalleryCorrupt if it is damaged."""
        rows = self.rows("SELECT content, checksum FROM kept WHERE name = ?", (name,))
        if not rows:
            return None
        content = rows[0][0]
        if not isinstance(content, bytes) or zlib.crc32(content) != rows[0][1]:
            raise GalleryCorrupt(f"the {name} in {self._path} has changed since it was written", remedy=RESTORE)
        return content

    def keep(self, contents: Mapping[str, bytes | None]) -> None:
        """Keep each content under its name; None removes it."""
        for name, content in contents.items():
            if content is None:
                self._connection.execute("DELETE FROM kept WHERE name = ?", (name,))
            else:
                self._connection.execute(
                    "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (name, content, zlib.crc32(content))
                )


def empty_log(path: Path, *, pages: bool = False) -> bool:
    """Move the log of a database into it and empty it, so that nothing deleted is left; return whether that was done.

    Another process that reads or writes may hold the log. With `pages`, free pages of the file are dropped, too.
    """
    with Database._explained(path), closing(sqlite3.connect(path, timeout=LOG_S, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete = ON")
        try:
            if pages and connection.execute("PRAGMA freelist_count").fetchone()[0]:
                connection.execute("VACUUM")
            held = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        except sqlite3.OperationalError:  # locked, or no room for a copy: the next rebuild tries again
            return False
    return not held


def _stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size


def _checksum(settings: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(dict(settings), sort_keys=True).encode())


def system_user() -> str:
    """Return the name of the user that runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"
