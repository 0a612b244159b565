"""SQLite database of a gallery: connection, transactions, errors, facts and change log.

Every change is one transaction (write-ahead log, full sync).
"""

from __future__ import annotations

import getpass
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from index.ann.kinds import AUTO

from .errors import GalleryCorrupt, GalleryError
from .shell import command

FORMAT = 5  # of what a gallery writes; every change of it is a new number
FEATURES_KEY = "features_key"  # name of the fact that identifies how features are computed
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


class Database:
    """A connection to a gallery database."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        if not path.exists():
            raise GalleryError(
                f"{path.parent} is not a gallery",
                remedy=f"`{command('index', 'BUNDLE', 'PHOTOS', '-o', path.parent)}` makes one",
            )
        self._path = path
        self._connect(path, read_only=read_only)
        try:
            stored_format = self.fact("format")
            if stored_format != str(FORMAT):
                raise GalleryError(
                    f"{path.parent} has format {stored_format}, this program reads format {FORMAT}",
                    remedy="Index the photos into a new gallery",
                )
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
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
        self._state: tuple[tuple[int, int] | None, tuple[int, int]] = None, (0, 0)  # the last mark and its state
        with self._explained(path):
            self._connection.execute("PRAGMA query_only = ON" if read_only else "PRAGMA synchronous = FULL")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

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
            # locked, full, not readable
            raise GalleryError(
                f"the database {path} cannot be used: {error}",
                remedy="Check disk space and permissions, and that no other program holds it; then try again",
            ) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise GalleryCorrupt(f"the database {path} is damaged: {error}", remedy=RESTORE) from error

    def _json(self, text: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise GalleryCorrupt(
                f"the database {self._path} holds {text[:60]!r}, which is not JSON", remedy=RESTORE
            ) from error
        return values

    def _query(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._explained(self._path):
            return self._connection.execute(query, values).fetchall()

    # facts about the gallery

    def facts(self) -> dict[str, str]:
        """Return the facts: format, version, layout, dim, embedding_id, created, photos, items, next_seq."""
        return {str(key): str(value) for key, value in self._query("SELECT key, value FROM facts")}

    def fact(self, key: str) -> str:
        """Return one fact."""
        rows = self._query("SELECT value FROM facts WHERE key = ?", (key,))
        if not rows:
            raise GalleryCorrupt(f"the database {self._path} lacks the fact {key}", remedy=RESTORE)
        return str(rows[0][0])

    def features_key(self) -> str:
        """Return the key that identifies how features are computed, "" in a gallery without features."""
        return self.fact(FEATURES_KEY)

    def number(self, key: str) -> int:
        """Return a fact that is a whole number."""
        return self._whole(key, self.fact(key))

    def state(self) -> tuple[int, int]:
        """Return the version (changes so far) and the layout (file rewrites so far)."""
        mark = self._mark()
        if mark is not None and mark == self._state[0]:
            return self._state[1]
        rows = self._query("SELECT value FROM facts WHERE key IN ('layout', 'version') ORDER BY key")
        if len(rows) != 2:
            raise GalleryCorrupt(f"the database {self._path} lacks its version", remedy=RESTORE)
        state = self._whole("version", rows[1][0]), self._whole("layout", rows[0][0])
        self._state = mark, state
        return state

    def _mark(self) -> tuple[int, int] | None:
        """Return a value that differs after each commit of any connection, or None if it is not known."""
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
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._connection.execute(
            "INSERT INTO changes SELECT value, ?, ?, ?, ? FROM facts WHERE key = 'version'",
            (now, actor, action, photos),
        )

    def changes(self, limit: int) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        rows = self._query("SELECT * FROM changes ORDER BY version DESC LIMIT ?", (limit,))
        return [Change(*row) for row in rows]

    def restore_changes(self, changes: Sequence[Change]) -> None:
        """Insert changes of another gallery, in ascending order of version, and continue from the last version."""
        self._connection.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?)", [astuple(c) for c in changes])
        if changes:
            self.set_fact("version", changes[-1].version)

    def _each(self, query: str, values: Sequence[object]) -> Iterator[Any]:
        for start in range(0, len(values), 500):
            chunk = values[start : start + 500]
            marks = ", ".join("?" * len(chunk))
            yield from self._query(f"{query} ({marks})", chunk)  # the inserted text contains placeholders only


def system_user() -> str:
    """Return the name of the user that runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        return "unknown"
