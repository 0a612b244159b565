"""Galleries on a Milvus cluster, for catalogues too large for one machine: add, upsert, remove, search, filters, draws.

Milvus is the source of truth: its stored vectors are output fields, and distances are computed exactly from them with
the same code as for every gallery. Transactions, answers from one version and crash safety (kill -9) are guarantees of
the local gallery only. Reads use strong consistency. One process at a time may change a gallery. There are no local
features, and Milvus maintains its own index.

A second collection holds texts by key: the facts about the gallery in one row, a row per change, and named contents in
parts. The facts name the parts in force, so one write puts a change into force. The fact `state` changes before and
after each change of photos: draws measured at another state, such as before a crash, do not cover the gallery.
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike

from index.checks import (
    Additions,
    check_actor,
    check_additions,
    check_removals,
    check_values,
    encode_metadata,
    refuse_absent,
    refuse_present,
)
from index.database import ANEW, FORMAT, POINT, RESTORE, Change, system_user
from index.errors import GalleryCorrupt, GalleryError, InvalidParameter, check_format
from index.features import FeatureFormat
from index.search.filters import check_columns, parse_where, to_milvus
from index.search.neighbours import Searched, StoredPhoto, Version

from .collections import (
    BATCH,
    LONGEST_ID,
    LONGEST_TEXT,
    ROW,
    TEXTS,
    Collections,
    connect,
    create_collections,
    fields_of,
)
from .photos import MilvusPhotos

if TYPE_CHECKING:
    from pymilvus import MilvusClient

FACTS, CHANGE = "facts", "change/{}"  # keys of texts
PART = LONGEST_TEXT // 4 * 3 - 3  # bytes of a part of a content, which is stored as base64
ATTEMPTS = 5  # at reading a content while it is replaced


class MilvusGallery(Searched):
    """A gallery on a Milvus cluster, or in a file of Milvus Lite."""

    read_only = False
    features_key = ""  # Milvus keeps no features
    feature_format: FeatureFormat | None = None

    def __init__(self, client: MilvusClient, name: str, address: str) -> None:
        self._store, self.path = Collections(client, name, address), address
        self._guard = threading.RLock()
        self._photos: MilvusPhotos | None = None  # of the newest state that was read
        self._contents: dict[str, tuple[list[Any], bytes]] = {}  # contents that were read, with their entry
        self.damage: list[str] = []
        facts = self._facts()
        try:
            check_format(facts["format"], FORMAT, address, GalleryError, remedy=ANEW)
        except GalleryError:
            self.close()
            raise
        self.dim, self.embedding_id, self.created = int(facts["dim"]), str(facts["embedding_id"]), str(facts["created"])

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
        client, name = connect(address, token)
        if client.has_collection(name):
            raise GalleryError(f"{address} exists", remedy="Open it, or choose another name")
        create_collections(client, name, dim, index)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"format": FORMAT, "dim": dim, "embedding_id": embedding_id, "created": created, "version": 0}
        facts |= {"state": 0, "photos": 0, "columns": dict(columns or {}), "kept": {}}
        Collections(client, name, address).write_texts({FACTS: json.dumps(facts)})
        return cls(client, name, address)

    @classmethod
    def open(cls, address: str, *, token: str = "") -> MilvusGallery:
        """Open a gallery at an address; raise GalleryError if there is none."""
        client, name = connect(address, token)
        if not client.has_collection(name):
            raise GalleryError(f"{address} is not a gallery", remedy="Index photos into it first")
        if not client.has_collection(name + TEXTS):
            raise GalleryError(f"{address} was made by an earlier release", remedy=ANEW)
        for collection in (name, name + TEXTS):
            client.load_collection(collection)
        return cls(client, name, address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._store.client.close()

    def lock(self) -> None:
        """Do nothing: Milvus has no write lock."""

    # facts and named contents

    def _facts(self) -> dict[str, Any]:
        texts = self._store.texts([FACTS])
        if FACTS not in texts:
            raise GalleryCorrupt(f"the facts about {self.path} are missing", remedy=RESTORE)
        return dict(json.loads(texts[FACTS]))

    def __len__(self) -> int:
        """Return the number of photos."""
        return int(self._store.query("", ["count(*)"])[0]["count(*)"])

    @property
    def items(self) -> int:
        """Return the number of items; this reads every photo, because Milvus keeps no count."""
        return len(self.snapshot().numbers)

    @property
    def version(self) -> int:
        """Return the number of changes made through this interface."""
        return int(self._facts()["version"])

    def index(self) -> dict[str, Any]:
        """Return the kind of index; Milvus maintains it."""
        return {"kind": "milvus"}

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        return dict(self._facts()["columns"])

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        version = self.version
        oldest = 0 if limit < 0 else max(0, version - limit)
        texts = self._store.texts([CHANGE.format(number) for number in range(oldest + 1, version + 1)])
        return sorted((Change(**json.loads(text)) for text in texts.values()), key=lambda change: -change.version)

    def kept(self, name: str) -> bytes | None:
        """Return the content that is kept under a name with the newest version, None if there is none."""
        return self._kept(name, self._facts())

    def _kept(self, name: str, facts: Mapping[str, Any]) -> bytes | None:
        for _ in range(ATTEMPTS):
            entry = facts["kept"].get(name)
            if entry is None:
                return None
            if name in self._contents and self._contents[name][0] == entry:
                return self._contents[name][1]
            keys = _parts(entry)
            texts = self._store.texts(keys)
            if texts.keys() == set(keys):
                content = b"".join(base64.b64decode(texts[key]) for key in keys)
                if zlib.crc32(content) == entry[2]:
                    self._contents[name] = entry, content
                    return content
            facts = self._facts()  # it may have been replaced meanwhile
        raise GalleryCorrupt(f"the {name} of the gallery cannot be read: parts of it are missing", remedy=RESTORE)

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep named contents, such as an operating point, as one change; None removes a content."""
        with self._guard:
            kept = dict(self._facts()["kept"])
            old = [kept.pop(name) for name in contents if name in kept]
            for name, content in contents.items():
                if content is not None:
                    parts = [content[start : start + PART] for start in range(0, len(content), PART)]
                    kept[name] = [uuid.uuid4().hex, len(parts), zlib.crc32(content)]
                    texts = zip(_parts(kept[name]), (base64.b64encode(part).decode() for part in parts), strict=True)
                    self._store.write_texts(dict(texts))
            self._finish({"kept": kept}, action, 0, actor)
            gone = [key for entry in old for key in _parts(entry)]
            if gone:
                self._store.delete_texts(gone)

    def declare(self, columns: Mapping[str, str | None]) -> None:
        """Declare metadata keys for filters, each text, number or boolean; None removes a key.

        Existing photos are not checked.
        """
        wanted = {name: kind for name, kind in columns.items() if kind is not None}
        check_columns(wanted)
        with self._guard:
            known = self.columns()
            for name, kind in wanted.items():
                if known.get(name, kind) != kind:
                    raise InvalidParameter(f"column {name}", f"stay {known[name]}, its declared kind", kind)
            gone, new = known.keys() & (columns.keys() - wanted.keys()), wanted.keys() - known.keys()
            for word, names in (("undeclare", gone), ("declare", new)):
                if names:
                    known = {name: kind for name, kind in (known | wanted).items() if name not in gone}
                    self._finish({"columns": known}, f"{word} {', '.join(sorted(names))}", 0, None)

    def _finish(self, facts: Mapping[str, Any], action: str, photos: int, actor: str | None) -> None:
        """Put new facts into force as one change."""
        now = self._facts()
        version = now["version"] + 1
        time = datetime.now(UTC).isoformat(timespec="seconds")
        actor = system_user() if actor is None else check_actor(actor)
        change = json.dumps(asdict(Change(version, time, actor, action, photos)))
        new = {**now, **facts, "version": version, "changed_by": actor}
        self._store.write_texts({CHANGE.format(version): change})
        self._store.write_texts({FACTS: json.dumps(new)})

    @contextmanager
    def _changing(self, action: str, photos: int, actor: str | None) -> Iterator[None]:
        """Enclose the writing of photos, and record it as one change."""
        now = self._facts()
        state = now["state"] + 1
        self._store.write_texts({FACTS: json.dumps({**now, "state": state})})
        yield
        self._finish({"state": state + 1, "photos": len(self)}, action, photos, actor)

    # photos

    def values(self, key: str) -> list[tuple[str, str, Any]]:
        """Return photo_id, item_id and the value of a metadata key, None if it has none, of each photo."""
        rows = sorted(self.photos(), key=lambda row: row[0])
        return [(photo_id, item_id, metadata.get(key)) for photo_id, item_id, metadata in rows]

    def photos(self, item_id: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all photos, or of those of an item; none for an unknown item."""
        return [
            fields_of(row)
            for row in (self._store.walk(ROW) if item_id is None else self._store.walk_items(ROW, [item_id]))
        ]

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        return next((fields_of(row) for row in self._store.get([photo_id], ROW).values()), None)

    def item_ids(self, *, after: str = "", limit: int = 100, find: str = "") -> list[str]:
        """Return up to `limit` item ids that follow `after`, as `Gallery.item_ids` does; this reads every photo."""
        part, places = find.casefold(), dict[str, int]()
        for _, item, about in map(fields_of, self._store.walk(ROW)):
            place = _place_of(part, item, about)
            if place is not None:
                places[item] = min(place, places.get(item, place))
        start = places.get(after, 0), after
        return [item for place, item in sorted((p, i) for i, p in places.items()) if (place, item) > start][:limit]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        rows = self._store.get([photo_id], ["thumbnail"])
        return _jpeg(rows[photo_id]) if rows else None

    def walk(self, count: int, *, whole: bool = False) -> Iterator[list[StoredPhoto]]:
        """Return the photos ordered by photo_id, `count` per batch; with `whole`, they have their thumbnails."""
        ids = self.snapshot().ids
        return (self._stored(ids[start : start + count], whole) for start in range(0, len(ids), count))

    def _stored(self, photo_ids: Sequence[str], whole: bool) -> list[StoredPhoto]:
        found = self._store.get(photo_ids, [*ROW, "vector", *(["thumbnail"] if whole else [])])
        rows = [found[photo_id] for photo_id in photo_ids if photo_id in found]
        vectors = [np.array(row["vector"], dtype=np.float32) for row in rows]
        photos = zip(rows, vectors, strict=True)
        return [StoredPhoto(*fields_of(row), vector, None, _jpeg(row) if whole else None) for row, vector in photos]

    # changes

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
        new = check_additions(photo_ids, item_ids, vectors, metadata, thumbnails, features, dim=self.dim)
        with self._guard:
            present = self._store.get(new.photo_ids, []).keys()
            if not upsert:
                refuse_present(set(present))
            return self._put(new, f"add, {len(present)} of them replaced" if present else "add", actor)

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
            rows = self._store.get(photo_ids, ["vector", "thumbnail"])
            refuse_absent([photo_id for photo_id in photo_ids if photo_id not in rows])
            stored = [rows[photo_id] for photo_id in photo_ids]
            vectors = np.array([row["vector"] for row in stored], dtype=np.float32).reshape(-1, self.dim)
            thumbnails = [_jpeg(row) for row in stored]
            new = check_additions(photo_ids, item_ids, vectors, metadata, thumbnails, None, dim=self.dim)
            return self._put(new, "update", actor)

    def _put(self, new: Additions, action: str, actor: str | None) -> int:
        _check_lengths(new)
        check_values(new.metadata, self.columns())
        facts = zip(new.photo_ids, new.item_ids, new.metadata, new.thumbnails, new.vectors, strict=True)
        rows = [
            {
                "photo_id": photo_id,
                "item_id": item_id,
                "metadata": {k: v for k, v in json.loads(encode_metadata(values)).items() if v is not None},
                "thumbnail": base64.b64encode(jpeg).decode() if jpeg else "",
                "vector": vector.tolist(),
            }
            for photo_id, item_id, values, jpeg, vector in facts
        ]
        if rows:
            with self._changing(action, len(rows), actor):
                for start in range(0, len(rows), BATCH):
                    self._store.client.upsert(self._store.name, rows[start : start + BATCH])
        return len(rows)

    def remove(
        self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None, actor: str | None = None
    ) -> int:
        """Remove photos, or all photos of items; return how many existed."""
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            gone = {*self._store.get(photo_ids, [])} | {
                row["photo_id"] for row in self._store.walk_items(["photo_id"], item_ids)
            }
            ids = sorted(gone)
            if ids:
                with self._changing("remove", len(ids), actor):
                    for start in range(0, len(ids), BATCH):
                        self._store.client.delete(self._store.name, ids=ids[start : start + BATCH])
        return len(ids)

    def rebuild(self, **_: object) -> NoReturn:
        """Raise GalleryError: Milvus maintains its own index."""
        raise GalleryError(
            f"Milvus maintains the index of {self.path} itself, so there is nothing to rebuild",
            remedy="Its index type is chosen when a gallery is created (`MilvusGallery.create`)",
        )

    def verify(self, *, rows: bool = True) -> list[str]:
        """Return the vectors that are not of length one as problems; Milvus checks its own files."""
        if not rows:
            return []
        problems = []
        for row in self._store.walk(["photo_id", "vector"]):
            length = float(np.linalg.norm(np.asarray(row["vector"], dtype=np.float64)))
            if not abs(length - 1) < 1e-5:
                problems.append(f"the vector of photo {row['photo_id']} has the length {length}")
        return problems

    # searches and draws

    @contextmanager
    def _searching(self, where: str | None, left_out: Collection[str]) -> Iterator[Version]:
        if left_out:
            raise InvalidParameter("left_out", "be empty for a gallery on Milvus", len(left_out))
        facts = self._facts()
        only = None if where is None else to_milvus(parse_where(where, facts["columns"]))
        photos = MilvusPhotos(self._store, self.dim, (facts["photos"], facts["state"]))
        yield Version(int(facts["version"]), self._kept(POINT, facts), photos, only, photos.photos_at)

    def snapshot(self) -> MilvusPhotos:
        """Return the photos of the newest version; this reads the id and item of every photo after a change."""
        with self._guard:
            facts = self._facts()
            state = facts["photos"], facts["state"]
            if self._photos is None or self._photos.mark != state:
                self._photos = MilvusPhotos(self._store, self.dim, state)
                rows = sorted((row["photo_id"], row["item_id"]) for row in self._store.walk(["photo_id", "item_id"]))
                self._photos.number(rows)
            return self._photos


def exists(address: str, *, token: str = "") -> bool:
    """Return whether there is a gallery at an address."""
    client, name = connect(address, token)
    try:
        return bool(client.has_collection(name))
    finally:
        client.close()


def _parts(entry: Sequence[Any]) -> list[str]:
    """Return the keys of the parts of a content, given its name, their number and a checksum."""
    return [f"{entry[0]}/{number}" for number in range(entry[1])]


def _place_of(part: str, item_id: str, metadata: Mapping[str, Any]) -> int | None:
    """Return 0 if a text is an item's id or name, 1 if it is their beginning, 2 if it is in any text, else None."""
    titles = [str(title).casefold() for title in (item_id, metadata.get("name", ""))]
    texts = [str(value).casefold() for key, value in metadata.items() if not key.startswith("_")]
    if not part or part in titles:
        return 0
    if any(title.startswith(part) for title in titles):
        return 1
    return 2 if any(part in text for text in (*titles, *texts)) else None


def _jpeg(row: Mapping[str, Any]) -> bytes | None:
    return base64.b64decode(row["thumbnail"]) or None


def _check_lengths(new: Additions) -> None:
    """Raise InvalidParameter for texts that Milvus cannot hold."""
    for text in (*new.photo_ids, *new.item_ids):
        if len(text.encode()) > LONGEST_ID:
            raise InvalidParameter("ids", f"have at most {LONGEST_ID} bytes in Milvus", text[:60])
    largest = LONGEST_TEXT // 4 * 3
    for photo_id, jpeg in zip(new.photo_ids, new.thumbnails, strict=True):
        if jpeg and len(jpeg) > largest:
            rule = f"have at most {largest:,} bytes in Milvus"
            raise InvalidParameter(f"the thumbnail of {photo_id}", rule, f"{len(jpeg):,} bytes")
