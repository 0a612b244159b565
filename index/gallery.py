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

from index.ann.kinds import FLAT, choose_kind
from index.ann.recall import Probe

from .checks import Additions, check_additions, check_removals, check_values, refuse_present
from .creation import LEFTOVERS, LOCK, PARTIAL_DATABASE, is_vacant
from .database import FEATURES_KEY
from .errors import GalleryCorrupt, GalleryError, InvalidParameter
from .features import check_size
from .filters import check_columns
from .lock import take_lock
from .metadata import encode_metadata
from .neighbours import Neighbour, StoredPhoto
from .reader import DATABASE, INDEXES, SEGMENTS
from .rebuild import Rebuilt, Rewritten, build_index, rewrite, segments_to_combine, segments_to_rewrite
from .segments import Part, encode_row, sync_folder, write_errors, write_segment
from .store import Entry, Store
from .updates import changed_facts
from .versions import TAIL
from .writer import Writer

__all__ = ["Gallery", "Neighbour", "Rebuilt", "StoredPhoto"]

MIN_RECALL = 0.99  # an index whose decision recall has a smaller lower bound is refused
UNINDEXED = 0.2  # share of photos outside the index above which a rebuild is due


class Gallery(Writer):
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

        `columns` maps the metadata keys that filters may use to their kind: text, number or boolean. With a
        `features_key`, which identifies how local features are computed, the gallery keeps the features of its photos.
        `actor` is the name recorded in the change log, as in `open`.
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
            facts = {"dim": dim, "embedding_id": embedding_id, "created": created}
            kept = {FEATURES_KEY: features_key} if features_key else {}
            Store.create(path / PARTIAL_DATABASE, facts | kept)
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
            check_size(self._store.number("photos") + count - len(present), self.features_key)
            with write_errors(self.path), self._change():
                self._store.remove_photos(sorted(present))
                first, numbers = self._store.add_photos(entries)
                texts = [encode_row(entry.photo_id, entry.item_id, entry.metadata) for entry in entries]
                seqs = np.arange(first, first + count, dtype=np.int64)
                part = Part(new.vectors, seqs, np.array(numbers, dtype=np.int32), texts, new.features)
                self._store.add_segment(*self._written(part))
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

    def rebuild(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        probe: Probe | None = None,
        min_recall: float = MIN_RECALL,
        purge: bool = True,
        threads: int | None = None,
        actor: str | None = None,
    ) -> Rebuilt:
        """Combine segments, drop the vectors of removed photos and rebuild the index while searches go on.

        Parameters
        ----------
        kind:
            Index kind of `index.ann.kinds`, or "auto" to choose by size and memory. Defaults to the last choice.
        max_memory:
            Memory limit in bytes for the index and its rebuild.
        probe:
            Queries that measure the recall of an approximate index. An index below `min_recall` is refused.
        purge:
            Rewrite every segment with a removed photo, not only those with many.
        """
        actor = self._actor(actor)
        with write_errors(self.path), self._rebuilding:
            with self._guard:
                self._start_writing()
                now, facts = self._to_rewrite(), self._store.facts()
            kind, max_memory = kind or facts["kind"], _memory_limit(facts) if max_memory is None else max_memory
            choice = choose_kind(now.photos, self.dim, kind=kind, max_memory=max_memory)
            chosen = segments_to_rewrite(now, purge=purge)
            rewritten = rewrite(now, chosen, self.path / SEGMENTS, dim=self.dim) if chosen else None
            with self._index_in_file():
                index, recall = build_index(
                    now,
                    choice,
                    self.path / INDEXES,
                    self._densities,
                    probe=probe or Probe(),
                    min_recall=min_recall,
                    threads=threads or os.cpu_count() or 1,
                )
            with self._guard:
                with self._store.transaction():
                    if rewritten is not None:
                        self._adopt(rewritten)
                    self._store.set_index(index)
                    self._store.sum_live()
                    self._store.set_fact("kind", kind)
                    if max_memory is not None:
                        self._store.set_fact("max_memory", max_memory)
                    self._store.increase("layout")
                    self._store.log(f"rebuild as {choice.kind}", now.photos, actor=actor)
                self._delete_unused_files()
        return Rebuilt(choice, recall, len(rewritten.dropped) if rewritten is not None else 0)

    def rebuild_if_due(
        self, *, kind: str | None = None, max_memory: int | None = None, probe: Probe | None = None
    ) -> Rebuilt | None:
        """Rebuild if `kind` or `max_memory` is given, another kind fits better, or the index lacks too many photos."""
        if kind is not None or max_memory is not None:
            return self.rebuild(kind=kind, max_memory=max_memory, probe=probe)
        photos, facts, index = len(self), self.facts(), self.index()
        recommended = choose_kind(photos, self.dim, kind=facts["kind"], max_memory=_memory_limit(facts)).kind
        covered = index["scanned_photos"] <= max(TAIL, UNINDEXED * photos)
        if recommended == index["kind"] and (covered or recommended == FLAT):
            return None
        return self.rebuild(probe=probe, purge=False)

    def _written(self, part: Part) -> tuple[str, int, int, str]:
        """Write a segment of one part; return its name, rows, first seq and sha256."""
        rows, features = len(part.seqs), part.features is not None
        name, digest = write_segment(self.path / SEGMENTS, [part], rows=rows, dim=self.dim, features=features)
        return name, rows, int(part.seqs[0]), digest

    def _adopt(self, rewritten: Rewritten) -> None:
        """Replace segments by a rewritten one, within a transaction."""
        self._store.drop_segments(rewritten.replaced)
        self._store.forget_removed(rewritten.dropped)
        if rewritten.segment is not None:
            self._store.add_segment(*rewritten.segment)

    def _compact(self) -> None:
        """Combine small segments if there are many; during a rebuild this is postponed until it has finished."""
        if len(segments_to_combine(self._store.segments())) == 0 or not self._rebuilding.acquire(blocking=False):
            return
        try:
            chosen = {segment.id for segment in segments_to_combine(self._store.segments())}
            rewritten = rewrite(self._to_rewrite(), chosen, self.path / SEGMENTS, dim=self.dim)
            with self._store.transaction():
                self._adopt(rewritten)
                self._store.increase("layout")
            self._delete_unused_files()
        except (OSError, GalleryError) as error:
            if isinstance(error, GalleryCorrupt):
                raise
            # disk full: the addition itself is committed, and the next addition tries again
        finally:
            self._rebuilding.release()


def _memory_limit(facts: Mapping[str, str]) -> int | None:
    """Return the memory limit that the last rebuild was given."""
    return int(facts["max_memory"]) if "max_memory" in facts else None
