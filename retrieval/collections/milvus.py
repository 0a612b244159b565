"""Collections of Milvus, on a server or in a file of Milvus Lite.

Shapes: n queries, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from index.milvus.client import SCHEME, TOKEN, Access, connect
from retrieval.errors import DataError, GalleryError, importing, listed

from . import Block, Columns, Neighbour
from .naming import choose, refuse_login, text
from .reading import stacked

STRONG = "Strong"  # reads see every earlier write
PAGE, TOGETHER = 1000, 50  # rows per page, queries per request
METRICS = {"COSINE": "cosine", "IP": "ip", "L2": "squared_l2"}


class Milvus:
    """A collection of Milvus. Its primary key names the photos, and the index of its vectors the metric."""

    remarks: Sequence[str] = ()

    def __init__(self, address: str, columns: Columns) -> None:
        refuse_login("Milvus", address, TOKEN)
        with importing("pymilvus", "collections"):
            import pymilvus
        self.name, self._milvus, self._where = address, pymilvus, columns.where or ""
        self._server, _, name = address.removeprefix(SCHEME).rpartition("/")
        is_there = "://" in self._server or Path(self._server).exists()  # pymilvus would create the file
        if not is_there or not name.isidentifier():
            raise DataError(
                f"{address} is not there", remedy="Write milvus+http://host:19530/name or milvus+/folder/lite.db/name"
            )
        self._collection, self._access = name, Access.of_environment()
        with self._errors():
            self._client = connect(self._server, self._access, extra="collections")
        try:
            self._describe(columns)
        except DataError:
            self.close()
            raise

    def _describe(self, columns: Columns) -> None:
        with self._errors():
            if not self._client.has_collection(self._collection):
                existing = listed(self._client.list_collections()) or "(none)"
                raise DataError(f"{self.name} is not there: there are the collections {existing}")
            facts = self._client.describe_collection(self._collection)
        kinds = {field["name"]: self._milvus.DataType(field["type"]) for field in facts["fields"]}
        vectors = [name for name, kind in kinds.items() if kind.name == "FLOAT_VECTOR"]
        there = list(kinds)
        if facts.get("enable_dynamic_field"):  # fields that the schema does not list
            there += [name for name in (columns.items, columns.groups) if name and name not in kinds]
        names = choose(self.name, columns, there, noun="fields", vectors=vectors)
        if names.vectors not in vectors:
            raise DataError(
                f"the field {names.vectors} of {self.name} has the type {kinds[names.vectors].name}",
                remedy="Vectors are read from a field of FLOAT_VECTOR",
            )
        self._items, self._vector, self._groups = names.items, names.vectors, names.groups
        self._key = next(field["name"] for field in facts["fields"] if field.get("is_primary"))
        with self._errors():
            indexes = self._client.list_indexes(self._collection, field_name=self._vector)
            metrics = [self._client.describe_index(self._collection, name)["metric_type"] for name in indexes]
        if not metrics or metrics[0] not in METRICS:
            raise DataError(
                f"the vectors of {self.name} are indexed by {listed(metrics) or 'nothing'}",
                remedy=f"Index them by {', '.join(METRICS)}",
            )
        self.metric = METRICS[metrics[0]]

    def __len__(self) -> int:
        with self._errors():
            rows = self._client.query(
                self._collection, filter=self._where, output_fields=["count(*)"], consistency_level=STRONG
            )
        return int(rows[0]["count(*)"])

    def blocks(self) -> Iterator[Block]:
        """Yield the rows page by page."""
        fields = list(dict.fromkeys(name for name in (self._key, self._items, self._groups, self._vector) if name))
        with self._errors():
            pages = self._client.query_iterator(
                self._collection, batch_size=PAGE, filter=self._where, output_fields=fields, consistency_level=STRONG
            )
        try:
            while rows := self._next(pages):
                kept = [row for row in rows if row.get(self._vector) is not None]
                ids = [str(row[self._key]) for row in kept]
                yield Block(
                    ids,
                    [text(row.get(self._items)) for row in kept],
                    stacked(self.name, ids, [row[self._vector] for row in kept]),
                    [text(row.get(self._groups)) for row in kept] if self._groups else None,
                    without_vector=len(rows) - len(kept),
                )
        finally:
            pages.close()

    def _next(self, pages: Any) -> Any:
        with self._errors():
            return pages.next()

    def search(self, vectors: NDArray[Any], k: int) -> list[list[Neighbour]] | None:
        """Search as the collection is served."""
        queries, answers = vectors.tolist(), []
        for start in range(0, len(queries), TOGETHER):
            with self._errors():
                answers += self._client.search(
                    self._collection,
                    queries[start : start + TOGETHER],
                    anns_field=self._vector,
                    limit=k,
                    filter=self._where,
                    output_fields=[self._items],
                )
        return [
            [
                Neighbour(str(hit[self._key]), item, hit["distance"])
                for hit in hits
                if (item := text(hit["entity"].get(self._items)))
            ]
            for hits in answers
        ]

    def recipe(self, promise: str) -> str:
        """Return lines of Python that search the collection."""
        token = f", token=os.environ[{TOKEN!r}]" if self._access.token else ""
        where = f", filter={self._where!r}" if self._where else ""
        return "\n".join(
            (
                *(["import os"] if token else []),
                "from pymilvus import MilvusClient",
                "from retrieval import Promise",
                f"client = MilvusClient({self._server!r}{token})",
                f"hits = client.search({self._collection!r}, [list(map(float, vector))], limit=20,"
                f" anns_field={self._vector!r}, output_fields=[{self._items!r}]{where})[0]",
                f"neighbours = [(str(hit['entity'][{self._items!r}]), hit['distance']) for hit in hits]",
                f"answer = Promise.load({promise!r}).decide(vector, neighbours)",
            )
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (self._milvus.MilvusException, GalleryError, OSError) as error:
            if isinstance(error, DataError):
                raise
            message = " ".join(str(error).split())
            if self._access.token:
                message = message.replace(self._access.token, "***")
            raise DataError(
                f"{self.name} cannot be read: {message[:300]}", remedy=f"Check the address, the condition and {TOKEN}"
            ) from None
