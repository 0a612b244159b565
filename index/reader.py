"""Reading a gallery: what its newest version contains, and searches of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from .checks import check_vectors, encode_metadata
from .database import DATABASE, RESTORE, Change, Database
from .errors import GalleryCorrupt, GalleryError, InvalidParameter
from .folder import GalleryFolder
from .photos import NONE
from .search.details import Verifier
from .search.distance import Rows
from .search.filters import Filter, parse_where, to_sql
from .search.item_distance import NEAREST_PHOTO, ItemDistance
from .search.item_search import ItemSearch
from .snapshot import Neighbour, Searched, Snapshot, StoredPhoto, VersionNeighbours, neighbours_of
from .upkeep.verify import verify, verify_files

ATTEMPTS = 5  # at a filtered search while other processes write
FIND_ITEMS = """
SELECT item_id FROM items WHERE item_id > ? AND (instr(casefold(item_id), ?) OR EXISTS (
    SELECT 1 FROM photos, json_each(metadata) WHERE item = number AND instr(casefold(json_each.value), ?)))
ORDER BY item_id LIMIT ?
"""


class GalleryReader(Searched):
    """The reading half of `index.gallery.Gallery`. Any number of threads may use it."""

    def __init__(self, path: Path, *, read_only: bool = True) -> None:
        self.path = path = path.resolve()  # absolute, so that a symbolic link changed later has no effect
        self.read_only = read_only
        self._folder = GalleryFolder(path, read_only=read_only)
        self._database, self._guard = self._folder.database, self._folder.guard
        self.damage: list[str] = []  # problems found by a search or by `verify` without rows
        self.dim, self.features_key = self._folder.dim, self._folder.features_key
        self.embedding_id = self._database.fact("embedding_id")
        self.created = self._database.fact("created")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release the write lock."""
        self._folder.close()

    def __del__(self) -> None:
        if hasattr(self, "_folder"):
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
    ) -> VersionNeighbours:
        """Search as `search` does, and also return the version and what is kept as its operating point.

        The search goes on as if the photos with the ids `left_out` were not there; it cannot have a filter too.
        """
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        try:
            now, only = self._filtered(where) if where is not None else (self.snapshot(), None)
            if left_out:
                positions = now.positions(list(left_out))
                now = now.without(positions[positions != NONE])
            table = ItemSearch(now, item_distance, verifier).nearest(unit, k, only=only, features=features)
            answers = neighbours_of(table, now.photos_at)
            if only is not None:
                shown = table.positions[table.positions != NONE].tolist()
                self._confirm(only, dict(zip(shown, chain.from_iterable(answers), strict=True)))
        except GalleryCorrupt as error:
            self._remember([error.message])
            raise
        return VersionNeighbours(now.version, now.point, answers)

    def snapshot(self) -> Snapshot:
        """Return the newest version as a searchable snapshot, reading it if it is not cached."""
        return self._folder.snapshot()

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
