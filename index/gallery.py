"""The gallery: photos of items with their vectors, in a directory. Crash-safe changes, searches of one version.

One process writes at a time; any number of processes and threads read. A reader works on an immutable snapshot of one
version and picks up a newer version at its next search.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.ann.faiss_index import release_memory
from index.ann.kinds import FLAT, choose_kind

from .checks import (
    Additions,
    check_actor,
    check_additions,
    check_ids,
    check_removals,
    check_stored,
    check_values,
    check_vectors,
    encode_metadata,
    refuse_absent,
    refuse_present,
)
from .database import (
    DATABASE,
    FEATURES_KEY,
    INDEXES,
    RESTORE,
    SEGMENTS,
    Change,
    Database,
    Entry,
    Segment,
    system_user,
)
from .errors import GalleryCorrupt, GalleryError, GalleryLocked, InvalidParameter
from .features import FeatureFormat, check_size
from .files import remove_unused, sync_folder, take_lock, working_folder, write_errors
from .maintenance import (
    DRAWN,
    INDEX_ENDINGS,
    MIN_RECALL,
    MOVES,
    Rebuilt,
    Rewritten,
    build_index,
    moves_after,
    rewrite,
    segments_to_combine,
    segments_to_rewrite,
    verify,
    verify_files,
)
from .search.details import Verifier
from .search.distance import Rows, exact_unit
from .search.filters import Filter, check_columns, parse_where, to_sql
from .search.item_distance import NEAREST_PHOTO, ItemDistance
from .search.item_search import ItemSearch
from .segments import ENDINGS, Part, encode_row, write_segment
from .snapshot import (
    TAIL,
    Caches,
    Found,
    Neighbour,
    Snapshot,
    StoredPhoto,
    in_file,
    neighbours_of,
    read_snapshot,
    without_replaced,
)

__all__ = ["Gallery", "Neighbour", "Rebuilt", "StoredPhoto"]

LOCK = "writer.lock"
LOCK_S, LOOK_S = 2.0, 0.02  # time that `lock` waits for another process that writes, and between looks
PARTIAL = f"{DATABASE}.partial"
LEFTOVERS = {PARTIAL, f"{PARTIAL}-wal", f"{PARTIAL}-shm", f"{PARTIAL}-journal"}  # of an interrupted `create`
UNINDEXED = 0.2  # share of photos outside the index above which a rebuild is due
TOGETHER = 10_000  # photos that are added to a temporary gallery at a time
ATTEMPTS = 5  # at a filtered search while other processes write
FIND_ITEMS = """
SELECT item_id FROM items WHERE item_id > ? AND (instr(casefold(item_id), ?) OR EXISTS (
    SELECT 1 FROM photos, json_each(metadata) WHERE item = number AND instr(casefold(json_each.value), ?)))
