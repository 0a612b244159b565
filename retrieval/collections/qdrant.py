"""Collections of Qdrant, on a server or in a local folder.

Shapes: n queries, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from retrieval.errors import DataError, InvalidParameter, importing, listed

from . import Block, Columns, Neighbour
from .naming import GROUPS, ITEMS, VECTORS, column, column_if_any, refuse_login, text
from .reading import stacked

SCHEME, KEY = "qdrant+", "QDRANT_API_KEY"
PAGE, TOGETHER, SEEN = 1000, 50, 100  # points per page, queries per request, points whose payload is looked at
SECONDS = 60  # for a request
METRICS = {"Cosine": "cosine", "Dot": "ip", "Euclid": "l2"}


class Qdrant:
    """A collection of Qdrant. The ids of its points name the photos, and a key of the payload the item."""

    remarks: Sequence[str] = ()

    def __init__(self, address: str, columns: Columns) -> None:
        refuse_login("Qdrant", address, KEY)
        with importing("qdrant_client", "collections"):
            import qdrant_client
            from qdrant_client import models
        self.name, self._models, self._where = address, models, columns.where
        place, _, self._collection = address.removeprefix(SCHEME).rpartition("/")
        is_server = "://" in place
        if not place or not self._collection or not (is_server or (Path(place) / "meta.json").is_file()):
            raise DataError(
                f"{address} is not there",
                remedy="Write qdrant+http://host:6333/collection or qdrant+/folder/collection",
            )
        options: dict[str, Any] = {"path": place}
        if is_server:
            options = {"url": place, "api_key": os.environ.get(KEY), "timeout": SECONDS, "check_compatibility": False}
        with self._errors():
            self._client = qdrant_client.QdrantClient(**options)
        self._connect = f"QdrantClient({'url' if is_server else 'path'}={place!r}"
        if is_server and options["api_key"]:
            self._connect += f", api_key=os.environ[{KEY!r}]"
        try:
            self._describe(columns)
        except DataError:
            self.close()
            raise

    def _describe(self, columns: Columns) -> None:
        with self._errors():
            there = [each.name for each in self._client.get_collections().collections]
            if self._collection not in there:
                raise DataError(f"{self.name} is not there: there are the collections {listed(there) or '(none)'}")
            vectors = self._client.get_collection(self._collection).config.params.vectors
            self._filter = _filter(self._models, columns.where)
            seen = self._client.scroll(self._collection, self._filter, limit=SEEN, with_payload=True)[0]
        keys = list(dict.fromkeys(key for point in seen for key in point.payload or {}))
        keys += [key for key in (columns.items, columns.groups) if key and key not in keys and self._has(key)]
        self._vector = None
        if isinstance(vectors, dict) and vectors:
            usual = list(vectors) if len(vectors) == 1 else VECTORS
            self._vector = column(self.name, "vectors", columns.vectors, list(vectors), usual, "vectors")
            vectors = vectors[self._vector]
        elif columns.vectors:
            raise DataError(f"{self.name} has no names of vectors", remedy="Leave out --vectors")
        self.metric = self._metric_of(vectors)
        payload = "keys in the payload"
        self._items = column(self.name, "items", columns.items, keys, ITEMS, payload)
        self._groups = column_if_any(self.name, "groups", columns.groups, keys, GROUPS, payload)

    def _has(self, key: str) -> bool:
        """Return whether the payload of any point has a key."""
        empty = self._models.IsEmptyCondition(is_empty=self._models.PayloadField(key=key))
        with self._errors():
            return bool(self._client.count(self._collection, self._models.Filter(must_not=[empty])).count)

    def _metric_of(self, vectors: Any) -> str:
        if not vectors:
            how = "no dense vectors"
        elif vectors.multivector_config is not None:
            how = "several vectors per point"
        elif vectors.distance not in METRICS:
            how = f"the distance {vectors.distance.value}"
        else:
            return METRICS[vectors.distance]
        raise DataError(f"{self.name} has {how}", remedy=f"One vector per point is needed, by {', '.join(METRICS)}")

    def __len__(self) -> int:
        with self._errors():
            return int(self._client.count(self._collection, self._filter, exact=True).count)

    def blocks(self) -> Iterator[Block]:
        """Yield the points page by page."""
        page: Any = None
        keys = [self._items, *([self._groups] if self._groups else [])]
        while True:
            with self._errors():
                points, page = self._client.scroll(
                    self._collection,
                    self._filter,
                    limit=PAGE,
                    offset=page,
                    with_payload=keys,
                    with_vectors=[self._vector] if self._vector else True,
                )
            kept = [(point, vector) for point in points if (vector := self._vector_of(point))]
            ids = [str(point.id) for point, _ in kept]
            yield Block(
                ids,
                [text((point.payload or {}).get(self._items)) for point, _ in kept],
                stacked(self.name, ids, [vector for _, vector in kept]),
                [text((point.payload or {}).get(self._groups)) for point, _ in kept] if self._groups else None,
                without_vector=len(points) - len(kept),
            )
            if page is None:
                return

    def _vector_of(self, point: Any) -> Any:
        return (point.vector or {}).get(self._vector) if self._vector else point.vector

    def search(self, vectors: NDArray[Any], k: int) -> list[list[Neighbour]] | None:
        """Search as the collection is served."""
        requests = [
            self._models.QueryRequest(
                query=vector, using=self._vector, filter=self._filter, limit=k, with_payload=[self._items]
            )
            for vector in vectors.tolist()
        ]
        answers: list[Any] = []
        for start in range(0, len(requests), TOGETHER):
            with self._errors():
                answers += self._client.query_batch_points(self._collection, requests[start : start + TOGETHER])
        return [
            [Neighbour(str(hit.id), item, hit.score) for hit in answer.points if (item := self._item_of(hit))]
            for answer in answers
        ]

    def _item_of(self, hit: Any) -> str:
        return text((hit.payload or {}).get(self._items))

    def recipe(self, promise: str) -> str:
        """Return lines of Python that search the collection."""
        using = f", using={self._vector!r}" if self._vector else ""
        where = f", query_filter=models.Filter.model_validate_json({self._where!r})" if self._where else ""
        key = "os.environ" in self._connect
        return "\n".join(
            (
                *(["import os"] if key else []),
                f"from qdrant_client import QdrantClient{', models' if where else ''}",
                "from retrieval import Promise",
                f"client = {self._connect})",
                f"hits = client.query_points({self._collection!r}, query=list(map(float, vector)),"
                f" limit=20{using}{where}).points",
                f"neighbours = [(str(hit.payload[{self._items!r}]), hit.score) for hit in hits]",
                f"answer = Promise.load({promise!r}).decide(vector, neighbours)",
            )
        )

    def close(self) -> None:
        """Close the connection, or the folder."""
        self._client.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from qdrant_client.http.exceptions import ApiException

        try:
            yield
        except (ApiException, OSError, ValueError, RuntimeError) as error:
            if isinstance(error, DataError | InvalidParameter):
                raise
            raise DataError(
                f"{self.name} cannot be read: {' '.join(str(error).split())[:300]}",
                remedy=f"Check the address, {KEY}, and whether another process uses the folder",
            ) from None


def _filter(models: Any, where: str | None) -> Any:
    if not where:
        return None
    try:
        return models.Filter.model_validate_json(where)
    except ValueError as error:
        raise InvalidParameter(
            "where",
            "be a filter of Qdrant in JSON",
            where,
            remedy='Such as {"must": [{"key": "shop", "match": {"value": 1}}]}',
        ) from error
