"""Galleries on a Milvus cluster, for catalogues too large for one machine: add, upsert, remove, search, filters, draws.

Milvus is the source of truth: its stored vectors are output fields, and distances are computed exactly from them with
the same code as for every gallery. Transactions, answers from one version and crash safety (kill -9) are guarantees of
the local gallery only. One process at a time may change a gallery. There are no local features.

The facts about a gallery (version, counts, state, columns) are one row that is read with strong consistency, at most
twice a second. They hold the server's time of the last write, and photos and items are read as of that time at least:
a search sees every change of the version that it names, and waits only if the change was a moment ago. The state is odd
while photos change. A change that was not finished is named by `verify`, and finished by the next change.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from threading import RLock
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.ann.recall import SHOWN, Recall
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
from index.database import ANEW, POINT, RESTORE, Change, system_user
from index.errors import GalleryCorrupt, GalleryError, GalleryLocked, InvalidParameter, check_format
from index.features import FeatureFormat
from index.photos import NONE, hashed
from index.search.filters import check_columns, parse_where, to_milvus
from index.search.neighbours import Searched, StoredPhoto, Version

from .client import STRONG, Access, Client
from .collections import (
    BATCH,
    FLAT,
    LONGEST_ID,
    LONGEST_TEXT,
    ROW,
    Collections,
    Level,
    check_dim,
    check_kind,
    create,
    fields_of,
)
from .items import Item, key_of
from .photos import POOL, MilvusPhotos

FORMAT = 6  # of galleries on Milvus; every change of it is a new number
FACTS, CHANGE, TOUCHED, MEASURING = "facts", "change/{}", "touched/{}", "measuring"  # keys of texts
PART = LONGEST_TEXT // 4 * 3 - 3  # bytes of a part of a content, which is stored as base64
NAMES = 20  # item ids in a text: each has up to LONGEST_ID bytes, and more as JSON
ATTEMPTS = 5  # at reading a content while it is replaced
NOTE_S = 900.0  # for which a note that a process measures keeps others from it
SCANNED = 100_000  # photos up to which the index is FLAT
RECALL_QUERIES, MIN_RECALL = 300, 0.99  # photos that measure an approximate index, and the recall that it needs
UNFINISHED = "a change was not finished: repeat it, such as `retrieval index`, or make any other change"


class MilvusGallery(Searched):
    """A gallery on a Milvus cluster, or in a file of Milvus Lite."""

    read_only = False
    at_hand = False  # this process does not hold the photos: to look at each takes requests
    features_key = ""  # Milvus keeps no features
    feature_format: FeatureFormat | None = None

    def __init__(self, client: Client) -> None:
        self._store, self.path = Collections(client), client.address
        self._guard, self._reading, self._knowing = RLock(), RLock(), RLock()
        self._refreshed: Future[None] | None = None  # the last reading of facts in the background
        self._known: dict[str, Any] = {}  # the facts that were read last
        self._read_at = 0.0
        self._contents: dict[str, tuple[list[Any], bytes]] = {}  # contents that were read, with their entry
        self.damage: list[str] = []
        try:
            facts = self._facts()
            check_format(facts["format"], FORMAT, self.path, GalleryError, remedy=ANEW)
        except GalleryError:
            self.close()
            raise
        self.dim, self.embedding_id, self.created = int(facts["dim"]), str(facts["embedding_id"]), str(facts["created"])
        self._store.dim = self.dim

    @classmethod
    def create(
        cls,
        address: str,
        *,
        dim: int,
        embedding_id: str,
        columns: Mapping[str, str] | None = None,
        index: str = FLAT,
        shards: int = 1,
        replicas: int = 1,
        access: Access | None = None,
    ) -> MilvusGallery:
        """Create an empty gallery at an address; raise GalleryError if the address is taken.

        Parameters
        ----------
        index:
            The kind of index that a large gallery gets (`rebuild_if_due`): FLAT, HNSW, IVF_SQ8 or DISKANN.
        shards, replicas:
            Over how many nodes photos are spread as they are written, and how many copies of them are searched.
        access:
            How to reach the server, by default as the environment says.
        """
        if dim < 2:
            raise InvalidParameter("dim", "be at least 2", dim)
        check_columns(columns or {})
        check_kind(index)
        check_dim(dim)
        client = Client(address, access or Access.of_environment())
        if client.ask("has_collection", client.name):
            raise GalleryError(f"{address} exists", remedy="Open it, or choose another name")
        create(client, dim, shards=shards, replicas=replicas)
        created = datetime.now(UTC).isoformat(timespec="seconds")
        facts = {"format": FORMAT, "dim": dim, "embedding_id": embedding_id, "created": created, "version": 0}
        facts |= {"state": 0, "photos": 0, "items": 0, "written": 0, "columns": dict(columns or {}), "kept": {}}
        facts |= {"index": {"kind": FLAT}, "wanted": index, "replicas": replicas}
        Collections(client).write_texts({FACTS: json.dumps(facts)})
        return cls(client)

    @classmethod
    def open(cls, address: str, *, access: Access | None = None) -> MilvusGallery:
        """Open a gallery at an address; raise GalleryError if there is none."""
        client = Client(address, access or Access.of_environment())
        store = Collections(client)
        if not client.ask("has_collection", store.photos):
            raise GalleryError(f"{address} is not a gallery", remedy="Index photos into it first")
        if not client.ask("has_collection", store.items):
            raise GalleryError(f"{address} was made by an earlier release", remedy=ANEW)
        for collection in (store.photos, store.items, store.texts):
            client.ask("load_collection", collection)
        return cls(client)

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

    def _facts(self, *, fresh: bool = False) -> dict[str, Any]:
        """Return the facts, as they were half a second ago at most, or now.

        They are read again in the background after half of that time, so that few searches wait.
        """
        limit, age = self._store.client.access.age_s, time.monotonic() - self._read_at
        if fresh or not self._known or age >= limit:
            with self._reading:
                if fresh or not self._known or time.monotonic() - self._read_at >= limit:
                    self._read_facts()
        elif age >= limit / 2 and (self._refreshed is None or self._refreshed.done()):
            self._refreshed = POOL.submit(self._read_facts)
        return self._known

    def _read_facts(self) -> None:
        begun, texts = time.monotonic(), self._store.read_texts([FACTS])
        if FACTS not in texts:
            raise GalleryCorrupt(f"the facts about {self.path} are missing", remedy=RESTORE)
        self._know(dict(json.loads(texts[FACTS])), begun)

    def _know(self, facts: dict[str, Any], begun: float) -> None:
        """Keep facts that were read or written, unless newer ones are known."""
        with self._knowing:
            known = self._known or facts
            if (facts["version"], facts["state"]) >= (known["version"], known["state"]):
                self._known, self._read_at = facts, begun

    def _level(self, facts: Mapping[str, Any]) -> Level:
        """Return how new photos and items must be that belong to some facts."""
        written = int(facts["written"])
        return {"consistency_level": "Customized", "guarantee_timestamp": written} if written else STRONG

    def __len__(self) -> int:
        """Return the number of photos."""
        return int(self._facts()["photos"])

    @property
    def items(self) -> int:
        """Return the number of items."""
        return int(self._facts()["items"])

    @property
    def version(self) -> int:
        """Return the number of changes made through this interface."""
        return int(self._facts()["version"])

    def index(self) -> dict[str, Any]:
        """Return the kind of index, and its measured recall if it is not exact."""
        return dict(self._facts()["index"])

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        return dict(self._facts()["columns"])

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        version = self.version
        oldest = 0 if limit < 0 else max(0, version - limit)
        texts = self._store.read_texts([CHANGE.format(number) for number in range(oldest + 1, version + 1)])
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
            texts = self._store.read_texts(keys)
            if texts.keys() == set(keys):
                content = b"".join(base64.b64decode(texts[key]) for key in keys)
                if zlib.crc32(content) == entry[2]:
                    self._contents[name] = entry, content
                    return content
            facts = self._facts(fresh=True)  # it may have been replaced meanwhile
        raise GalleryCorrupt(f"the {name} of the gallery cannot be read: parts of it are missing", remedy=RESTORE)

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep named contents, such as an operating point, as one change; None removes a content."""
        with self._guard:
            kept = dict(self._facts(fresh=True)["kept"])
            old = [kept.pop(name) for name in contents if name in kept]
            for name, content in contents.items():
                if content is not None:
                    parts = [content[start : start + PART] for start in range(0, len(content), PART)]
                    kept[name] = [uuid.uuid4().hex, len(parts), zlib.crc32(content)]
                    texts = zip(_parts(kept[name]), (base64.b64encode(part).decode() for part in parts), strict=True)
                    self._store.write_texts(dict(texts))
            gone = [key for entry in old for key in _parts(entry)]
            self._finish({"kept": kept}, action, 0, actor, texts=gone)

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

    def _finish(
        self, facts: Mapping[str, Any], action: str, photos: int, actor: str | None, *, texts: Sequence[str] = ()
    ) -> None:
        """Put new facts into force as one change, and delete texts that are not needed any more."""
        now = self._facts(fresh=True)
        version = now["version"] + 1
        when = datetime.now(UTC).isoformat(timespec="seconds")
        actor = system_user() if actor is None else check_actor(actor)
        change = json.dumps(asdict(Change(version, when, actor, action, photos)))
        new = {**now, **facts, "version": version, "changed_by": actor}
        self._store.write_texts({CHANGE.format(version): change, FACTS: json.dumps(new)})
        self._know(new, time.monotonic())
        self._store.delete(self._store.texts, texts)

    def _change(
        self,
        rows: Sequence[dict[str, Any]],
        gone: Collection[str],
        before: Mapping[str, str],
        about: tuple[str, int, str | None],
    ) -> None:
        """Write photos and delete others, with their items, as one change.

        `before` are the items of the photos that are replaced or deleted, and `about` is the action, the number of
        photos and the actor.
        """
        facts, store = self._facts(fresh=True), self._store
        touched = list(dict.fromkeys([*(row["item_id"] for row in rows), *before.values()]))
        known = {item: Item.read(row) for item, row in store.item_rows(touched, self._level(facts)).items()}
        items = self._items_after(touched, known, rows, before, self._level(facts))
        left = [item for item in known if item not in items]
        parts = [touched[start : start + NAMES] for start in range(0, len(touched), NAMES)]
        names = {TOUCHED.format(place): json.dumps(part) for place, part in enumerate(parts)}
        begun = {**facts, "state": facts["state"] + 1, "touched": len(parts)}
        store.write_texts({**names, FACTS: json.dumps(begun)})
        store.write(store.photos, rows)
        store.delete(store.photos, sorted(gone))
        store.write(store.items, [item.row() for item in items.values()])
        store.delete(store.items, left)
        replaced = sum(row["photo_id"] in before for row in rows)
        new = {
            "state": begun["state"] + 1,
            "touched": 0,
            "photos": facts["photos"] + len(rows) - replaced - len(gone),
            "items": facts["items"] + sum(item not in known for item in items) - len(left),
            "written": store.client.written(store.photos, store.items),
        }
        self._finish(new, *about, texts=list(names))

    def _items_after(
        self,
        touched: Sequence[str],
        known: Mapping[str, Item],
        rows: Sequence[dict[str, Any]],
        before: Mapping[str, str],
        level: Level,
    ) -> dict[str, Item]:
        """Return the items as they are after a change; those without photos are missing."""
        added: dict[str, list[dict[str, Any]]] = {item: [] for item in touched}
        for row in rows:
            added[row["item_id"]].append(row)
        changed = {*before.values()}
        same = {
            item: known[item]._replace(photos=known[item].photos + len(added[item]))
            for item in touched
            if item in known
            and item not in changed
            and known[item].keeps_mean([np.array(row["vector"], dtype=np.float32) for row in added[item]])
        }
        read = {item: known[item].photos for item in touched if item in known and item not in same}
        for row in self._store.photos_of(read, [*ROW, "vector"], level):
            if row["photo_id"] not in before:
                added[row["item_id"]].append(row)
        return {
            item: same[item] if item in same else Item.of(item, photos)
            for item, photos in added.items()
            if photos or item in same
        }

    def _ready(self) -> dict[str, Any]:
        """Return the newest facts, after finishing a change that was not finished: items are made from their photos."""
        facts, store = self._facts(fresh=True), self._store
        if facts["state"] % 2 == 0:
            return facts
        keys = [TOUCHED.format(place) for place in range(facts["touched"])]
        touched = list(dict.fromkeys(item for text in store.read_texts(keys).values() for item in json.loads(text)))
        photos: dict[str, list[dict[str, Any]]] = {}
        sizes = Counter(dict.fromkeys(touched, 1))
        sizes.update({item: row["photos"] for item, row in store.item_rows(touched, STRONG).items()})
        for row in store.photos_of(sizes, [*ROW, "vector"], STRONG):
            photos.setdefault(row["item_id"], []).append(row)
        store.write(store.items, [Item.of(item, own).row() for item, own in photos.items()])
        store.delete(store.items, [item for item in touched if item not in photos])
        counts = {"photos": store.count(store.photos), "items": store.count(store.items)}
        written = store.client.written(store.photos, store.items) or facts["written"]
        new = {"state": facts["state"] + 1, "touched": 0, **counts, "written": written}
        self._finish(new, "finish an interrupted change", 0, None, texts=keys)
        return self._facts()

    # photos

    def values(self, key: str) -> list[tuple[str, str, Any]]:
        """Return photo_id, item_id and the value of a metadata key, None if it has none, of each photo."""
        rows = sorted(self.photos(), key=lambda row: row[0])
        return [(photo_id, item_id, metadata.get(key)) for photo_id, item_id, metadata in rows]

    def photos(self, item_id: str | None = None) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all photos, or of those of an item; none for an unknown item."""
        facts, store = self._facts(), self._store
        level = self._level(facts)
        if item_id is None:
            return [fields_of(row) for row in store.pages(store.photos, ROW, facts["photos"], level)]
        counts = {item: row["photos"] for item, row in store.item_rows([item_id], level).items()}
        return sorted(fields_of(row) for row in store.photos_of(counts, ROW, level))

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        rows = self._store.get([photo_id], ROW, self._level(self._facts()))
        return next((fields_of(row) for row in rows.values()), None)

    def item_ids(self, *, after: str = "", limit: int = 100, find: str = "") -> list[str]:
        """Return up to `limit` item ids that follow `after`, as `Gallery.item_ids` does.

        This reads the id of every item, and with `find` every photo.
        """
        facts, store, part = self._facts(), self._store, find.casefold()
        if not part:
            rows = store.pages(store.items, ["item_id"], facts["items"], self._level(facts))
            return sorted(row["item_id"] for row in rows if row["item_id"] > after)[:limit]
        places = dict[str, int]()
        for _, item, about in self.photos():
            if (place := _place_of(part, item, about)) is not None:
                places[item] = min(place, places.get(item, place))
        start = places.get(after, 0), after
        return [item for place, item in sorted((p, i) for i, p in places.items()) if (place, item) > start][:limit]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        if (known := self._store.thumbnails.get(photo_id)) is not None:
            return base64.b64decode(known) or None
        rows = self._store.get([photo_id], ["thumbnail"], self._level(self._facts()))
        return _jpeg(rows[photo_id]) if rows else None

    def walk(self, count: int, *, whole: bool = False) -> Iterator[list[StoredPhoto]]:
        """Return the photos ordered by the hash of their ids, up to `count` per batch; `whole` adds thumbnails."""
        facts, store = self._facts(), self._store
        fields = [*ROW, "vector", *(["thumbnail"] if whole else [])]
        rows = store.pages(
            store.photos, fields, facts["photos"], self._level(facts), rows=min(count, BATCH if whole else store.rows)
        )
        while some := list(islice(rows, count)):
            yield _stored(some, whole)

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
            level = self._level(self._ready())
            rows = self._store.get(new.photo_ids, ["item_id"], level)
            if not upsert:
                refuse_present(set(rows))
            return self._put(new, f"add, {len(rows)} of them replaced" if rows else "add", actor, rows)

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
            rows = self._store.get(photo_ids, ["item_id", "vector", "thumbnail"], self._level(self._ready()))
            refuse_absent([photo_id for photo_id in photo_ids if photo_id not in rows])
            stored = [rows[photo_id] for photo_id in photo_ids]
            vectors = np.array([row["vector"] for row in stored], dtype=np.float32).reshape(-1, self.dim)
            thumbnails = [_jpeg(row) for row in stored]
            new = check_additions(photo_ids, item_ids, vectors, metadata, thumbnails, None, dim=self.dim)
            return self._put(new, "update", actor, rows)

    def _put(self, new: Additions, action: str, actor: str | None, before: Mapping[str, Any]) -> int:
        _check_lengths(new)
        check_values(new.metadata, self.columns())
        facts = zip(new.photo_ids, new.item_ids, new.metadata, new.thumbnails, new.vectors, strict=True)
        rows = [
            {
                "photo_id": photo_id,
                "item_id": item_id,
                "key": key_of(photo_id),
                "metadata": {k: v for k, v in json.loads(encode_metadata(values)).items() if v is not None},
                "thumbnail": base64.b64encode(jpeg).decode() if jpeg else "",
                "vector": vector.tolist(),
            }
            for photo_id, item_id, values, jpeg, vector in facts
        ]
        if rows:
            items = {photo_id: row["item_id"] for photo_id, row in before.items()}
            self._change(rows, (), items, (action, len(rows), actor))
        return len(rows)

    def remove(
        self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None, actor: str | None = None
    ) -> int:
        """Remove photos, or all photos of items; return how many existed."""
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            level, store = self._level(self._ready()), self._store
            counts = {item: row["photos"] for item, row in store.item_rows(item_ids, level).items()}
            gone = {row["photo_id"]: row["item_id"] for row in store.photos_of(counts, ["photo_id", "item_id"], level)}
            gone |= {photo_id: row["item_id"] for photo_id, row in store.get(photo_ids, ["item_id"], level).items()}
            if gone:
                self._change((), gone.keys(), gone, ("remove", len(gone), actor))
        return len(gone)

    def verify(self, *, rows: bool = True) -> list[str]:
        """Return problems in words: a change that was not finished, wrong counts, and vectors not of length one.

        Milvus checks its own files. Without `rows`, only the first is looked for.
        """
        facts, store = self._facts(fresh=True), self._store
        problems = [UNFINISHED] if facts["state"] % 2 else []
        if not rows:
            return problems
        for name, collection in (("photos", store.photos), ("items", store.items)):
            if not problems and (count := store.count(collection)) != facts[name]:
                problems.append(f"there are {count:,} {name}, and the facts say {facts[name]:,}")
        for row in store.pages(store.photos, ["photo_id", "vector"], facts["photos"], STRONG):
            length = float(np.linalg.norm(np.asarray(row["vector"], dtype=np.float64)))
            if not abs(length - 1) < 1e-5:
                problems.append(f"the vector of photo {row['photo_id']} has the length {length}")
        return problems

    def choose_index(self, kind: str) -> None:
        """Choose the kind of index that a large gallery gets (`rebuild_if_due`)."""
        check_kind(kind)
        with self._guard:
            if self._facts(fresh=True)["wanted"] != kind:
                self._finish({"wanted": kind}, f"choose the index {kind}", 0, None)

    def rebuild_if_due(self, **_: object) -> None:
        """Give a gallery of more than SCANNED photos the index that was chosen, and measure its recall.

        Milvus maintains the index from then on. Searches fail while it is built.

        Raises
        ------
        GalleryError
            The index may miss more than 1 % of the nearest items. The gallery gets its FLAT index back.
        """
        with self._guard:
            facts = self._ready()
            wanted = str(facts["wanted"])
            if facts["index"]["kind"] == wanted or (wanted != FLAT and facts["photos"] <= SCANNED):
                return
            recall = self._build(wanted, facts)
            if recall.found < recall.expected and recall.lower < MIN_RECALL:
                self._build(FLAT, self._facts())
                raise GalleryError(
                    f"an index of the kind {wanted} finds {recall.value:.4f} of the nearest items (at least "
                    f"{recall.lower:.4f}, with 95 % confidence), less than {MIN_RECALL:g}",
                    remedy="Choose another kind, such as HNSW, or FLAT",
                )

    def _build(self, kind: str, facts: Mapping[str, Any]) -> Recall:
        """Build an index, and return how many of the nearest items it finds that the index before it found."""
        before = self.snapshot()
        positions = before.sample(RECALL_QUERIES)
        vectors = before.vectors(positions)
        expected = _nearest_items(before, vectors)
        kinds = {"kind": kind, "items": kind if facts["items"] > SCANNED else FLAT}
        self._store.build(self._store.photos, kind, int(facts["replicas"]))
        if kinds["items"] != facts["index"].get("items", FLAT):
            self._store.build(self._store.items, kinds["items"], int(facts["replicas"]))
        self._know({**facts, "index": kinds}, time.monotonic())
        found = _nearest_items(self.snapshot(), vectors)
        pairs = list(zip(found, expected, strict=True))
        recall = Recall(sum(len(some & all_) for some, all_ in pairs), sum(len(all_) for _, all_ in pairs))
        more = {} if kind == FLAT else {"recall": recall.to_dict()}
        self._finish({"index": kinds | more}, f"build the index {kind}", 0, None)
        return recall

    # searches and draws

    @contextmanager
    def _searching(self, where: str | None, left_out: Collection[str]) -> Iterator[Version]:
        if left_out:
            raise InvalidParameter("left_out", "be empty for a gallery on Milvus", len(left_out))
        facts = self._facts()
        only = None if where is None else to_milvus(parse_where(where, facts["columns"]))
        photos = MilvusPhotos(self._store, facts, self._level(facts))
        yield Version(int(facts["version"]), self._kept(POINT, facts), photos, only, photos.photos_at)

    def snapshot(self) -> MilvusPhotos:
        """Return the photos of the newest version, which are read as they are needed."""
        facts = self._facts()
        return MilvusPhotos(self._store, facts, self._level(facts))


@contextmanager
def measuring(gallery: MilvusGallery) -> Iterator[None]:
    """Note that this process measures; raise GalleryLocked if another one noted so a short time ago.

    Two that begin at the same moment may both go on: they make the same draws, so this costs time alone.
    """
    own, store = uuid.uuid4().hex, gallery._store
    note = json.loads(store.read_texts([MEASURING]).get(MEASURING, "{}"))
    if note and abs(time.time() - note["time"]) < NOTE_S:
        raise GalleryLocked(f"another process measures {gallery.path}", remedy="Try again later")
    store.write_texts({MEASURING: json.dumps({"by": own, "time": time.time()})})
    if json.loads(store.read_texts([MEASURING]).get(MEASURING, "{}")).get("by") != own:
        raise GalleryLocked(f"another process measures {gallery.path}", remedy="Try again later")
    try:
        yield
    finally:
        store.delete(store.texts, [MEASURING])


def exists(address: str) -> bool:
    """Return whether there is a gallery at an address."""
    client = Client(address, Access.of_environment())
    try:
        return bool(client.ask("has_collection", client.name))
    finally:
        client.close()


def _nearest_items(photos: MilvusPhotos, vectors: NDArray[np.float32]) -> list[set[str]]:
    """Return the nearest items of vectors (n, d)."""
    found, _ = photos.nearest(vectors, SHOWN + 1)
    return [{photos.item_names[item] for item in row if item != NONE} for row in photos.items_at(found).tolist()]


def _stored(rows: Sequence[Mapping[str, Any]], whole: bool) -> list[StoredPhoto]:
    order = np.argsort(hashed(row["photo_id"] for row in rows), kind="stable").tolist()
    return [
        StoredPhoto(
            *fields_of(rows[place]),
            np.array(rows[place]["vector"], dtype=np.float32),
            None,
            _jpeg(rows[place]) if whole else None,
        )
        for place in order
    ]


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
