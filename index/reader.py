"""Read-only galleries: open, search, list and verify, from any number of threads and processes.

A reader works on an immutable snapshot of one version and picks up a newer version at its next search.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_actor, check_vectors
from .database import RESTORE, system_user
from .densities import Densities
from .distance import PLAIN, DistanceForm, Floats
from .errors import GalleryCorrupt, GalleryError, InvalidParameter
from .filters import parse_where, to_sql
from .listing import Listing
from .metadata import encode_metadata
from .neighbours import Neighbour, StoredPhoto, neighbours_of
from .snapshot import Snapshot, Within
from .store import Store
from .stored import Filter
from .verification import check_files, check_on_own_connection, check_rows
from .verified import Features, VerifiedDistance, check_query_features
from .verified_search import VerifiedSearch
from .versions import read_snapshot, without_replaced
from .votes import VisualWords

DATABASE, SEGMENTS, INDEXES = "gallery.sqlite", "segments", "indexes"
DENSITIES, WORDS = "densities", "words"  # caches
BLOCK, ATTEMPTS = 4096, 5  # photos per read, and attempts at a filtered search while other processes write


class Reader(Listing):
    """Read-only access to a gallery."""

    def __init__(self, path: Path, *, read_only: bool, actor: str | None = None) -> None:
        self.path = path = path.resolve()  # absolute, so that a symbolic link changed later has no effect
        self.read_only = read_only
        self.actor = system_user() if actor is None else check_actor(actor)
        self._store = Store(path / DATABASE, read_only=read_only)
        self._guard = threading.RLock()
        self._rebuilding = threading.Lock()
        self._lock: int | None = None  # file descriptor while this process is the writer
        self._snapshot: Snapshot | None = None
        self._densities = Densities(path / DENSITIES)
        self._words = VisualWords(path / WORDS)
        self._searched: VerifiedSearch | None = None  # the last one, with the photos of each item
        self.damage: list[str] = []  # problems found by a search or by `check_in_background`
        self.dim = self._store.number("dim")
        self.embedding_id = self._store.fact("embedding_id")
        self.features_key = self._store.features_key()

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False, actor: str | None = None) -> Self:
        """Open a gallery; raise GalleryError if there is none.

        `actor` is the name in the change log, by default the user of this process. Each change may name another.
        """
        return cls(Path(path), read_only=read_only, actor=actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and release the write lock."""
        with self._guard:
            self._store.close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()

    def __len__(self) -> int:
        """Return the number of live photos."""
        return self._current().photos

    @property
    def items(self) -> int:
        """Return the number of items with a live photo."""
        return self._current().item_count

    @property
    def version(self) -> int:
        """Return the number of changes so far."""
        return self._current().version

    def index(self) -> dict[str, Any]:
        """Return the index kind in use, its settings and measured recall, and the number of photos outside it."""
        now = self._current()
        with self._guard:
            index = self._store.index()
        settings = {} if index is None else index.settings
        return {"kind": now.kind, **settings, "scanned_photos": now.scanned_photos}

    def contents(self) -> tuple[list[str], list[str], NDArray[np.float32]]:
        """Return photo_ids, item_ids and vectors (n, d) of all live photos of one version, in the same order."""
        photos = [photo for block in self.walk(BLOCK) for photo in block]
        vectors = np.array([photo.vector for photo in photos], dtype=np.float32).reshape(-1, self.dim)
        return [photo.photo_id for photo in photos], [photo.item_id for photo in photos], vectors

    def walk(self, count: int, *, features: bool = False) -> Iterator[list[StoredPhoto]]:
        """Return the live photos of the newest version in insertion order, `count` per batch.

        With `features`, they have their features if the gallery keeps them.
        """
        return self._walk(self._current(), count, features=features)

    def _walk(self, now: Snapshot, count: int, *, features: bool) -> Iterator[list[StoredPhoto]]:
        live = np.flatnonzero(now.live)
        for start in range(0, len(live), count):
            positions = live[start : start + count]
            read = now.features(positions) if features and self.features_key else [None] * len(positions)
            photos = zip(now.photos_at(positions), now.vectors(positions), read, strict=True)
            yield [StoredPhoto(*facts, vector, some) for facts, vector, some in photos]

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: float | None = None,
        features: Sequence[Features] | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d), by their nearest photo, best first.

        Distances are exact (`index.distance`). Fewer than k items are returned only if the gallery has no more.

        Parameters
        ----------
        where:
            Filter over declared columns, such as "brand = 'x' and price < 10" (`index.filters`). It is applied before
            the nearest k are taken.
        distance_form:
            Distance function: plain, or corrected by density. The first search with a form computes the density
            around every photo.
        within:
            Largest distance of interest. The search stops at the nearest item and all within it; others may be missing.
        features:
            Local features of each query, required by a verified distance form and ignored by others; a tuple of those
            of each photo, if the query has several.
        """
        form = distance_form
        return self.search_version(vectors, k, where=where, distance_form=form, within=within, features=features)[1]

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: Within = None,
        features: Sequence[Features] | None = None,
    ) -> tuple[int, list[list[Neighbour]]]:
        """Search and return the version; `within` may be a function of what is kept as its operating point, or None."""
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        try:
            now, only = self._filtered(where) if where is not None else (self._current(), None)
            within = within(now.point) if callable(within) else within
            if isinstance(distance_form, VerifiedDistance):
                queries = check_query_features(features, len(unit))
                nearest_photos = self._verified(now, distance_form).nearest(unit, queries, k, only=only)
            else:
                densities = now.densities(distance_form, self._densities)
                nearest_photos = now.nearest(unit, k, distance_form, densities, only=only, within=within)
            answers = neighbours_of(nearest_photos, now.photos_at)
            if only is not None:
                positions = (position for best in nearest_photos for position, _ in best)
                self._confirm(only, dict(zip(positions, chain.from_iterable(answers), strict=True)))
        except GalleryCorrupt as error:
            self._remember([error.message])
            raise
        return now.version, answers

    def snapshot(self) -> Snapshot:
        """Return the newest version as a searchable snapshot."""
        return self._current()

    def densities(self, distance_form: DistanceForm) -> tuple[Floats, float]:
        """Return the density around each photo of the newest version (n,), and their minimum."""
        return self._current().densities(distance_form, self._densities)

    def verified_search(self, distance_form: VerifiedDistance) -> VerifiedSearch:
        """Return the search of the newest version; raise GalleryError if the form cannot use its features."""
        return self._verified(self._current(), distance_form)

    def _verified(self, now: Snapshot, distance_form: VerifiedDistance) -> VerifiedSearch:
        verifier, known = distance_form.verifier, self._searched
        if verifier.features_key != self.features_key:
            keeps = "keeps other features than this distance verifies" if self.features_key else "keeps no features"
            raise GalleryError(f"{self.path} {keeps}", remedy="Index the photos into a new gallery with this bundle")
        if known is not None and known.snapshot is now and known.form.key == distance_form.key:
            return known
        densities = now.densities(distance_form, self._densities)
        self._searched = VerifiedSearch(now, distance_form, densities, self._words.of(verifier, now.segments))
        return self._searched

    def features_of(self, photo_id: str) -> bytes | None:
        """Return the local features of a photo, None if it does not exist or the gallery keeps no features."""
        with self._guard:
            seq = self._store.seqs_of([photo_id]).get(photo_id) if self.features_key else None
            now = self._current()
        positions = np.flatnonzero(now.seqs == seq) if seq is not None else ()
        return now.features(np.asarray(positions))[0] if len(positions) else None

    def verify(self) -> list[str]:
        """Read all data and return a list of problems in words; empty if there are none."""
        with self._guard:
            problems = self._store.integrity()
            if problems:  # a damaged database says nothing reliable about its files
                return problems
            while True:
                state = self._store.state()
                problems = check_files(self._store, self.path / SEGMENTS, self.path / INDEXES)
                problems = problems or check_rows(self._store, self.path / SEGMENTS, dim=self.dim)
                if not problems or self._store.state() == state:  # otherwise a rebuild removed a file meanwhile
                    return problems

    def check_in_background(self) -> threading.Thread:
        """Check database and files in a thread while searches go on; problems are added to `damage`."""
        thread = threading.Thread(target=self._check, name="gallery-check", daemon=True)
        thread.start()
        return thread

    def _check(self) -> None:
        self._remember(check_on_own_connection(self.path / DATABASE, self.path / SEGMENTS, self.path / INDEXES))

    def _remember(self, problems: list[str]) -> None:
        with self._guard:
            self.damage = list(dict.fromkeys([*self.damage, *problems]))

    def _confirm(self, only: Filter, answers: Mapping[int, Neighbour]) -> None:
        """Raise GalleryCorrupt if a photo passes a filter in the database but not by its own checksummed metadata."""
        new = {position: neighbour for position, neighbour in answers.items() if position not in only.confirmed}
        with self._guard:
            wrong = self._store.failing(
                *only.sql, {p: encode_metadata(neighbour.metadata) for p, neighbour in new.items()}
            )
        if wrong:
            raise GalleryCorrupt(
                f"the metadata of photo {new[wrong[0]].photo_id} in {self.path / DATABASE} differs from its checksum",
                remedy=RESTORE,
            )
        only.confirmed.update(new)

    def _filtered(self, where: str) -> tuple[Snapshot, Filter]:
        """Return a snapshot and the filter over its photos, both of the same version."""
        for _ in range(ATTEMPTS):
            now = self._current()
            known = now.known_filter(where)
            if known is not None:
                return now, known
            with self._guard, self._store.transaction("DEFERRED"):
                if self._store.state() != (now.version, now.layout):
                    continue
                sql = to_sql(parse_where(where, self._store.columns()))
                passing = self._store.passing(*sql)
            return now, now.filter(where, passing, sql)
        raise GalleryError(f"{self.path} changes faster than it can be filtered", remedy="Try again")

    def _current(self) -> Snapshot:
        """Return the newest version, reading it if it is not cached."""
        with self._guard:
            while True:
                state = self._store.state()
                last = self._snapshot
                if last is not None and state == (last.version, last.layout):
                    return last
                if last is not None:
                    last = self._snapshot = without_replaced(last, self._store.index())
                    self._searched = None
                try:
                    self._snapshot = self._read(last)
                except GalleryCorrupt:
                    if self._store.state() == state:  # otherwise a rebuild removed a file during the read
                        raise

    def _read(self, last: Snapshot | None, *, searchable: bool = True) -> Snapshot:
        folders = self.path / SEGMENTS, self.path / INDEXES
        return read_snapshot(self._store, *folders, dim=self.dim, last=last, searchable=searchable)
