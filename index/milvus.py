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
import math
import threading
import uuid
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import (
    Additions,
    check_actor,
    check_additions,
    check_removals,
    check_values,
    check_vectors,
    encode_metadata,
    refuse_absent,
    refuse_present,
)
from .database import ANEW, FORMAT, POINT, RESTORE, Change, system_user
from .errors import GalleryCorrupt, GalleryError, InvalidParameter, MissingDependency, check_format
from .features import FeatureFormat
from .groups import number_of
from .photos import CONTENT, NONE, ItemFacts, Keys, hashed, sampled
from .search.details import Points, Verifier
from .search.distance import Floats, Rows, plain_distance
from .search.filters import check_columns, parse_where, to_milvus
from .search.item_distance import NEAREST_PHOTO, ItemDistance, mean_photo
from .search.item_search import ItemSearch
from .snapshot import FIRST_FETCH, MEANS, Facts, Neighbour, StoredPhoto, VersionNeighbours, neighbours_of

if TYPE_CHECKING:
    from pymilvus import MilvusClient

SCHEME = "milvus+"  # scheme of an address: milvus+http://host:19530/name, or milvus+/folder/lite.db/name
TEXTS = "_texts"  # suffix of the collection that holds facts, changes and parts of contents
FACTS, CHANGE = "facts", "change/{}"  # keys of texts
LONGEST_ID, LONGEST_TEXT = 512, 65_535  # byte limits of Milvus text fields
PART = LONGEST_TEXT // 4 * 3 - 3  # bytes of a part of a content, which is stored as base64
BATCH, PARTS = 500, 50  # photos and texts per request
RESULTS, MOST = 2000, 16_384  # photos that are found per request, and per query at most
ATTEMPTS = 5  # at reading a content while it is replaced
SLACK = 1e-5  # float32 error of a cosine, in addition to the error due to the dimension
STRONG = "Strong"  # reads see every earlier write
LOCAL = "Use a local gallery"
ROW = ["photo_id", "item_id", "metadata"]

Hit = tuple[dict[str, Any], float]  # fields of a photo, and its distance


