"""The gallery: vectors of item photos, with crash-safe additions, removals and searches.

One process writes at a time; any number of processes and threads read (`reader`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .checks import Additions, check_additions, check_removals, check_values, refuse_present
from .creation import LEFTOVERS, LOCK, PARTIAL_DATABASE, is_vacant
from .database import FEATURES_KEY
from .errors import GalleryError, InvalidParameter
from .features import check_size
from .filters import check_columns
from .lock import take_lock
from .metadata import encode_metadata
from .neighbours import Neighbour, StoredPhoto
from .reader import DATABASE, SEGMENTS
from .rebuild import Rebuilt
from .segments import Part, encode_row, sync_folder, write_errors, write_segment
from .store import Entry, Store
from .updates import changed_facts
from .upkeep import Upkeep

__all__ = ["Gallery", "Neighbour", "Rebuilt", "StoredPhoto"]


class Gallery(Upkeep):
    """A directory of photos, items and vectors. Use `create` for a new gallery and `open` for an existing one."""

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
        if path.exists() and not is_vacant(path):
            raise GalleryError(f"{path} exists and is not empty", remedy="Open it, or choose another directory")
        (path / SEGMENTS).mkdir(parents=True, exist_ok=True)
        lock = take_lock(path / LOCK)
        try:
            if not is_vacant(path):  # another process created a gallery meanwhile
                raise GalleryError(f"{path} has just been created by another process", remedy="Open it")
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            facts = {"dim": dim, "embedding_id": embedding_id, "created": created, FEATURES_KEY: features_key}
            Store.create(path / PARTIAL_DATABASE, facts)
            (path / PARTIAL_DATABASE).replace(path / DATABASE)  # the database file makes the directory a gallery
            sync_folder(path)
        finally:
            for name in LEFTOVERS:
                (path / name).unlink(missing_ok=True)
            os.close(lock)
        gallery = cls(path, read_only=False, actor=actor)
        if columns:
            gallery.declare(columns)
        return gallery

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
        actor = self._actor(actor)
        with self._guard:
            self._start_writing()
            return self._put(changed_facts(self, self._store, photo_ids, item_ids, metadata), actor)

    def _put(self, new: Additions, actor: str, *, upsert: bool | None = None) -> int:
        """Write photos in one transaction. Existing ones are replaced with `upsert`, and updated if it is None."""
        count = len(new.photo_ids)
        if not count:
            return 0
        with self._guard:
            self._start_writing()
            check_values(new.metadata, self._store.columns())
            encoded = map(encode_metadata, new.metadata)
            entries = [Entry(*facts) for facts in zip(new.photo_ids, new.item_ids, encoded, strict=True)]
            present = self._store.seqs_of(new.photo_ids)
            if upsert is False:
                refuse_present(set(present))
            photos = self._store.number("photos") + count - len(present)
            check_size(photos, self.features_key)
            with write_errors(self.path), self._change():
                self._store.remove_photos(sorted(present))
                first, numbers = self._store.add_photos(entries)
                texts = [encode_row(entry.photo_id, entry.item_id, entry.metadata) for entry in entries]
                seqs = np.arange(first, first + count, dtype=np.int64)
                part = Part(new.vectors, seqs, np.array(numbers, dtype=np.int32), texts, new.features)
                with_features = part.features is not None
                name, digest = write_segment(
                    self.path / SEGMENTS, [part], rows=count, dim=self.dim, features=with_features
                )
                self._store.add_segment(name, count, first, digest)
                pictures = zip(new.photo_ids, new.thumbnails, strict=True)
                self._store.add_thumbnails((photo_id, jpeg) for photo_id, jpeg in pictures if jpeg)
                action = f"add, {len(present)} of them replaced" if present else "add"
                self._store.log("update" if upsert is None else action, count, actor=actor)
            self._compact()
        return count

    def remove(
        self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None, actor: str | None = None
    ) -> int:
        """Remove photos, or all photos of items, in one transaction; return how many existed."""
        actor = self._actor(actor)
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            self._start_writing()
            with self._change():
                gone = {*self._store.seqs_of(photo_ids)} | self._store.photos_of_items(item_ids)
                if gone:
                    self._store.remove_photos(sorted(gone))
                    self._store.log("remove", len(gone), actor=actor)
        return len(gone)
