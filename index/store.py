"""Gallery database: photos, items, metadata, thumbnails and the files in use.

Photos are numbered permanently in insertion order (`seq`). A segment holds the vectors of a range of seqs and records
the seq of each row. Removing a photo deletes its database row; its seq stays in `removed` until a rebuild drops the
vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import GalleryError
from .files import Files
from .filters import Value, column_sql

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
class Entry:
    """A photo to be added."""

    photo_id: str
    item_id: str
    metadata: str  # JSON


class Store(Files):
    """A connection to a gallery database, with all its queries."""

    def add_photos(self, entries: Sequence[Entry]) -> tuple[int, list[int]]:
        """Insert photos; return the first seq and the item number of each photo."""
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
        self.increase("live_seqs", sum(range(first, first + len(entries))))
        self.increase("items", sum(photos == 0 for _, photos in known.values()))
        return first, items

    def remove_photos(self, photo_ids: Sequence[str]) -> None:
        """Delete photos and their thumbnails; all of them must exist."""
        rows = list(self._each("SELECT seq, item FROM photos WHERE photo_id IN", photo_ids))
        run = self._connection.executemany
        run("DELETE FROM photos WHERE seq = ?", [(seq,) for seq, _ in rows])
        run("INSERT INTO removed VALUES (?)", [(seq,) for seq, _ in rows])
        run("DELETE FROM thumbnails WHERE photo_id = ?", [(photo_id,) for photo_id in photo_ids])
        run("UPDATE items SET photos = photos - 1 WHERE number = ?", [(item,) for _, item in rows])
        numbers = sorted({item for _, item in rows})
        empty = [
            (number,) for (number,) in self._each("SELECT number FROM items WHERE photos = 0 AND number IN", numbers)
        ]
        run("DELETE FROM items WHERE number = ?", empty)
        self.increase("photos", -len(rows))
        self.increase("live_seqs", -sum(seq for seq, _ in rows))
        self.increase("items", -len(empty))

    def seqs_of(self, photo_ids: Sequence[str]) -> dict[str, int]:
        """Return the seqs of the photos that are in the gallery."""
        return dict(self._each("SELECT photo_id, seq FROM photos WHERE photo_id IN", photo_ids))

    def photos_of_items(self, item_ids: Sequence[str]) -> set[str]:
        """Return the photo ids of some items."""
        query = "SELECT photo_id FROM photos JOIN items ON number = item WHERE item_id IN"
        return {row[0] for row in self._each(query, item_ids)}

    def photo_ids(self) -> list[str]:
        """Return the ids of all live photos in insertion order."""
        return [row[0] for row in self._query("SELECT photo_id FROM photos ORDER BY seq")]

    def lines(self, first: int, last: int) -> list[tuple[int, str, str, str]]:
        """Return seq, photo_id, item_id and metadata of the live photos from `first` up to `last`, in order."""
        return self._query(
            "SELECT seq, photo_id, item_id, metadata FROM photos JOIN items ON number = item "
            "WHERE seq BETWEEN ? AND ? ORDER BY seq",
            (first, last),
        )

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        rows = self._facts_of("photo_id = ?", photo_id)
        return rows[0] if rows else None

    def item(self, item_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all photos of an item, in insertion order."""
        return self._facts_of("item_id = ?", item_id)

    def photos(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all live photos, in insertion order."""
        return self._facts_of("item_id != ?", "")  # no item_id is empty

    def _facts_of(self, condition: str, value: str) -> list[tuple[str, str, dict[str, Any]]]:
        query = f"SELECT photo_id, item_id, metadata FROM photos JOIN items ON number = item WHERE {condition}"  # noqa: S608
        rows = self._query(f"{query} ORDER BY seq", (value,))
        return [(photo_id, item_id, self._json(metadata)) for photo_id, item_id, metadata in rows]

    def item_ids(self, after: str, limit: int) -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order."""
        rows = self._query("SELECT item_id FROM items WHERE item_id > ? ORDER BY item_id LIMIT ?", (after, limit))
        return [row[0] for row in rows]

    def values(self, key: str) -> dict[str, Any]:
        """Return a mapping from photo_id to the value of a metadata key, for the photos that have one."""
        query = "SELECT photo_id, json_extract(metadata, ?) AS v FROM photos WHERE v IS NOT NULL"
        rows = self._query(query, (f"$.{key}",))
        return dict(rows)

    def passing(self, condition: str, values: Sequence[Value]) -> NDArray[np.int64]:
        """Return the seqs of the photos that satisfy a condition of `where.to_sql`, ascending."""
        rows = self._query(f"SELECT seq FROM photos WHERE {condition} ORDER BY seq", values)  # noqa: S608 (marks only)
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def failing(self, condition: str, values: Sequence[Value], metadata: Mapping[int, str]) -> list[int]:
        """Return the keys of the JSON texts that do not satisfy a condition of `where.to_sql`."""
        query = f"SELECT ({condition}) IS TRUE FROM (SELECT ? AS metadata)"  # noqa: S608 (marks only)
        return [key for key, text in metadata.items() if self._query(query, [*values, text]) != [(1,)]]

    def removed(self) -> NDArray[np.int64]:
        """Return the seqs whose vectors are no longer in use, ascending."""
        rows = self._query("SELECT seq FROM removed ORDER BY seq")
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def forget_removed(self, seqs: Iterable[int]) -> None:
        """Delete the records of removed photos whose vectors have been dropped."""
        self._connection.executemany("DELETE FROM removed WHERE seq = ?", [(seq,) for seq in seqs])

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the thumbnail of a photo, or None if it has none."""
        rows = self._query("SELECT jpeg FROM thumbnails WHERE photo_id = ?", (photo_id,))
        return bytes(rows[0][0]) if rows else None

    def add_thumbnails(self, thumbnails: Iterable[tuple[str, bytes]]) -> None:
        """Insert thumbnails."""
        self._connection.executemany("INSERT INTO thumbnails VALUES (?, ?)", thumbnails)

    def columns(self) -> dict[str, str]:
        """Return the declared columns and their kinds."""
        return dict(self._query("SELECT name, kind FROM columns ORDER BY name"))

    def declare(self, name: str, kind: str) -> None:
        """Declare a metadata key for filters and create an SQL index on it."""
        self._connection.execute("INSERT INTO columns VALUES (?, ?)", (name, kind))
        self._connection.execute(f"CREATE INDEX column_{name} ON photos ({column_sql(name)})")

    def undeclare(self, name: str) -> None:
        """Remove a metadata key from filters."""
        self._connection.execute("DELETE FROM columns WHERE name = ?", (name,))
        self._connection.execute(f"DROP INDEX column_{name}")

    def photo_of_another_kind(self, name: str, types: Sequence[str]) -> str | None:
        """Return a photo whose value of a key is not of these SQLite JSON types, or None."""
        marks = ", ".join("?" * len(types))
        rows = self._query(
            f"SELECT photo_id FROM photos WHERE json_type(metadata, ?) NOT IN ({marks}) LIMIT 1",  # noqa: S608
            (f"$.{name}", *types),
        )
        return str(rows[0][0]) if rows else None

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are in the gallery."""
        return dict(self._each("SELECT item_id, number FROM items WHERE item_id IN", list(item_ids)))

    def contents_since(self, seq: int, key: str) -> Iterator[tuple[str, str | None]]:
        """Yield item id and value of a metadata key for the photos from a seq on."""
        query = "SELECT item_id, json_extract(metadata, ?) FROM photos JOIN items ON number = item WHERE seq >= ?"
        with self._explained(self._path):
            yield from self._connection.execute(query, (f"$.{key}", seq))  # one by one: there may be a million

    def integrity(self) -> list[str]:
        """Return the problems found inside the database."""
        try:
            with self.transaction("DEFERRED"):  # one consistent view while other processes write
                problems = [str(row[0]) for row in self._query("PRAGMA integrity_check") if row[0] != "ok"]
                for what, query in CHECKS.items():
                    ((count,),) = self._query(query)
                    problems += [f"{count} {what}"] if count else []
                for name in self.kept_names():
                    self.kept(name)
                for fact in ("photos", "items"):
                    ((count,),) = self._query(f"SELECT count(*) FROM {fact}")  # noqa: S608 (two names)
                    if count != self.number(fact):
                        problems.append(f"there are {count} {fact}, the facts say {self.fact(fact)}")
        except GalleryError as error:
            return [error.message]
        return [f"database: {problem}" for problem in problems]