class MilvusGallery:
    """A gallery on a Milvus cluster, or in a file of Milvus Lite."""

    read_only = False
    features_key = ""  # Milvus keeps no features
    feature_format: FeatureFormat | None = None

    def __init__(self, client: MilvusClient, name: str, address: str) -> None:
        self._client, self._name, self.path = client, name, address
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
        client, name = _connect(address, token)
        if client.has_collection(name):
            raise GalleryError(f"{address} exists", remedy="Open it, or choose another name")
        _create_collections(client, name, dim, index)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"format": FORMAT, "dim": dim, "embedding_id": embedding_id, "created": created, "version": 0}
        facts |= {"state": 0, "photos": 0, "columns": dict(columns or {}), "kept": {}}
        _write_texts(client, name, {FACTS: json.dumps(facts)})
        return cls(client, name, address)

    @classmethod
    def open(cls, address: str, *, token: str = "") -> MilvusGallery:
        """Open a gallery at an address; raise GalleryError if there is none."""
        client, name = _connect(address, token)
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
        self._client.close()

    def lock(self) -> None:
        """Do nothing: Milvus has no write lock."""

    # facts and named contents

    def _texts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the texts with these keys, for those that exist."""
        rows: list[Any] = []
        for start in range(0, len(keys), PARTS):
            rows += self._client.get(self._name + TEXTS, ids=list(keys[start : start + PARTS]))
        return {row["key"]: row["value"] for row in rows}

    def _facts(self) -> dict[str, Any]:
        texts = self._texts([FACTS])
        if FACTS not in texts:
            raise GalleryCorrupt(f"the facts about {self.path} are missing", remedy=RESTORE)
        return dict(json.loads(texts[FACTS]))

    def __len__(self) -> int:
        """Return the number of photos."""
        return int(self._query("", ["count(*)"])[0]["count(*)"])

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
        texts = self._texts([CHANGE.format(number) for number in range(oldest + 1, version + 1)])
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
            texts = self._texts(keys)
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
                    _write_texts(self._client, self._name, dict(texts))
            self._finish({"kept": kept}, action, 0, actor)
            gone = [key for entry in old for key in _parts(entry)]
            if gone:
                self._client.delete(self._name + TEXTS, ids=gone)

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
        _write_texts(self._client, self._name, {CHANGE.format(version): change})
        _write_texts(self._client, self._name, {FACTS: json.dumps(new)})

    @contextmanager
    def _changing(self, action: str, photos: int, actor: str | None) -> Iterator[None]:
        """Enclose the writing of photos, and record it as one change."""
        now = self._facts()
        state = now["state"] + 1
        _write_texts(self._client, self._name, {FACTS: json.dumps({**now, "state": state})})
        yield
        self._finish({"state": state + 1, "photos": len(self)}, action, photos, actor)

    # photos

    def _query(self, condition: str, fields: list[str]) -> list[Any]:
        return list(self._client.query(self._name, filter=condition, output_fields=fields, consistency_level=STRONG))

    def _walk(self, fields: list[str], condition: str = "") -> Iterator[Any]:
        """Yield fields of all photos that pass a condition."""
        pages = self._client.query_iterator(self._name, filter=condition, output_fields=fields, batch_size=BATCH)
        try:
            while rows := pages.next():
                yield from rows
        finally:
            pages.close()

    def _walk_items(self, fields: list[str], item_ids: Sequence[str]) -> Iterator[Any]:
        for start in range(0, len(item_ids), BATCH):
            names = json.dumps(list(item_ids[start : start + BATCH]), ensure_ascii=False)
            yield from self._walk(fields, f"item_id in {names}")

    def _get(self, photo_ids: Sequence[str], fields: list[str]) -> dict[str, Any]:
        """Return fields of photos by photo_id, for those that exist."""
        rows: list[Any] = []
        for start in range(0, len(photo_ids), BATCH):
            ids = list(photo_ids[start : start + BATCH])
            rows += self._client.get(self._name, ids=ids, output_fields=["photo_id", *fields])
        return {row["photo_id"]: row for row in rows}

    def values(self, key: str) -> list[tuple[str, str, Any]]:
        """Return photo_id, item_id and the value of a metadata key, None if it has none, of each photo."""
        rows = sorted(self.photos(), key=lambda row: row[0])
        return [(photo_id, item_id, metadata.get(key)) for photo_id, item_id, metadata in rows]

    def photos(self, item_id: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all photos, or of those of an item; none for an unknown item."""
        return [_fields(row) for row in (self._walk(ROW) if item_id is None else self._walk_items(ROW, [item_id]))]

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        return next((_fields(row) for row in self._get([photo_id], ROW).values()), None)

    def item_ids(self, *, after: str = "", limit: int = 100, find: str = "") -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order; this reads every photo.

        `find` is a part of their ids or of the metadata of their photos, in any case.
        """
        rows, part = (_fields(row) for row in self._walk(ROW)), find.casefold()
        texts = ((item, [item, *map(str, about.values())]) for _, item, about in rows)
        found = {item for item, some in texts if any(part in text.casefold() for text in some)}
        return sorted(item for item in found if item > after)[:limit]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        rows = self._get([photo_id], ["thumbnail"])
        return _jpeg(rows[photo_id]) if rows else None

    def walk(self, count: int, *, whole: bool = False) -> Iterator[list[StoredPhoto]]:
        """Return the photos ordered by photo_id, `count` per batch; with `whole`, they have their thumbnails."""
        ids = self.snapshot().ids
        return (self._stored(ids[start : start + count], whole) for start in range(0, len(ids), count))

    def _stored(self, photo_ids: Sequence[str], whole: bool) -> list[StoredPhoto]:
        found = self._get(photo_ids, [*ROW, "vector", *(["thumbnail"] if whole else [])])
        rows = [found[photo_id] for photo_id in photo_ids if photo_id in found]
        vectors = [np.array(row["vector"], dtype=np.float32) for row in rows]
        photos = zip(rows, vectors, strict=True)
        return [StoredPhoto(*_fields(row), vector, None, _jpeg(row) if whole else None) for row, vector in photos]

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
            present = self._get(new.photo_ids, []).keys()
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
            rows = self._get(photo_ids, ["vector", "thumbnail"])
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
                    self._client.upsert(self._name, rows[start : start + BATCH])
        return len(rows)

    def remove(
        self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None, actor: str | None = None
    ) -> int:
        """Remove photos, or all photos of items; return how many existed."""
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            gone = {*self._get(photo_ids, [])} | {row["photo_id"] for row in self._walk_items(["photo_id"], item_ids)}
            ids = sorted(gone)
            if ids:
                with self._changing("remove", len(ids), actor):
                    for start in range(0, len(ids), BATCH):
                        self._client.delete(self._name, ids=ids[start : start + BATCH])
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
        for row in self._walk(["photo_id", "vector"]):
            length = float(np.linalg.norm(np.asarray(row["vector"], dtype=np.float64)))
            if not abs(length - 1) < 1e-5:
                problems.append(f"the vector of photo {row['photo_id']} has the length {length}")
        return problems

    # searches and draws

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
        """Return the k nearest items for each of the vectors (n, d), best first; see `Gallery.search`."""
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
    ) -> VersionNeighbours:
        """Search as `search` does, and also return the version and what is kept as its operating point."""
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        if left_out:
            raise InvalidParameter("left_out", "be empty for a gallery on Milvus", len(left_out))
        unit, facts = check_vectors(vectors, self.dim), self._facts()
        only = None if where is None else to_milvus(parse_where(where, facts["columns"]))
        photos = MilvusPhotos(self, (facts["photos"], facts["state"]))
        found = ItemSearch(photos, item_distance, verifier).nearest(unit, k, only=only, features=features)
        return VersionNeighbours(
            int(facts["version"]), self._kept(POINT, facts), neighbours_of(found, photos.photos_at)
        )

    def nearest(self, vectors: NDArray[np.float32], k: int, condition: str) -> list[list[Hit]]:
        """Return the nearest photo of each of the k nearest items and its distance, for unit vectors (n, d).

        Milvus proposes candidates until no other photo can be nearer, or until it returns no more of them.
        """
        answers: list[list[Hit]] = [[] for _ in vectors]
        waiting, fetch = list(range(len(vectors))), FIRST_FETCH + 4 * k
        while waiting:
            fetch, again = min(fetch, MOST), []
            for query, hits in zip(waiting, self._candidates(vectors[waiting], fetch, condition), strict=True):
                distances, limit = _measured(hits, vectors[query], fetch)
                best = answers[query] = _by_item(hits, distances, k, limit)
                if not (len(best) == k or limit == np.inf or fetch == MOST):
                    again.append(query)
            waiting, fetch = again, 4 * fetch
        return answers

    def _candidates(self, vectors: NDArray[np.float32], limit: int, condition: str) -> Iterator[list[Any]]:
        """Yield up to `limit` photos with the greatest inner products with each of the vectors (n, d), best first."""
        together = max(1, RESULTS // limit)
        for start in range(0, len(vectors), together):
            found = self._client.search(
                self._name,
                vectors[start : start + together].tolist(),
                limit=limit,
                filter=condition,
                output_fields=[*ROW, "vector"],
                search_params={"metric_type": "IP"},
                consistency_level=STRONG,
            )
            yield from map(list, found)

    def snapshot(self) -> MilvusPhotos:
        """Return the photos of the newest version; this reads the id and item of every photo after a change."""
        with self._guard:
            facts = self._facts()
            state = facts["photos"], facts["state"]
            if self._photos is None or self._photos.mark != state:
                self._photos = MilvusPhotos(self, state)
                rows = sorted((row["photo_id"], row["item_id"]) for row in self._walk(["photo_id", "item_id"]))
                self._photos.number(rows)
            return self._photos

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are in the gallery."""
        numbers = self.snapshot().numbers
        return {item: numbers[item] for item in item_ids if item in numbers}


