"""The gallery: photos of items with their vectors, in a directory. Crash-safe changes, searches of one version.

One process writes at a time; any number of processes and threads read. A reader works on an immutable snapshot of one
version and picks up a newer version at its next search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import (
    Additions,
    check_actor,
    check_additions,
    check_ids,
    check_removals,
    check_stored,
    check_values,
    encode_metadata,
    refuse_absent,
    refuse_present,
)
from .database import (
    DATABASE,
    FEATURES_KEY,
    RESTORE,
    SEGMENTS,
    Change,
    Database,
    Entry,
    Segment,
    empty_log,
    system_user,
)
from .errors import GalleryCorrupt, GalleryError, InvalidParameter
from .features import FeatureFormat, check_size
from .files import write_errors
from .folder import GalleryFolder
from .photos import NONE
from .search.distance import Rows
from .search.filters import Filter, check_columns, parse_where, to_sql
from .search.neighbours import Neighbour, Searched, StoredPhoto, Version
from .segments import Part, encode_row, write_segment
from .snapshot import Snapshot
from .upkeep.rebuild import MIN_RECALL, Rebuilt, compact, rebuild, rebuild_if_due
from .upkeep.verify import verify, verify_files

__all__ = ["Gallery", "Neighbour", "Rebuilt", "StoredPhoto"]

ATTEMPTS = 5  # at a filtered search while other processes write
VALUES = """
SELECT photo_id, item_id, json_extract(metadata, ?) FROM photos JOIN items ON number = item ORDER BY seq
"""
ITEMS = "SELECT item_id FROM items WHERE item_id > ? ORDER BY item_id LIMIT ?"
FIND_ITEMS = """
WITH texts AS (
    SELECT number, TRUE AS is_title, casefold(item_id) AS text FROM items UNION ALL
    SELECT item, key = 'name', casefold(value) FROM photos, json_each(metadata) WHERE substr(key, 1, 1) <> '_'
), found AS (
    SELECT item_id, min(CASE WHEN is_title AND text = ?1 THEN 0 WHEN is_title AND instr(text, ?1) = 1 THEN 1 ELSE 2
        END) AS place FROM texts JOIN items USING (number) WHERE instr(text, ?1) GROUP BY number
)
SELECT item_id FROM found WHERE (place, item_id) > (coalesce((SELECT place FROM found WHERE item_id = ?2), 0), ?2)
ORDER BY place, item_id LIMIT ?3
"""
PHOTOS_OF_ITEMS = "SELECT photo_id FROM photos JOIN items ON number = item WHERE item_id IN"


class Gallery(Searched):
    """A directory of photos, items and vectors. Use `create` for a new gallery and `open` for an existing one.

    Any number of threads may use it.
    """

    at_hand = True  # this process holds the photos: it may look at each
    feature_format: FeatureFormat | None = None  # checks the features of added photos, if it is set

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        dim: int,
        embedding_id: str,
        columns: Mapping[str, str] | None = None,
        features_key: str = "",
        actor: str | None = None,
    ) -> Gallery:
        """Create an empty gallery for vectors (n, dim) of one embedder; raise GalleryError if the path is taken.

        Parameters
        ----------
        columns:
            Metadata keys that filters may use, with their kinds: text, number or boolean.
        features_key:
            Identifies how local features are computed. With it, the gallery keeps the features of its photos.
        actor:
            Name recorded in the change log, as in `open`.
        """
        path = Path(path)
        if dim < 1:
            raise InvalidParameter("dim", "be at least 1", dim)
        check_columns(columns or {})
        created = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"dim": dim, "embedding_id": embedding_id, "created": created, FEATURES_KEY: features_key}
        GalleryFolder.create(path, facts)
        gallery = cls(path, read_only=False, actor=actor)
        if columns:
            gallery.declare(columns)
        return gallery

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False, actor: str | None = None) -> Self:
        """Open a gallery; raise GalleryError if there is none.

        `actor` is the name in the change log, by default the user of this process. Each change may name another.
        """
        return cls(Path(path), read_only=read_only, actor=actor)

    def __init__(self, path: Path, *, read_only: bool, actor: str | None = None) -> None:
        self.path = path = path.resolve()  # absolute, so that a symbolic link changed later has no effect
        self.read_only = read_only
        self._folder = GalleryFolder(path, read_only=read_only)
        self._database, self._guard = self._folder.database, self._folder.guard
        self.damage: list[str] = []  # problems found by a search or by `verify` without rows
        self.dim, self.features_key = self._folder.dim, self._folder.features_key
        self.embedding_id = self._database.fact("embedding_id")
        self.created = self._database.fact("created")
        self.actor = system_user() if actor is None else check_actor(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release the write lock."""
        self._folder.close()

    def __len__(self) -> int:
        """Return the number of live photos."""
        return self.snapshot().photos

    @property
    def items(self) -> int:
        """Return the number of items with a live photo."""
        return self.snapshot().item_count

    @property
    def version(self) -> int:
        """Return the number of changes so far."""
        with self._guard:
            return self._database.number("version")

    def index(self) -> dict[str, Any]:
        """Return the index kind in use, its settings and measured recall, and the number of photos outside it."""
        now = self.snapshot()
        with self._guard:
            index = self._database.index()
        return {"kind": now.kind, **({} if index is None else index.settings), "scanned_photos": now.scanned_photos}

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        with self._guard:
            return dict(self._database.rows("SELECT name, kind FROM columns ORDER BY name"))

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        with self._guard:
            return self._database.changes(limit)

    def values(self, key: str) -> list[tuple[str, str, Any]]:
        """Return photo_id, item_id and the value of a metadata key, None if it has none, of each live photo."""
        with self._own_database() as own:
            return own.rows(VALUES, (f"$.{key}",))

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        with self._guard:
            return next(iter(self._database.photos("photo_id = ?", photo_id)), None)

    def photos(self, item_id: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all live photos of one version, or of an item, in insertion order.

        An unknown item has no photos.
        """
        with self._guard:
            return self._database.photos() if item_id is None else self._database.photos("item_id = ?", item_id)

    def item_ids(self, *, after: str = "", limit: int = 100, find: str = "") -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order.

        `find` is a part of their ids or of the metadata of their photos, in any case. Items that have it as their id or
        `name` come first, then those whose id or name begins with it, then the others.
        """
        with self._own_database() as own:
            found = own.rows(FIND_ITEMS, (find.casefold(), after, limit)) if find else own.rows(ITEMS, (after, limit))
        return [item_id for (item_id,) in found]

    @contextmanager
    def _own_database(self) -> Iterator[Database]:
        """Yield a connection for a long query, so that searches do not wait for it."""
        with self._guard:
            self._database.fact("format")  # raises if the gallery is closed
        with closing(Database(self.path / DATABASE, read_only=True)) as own:
            yield own

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        return self._thumbnails([photo_id]).get(photo_id)

    def _thumbnails(self, photo_ids: Sequence[str]) -> dict[str, bytes]:
        with self._guard:
            return dict(self._database.each("SELECT photo_id, jpeg FROM thumbnails WHERE photo_id IN", photo_ids))

    def kept(self, name: str) -> bytes | None:
        """Return the content that is kept under a name with the newest version, None if there is none."""
        with self._guard:
            return self._database.kept(name)

    def walk(self, count: int, *, whole: bool = False) -> Iterator[list[StoredPhoto]]:
        """Return the live photos of the newest version in insertion order, `count` per batch.

        With `whole`, they have their thumbnails, and their features if the gallery keeps them.
        """
        now = self.snapshot()
        live = np.flatnonzero(now.live)
        return (self._stored(now, live[start : start + count], whole) for start in range(0, len(live), count))

    def _stored(self, now: Snapshot, positions: Rows, whole: bool) -> list[StoredPhoto]:
        facts, vectors = now.photos_at(positions), now.vectors(positions)
        features = now.features(positions) if whole and self.features_key else [None] * len(positions)
        jpegs = self._thumbnails([photo_id for photo_id, *_ in facts]) if whole else {}
        photos = zip(facts, vectors, features, strict=True)
        return [StoredPhoto(*fact, vector, some, jpegs.get(fact[0])) for fact, vector, some in photos]

    @contextmanager
    def _searching(self, where: str | None, left_out: Collection[str]) -> Iterator[Version]:
        try:
            now, only = self._filtered(where) if where is not None else (self.snapshot(), None)
            if left_out:
                positions = now.positions(list(left_out))
                now = now.without(positions[positions != NONE])
            photos_at = now.photos_at if only is None else partial(self._confirmed, now, only)
            yield Version(now.version, now.point, now, only, photos_at)
        except GalleryCorrupt as error:
            self._remember([error.message])
            raise

    def snapshot(self) -> Snapshot:
        """Return the newest version as a searchable snapshot, reading it if it is not cached."""
        return self._folder.snapshot()

    def verify(self, *, rows: bool = True) -> list[str]:
        """Read all data and return a list of problems in words; empty if there are none.

        Without `rows`, only the database and the files are checked. Searches go on meanwhile, and problems are added to
        `damage`. Raises GalleryError if the data cannot be read now, such as for lack of open files.
        """
        if rows:
            with self._guard:
                return verify(self.path, self._database)
        problems = verify_files(self.path)
        self._remember(problems)
        return problems

    def add(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        vectors: ArrayLike,
        *,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        thumbnails: Sequence[bytes | None] | None = None,
        features: Sequence[bytes] | None = None,
        upsert: bool = False,
        actor: str | None = None,
    ) -> int:
        """Add photos in one transaction and return their number; nothing is added on an error.

        Parameters
        ----------
        photo_ids, item_ids:
            One id per vector. A photo_id already in the gallery raises an error, or is replaced with `upsert`.
        vectors:
            Vectors (n, d) of length 1 within 1e-3; they are rescaled to length 1.
        metadata, thumbnails:
            One mapping of JSON values and one JPEG (or None) per photo. Declared columns require values of their kind.
        features:
            Local features of each photo, in a gallery with a `features_key` only. They are checked by the
            `feature_format` of the gallery, if it has one.
        actor:
            Name recorded in the change log. Defaults to the actor of the gallery.
        """
        actor = self._actor(actor)
        new = check_additions(
            *(photo_ids, item_ids, vectors, metadata, thumbnails, features),
            dim=self.dim,
            features_key=self.features_key,
            feature_format=self.feature_format,
        )
        return self._put(new, actor, upsert=upsert)

    def update(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        metadata: Sequence[Mapping[str, Any]],
        *,
        actor: str | None = None,
    ) -> int:
        """Set the items and metadata of photos in one transaction, keeping everything else; return their number.

        Raises InvalidParameter if a photo is not in the gallery.
        """
        actor, ids = self._actor(actor), check_ids("photo_ids", photo_ids)
        with self._guard:
            self._folder.start_writing()
            seqs = self._database.seqs_of(ids)
            refuse_absent([photo_id for photo_id in ids if photo_id not in seqs])
            now = self.snapshot()
            positions = np.searchsorted(now.seqs, np.array([seqs[photo_id] for photo_id in ids], dtype=np.int64))
            thumbnails = self._thumbnails(ids)
            changed = check_additions(
                ids,
                item_ids,
                now.vectors(positions),
                metadata,
                [thumbnails.get(photo_id) for photo_id in ids],
                now.features(positions) if self.features_key else None,
                dim=self.dim,
                features_key=self.features_key,
            )
            return self._put(changed, actor)

    def remove(
        self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None, actor: str | None = None
    ) -> int:
        """Remove photos, or all photos of items, in one transaction; return how many existed."""
        actor = self._actor(actor)
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            self._folder.start_writing()
            with self._folder.change():
                gone = {*self._database.seqs_of(photo_ids)}.union(
                    photo_id for (photo_id,) in self._database.each(PHOTOS_OF_ITEMS, item_ids)
                )
                if gone:
                    self._database.remove_photos(sorted(gone))
                    self._database.log("remove", len(gone), actor=actor)
            if gone:
                empty_log(self.path / DATABASE)
        return len(gone)

    def declare(self, columns: Mapping[str, str | None], *, actor: str | None = None) -> None:
        """Declare metadata keys for filters, each text, number or boolean; None removes a key.

        A declared key keeps its kind until it is removed. Raises InvalidParameter if a photo has a value of another
        kind, or if two keys differ in case alone.
        """
        wanted = {name: kind for name, kind in columns.items() if kind is not None}
        actor = self._actor(actor)
        with self._guard:
            known = self.columns()
            check_columns({name: kind for name, kind in known.items() if name not in columns} | wanted)
            self._folder.start_writing()
            gone = {name for name, kind in columns.items() if kind is None and name in known}
            new = {name: kind for name, kind in wanted.items() if known.get(name) != kind}
            for name, kind in new.items():
                if name in known:
                    raise InvalidParameter(f"column {name}", f"stay {known[name]}, its declared kind", kind)
                check_stored(self._database, name, kind)
            for word, names in (("undeclare", gone), ("declare", set(new))):
                if names:
                    with self._database.transaction():
                        for name in names:
                            self._database.declare(name, new.get(name))
                        self._database.log(f"{word} {', '.join(sorted(names))}", 0, actor=actor)

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep named contents, such as an operating point, as one change; None removes a content."""
        actor = self._actor(actor)
        with self._guard:
            self._folder.start_writing()
            with self._database.transaction():
                self._database.keep(contents)
                self._database.log(action, 0, actor=actor)

    def lock(self) -> None:
        """Take the write lock until `close`, so that no other process changes the gallery meanwhile.

        Wait two seconds for another process that writes, then raise GalleryLocked.
        """
        self._folder.wait_to_write()

    def rebuild(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        queries: NDArray[np.float32] | None = None,
        min_recall: float = MIN_RECALL,
        purge: bool = True,
        threads: int | None = None,
        actor: str | None = None,
    ) -> Rebuilt:
        """Combine segments, drop the vectors of removed photos and rebuild the index while searches go on.

        All new files are put into use together. If the index is refused, nothing changes.

        Parameters
        ----------
        kind:
            Index kind of `index.ann.kinds`, or "auto" to choose by size and memory. Defaults to the last choice.
        max_memory:
            Memory limit in bytes for the index and its rebuild.
        queries:
            Unit vectors (q, d) that measure the recall of an approximate index, in addition to photos of the gallery.
            An index below `min_recall` is refused.
        purge:
            Rewrite every segment with a removed photo, not only those with many.
        """
        return rebuild(
            self._folder,
            kind=kind,
            max_memory=max_memory,
            queries=queries,
            min_recall=min_recall,
            purge=purge,
            threads=threads,
            actor=self._actor(actor),
        )

    def rebuild_if_due(
        self, *, kind: str | None = None, max_memory: int | None = None, queries: NDArray[np.float32] | None = None
    ) -> Rebuilt | None:
        """Rebuild if `kind` or `max_memory` is given, another kind fits better, or the index lacks too many photos."""
        return rebuild_if_due(self._folder, kind=kind, max_memory=max_memory, queries=queries, actor=self._actor(None))

    def _put(self, new: Additions, actor: str, *, upsert: bool | None = None) -> int:
        """Write photos in one transaction. Existing ones are replaced with `upsert`, and updated if it is None."""
        count = len(new.photo_ids)
        if not count:
            return 0
        with self._guard:
            self._folder.start_writing()
            check_values(new.metadata, self.columns())
            encoded = map(encode_metadata, new.metadata)
            facts = zip(new.photo_ids, new.item_ids, encoded, new.thumbnails, strict=True)
            entries = [Entry(*fact) for fact in facts]
            present = self._database.seqs_of(new.photo_ids)
            if upsert is False:
                refuse_present(set(present))
            check_size(self._database.number("photos") + count - len(present), self.features_key)
            with write_errors(self.path), self._folder.change():
                self._database.remove_photos(sorted(present))
                first, numbers = self._database.add_photos(entries)
                texts = [encode_row(entry.photo_id, entry.item_id, entry.metadata) for entry in entries]
                seqs = np.arange(first, first + count, dtype=np.int64)
                part = Part(new.vectors, seqs, np.array(numbers, dtype=np.int32), texts, new.features)
                name, digest = write_segment(
                    self.path / SEGMENTS, [part], rows=count, dim=self.dim, features=part.features is not None
                )
                self._database.replace_segments([], Segment(0, name, count, first, digest))
                action = f"add, {len(present)} of them replaced" if present else "add"
                self._database.log("update" if upsert is None else action, count, actor=actor)
            compact(self._folder)
        return count

    def _actor(self, actor: str | None) -> str:
        return self.actor if actor is None else check_actor(actor)

    def _remember(self, problems: list[str]) -> None:
        with self._guard:
            self.damage = list(dict.fromkeys([*self.damage, *problems]))

    def _confirmed(self, now: Snapshot, only: Filter, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photos that pass a filter in the database; raise GalleryCorrupt unless their own metadata passes, too.

        Their metadata in the segments has a checksum.
        """
        photos = now.photos_at(positions)
        condition, values = only.sql
        query = f"SELECT ({condition}) IS TRUE FROM (SELECT ? AS metadata)"  # noqa: S608 (marks only)
        for position, (photo_id, _, metadata) in zip(positions.tolist(), photos, strict=True):
            if position in only.confirmed:
                continue
            with self._guard:
                passes = self._database.rows(query, [*values, encode_metadata(metadata)])
            if passes != [(1,)]:
                raise GalleryCorrupt(
                    f"the metadata of photo {photo_id} in {self.path / DATABASE} differs from its checksum",
                    remedy=RESTORE,
                )
            only.confirmed.add(position)
        return photos

    def _filtered(self, where: str) -> tuple[Snapshot, Filter]:
        """Return a snapshot and the filter over its photos, both of the same version."""
        for _ in range(ATTEMPTS):
            now = self.snapshot()
            known = now.known_filter(where)
            if known is not None:
                return now, known
            with self._guard, self._database.transaction("DEFERRED"):
                if self._database.state() != (now.version, now.layout):
                    continue
                condition, values = to_sql(parse_where(where, self.columns()))
                query = f"SELECT seq FROM photos WHERE {condition} ORDER BY seq"  # noqa: S608 (marks only)
                rows = self._database.rows(query, values)
            passing = np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))
            return now, now.filter(where, passing, (condition, values))
        raise GalleryError(f"{self.path} changes faster than it can be filtered", remedy="Try again")
