"""The three collections of a gallery on Milvus: photos, items, and texts by key.

The collection of texts holds the facts about the gallery in one row, a row per change, and named contents in parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryError, InvalidParameter

from .client import STRONG, Client
from .items import FIELDS, SPREAD

ITEMS, TEXTS = "_items", "_texts"  # suffixes of collections
LONGEST_ID, LONGEST_TEXT = 512, 65_535  # byte limits of Milvus text fields
BATCH, PARTS = 500, 50  # photos written, and texts, per request
MOST = 16_384  # rows that Milvus returns per request
BYTES = 32 * 2**20  # of the vectors in an answer
FULL = 0.8  # expected share of a page that is filled
ROW = ["photo_id", "item_id", "metadata"]
FLAT = "FLAT"
KINDS: dict[str, tuple[dict[str, int], dict[str, int]]] = {  # parameters of building and of searching, by kind
    FLAT: ({}, {}),
    "HNSW": ({"M": 32, "efConstruction": 256}, {"ef": 512}),
    "IVF_SQ8": ({"nlist": 1024}, {"nprobe": 128}),
    "DISKANN": ({}, {"search_list": 256}),
}
WIDTHS = ("ef", "search_list")  # parameters that are at least twice the number of photos that are searched for
Level = Mapping[str, Any]  # how new the rows that are read must be


class Collections:
    """The collections of a gallery, with the requests that are made to them."""

    def __init__(self, client: Client, dim: int = 0) -> None:
        self.client, self.dim = client, dim
        self.thumbnails: dict[str, str] = {}  # by photo_id, for a while
        self.photos, self.items, self.texts = client.name, client.name + ITEMS, client.name + TEXTS

    @property
    def rows(self) -> int:
        """The number of rows with vectors per request."""
        return max(1, min(MOST, BYTES // (8 * max(1, self.dim))))

    def read_texts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the texts with these keys, for those that exist."""
        rows: list[Any] = []
        for some in _parts(keys, PARTS):
            rows += self.client.ask("query", self.texts, filter=f"key in {listed(some)}", output_fields=["*"], **STRONG)
        return {row["key"]: row["value"] for row in rows}

    def write_texts(self, texts: Mapping[str, str]) -> None:
        """Write texts by key."""
        for some in _parts([{"key": key, "value": value, "unused": [0.0, 1.0]} for key, value in texts.items()], PARTS):
            self.client.ask("upsert", self.texts, some)

    def write(self, collection: str, rows: Sequence[dict[str, Any]]) -> None:
        """Write photos or items."""
        for some in _parts(rows, BATCH):
            self.client.ask("upsert", collection, some)

    def delete(self, collection: str, ids: Sequence[str]) -> None:
        """Delete photos, items or texts by id."""
        for some in _parts(ids, BATCH):
            self.client.ask("delete", collection, ids=some)

    def count(self, collection: str) -> int:
        """Return the number of rows; Milvus counts them."""
        return int(self._query(collection, "", ["count(*)"], STRONG)[0]["count(*)"])

    def _query(self, collection: str, condition: str, fields: list[str], level: Level, limit: int = 0) -> list[Any]:
        more = {"limit": limit} if limit else {}
        return list(self.client.ask("query", collection, filter=condition, output_fields=fields, **more, **level))

    def get(self, photo_ids: Sequence[str], fields: list[str], level: Level) -> dict[str, Any]:
        """Return fields of photos by photo_id, for those that exist."""
        together = min(self.rows, BATCH) if {"vector", "thumbnail"} & {*fields} else self.rows
        found: dict[str, Any] = {}
        for some in _parts(photo_ids, together):
            rows = self._query(self.photos, f"photo_id in {listed(some)}", ["photo_id", *fields], level, MOST)
            found |= {row["photo_id"]: row for row in rows}
        return found

    def item_rows(self, item_ids: Sequence[str], level: Level) -> dict[str, Any]:
        """Return the rows of items by id, for those that exist."""
        found: dict[str, Any] = {}
        for some in _parts(item_ids, self.rows):
            rows = self._query(self.items, f"item_id in {listed(some)}", FIELDS, level, MOST)
            found |= {row["item_id"]: row for row in rows}
        return found

    @contextmanager
    def thumbnails_of(self, photo_ids: Sequence[str], level: Level) -> Iterator[None]:
        """Have the thumbnails of some photos at hand in `thumbnails`."""
        rows = self.get(photo_ids, ["thumbnail"], level)
        self.thumbnails = {photo_id: row["thumbnail"] for photo_id, row in rows.items()}
        try:
            yield
        finally:
            self.thumbnails = {}

    def photos_of(self, counts: Mapping[str, int], fields: list[str], level: Level) -> Iterator[Any]:
        """Yield fields of the photos of items, given the number of photos of each."""
        some, total = list[str](), 0
        for item, count in [*counts.items(), ("", MOST)]:
            if some and total + count > FULL * self.rows:
                yield from self.pages(self.photos, fields, total, level, condition=f"item_id in {listed(some)}")
                some, total = [], 0
            some.append(item)
            total += count

    def pages(
        self,
        collection: str,
        fields: list[str],
        count: int,
        level: Level,
        *,
        condition: str = "",
        rows: int = 0,
        until: int = 2 ** (64 - SPREAD),
    ) -> Iterator[Any]:
        """Yield fields of about `count` photos or items that pass a condition, in pages by ranges of their keys.

        Without a condition, they are ordered by their keys.
        """
        rows = rows or (self.rows if {"vector", "mean"} & {*fields} else MOST)
        parts = 1 if count <= FULL * rows else int(count / (FULL * rows)) + 1
        whole = until == 2 ** (64 - SPREAD) and parts == 1
        if whole and condition:  # the usual case: no range is needed
            page = self._query(collection, condition, fields, level, rows)
            if len(page) < rows:
                yield from page
                return
        edges = [until * place // parts for place in range(parts + 1)]
        for low, high in pairwise(edges):
            yield from self._page(collection, fields, (low, high), level, condition, rows)

    def _page(
        self, collection: str, fields: list[str], keys: tuple[int, int], level: Level, condition: str, rows: int
    ) -> Iterator[Any]:
        low, high = keys
        tests = [f"key >= {low}", f"key < {high}", *([f"({condition})"] if condition else [])]
        page = self._query(collection, " and ".join(tests), [*fields, "key"], level, rows)
        if len(page) < rows or high - low < 2:
            yield from sorted(page, key=lambda row: int(row["key"]))
            return
        middle = (low + high) // 2
        for part in ((low, middle), (middle, high)):
            yield from self._page(collection, fields, part, level, condition, rows)

    def nearest(
        self,
        collection: str,
        vectors: NDArray[np.float32],
        limit: int,
        kind: str,
        level: Level,
        condition: str = "",
    ) -> list[list[Any]]:
        """Return up to `limit` photos or items with the greatest inner products with each vector (n, d), best first."""
        fields = [*ROW, "vector"] if collection == self.photos else FIELDS
        together, found = max(1, BYTES // (4 * self.dim * limit)), list[list[Any]]()
        for some in _parts(vectors.tolist(), together):
            found += self.client.ask(
                *("search", collection, some),
                limit=limit,
                filter=condition,
                output_fields=fields,
                search_params={"metric_type": "IP", "params": _search_params(kind, limit)},
                **level,
            )
        return found

    def build(self, collection: str, kind: str, replicas: int) -> None:
        """Replace the index of a collection by one of another kind. Searches fail until this ends."""
        hours = 24 * 3600.0
        self.client.ask("release_collection", collection, timeout_s=hours)
        self.client.ask("drop_index", collection, index_name="vector", timeout_s=hours)
        self.client.ask("create_index", collection, _index(kind), timeout_s=hours)
        self.client.ask("load_collection", collection, replica_number=replicas, timeout_s=hours)


def _search_params(kind: str, limit: int) -> dict[str, int]:
    return {name: max(value, 2 * limit) if name in WIDTHS else value for name, value in KINDS[kind][1].items()}


def _index(kind: str, field: str = "vector") -> Any:
    from pymilvus import MilvusClient

    params = MilvusClient.prepare_index_params()
    params.add_index(field, index_name=field, index_type=kind, metric_type="IP", params=KINDS[kind][0])
    return params


def create(client: Client, dim: int, *, shards: int, replicas: int) -> None:
    """Create the empty collections."""
    from pymilvus import DataType, MilvusClient

    fields = {
        "": [
            ("photo_id", DataType.VARCHAR, {"is_primary": True, "max_length": LONGEST_ID}),
            ("item_id", DataType.VARCHAR, {"max_length": LONGEST_ID}),
            ("key", DataType.INT64, {}),
            ("metadata", DataType.JSON, {}),
            ("thumbnail", DataType.VARCHAR, {"max_length": LONGEST_TEXT}),
            ("vector", DataType.FLOAT_VECTOR, {"dim": dim}),
        ],
        ITEMS: [
            ("item_id", DataType.VARCHAR, {"is_primary": True, "max_length": LONGEST_ID}),
            *((name, DataType.INT64, {}) for name in ("key", "photos", "item_group", "largest")),
            ("cosine", DataType.DOUBLE, {}),
            ("mean", DataType.VARCHAR, {"max_length": LONGEST_TEXT}),
            ("vector", DataType.FLOAT_VECTOR, {"dim": dim}),
        ],
        TEXTS: [
            ("key", DataType.VARCHAR, {"is_primary": True, "max_length": LONGEST_ID}),
            ("value", DataType.VARCHAR, {"max_length": LONGEST_TEXT}),
            ("unused", DataType.FLOAT_VECTOR, {"dim": 2}),  # Milvus requires a vector field
        ],
    }

    def make(suffix: str, columns: list[tuple[str, Any, dict[str, Any]]]) -> None:
        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        for name, kind, more in columns:
            schema.add_field(name, kind, **more)
        client.ask(
            *("create_collection", client.name + suffix),
            schema=schema,
            num_shards=1 if suffix == TEXTS else shards,  # one shard: the texts of a request are written together
            consistency_level=STRONG["consistency_level"],
            timeout_s=60,
        )
        client.ask("create_index", client.name + suffix, _index(FLAT, columns[-1][0]), timeout_s=60)
        client.ask("load_collection", client.name + suffix, replica_number=replicas, timeout_s=120)

    with ThreadPoolExecutor(len(fields)) as pool:  # Milvus takes seconds for each
        list(pool.map(make, fields, fields.values()))


def check_kind(kind: str) -> None:
    """Raise InvalidParameter for a kind of index that is unknown."""
    if kind not in KINDS:
        raise InvalidParameter("index", f"be one of {', '.join(KINDS)}", kind)


def check_dim(dim: int) -> None:
    """Raise GalleryError for vectors whose means Milvus cannot hold."""
    if (dim * 8 + 2) // 3 * 4 > LONGEST_TEXT:
        raise GalleryError(f"Milvus holds no means of {dim} numbers", remedy="Use a local gallery")


def fields_of(row: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return photo_id, item_id and metadata of a row."""
    return row["photo_id"], row["item_id"], dict(row["metadata"])


def listed(values: Iterable[str]) -> str:
    """Return values in the language of Milvus."""
    return json.dumps(list(values), ensure_ascii=False)


def _parts(values: Sequence[Any], most: int) -> Iterator[list[Any]]:
    return (list(values[start : start + most]) for start in range(0, len(values), most))
