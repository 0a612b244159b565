"""The two collections of a gallery on Milvus: photos, and texts by key.

The collection of texts holds the facts about the gallery in one row, a row per change, and named contents in parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryError, InvalidParameter, importing

if TYPE_CHECKING:
    from pymilvus import MilvusClient

SCHEME = "milvus+"  # scheme of an address: milvus+http://host:19530/name, or milvus+/folder/lite.db/name
TEXTS = "_texts"  # suffix of the collection of texts
LONGEST_ID, LONGEST_TEXT = 512, 65_535  # byte limits of Milvus text fields
BATCH, PARTS = 500, 50  # photos and texts per request
RESULTS = 2000  # photos that are found per request
STRONG = "Strong"  # reads see every earlier write
ROW = ["photo_id", "item_id", "metadata"]


class Collections:
    """A client of the collections of a gallery."""

    def __init__(self, client: MilvusClient, name: str, address: str) -> None:
        self.client, self.name, self.address = client, name, address

    def texts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the texts with these keys, for those that exist."""
        rows: list[Any] = []
        for start in range(0, len(keys), PARTS):
            rows += self.client.get(self.name + TEXTS, ids=list(keys[start : start + PARTS]))
        return {row["key"]: row["value"] for row in rows}

    def write_texts(self, texts: Mapping[str, str]) -> None:
        """Write texts by key."""
        rows = [{"key": key, "value": value, "unused": [0.0, 1.0]} for key, value in texts.items()]
        for start in range(0, len(rows), PARTS):
            self.client.upsert(self.name + TEXTS, rows[start : start + PARTS])

    def delete_texts(self, keys: Sequence[str]) -> None:
        """Delete the texts with some keys."""
        self.client.delete(self.name + TEXTS, ids=list(keys))

    def query(self, condition: str, fields: list[str]) -> list[Any]:
        """Return fields of the photos that pass a condition."""
        return list(self.client.query(self.name, filter=condition, output_fields=fields, consistency_level=STRONG))

    def walk(self, fields: list[str], condition: str = "") -> Iterator[Any]:
        """Yield fields of all photos that pass a condition."""
        pages = self.client.query_iterator(self.name, filter=condition, output_fields=fields, batch_size=BATCH)
        try:
            while rows := pages.next():
                yield from rows
        finally:
            pages.close()

    def walk_items(self, fields: list[str], item_ids: Sequence[str]) -> Iterator[Any]:
        """Yield fields of the photos of some items."""
        for start in range(0, len(item_ids), BATCH):
            names = json.dumps(list(item_ids[start : start + BATCH]), ensure_ascii=False)
            yield from self.walk(fields, f"item_id in {names}")

    def get(self, photo_ids: Sequence[str], fields: list[str]) -> dict[str, Any]:
        """Return fields of photos by photo_id, for those that exist."""
        rows: list[Any] = []
        for start in range(0, len(photo_ids), BATCH):
            ids = list(photo_ids[start : start + BATCH])
            rows += self.client.get(self.name, ids=ids, output_fields=["photo_id", *fields])
        return {row["photo_id"]: row for row in rows}

    def candidates(self, vectors: NDArray[np.float32], limit: int, condition: str) -> Iterator[list[Any]]:
        """Yield up to `limit` photos with the greatest inner products with each of the vectors (n, d), best first."""
        together = max(1, RESULTS // limit)
        for start in range(0, len(vectors), together):
            found = self.client.search(
                self.name,
                vectors[start : start + together].tolist(),
                limit=limit,
                filter=condition,
                output_fields=[*ROW, "vector"],
                search_params={"metric_type": "IP"},
                consistency_level=STRONG,
            )
            yield from map(list, found)


def connect(address: str, token: str) -> tuple[MilvusClient, str]:
    """Return a client for an address and the collection name."""
    server, _, name = address.removeprefix(SCHEME).rpartition("/")
    if not address.startswith(SCHEME) or not server or not name.isidentifier():
        raise InvalidParameter(
            "gallery", "be an address such as milvus+http://host:19530/name or milvus+/folder/lite.db/name", address
        )
    with importing("pymilvus", "milvus"):
        from pymilvus import MilvusClient, MilvusException
    try:
        return MilvusClient(server, token=token), name
    except (MilvusException, OSError) as error:
        raise GalleryError(f"{address} cannot be reached: {error}", remedy="Check the address and the token") from error


def create_collections(client: MilvusClient, name: str, dim: int, index: str) -> None:
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


def fields_of(row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return photo_id, item_id and metadata of a row."""
    return row["photo_id"], row["item_id"], dict(row["metadata"])
