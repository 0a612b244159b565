"""The Milvus collections of a gallery: its photos, its facts, and the parts of its named contents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from index.checks import Additions
from index.errors import GalleryError, InvalidParameter, MissingDependency
from index.location import SCHEME

if TYPE_CHECKING:
    from pymilvus import MilvusClient

FACTS = "_facts"  # suffix of the collection that holds the facts
PARTS = "_parts"  # suffix of the collection that holds the parts of named contents
LONGEST_ID, LONGEST_TEXT = 512, 65_535  # byte limits of Milvus text fields
BATCH = 500  # photos per request
RESULTS = 2000  # photos that are found per request
PARTS_BATCH = 50  # parts per request
STRONG = "Strong"  # reads see every earlier write


class Collection:
    """A connection to the collections of one gallery."""

    def __init__(self, client: MilvusClient, name: str) -> None:
        self._client, self._name = client, name
        fields = client.describe_collection(name)["fields"]
        self.is_numbered = any(column["name"] == "seq" for column in fields)  # not so in older collections

    @classmethod
    def create(cls, address: str, *, dim: int, facts: Mapping[str, object], index: str, token: str) -> Collection:
        """Create empty collections; raise GalleryError if the address is taken."""
        client, name = _connect(address, token)
        from pymilvus import DataType, MilvusClient

        if client.has_collection(name):
            raise GalleryError(f"{address} exists", remedy="Open it, or choose another name")
        photo_fields = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        photo_fields.add_field("photo_id", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
        photo_fields.add_field("item_id", DataType.VARCHAR, max_length=LONGEST_ID)
        photo_fields.add_field("metadata", DataType.JSON)
        photo_fields.add_field("thumbnail", DataType.VARCHAR, max_length=LONGEST_TEXT)
        photo_fields.add_field("seq", DataType.INT64)
        photo_fields.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
        photo_index = client.prepare_index_params()
        photo_index.add_index("vector", index_type=index, metric_type="IP")
        photo_index.add_index("seq", index_type="INVERTED")
        for suffix in (FACTS, PARTS):
            _create_texts(client, name + suffix)
        client.create_collection(name, schema=photo_fields, index_params=photo_index, consistency_level=STRONG)
        created = cls(client, name)
        created.set_facts(facts)
        return created

    @classmethod
    def open(cls, address: str, *, token: str) -> Collection:
        """Open the collections at an address; raise GalleryError if there are none."""
        client, name = _connect(address, token)
        if not client.has_collection(name) or not client.has_collection(name + FACTS):
            raise GalleryError(
                f"{address} is not a gallery",
                remedy="Index photos into it first",
            )
        for collection in (name, name + FACTS, *([name + PARTS] if client.has_collection(name + PARTS) else [])):
            client.load_collection(collection)
        return cls(client, name)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def facts(self) -> dict[str, str]:
        """Return the facts about the gallery: dim, embedding_id, columns, version."""
        rows = self._client.query(self._name + FACTS, filter="", limit=100, output_fields=["key", "value"])
        return {row["key"]: row["value"] for row in rows}

    def set_facts(self, facts: Mapping[str, object]) -> None:
        """Set some of the facts."""
        rows = [{"key": key, "value": str(value), "unused": [0.0, 1.0]} for key, value in facts.items()]
        self._client.upsert(self._name + FACTS, rows)

    def parts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the parts of contents with these keys, for those that exist."""
        rows: list[Any] = []
        for start in range(0, len(keys), PARTS_BATCH):
            rows += self._client.get(self._name + PARTS, ids=list(keys[start : start + PARTS_BATCH]))
        return {row["key"]: row["value"] for row in rows}

    def put_parts(self, parts: Mapping[str, str]) -> None:
        """Write parts of contents."""
        rows = [{"key": key, "value": value, "unused": [0.0, 1.0]} for key, value in parts.items()]
        for start in range(0, len(rows), PARTS_BATCH):
            self._client.upsert(self._name + PARTS, rows[start : start + PARTS_BATCH])

    def delete_parts(self, keys: Sequence[str]) -> None:
        """Delete parts of contents."""
        if keys:
            self._client.delete(self._name + PARTS, ids=list(keys))

    def query(self, condition: str, fields: list[str]) -> list[Any]:
        """Return fields of the photos that pass a condition, at most as many as Milvus returns at once."""
        return list(self._client.query(self._name, filter=condition, output_fields=fields, consistency_level=STRONG))

    def walk(self, fields: list[str], condition: str = "") -> Iterator[Any]:
        """Yield fields of all photos that pass a condition."""
        for rows in self.pages(fields, condition):
            yield from rows

    def pages(self, fields: list[str], condition: str = "") -> Iterator[list[Any]]:
        """Yield fields of all photos that pass a condition, BATCH photos at a time."""
        pages = self._client.query_iterator(self._name, filter=condition, output_fields=fields, batch_size=BATCH)
        try:
            while rows := pages.next():
                yield list(rows)
        finally:
            pages.close()

    def of_seqs(self, seqs: Sequence[int], fields: list[str]) -> Iterator[Any]:
        """Yield fields of the photos with these numbers."""
        for start in range(0, len(seqs), BATCH):
            yield from self.query(f"seq in {list(seqs[start : start + BATCH])}", fields)

    def walk_items(self, fields: list[str], item_ids: Sequence[str]) -> Iterator[Any]:
        """Yield fields of all photos of some items."""
        for start in range(0, len(item_ids), BATCH):
            names = json.dumps(list(item_ids[start : start + BATCH]), ensure_ascii=False)
            yield from self.walk(fields, f"item_id in {names}")

    def get(self, photo_ids: Sequence[str], fields: list[str]) -> list[Any]:
        """Return fields of the photos with these ids, for those that exist."""
        rows: list[Any] = []
        for start in range(0, len(photo_ids), BATCH):
            ids = list(photo_ids[start : start + BATCH])
            rows += self._client.get(self._name, ids=ids, output_fields=fields)
        return rows

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        """Add or replace photos."""
        for start in range(0, len(rows), BATCH):
            self._client.upsert(self._name, rows[start : start + BATCH])

    def delete(self, photo_ids: list[str]) -> None:
        """Delete photos."""
        for start in range(0, len(photo_ids), BATCH):
            self._client.delete(self._name, ids=photo_ids[start : start + BATCH])

    def nearest(self, vectors: NDArray[np.float32], limit: int, condition: str) -> Iterator[list[Any]]:
        """Yield up to `limit` photos with the greatest inner products with each of the vectors (n, d), best first."""
        fields = ["photo_id", "item_id", "metadata", "vector", *(["seq"] if self.is_numbered else [])]
        together = max(1, RESULTS // limit)
        for start in range(0, len(vectors), together):
            found = self._client.search(
                self._name,
                vectors[start : start + together].tolist(),
                limit=limit,
                filter=condition,
                output_fields=fields,
                search_params={"metric_type": "IP"},
                consistency_level=STRONG,
            )
            yield from map(list, found)


def _create_texts(client: MilvusClient, name: str) -> None:
    """Create a collection of texts by key."""
    from pymilvus import DataType, MilvusClient

    fields = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    fields.add_field("key", DataType.VARCHAR, is_primary=True, max_length=LONGEST_ID)
    fields.add_field("value", DataType.VARCHAR, max_length=LONGEST_TEXT)
    fields.add_field("unused", DataType.FLOAT_VECTOR, dim=2)  # Milvus requires a vector field
    index = client.prepare_index_params()
    index.add_index("unused", index_type="FLAT", metric_type="IP")
    client.create_collection(name, schema=fields, index_params=index, consistency_level=STRONG)


def check_lengths(new: Additions) -> None:
    """Raise InvalidParameter for texts that Milvus cannot hold."""
    for text in (*new.photo_ids, *new.item_ids):
        if len(text.encode()) > LONGEST_ID:
            raise InvalidParameter("ids", f"have at most {LONGEST_ID} bytes in Milvus", text[:60])
    largest = LONGEST_TEXT // 4 * 3
    for photo_id, jpeg in zip(new.photo_ids, new.thumbnails, strict=True):
        if jpeg and len(jpeg) > largest:
            rule = f"have at most {largest:,} bytes in Milvus"
            raise InvalidParameter(f"the thumbnail of {photo_id}", rule, f"{len(jpeg):,} bytes")


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