class MilvusPhotos:
    """Photos of one version, numbered in the order in which they are first seen: all of them for draws, else hits."""

    def __init__(self, gallery: MilvusGallery, mark: tuple[int, int]) -> None:
        self.gallery, self.mark = gallery, mark  # number of photos, and the state
        self.ids: list[str] = []
        self.numbers: dict[str, int] = {}  # of each item
        self.items = np.zeros(0, dtype=np.int32)  # (n,) item number of each photo
        self._same_picture: Callable[[str, str], bool] | None = None
        self._positions: dict[str, int] = {}
        self._read: dict[str, tuple[str, str, dict[str, Any]]] = {}  # photos that have been read
        self._facts: dict[int, tuple[Rows, Facts]] = {}

    @property
    def size(self) -> int:
        """The number of photos."""
        return self.mark[0]

    @property
    def item_count(self) -> int:
        """The number of items that have been seen."""
        return len(self.numbers)

    def changes_since(self, mark: Sequence[int]) -> int:
        """Return how many photos more or fewer there are, at least 1 if any changed."""
        return 0 if tuple(mark[:2]) == self.mark else max(1, abs(self.size - mark[0]))

    def number(self, rows: Sequence[tuple[str, str]]) -> list[int]:
        """Return the positions of photos, given as photo_id and item_id."""
        new = [row for row in rows if row[0] not in self._positions]
        self._positions |= {photo_id: len(self.ids) + place for place, (photo_id, _) in enumerate(new)}
        self.ids += [photo_id for photo_id, _ in new]
        items = [self.numbers.setdefault(item, len(self.numbers)) for _, item in new]
        self.items = np.concatenate([self.items, np.array(items, dtype=np.int32)])
        return [self._positions[photo_id] for photo_id, _ in rows]

    @property
    def live(self) -> NDArray[np.bool_]:
        """A mask (n,) of the live photos: all of them."""
        return np.ones(len(self.ids), dtype=bool)

    def items_at(self, positions: Rows) -> Rows:
        """Return the numbers of the items of photos, NONE for NONE."""
        return np.where(positions == NONE, NONE, self.items[positions]) if len(self.items) else positions

    def positions(self, photo_ids: Sequence[str]) -> Rows:
        """Return the positions of photos, NONE for those that are not here."""
        return np.array([self._positions.get(photo_id, NONE) for photo_id in photo_ids], dtype=np.int64)

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are here."""
        return {item: self.numbers[item] for item in item_ids if item in self.numbers}

    def keys_of(self, positions: Rows) -> Keys:
        """Return the hashes of the ids of photos."""
        return hashed(self.ids[position] for position in positions.tolist())

    def sample(self, most: int, *, excluded: Collection[int] = ()) -> Rows:
        """Return the positions of up to `most` photos, chosen by the hashes of their ids (`sampled`)."""
        positions = np.flatnonzero(~np.isin(self.items, list(excluded)))
        items = self.items[positions]
        return positions[sampled(items, hashed(self.numbers)[items], self.keys_of(positions))[:most]]

    def with_pictures(self, same_picture: Callable[[str, str], bool]) -> MilvusPhotos:
        """Return these photos with a function that compares the pictures of two, for `copies`."""
        self._same_picture = same_picture
        return self

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether photos are copies: the same file or, where pictures can be compared, the same picture."""
        pairs = zip(self.photos_at(first), self.photos_at(second), strict=True)
        return np.array([self._is_copy(*pair) for pair in pairs], dtype=bool)

    def _is_copy(self, first: tuple[str, str, dict[str, Any]], second: tuple[str, str, dict[str, Any]]) -> bool:
        content = first[2].get(CONTENT)
        if content is not None and content == second[2].get(CONTENT):
            return True
        return self._same_picture is not None and self._same_picture(first[0], second[0])

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions."""
        ids = [self.ids[position] for position in positions.tolist()]
        rows = self.gallery._get(ids, [*ROW, "vector"])
        self._read.update({photo_id: _fields(row) for photo_id, row in rows.items()})
        return np.array([rows[name]["vector"] for name in ids], dtype=np.float32).reshape(-1, self.gallery.dim)

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""
        ids = [self.ids[position] for position in positions.tolist()]
        missing = [photo_id for photo_id in ids if photo_id not in self._read]
        self._read.update({name: _fields(row) for name, row in self.gallery._get(missing, ROW).items()})
        return [self._read[photo_id] for photo_id in ids]

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""
        return self.photos_at(np.array([position]))[0]

    def features(self, positions: Rows) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError: a gallery on Milvus keeps no features."""
        raise GalleryError(
            f"{self.gallery.path} keeps no features, like every gallery on Milvus",
            remedy=f"{LOCAL}, or a bundle without verification",
        )

    def votes(self, verifier: Verifier, asked: Points) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError, as `features` does."""
        self.features(np.zeros(0, np.int64))

    def photos_of(self, items: Sequence[int]) -> list[Rows]:
        """Return the positions of the photos of each of some items, by number, ascending."""
        return [positions for positions, _ in self._looked_at(items)]

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and the groups of items, by number."""
        facts = [facts for _, facts in self._looked_at(items.tolist())]
        means = np.array([mean for mean, _ in facts]).reshape(len(facts), self.gallery.dim)
        return ItemFacts(means, np.array([group for _, group in facts], dtype=np.int64))

    def _looked_at(self, items: Sequence[int]) -> list[tuple[Rows, Facts]]:
        """Return the positions of the photos of each item, with its mean photo and the number of its group."""
        if len(self._facts) + len(items) > MEANS:
            self._facts.clear()
        missing = [item for item in dict.fromkeys(items) if item not in self._facts]
        names = {number: name for name, number in self.numbers.items()} if missing else {}
        rows: dict[str, list[Any]] = {names[item]: [] for item in missing}
        for row in self.gallery._walk_items([*ROW, "vector"], [names[item] for item in missing]):
            rows[row["item_id"]].append(row)
        for item in missing:
            own = sorted(rows[names[item]], key=lambda row: str(row["photo_id"]))
            positions = self.number([(row["photo_id"], row["item_id"]) for row in own])
            self._read.update({row["photo_id"]: _fields(row) for row in own})
            vectors = np.array([row["vector"] for row in own], dtype=np.float32)
            facts = mean_photo(vectors), number_of(names[item], own[0]["metadata"])
            self._facts[item] = np.array(sorted(positions)), facts
        return [self._facts[item] for item in items]

    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items, as `Photos.nearest`.

        `only` is a condition in Milvus's own language.
        """
        nearest, distances = np.full((len(vectors), k), NONE), np.full((len(vectors), k), np.inf)
        for row, best in enumerate(self.gallery.nearest(vectors, k, only or "")):
            self._read.update({fields["photo_id"]: _fields(fields) for fields, _ in best})
            nearest[row, : len(best)] = self.number([(fields["photo_id"], fields["item_id"]) for fields, _ in best])
            distances[row, : len(best)] = [apart for _, apart in best]
        return nearest, distances


def exists(address: str, *, token: str = "") -> bool:
    """Return whether there is a gallery at an address."""
    client, name = _connect(address, token)
    try:
        return bool(client.has_collection(name))
    finally:
        client.close()


def _connect(address: str, token: str) -> tuple[MilvusClient, str]:
    """Return a client for an address and the collection name."""
    server, _, name = address.removeprefix(SCHEME).rpartition("/")
    if not address.startswith(SCHEME) or not server or not name.isidentifier():
        raise InvalidParameter(
            "gallery", "be an address such as milvus+http://host:19530/name or milvus+/folder/lite.db/name", address
        )
    try:
        from pymilvus import MilvusClient, MilvusException
    except ImportError as error:
        raise MissingDependency.of_extra("pymilvus", "milvus") from error
    try:
        return MilvusClient(server, token=token), name
    except (MilvusException, OSError) as error:
        raise GalleryError(f"{address} cannot be reached: {error}", remedy="Check the address and the token") from error


def _create_collections(client: MilvusClient, name: str, dim: int, index: str) -> None:
    """Create the empty collections of photos and of texts."""
    from pymilvus import DataType, MilvusClient

    photos = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    photos.add_field("photo_id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    photos.add_field("item_id", DataType.VARCHAR, max_length=LONGEST_ID)
    photos.add_field("metadata", DataType.JSON)
    photos.add_field("thumbnail", DataType.VARCHAR, max_length=LONGEST_TEXT)
    photos.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    texts = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    texts.add_field("key", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    texts.add_field("value", DataType.VARCHAR, max_length=LONGEST_TEXT)
    texts.add_field("unused", DataType.FLOAT_VECTOR, dim=2)  # Milvus requires a vector field
    for collection, schema, vector, kind in (
        (name + TEXTS, texts, "unused", "FLAT"),
        (name, photos, "vector", index),
    ):
        params = client.prepare_index_params()
        params.add_index(vector, index_type=kind, metric_type="IP")
        client.create_collection(collection, schema=schema, index_params=params, consistency_level=STRONG)


def _write_texts(client: MilvusClient, name: str, texts: Mapping[str, str]) -> None:
    rows = [{"key": key, "value": value, "unused": [0.0, 1.0]} for key, value in texts.items()]
    for start in range(0, len(rows), PARTS):
        client.upsert(name + TEXTS, rows[start : start + PARTS])


def _parts(entry: Sequence[Any]) -> list[str]:
    """Return the keys of the parts of a content, given its name, their number and a checksum."""
    return [f"{entry[0]}/{number}" for number in range(entry[1])]


def _fields(row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    return row["photo_id"], row["item_id"], dict(row["metadata"])


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


def _measured(hits: Sequence[Any], vector: NDArray[np.float32], fetch: int) -> tuple[Floats, float]:
    """Return the distances of hits, and a lower bound for the distance of any other photo."""
    if not hits:
        return np.zeros(0), np.inf
    distances = plain_distance(vector[None], np.array([hit["entity"]["vector"] for hit in hits], dtype=np.float32))
    if len(hits) < fetch:
        return distances, np.inf
    cosine = float(hits[-1]["distance"]) + 2 * (SLACK + len(vector) * 2.0**-24)
    return distances, math.sqrt(max(0.0, 2 - 2 * cosine))


def _by_item(hits: Sequence[Any], distances: Floats, k: int, limit: float) -> list[Hit]:
    """Return the nearest photo of each of the k nearest items whose distance is below the limit."""
    best: dict[str, Hit] = {}
    for i in sorted(range(len(hits)), key=lambda i: (distances[i], hits[i]["entity"]["photo_id"])):
        entity = hits[i]["entity"]
        if distances[i] >= limit or len(best) == k:
            break
        best.setdefault(entity["item_id"], (entity, float(distances[i])))
    return list(best.values())
