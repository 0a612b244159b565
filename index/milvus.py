"""Galleries on a Milvus cluster, for catalogues too large for one machine: add, upsert, remove, search, filters.

Milvus is the source of truth: its stored vectors are output fields, and distances are computed exactly from them with
the same code as for every gallery. Transactions, versions, the change log and crash safety (kill -9) are guarantees of
the local gallery only; for a machine failure during an addition, see the Milvus documentation. Reads use strong
consistency.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import check_actor, check_additions, check_ids, check_values, check_vectors, refuse_present
from .contents import POINT
from .database import system_user
from .distance import PLAIN, DistanceForm, squared_distance
from .errors import GalleryError, InvalidParameter, MissingDependency
from .filters import check_columns, parse_where, to_milvus
from .shell import command
from .snapshot import FIRST_FETCH, Neighbour, Within
from .store import encode_metadata

if TYPE_CHECKING:
    from pymilvus import MilvusClient

SCHEME = "milvus+"  # scheme of a gallery address: milvus+http://host:19530/name, or milvus+/folder/lite.db/name
FACTS = "_facts"  # suffix of the collection that holds the facts
LONGEST_ID, LONGEST_TEXT = 512, 65_535  # byte limits of Milvus text fields
MOST = 16_384  # photos that one search returns at most
BATCH = 500
SLACK = 1e-5  # float32 error of a cosine, in addition to the error due to the dimension
SPARSEST = -1.0  # lower bound of every density, which is a mean of cosines


class MilvusGallery:
    """A collection of a Milvus cluster (or of Milvus Lite, a file) with the interface of `Gallery`."""

    read_only = False

    def __init__(self, client: MilvusClient, name: str, path: str) -> None:
        self._client, self._name = client, name
        self._guard = threading.RLock()
        self.path = path
        self.damage: list[str] = []
        facts = self.facts()
        self.dim, self.embedding_id = int(facts["dim"]), facts["embedding_id"]

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
        from pymilvus import DataType, MilvusClient

        if client.has_collection(name):
            raise GalleryError(f"{address} exists", remedy="Open it, or choose another name")
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("photo_id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        schema.add_field("item_id", DataType.VARCHAR, max_length=LONGEST_ID)
        schema.add_field("metadata", DataType.JSON)
        schema.add_field("thumbnail", DataType.VARCHAR, max_length=LONGEST_TEXT)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        parameters = client.prepare_index_params()
        parameters.add_index("vector", index_type=index, metric_type="IP")
        facts = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        facts.add_field("key", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        facts.add_field("value", DataType.VARCHAR, max_length=LONGEST_TEXT)
        facts.add_field("unused", DataType.FLOAT_VECTOR, dim=2)  # Milvus requires a vector field
        beside = client.prepare_index_params()
        beside.add_index("unused", index_type="FLAT", metric_type="IP")
        client.create_collection(name + FACTS, schema=facts, index_params=beside, consistency_level="Strong")
        client.create_collection(name, schema=schema, index_params=parameters, consistency_level="Strong")
        _set_facts(client, name, {"dim": dim, "embedding_id": embedding_id, "columns": json.dumps(dict(columns or {}))})
        return cls(client, name, address)

    @classmethod
    def open(cls, address: str, *, token: str = "") -> MilvusGallery:
        """Open a gallery at an address; raise GalleryError if there is none."""
        client, name = _connect(address, token)
        if not client.has_collection(name) or not client.has_collection(name + FACTS):
            raise GalleryError(
                f"{address} is not a gallery",
                remedy=f"`{command('index', 'BUNDLE', 'PHOTOS', '-o', address)}` makes one",
            )
        client.load_collection(name)
        client.load_collection(name + FACTS)
        return cls(client, name, address)

    def __enter__(self) -> MilvusGallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __len__(self) -> int:
        """Return the number of photos."""
        rows = self._query("", ["count(*)"])
        return int(rows[0]["count(*)"])

    @property
    def items(self) -> int:
        """Return the number of items; this reads every photo because Milvus keeps no count."""
        return len({row["item_id"] for row in self._all(["item_id"])})

    @property
    def version(self) -> int:
        """Return the number of changes made through this interface."""
        return int(self.facts().get("version", 0))

    def facts(self) -> dict[str, str]:
        """Return the facts about the gallery: dim, embedding_id, columns, version."""
        rows = self._client.query(self._name + FACTS, filter="", limit=100, output_fields=["key", "value"])
        return {row["key"]: row["value"] for row in rows}

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        return dict(json.loads(self.facts()["columns"]))

    def declare(self, columns: Mapping[str, str]) -> None:
        """Declare metadata keys for filters, each text, number or boolean; existing photos are not checked."""
        check_columns(columns)
        known = self.columns()
        for name, kind in columns.items():
            if known.setdefault(name, kind) != kind:
                raise InvalidParameter(f"column {name}", f"stay {known[name]}, as it was declared", kind)
        self._set({"columns": json.dumps(known)})

    def photo_ids(self) -> set[str]:
        """Return the ids of all photos."""
        return {row["photo_id"] for row in self._all(["photo_id"])}

    def values(self, key: str) -> dict[str, Any]:
        """Return a mapping from photo_id to the value of a metadata key, for the photos that have one."""
        rows = self._all(["photo_id", "metadata"])
        return {row["photo_id"]: row["metadata"][key] for row in rows if row["metadata"].get(key) is not None}

    def contents(self) -> tuple[list[str], list[str], NDArray[np.float32]]:
        """Return photo_ids, item_ids and vectors (n, d) of all photos, ordered by photo_id."""
        rows = sorted(self._all(["photo_id", "item_id", "vector"]), key=lambda row: str(row["photo_id"]))
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(-1, self.dim)
        return [row["photo_id"] for row in rows], [row["item_id"] for row in rows], vectors

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        rows = self._client.get(self._name, ids=[photo_id], output_fields=["photo_id", "item_id", "metadata"])
        return (rows[0]["photo_id"], rows[0]["item_id"], dict(rows[0]["metadata"])) if rows else None

    def item(self, item_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of each photo of an item; empty for an unknown item."""
        wanted = f"item_id == {json.dumps(item_id, ensure_ascii=False)}"
        rows = self._all(["photo_id", "item_id", "metadata"], wanted)
        return [(row["photo_id"], row["item_id"], dict(row["metadata"])) for row in rows]

    def item_ids(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order; this reads every photo."""
        return sorted({row["item_id"] for row in self._all(["item_id"]) if row["item_id"] > after})[:limit]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        rows = self._client.get(self._name, ids=[photo_id], output_fields=["thumbnail"])
        return base64.b64decode(rows[0]["thumbnail"]) if rows and rows[0]["thumbnail"] else None

    def add(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        vectors: ArrayLike,
        *,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        thumbnails: Sequence[bytes | None] | None = None,
        upsert: bool = False,
        actor: str | None = None,
    ) -> int:
        """Add photos and return their number; see `Gallery.add`. Only single batches are atomic.

        There is no change log: the fact `changed_by` keeps the `actor` of the newest change only.
        """
        actor = system_user() if actor is None else check_actor(actor)
        new = check_additions(photo_ids, item_ids, vectors, metadata, thumbnails, dim=self.dim)
        count = len(new.photo_ids)
        for text in (*new.photo_ids, *new.item_ids):
            if len(text.encode()) > LONGEST_ID:
                raise InvalidParameter("ids", f"have at most {LONGEST_ID} bytes in Milvus", text[:60])
        with self._guard:
            check_values(new.metadata, self.columns())
            if not upsert:
                refuse_present({row["photo_id"] for row in self._get(new.photo_ids)})
            rows = [
                {
                    "photo_id": photo_id,
                    "item_id": item_id,
                    "metadata": {k: v for k, v in json.loads(encode_metadata(values)).items() if v is not None},
                    "thumbnail": base64.b64encode(jpeg).decode() if jpeg else "",
                    "vector": vector.tolist(),
                }
                for photo_id, item_id, values, jpeg, vector in zip(
                    new.photo_ids, new.item_ids, new.metadata, new.thumbnails, new.vectors, strict=True
                )
            ]
            for start in range(0, count, BATCH):
                self._client.upsert(self._name, rows[start : start + BATCH])
            if count:
                self._set({"version": self.version + 1, "changed_by": actor})
        return count

    def remove(
        self,
        *,
        photo_ids: Sequence[str] | None = None,
        item_ids: Sequence[str] | None = None,
        actor: str | None = None,
    ) -> int:
        """Remove photos, or all photos of items; return how many existed."""
        actor = system_user() if actor is None else check_actor(actor)
        if photo_ids is None and item_ids is None:
            raise InvalidParameter("photo_ids or item_ids", "be given", None)
        photo_ids, item_ids = check_ids("photo_ids", photo_ids or []), check_ids("item_ids", item_ids or [])
        with self._guard:
            gone = {row["photo_id"] for row in self._get(photo_ids)}
            for start in range(0, len(item_ids), BATCH):
                named = json.dumps(item_ids[start : start + BATCH], ensure_ascii=False)
                gone |= {row["photo_id"] for row in self._all(["photo_id"], f"item_id in {named}")}
            doomed = sorted(gone)
            for start in range(0, len(doomed), BATCH):
                self._client.delete(self._name, ids=doomed[start : start + BATCH])
            if gone:
                self._set({"version": self.version + 1, "changed_by": actor})
        return len(gone)

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: float | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d), by their nearest photo; see `Gallery.search`."""
        return self.search_version(vectors, k, where=where, distance_form=distance_form, within=within)[1]

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: Within = None,
    ) -> tuple[int, list[list[Neighbour]]]:
        """Search as `search` does, and also return the version."""
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        condition = to_milvus(parse_where(where, self.columns())) if where is not None else ""
        limit = within(self.kept(POINT)) if callable(within) else within
        return self.version, [self._nearest(vector, k, condition, distance_form, limit) for vector in unit]

    def kept(self, name: str) -> bytes | None:  # noqa: ARG002
        """Return None: draws and operating points are kept by local galleries."""
        return None

    def verify(self) -> list[str]:
        """Return the vectors that are not of length one as problems; Milvus checks its own files."""
        problems = []
        for row in self._all(["photo_id", "vector"]):
            length = float(np.linalg.norm(np.asarray(row["vector"], dtype=np.float64)))
            if not abs(length - 1) < 1e-5:
                problems.append(f"the vector of photo {row['photo_id']} has the length {length}")
        return problems

    def check_in_background(self) -> None:
        """Do nothing: Milvus checks its own files."""

    def _nearest(
        self, vector: NDArray[np.float32], k: int, condition: str, distance_form: DistanceForm, within: float | None
    ) -> list[Neighbour]:
        own = distance_form.densities(vector[None])[0]
        fetch = FIRST_FETCH + 4 * k
        while True:
            fetch = min(fetch, MOST)
            (hits,) = self._client.search(
                self._name,
                [vector.tolist()],
                limit=fetch,
                filter=condition,
                output_fields=["photo_id", "item_id", "metadata", "vector"],
                search_params={"metric_type": "IP"},
                consistency_level="Strong",
            )
            if not hits:
                return []
            found = np.array([hit["entity"]["vector"] for hit in hits], dtype=np.float32)
            distances = distance_form.transform(
                squared_distance(vector[None], found), own, distance_form.densities(found)
            )
            limit = np.inf
            if len(hits) == fetch:
                cosine = float(hits[-1]["distance"]) + 2 * (SLACK + self.dim * 2.0**-24)
                limit = float(distance_form.transform(np.array([max(0.0, 2 - 2 * cosine)]), own, SPARSEST)[0])
            best: dict[str, Neighbour] = {}
            order = sorted(range(len(hits)), key=lambda i: (distances[i], hits[i]["entity"]["photo_id"]))
            for i in order:
                entity = hits[i]["entity"]
                if distances[i] >= limit or len(best) == k:
                    break
                best.setdefault(
                    entity["item_id"],
                    Neighbour(entity["item_id"], entity["photo_id"], float(distances[i]), dict(entity["metadata"])),
                )
            if len(best) == k or limit == np.inf or (best and within is not None and limit > within) or fetch == MOST:
                return list(best.values())
            fetch *= 4

    def _query(self, condition: str, fields: list[str]) -> list[Any]:
        return list(self._client.query(self._name, filter=condition, output_fields=fields, consistency_level="Strong"))

    def _get(self, photo_ids: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        for start in range(0, len(photo_ids), BATCH):
            ids = list(photo_ids[start : start + BATCH])
            found += self._client.get(self._name, ids=ids, output_fields=["photo_id"])
        return found

    def _all(self, fields: list[str], condition: str = "") -> Iterator[Any]:
        walk = self._client.query_iterator(self._name, filter=condition, output_fields=fields, batch_size=BATCH)
        try:
            while rows := walk.next():
                yield from rows
        finally:
            walk.close()

    def _set(self, facts: Mapping[str, object]) -> None:
        _set_facts(self._client, self._name, facts)


def exists(address: str, *, token: str = "") -> bool:
    """Return whether there is a gallery at an address."""
    client, name = _connect(address, token)
    try:
        return bool(client.has_collection(name))
    finally:
        client.close()


def _set_facts(client: MilvusClient, name: str, facts: Mapping[str, object]) -> None:
    rows = [{"key": key, "value": str(value), "unused": [0.0, 1.0]} for key, value in facts.items()]
    client.upsert(name + FACTS, rows)


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