ORDER BY item_id LIMIT ?
"""
PHOTOS_OF_ITEMS = "SELECT photo_id FROM photos JOIN items ON number = item WHERE item_id IN"


class Gallery:
    """A directory of photos, items and vectors. Use `create` for a new gallery and `open` for an existing one."""

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
        if path.exists() and not _is_vacant(path):
            raise GalleryError(f"{path} exists and is not empty", remedy="Open it, or choose another directory")
        (path / SEGMENTS).mkdir(parents=True, exist_ok=True)
        lock = take_lock(path / LOCK)
        try:
            if not _is_vacant(path):  # another process created a gallery meanwhile
                raise GalleryError(f"{path} has just been created by another process", remedy="Open it")
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            facts = {"dim": dim, "embedding_id": embedding_id, "created": created, FEATURES_KEY: features_key}
            Database.create(path / PARTIAL, facts)
            (path / PARTIAL).replace(path / DATABASE)  # the database file makes the directory a gallery
            sync_folder(path)
        finally:
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            os.close(lock)
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
        self.actor = system_user() if actor is None else check_actor(actor)
        self._database = Database(path / DATABASE, read_only=read_only)
        self._guard = threading.RLock()
        self._rebuilding = threading.Lock()
        self._lock: int | None = None  # file descriptor while this process is the writer
        self._snapshot: Snapshot | None = None
        self.damage: list[str] = []  # problems found by a search or by `verify` without rows
        self.dim = self._database.number("dim")
        self.embedding_id = self._database.fact("embedding_id")
        self.features_key = self._database.fact(FEATURES_KEY)
        self.created = self._database.fact("created")
        self._caches = Caches(path, self.features_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release the write lock."""
        with self._guard:
            self._database.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

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
        query = "SELECT photo_id, item_id, json_extract(metadata, ?) FROM photos JOIN items ON number = item"
        query += " ORDER BY seq"
        return self._database.rows(query, (f"$.{key}",))  # unguarded: searches go on

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

        `find` is a part of their ids or of the metadata of their photos, in any case.
        """
        part = find.casefold()
        with self._guard:
            self._database.fact("format")  # raises if the gallery is closed
        with closing(Database(self.path / DATABASE, read_only=True)) as own:  # searches do not wait for this scan
            return [row[0] for row in own.rows(FIND_ITEMS, (after, part, part, limit))]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        return self._thumbnails([photo_id]).get(photo_id)

    def _thumbnails(self, photo_ids: Sequence[str]) -> dict[str, bytes]:
        query = "SELECT photo_id, jpeg FROM thumbnails WHERE photo_id IN"
        with self._guard:
            return {photo_id: bytes(jpeg) for photo_id, jpeg in self._database.each(query, photo_ids)}

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

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        item_distance: ItemDistance = NEAREST_PHOTO,
        verifier: Verifier | None = None,
        features: Sequence[bytes] | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d), best first.

        Distances are exact. Fewer than k items are returned only if the gallery has no more.

        Parameters
        ----------
        where:
            Filter over declared columns, such as "brand = 'x' and price < 10" (`index.search.filters`). It is applied
            before the nearest k are taken.
        item_distance:
            Constants of the item distance (`index.search.item_distance`). By default, an item is as far as its nearest
            photo.
        verifier, features:
            Compares local features, and those of each query.
        """
        return self.search_version(
            vectors, k, where=where, item_distance=item_distance, verifier=verifier, features=features
        ).neighbours

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        item_distance: ItemDistance = NEAREST_PHOTO,
        verifier: Verifier | None = None,
        features: Sequence[bytes] | None = None,
        left_out: Collection[str] = (),
    ) -> Found:
        """Search as `search` does, and also return the version and what is kept as its operating point.

        The search goes on as if the photos with the ids `left_out` were not there; it cannot have a filter too.
        """
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        try:
            now, only = self._filtered(where) if where is not None else (self.snapshot(), None)
            if left_out:
                now = now.without(self._positions(now, left_out))
            found = ItemSearch(now, item_distance, verifier).nearest(unit, k, only=only, features=features)
            answers = neighbours_of(found, now.photos_at)
            if only is not None:
                positions = (near.position for best in found for near in best)
                self._confirm(only, dict(zip(positions, chain.from_iterable(answers), strict=True)))
        except GalleryCorrupt as error:
            self._remember([error.message])
            raise
        return Found(now.version, now.point, answers)

    def _positions(self, now: Snapshot, photo_ids: Collection[str]) -> NDArray[np.int64]:
        """Return the positions of the photos with some ids in a version, without those that it does not have."""
        with self._guard:
            seqs = [seq for (seq,) in self._database.each("SELECT seq FROM photos WHERE photo_id IN", [*photo_ids])]
        return np.flatnonzero(np.isin(now.seqs, seqs))

    def snapshot(self) -> Snapshot:
        """Return the newest version as a searchable snapshot, reading it if it is not cached."""
        with self._guard:
            while True:
                state = self._database.state()
                last = self._snapshot
                if last is not None and state == (last.version, last.layout):
                    return last
                if last is not None:
                    last = self._snapshot = without_replaced(last, self._database.index())
                try:
                    self._snapshot = self._read(last)
                except GalleryCorrupt:
                    if self._database.state() == state:  # otherwise a rebuild removed a file during the read
                        raise

    def verify(self, *, rows: bool = True) -> list[str]:
        """Read all data and return a list of problems in words; empty if there are none.

        Without `rows`, only the database and the files are checked. Searches go on meanwhile, and problems are added to
        `damage`.
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
            self._start_writing()
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
            self._start_writing()
            with self._change():
                gone = {*self._database.seqs_of(photo_ids)}
                gone |= {row[0] for row in self._database.each(PHOTOS_OF_ITEMS, item_ids)}
                if gone:
                    self._database.remove_photos(sorted(gone))
                    self._database.log("remove", len(gone), actor=actor)
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
            self._start_writing()
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
            self._start_writing()
            with self._database.transaction():
                self._database.keep(contents)
                self._database.log(action, 0, actor=actor)

    def lock(self) -> None:
        """Take the write lock until `close`, so that no other process changes the gallery meanwhile.

        Wait LOCK_S for another process that writes, then raise GalleryLocked.
        """
        end = time.monotonic() + LOCK_S
        while True:
            try:
                with self._guard:
                    return self._start_writing()
            except GalleryLocked:
                if time.monotonic() > end:
                    raise
            time.sleep(LOOK_S)

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
        if not 0 <= min_recall <= 1:
            raise InvalidParameter("min_recall", "be between 0 and 1", min_recall)
        actor = self._actor(actor)
        with write_errors(self.path), self._rebuilding:
            with self._guard:
                self._start_writing()
                photos, facts = self._database.number("photos"), self._database.facts()
            check_size(photos, self.features_key)
            kind, max_memory = kind or facts["kind"], _memory_limit(facts) if max_memory is None else max_memory
            choice = choose_kind(photos, self.dim, kind=kind, max_memory=max_memory)
            now = self._to_rewrite()
            chosen = segments_to_rewrite(now, purge=purge)
            rewritten = rewrite(now, chosen, self.path / SEGMENTS) if chosen else Rewritten()
            with self._index_in_file():
                index, recall = build_index(
                    choice,
                    self.path / INDEXES,
                    now,
                    queries=queries,
                    min_recall=min_recall,
                    threads=threads or os.cpu_count() or 1,
                )
                with self._guard:
                    with self._database.transaction():
                        self._database.replace_segments(rewritten.replaced, rewritten.segment, rewritten.dropped)
                        self._database.set_index(index)
                        self._database.set_fact("kind", kind)
                        if max_memory is not None:
                            self._database.set_fact("max_memory", max_memory)
                        self._database.log(f"rebuild as {choice.kind}", photos, actor=actor)
                        self._database.increase("layout")
                    self._delete_unused_files()
        return Rebuilt(choice, recall, len(rewritten.dropped))

    def rebuild_if_due(
        self, *, kind: str | None = None, max_memory: int | None = None, queries: NDArray[np.float32] | None = None
    ) -> Rebuilt | None:
        """Rebuild if `kind` or `max_memory` is given, another kind fits better, or the index lacks too many photos."""
        if kind is not None or max_memory is not None:
            return self.rebuild(kind=kind, max_memory=max_memory, queries=queries)
        now, facts = self.snapshot(), self._database.facts()
        recommended = choose_kind(now.photos, self.dim, kind=facts["kind"], max_memory=_memory_limit(facts)).kind
        covered = now.scanned_photos <= max(TAIL, UNINDEXED * now.photos)
        same = now.kind == recommended or not now.photos
        if same and (covered or recommended == FLAT):
            return None
        return self.rebuild(queries=queries, purge=False)

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are in the gallery."""
        return dict(self._database.each("SELECT item_id, number FROM items WHERE item_id IN", list(item_ids)))

    # reading

    def _remember(self, problems: list[str]) -> None:
        with self._guard:
            self.damage = list(dict.fromkeys([*self.damage, *problems]))

    def _confirm(self, only: Filter, answers: Mapping[int, Neighbour]) -> None:
        """Raise GalleryCorrupt if a photo passes a filter in the database but not by its own checksummed metadata."""
        new = {position: neighbour for position, neighbour in answers.items() if position not in only.confirmed}
        condition, values = only.sql
        query = f"SELECT ({condition}) IS TRUE FROM (SELECT ? AS metadata)"  # noqa: S608 (marks only)
        for position, neighbour in new.items():
            with self._guard:
                passes = self._database.rows(query, [*values, encode_metadata(neighbour.metadata)])
            if passes != [(1,)]:
                raise GalleryCorrupt(
                    f"the metadata of photo {neighbour.photo_id} in {self.path / DATABASE} differs from its checksum",
                    remedy=RESTORE,
                )
            only.confirmed.add(position)

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

    def _read(self, last: Snapshot | None, *, searchable: bool = True) -> Snapshot:
        return read_snapshot(self._database, self._caches, last=last, searchable=searchable)

    # writing

    def _put(self, new: Additions, actor: str, *, upsert: bool | None = None) -> int:
        """Write photos in one transaction. Existing ones are replaced with `upsert`, and updated if it is None."""
        count = len(new.photo_ids)
        if not count:
            return 0
        with self._guard:
            self._start_writing()
            check_values(new.metadata, self.columns())
            encoded = map(encode_metadata, new.metadata)
            facts = zip(new.photo_ids, new.item_ids, encoded, new.thumbnails, strict=True)
            entries = [Entry(*fact) for fact in facts]
            present = self._database.seqs_of(new.photo_ids)
            if upsert is False:
                refuse_present(set(present))
            check_size(self._database.number("photos") + count - len(present), self.features_key)
            with write_errors(self.path), self._change():
                self._database.remove_photos(sorted(present))
                first, numbers = self._database.add_photos(entries)
                texts = [encode_row(entry.photo_id, entry.item_id, entry.metadata) for entry in entries]
                seqs = np.arange(first, first + count, dtype=np.int64)
                part = Part(new.vectors, seqs, np.array(numbers, dtype=np.int32), texts, new.features)
                name, digest = write_segment(
                    self.path / SEGMENTS, [part], rows=count, dim=self.dim, features=part.features is not None
                )
                self._database.replace_segments([], Segment(0, name, count, first, digest))
                if upsert is None and any(map(self._database.kept, DRAWN)):
                    old = np.array([present[photo_id] for photo_id in new.photo_ids], dtype=np.int64)
                    self._database.keep({MOVES: moves_after(self._database.kept(MOVES), old, seqs)})
                action = f"add, {len(present)} of them replaced" if present else "add"
                self._database.log("update" if upsert is None else action, count, actor=actor)
            self._compact()
        return count

    def _to_rewrite(self) -> Snapshot:
        """Return the newest version without indexes, which are not needed to rewrite files."""
        with self._guard:
            return self._read(self._snapshot, searchable=False)

    @contextmanager
    def _index_in_file(self) -> Iterator[None]:
        """Search the index in its file within the context, to save memory."""
        with self._guard:
            known = self._snapshot
            if known is not None:
                self._snapshot = in_file(known, self._database.index(), self.path / INDEXES)
            changed = self._snapshot is not known
            del known
        if changed:
            release_memory()
        try:
            yield
        except BaseException:
            if changed:
                with self._guard:
                    self._snapshot = None  # the next search reads the index into memory again
            raise

    def _compact(self) -> None:
        """Combine small segments if there are many; during a rebuild this is postponed until it has finished."""
        chosen = {segment.id for segment in segments_to_combine(self._database.segments())}
        if not chosen or not self._rebuilding.acquire(blocking=False):
            return
        try:
            rewritten = rewrite(self._to_rewrite(), chosen, self.path / SEGMENTS)
            with self._database.transaction():
                self._database.replace_segments(rewritten.replaced, rewritten.segment, rewritten.dropped)
                self._database.increase("layout")
            self._delete_unused_files()
        except (OSError, GalleryError) as error:
            if isinstance(error, GalleryCorrupt):
                raise
            # disk full: the addition itself is committed, and the next addition tries again
        finally:
            self._rebuilding.release()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Commit the enclosed statements as one change."""
        before = self._snapshot
        try:
            with self._database.transaction():
                yield
        except BaseException:
            self._snapshot = before  # drop the snapshot of a version that was not committed
            raise

    def _actor(self, actor: str | None) -> str:
        return self.actor if actor is None else check_actor(actor)

    def _start_writing(self) -> None:
        """Take the write lock until `close`, and clean up after an interrupted write."""
        if self.read_only:
            raise GalleryError(f"{self.path} was opened read-only", remedy="Open it without read_only")
        if self._lock is None:
            self._lock = take_lock(self.path / LOCK)
            self._delete_unused_files()

    def _delete_unused_files(self) -> None:
        """Delete unreferenced files; those that cannot be deleted are left to the next writer."""
        names = {segment.name for segment in self._database.segments()}
        index = self._database.index()
        with suppress(OSError):
            remove_unused(self.path / SEGMENTS, names, ENDINGS)
            remove_unused(self.path / INDEXES, set() if index is None else {index.name}, INDEX_ENDINGS)


def _memory_limit(facts: Mapping[str, str]) -> int | None:
    """Return the memory limit that the last rebuild was given."""
    return int(facts["max_memory"]) if "max_memory" in facts else None


def _is_vacant(path: Path) -> bool:
    """Return whether a directory contains nothing but leftovers of an interrupted `create`."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    segments = path / SEGMENTS
    return names <= LEFTOVERS | {SEGMENTS, LOCK} and not (segments.exists() and any(segments.iterdir()))


@contextmanager
def temporary_gallery(
    vectors: NDArray[np.float32],
    item_ids: Sequence[str],
    *,
    photo_ids: Sequence[str] = (),
    metadata: Sequence[Mapping[str, Any]] | None = None,
    features: Sequence[bytes] | None = None,
    features_key: str = "",
) -> Iterator[Gallery]:
    """Yield a gallery of photos in a temporary folder, to search it by the code that serves.

    Vectors (n, d) are scaled to length one. Without `photo_ids`, photos are named after their rows.
    """
    ids = photo_ids or [str(row) for row in range(len(vectors))]
    with (
        working_folder() as folder,
        Gallery.create(folder / "gallery", dim=vectors.shape[1], embedding_id="-", features_key=features_key) as place,
    ):
        for start in range(0, len(ids), TOGETHER):
            some = slice(start, start + TOGETHER)
            place.add(
                ids[some],
                item_ids[some],
                exact_unit(vectors[some]),
                metadata=None if metadata is None else metadata[some],
                features=None if features is None else features[some],
            )
        yield place
