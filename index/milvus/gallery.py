"""Galleries on a Milvus cluster, for catalogues too large for one machine: add, upsert, remove, search, filters.

Milvus is the source of truth: its stored vectors are output fields, and distances are computed exactly from them with
the same code as for every gallery. Transactions, answers from one version and crash safety (kill -9) are guarantees of
the local gallery only; for a machine failure during an addition, see the Milvus documentation. Reads use strong
consistency.

Draws and the operating point are written after the photos of a change, all of them at once, together with the new
version. After a crash in between, the draws do not cover the photos (`KeptDraws.covers`), so there are no rates and
p-values, and the operating point is the earlier one. One process at a time may change a gallery.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from index.ann.recall import Probe
from index.checks import (
    Additions,
    check_actor,
    check_additions,
    check_removals,
    check_values,
    refuse_absent,
    refuse_present,
)
from index.database import system_user
from index.drawable import Drawable
from index.errors import InvalidParameter
from index.features import FeatureFormat
from index.filters import check_columns
from index.metadata import encode_metadata

from .collection import Collection, check_lengths
from .photos import MilvusPhotos
from .reader import UNKNOWN, MilvusReader

UNFINISHED = {"photos": UNKNOWN, "live_seqs": UNKNOWN}  # facts while photos change: no draws cover such a gallery


class MilvusGallery(MilvusReader):
    """A gallery on a Milvus cluster, or in a file of Milvus Lite."""

    read_only = False
    features_key = ""  # Milvus keeps no features
    on_change: Callable[[Drawable], Mapping[str, bytes | None]] | None = None
    feature_format: FeatureFormat | None = None

    @classmethod
    def create(
        cls,
        address: str,
        *,
        dim: int,
        embedding_id: str,
        columns: Mapping[str, str] | None = None,
        index: str = "FLAT",
        token: str = "",
    ) -> MilvusGallery:
        """Create an empty gallery at an address; raise GalleryError if the address is taken.

        `index` is an index type of Milvus: FLAT is exact; AUTOINDEX, HNSW and others are approximate.
        """
        if dim < 2:
            raise InvalidParameter("dim", "be at least 2", dim)
        check_columns(columns or {})
        created = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"dim": dim, "embedding_id": embedding_id, "created": created}
        facts |= {"columns": json.dumps(dict(columns or {}))}
        return cls(Collection.create(address, dim=dim, facts=facts, index=index, token=token), address)

    @classmethod
    def open(cls, address: str, *, token: str = "") -> MilvusGallery:
        """Open a gallery at an address; raise GalleryError if there is none."""
        return cls(Collection.open(address, token=token), address)

    def declare(self, columns: Mapping[str, str | None]) -> None:
        """Declare metadata keys for filters, each text, number or boolean; None removes a key.

        Existing photos are not checked.
        """
        wanted = {name: kind for name, kind in columns.items() if kind is not None}
        check_columns(wanted)
        known = self.columns()
        gone = sorted(known.keys() & (columns.keys() - wanted.keys()))
        if gone:
            known = {name: kind for name, kind in known.items() if name not in gone}
            self._set_columns(known, f"undeclare {', '.join(gone)}")
        new = sorted(wanted.keys() - known.keys())
        for name, kind in wanted.items():
            if known.setdefault(name, kind) != kind:
                raise InvalidParameter(f"column {name}", f"stay {known[name]}, its declared kind", kind)
        if new:
            self._set_columns(known, f"declare {', '.join(new)}")

    def _set_columns(self, columns: Mapping[str, str], action: str) -> None:
        """Declare exactly these columns, as one change."""
        with self._guard:
            version, actor = self.version + 1, system_user()
            self._log.add(version, actor, action, 0)
            columns_now = json.dumps(dict(columns))
            self._collection.set_facts({"columns": columns_now, "version": version, "changed_by": actor})
            if self._photos is not None:
                self._photos = self._photos.changed(version, [], [])

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
        """Add photos and return their number; see `Gallery.add`. Only single batches are atomic.

        Features are refused, because Milvus galleries keep none.
        """
        actor = system_user() if actor is None else check_actor(actor)
        new = check_additions(photo_ids, item_ids, vectors, metadata, thumbnails, features, dim=self.dim)
        return self._put(new, actor, upsert=upsert)

    def _put(self, new: Additions, actor: str, *, upsert: bool = True, action: str = "") -> int:
        """Write photos; `action` is the text of the log, by default that of an addition."""
        count = len(new.photo_ids)
        check_lengths(new)
        with self._guard:
            check_values(new.metadata, self.columns())
            present = self._existing(new.photo_ids)
            if not upsert:
                refuse_present(set(present))
            facts = self.facts()
            first = int(facts.get("next_seq", 0))
            rows = [
                {
                    "photo_id": photo_id,
                    "item_id": item_id,
                    "metadata": {k: v for k, v in json.loads(encode_metadata(values)).items() if v is not None},
                    "thumbnail": base64.b64encode(jpeg).decode() if jpeg else "",
                    "vector": vector.tolist(),
                    **({"seq": seq} if self._collection.is_numbered else {}),
                }
                for seq, (photo_id, item_id, values, jpeg, vector) in enumerate(
                    zip(new.photo_ids, new.item_ids, new.metadata, new.thumbnails, new.vectors, strict=True), first
                )
            ]
            if count:
                started = {"next_seq": first + count, **UNFINISHED}  # first, so that no number is used twice
                self._collection.set_facts(started)
                self._collection.upsert(rows)
                replaced = f"add, {len(present)} of them replaced" if present else "add"
                log = Logged(actor, action or replaced, count)
                self._finish(facts, list(present.values()), list(enumerate(new.item_ids, first)), log)
        return count

    def update(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        metadata: Sequence[Mapping[str, Any]],
        *,
        actor: str | None = None,
    ) -> int:
        """Set the items and metadata of photos, keeping everything else; see `Gallery.update`."""
        with self._guard:
            rows = {
                row["photo_id"]: row for row in self._collection.get(photo_ids, ["photo_id", "vector", "thumbnail"])
            }
            refuse_absent([photo_id for photo_id in photo_ids if photo_id not in rows])
            stored = [rows[photo_id] for photo_id in photo_ids]
            vectors = np.array([row["vector"] for row in stored], dtype=np.float32).reshape(-1, self.dim)
            thumbnails = [base64.b64decode(row["thumbnail"]) or None for row in stored]
            new = check_additions(photo_ids, item_ids, vectors, metadata, thumbnails, None, dim=self.dim)
            return self._put(new, system_user() if actor is None else check_actor(actor), action="update")

    def remove(
        self,
        *,
        photo_ids: Sequence[str] | None = None,
        item_ids: Sequence[str] | None = None,
        actor: str | None = None,
    ) -> int:
        """Remove photos, or all photos of items; return how many existed."""
        actor = system_user() if actor is None else check_actor(actor)
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            gone = self._existing(photo_ids)
            gone |= self._seqs(self._collection.walk_items(self._id_fields, item_ids))
            if gone:
                facts = self.facts()
                self._collection.set_facts(UNFINISHED)
                self._collection.delete(sorted(gone))
                self._finish(facts, list(gone.values()), [], Logged(actor, "remove", len(gone)))
        return len(gone)

    def _existing(self, photo_ids: Sequence[str]) -> dict[str, int]:
        """Return a mapping from photo_id to seq, for those of the photos that exist."""
        return self._seqs(self._collection.get(photo_ids, self._id_fields))

    @property
    def _id_fields(self) -> list[str]:
        return ["photo_id", "seq"] if self._collection.is_numbered else ["photo_id"]

    def _seqs(self, rows: Iterable[Any]) -> dict[str, int]:
        return {row["photo_id"]: row.get("seq", -1) for row in rows}

    def _finish(
        self, facts: Mapping[str, str], removed: Sequence[int], added: Sequence[tuple[int, str]], log: Logged
    ) -> None:
        """Record a change of photos, with the contents of `on_change`, as one new version after that of `facts`."""
        version = int(facts.get("version", 0)) + 1
        new: dict[str, object] = {"version": version, "changed_by": log.actor}
        self._log.add(version, *log)
        if self._collection.is_numbered:
            self._follow(version, removed, added, anew=facts.get("photos") == UNKNOWN)
            count, seqs = int(facts.get("photos", 0)), int(facts.get("live_seqs", 0))
            count += len(added) - len(removed)
            seqs += sum(seq for seq, _ in added) - sum(removed)
            if self._photos is not None:
                count, seqs = self._photos.fingerprint
            new |= {"photos": count, "live_seqs": seqs}
        try:
            if self.on_change is not None:
                self._changing = True
                new |= self._contents.write(self.on_change(self), facts)
        finally:
            self._changing = False
            self._collection.set_facts(new)
        self._contents.forget(facts, self.facts())

    def _follow(self, version: int, removed: Sequence[int], added: Sequence[tuple[int, str]], *, anew: bool) -> None:
        """Update the photos in memory after a change; read them if that is asked for or `on_change` needs them."""
        if self._photos is not None and self._photos.version == version - 1 and not anew:
            self._photos = self._photos.changed(version, removed, added)
        else:
            needed = anew or self.on_change is not None
            self._photos = MilvusPhotos.read(self._collection, version) if needed else None

    def rebuild_if_due(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Do nothing: Milvus maintains its own index."""

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep named contents, such as an operating point, as one change; None removes a content."""
        actor = system_user() if actor is None else check_actor(actor)
        with self._guard:
            photos, facts = self.snapshot(), self.facts()
            version = int(facts.get("version", 0)) + 1
            count, seqs = photos.fingerprint
            new = {"version": version, "changed_by": actor, "photos": count, "live_seqs": seqs}
            self._log.add(version, actor, action, 0)
            self._collection.set_facts(new | self._contents.write(contents, facts))
            self._photos = photos.changed(version, [], [])
            self._contents.forget(facts, self.facts())

    def lock(self) -> None:
        """Do nothing: Milvus has no write lock."""


class Logged(NamedTuple):
    """An entry of the change log."""

    actor: str
    action: str
    photos: int
