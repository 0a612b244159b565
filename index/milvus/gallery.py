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
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.ann.recall import Probe
from index.checks import check_actor, check_additions, check_removals, check_values, check_vectors, refuse_present
from index.database import system_user
from index.distance import PLAIN, DistanceForm, squared_distance
from index.errors import InvalidParameter
from index.filters import check_columns, parse_where, to_milvus
from index.metadata import encode_metadata
from index.snapshot import FIRST_FETCH, Neighbour, Within

from .collection import LONGEST_ID, Collection

MOST = 16_384  # photos that one search returns at most
SLACK = 1e-5  # float32 error of a cosine, in addition to the error due to the dimension
SPARSEST = -1.0  # lower bound of every density, which is a mean of cosines


class MilvusGallery:
    """A gallery on a Milvus cluster, or in a file of Milvus Lite."""

    read_only = False

    def __init__(self, collection: Collection, address: str) -> None:
        self._collection = collection
        self._guard = threading.RLock()
        self.path = address
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
        facts = {"dim": dim, "embedding_id": embedding_id, "columns": json.dumps(dict(columns or {}))}
        return cls(Collection.create(address, dim=dim, facts=facts, index=index, token=token), address)

    @classmethod
    def open(cls, address: str, *, token: str = "") -> MilvusGallery:
        """Open a gallery at an address; raise GalleryError if there is none."""
        return cls(Collection.open(address, token=token), address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._collection.close()

    def __len__(self) -> int:
        """Return the number of photos."""
        rows = self._collection.query("", ["count(*)"])
        return int(rows[0]["count(*)"])

    @property
    def items(self) -> int:
        """Return the number of items; this reads every photo because Milvus keeps no count."""
        return len({row["item_id"] for row in self._collection.walk(["item_id"])})

    @property
    def version(self) -> int:
        """Return the number of changes made through this interface."""
        return int(self.facts().get("version", 0))

    def facts(self) -> dict[str, str]:
        """Return the facts about the gallery: dim, embedding_id, columns, version."""
        return self._collection.facts()

    def index(self) -> dict[str, Any]:
        """Return the kind of index; Milvus maintains it."""
        return {"kind": "milvus"}

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        return dict(json.loads(self.facts()["columns"]))

    def declare(self, columns: Mapping[str, str]) -> None:
        """Declare metadata keys for filters, each text, number or boolean; existing photos are not checked."""
        check_columns(columns)
        known = self.columns()
        for name, kind in columns.items():
            if known.setdefault(name, kind) != kind:
                raise InvalidParameter(f"column {name}", f"stay {known[name]}, its declared kind", kind)
        self._collection.set_facts({"columns": json.dumps(known)})

    def photo_ids(self) -> set[str]:
        """Return the ids of all photos."""
        return {row["photo_id"] for row in self._collection.walk(["photo_id"])}

    def values(self, key: str) -> dict[str, Any]:
        """Return a mapping from photo_id to the value of a metadata key, for the photos that have one."""
        rows = self._collection.walk(["photo_id", "metadata"])
        return {row["photo_id"]: row["metadata"][key] for row in rows if row["metadata"].get(key) is not None}

    def contents(self) -> tuple[list[str], list[str], NDArray[np.float32]]:
        """Return photo_ids, item_ids and vectors (n, d) of all photos, ordered by photo_id."""
        rows = sorted(self._collection.walk(["photo_id", "item_id", "vector"]), key=lambda row: str(row["photo_id"]))
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(-1, self.dim)
        return [row["photo_id"] for row in rows], [row["item_id"] for row in rows], vectors

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        rows = self._collection.get([photo_id], ["photo_id", "item_id", "metadata"])
        return (rows[0]["photo_id"], rows[0]["item_id"], dict(rows[0]["metadata"])) if rows else None

    def item(self, item_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of each photo of an item; empty for an unknown item."""
        rows = self._collection.walk_items(["photo_id", "item_id", "metadata"], [item_id])
        return [(row["photo_id"], row["item_id"], dict(row["metadata"])) for row in rows]

    def item_ids(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order; this reads every photo."""
        return sorted({row["item_id"] for row in self._collection.walk(["item_id"]) if row["item_id"] > after})[:limit]

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        rows = self._collection.get([photo_id], ["thumbnail"])
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
                refuse_present({row["photo_id"] for row in self._collection.get(new.photo_ids, ["photo_id"])})
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
            self._collection.upsert(rows)
            if count:
                self._log_change(actor)
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
        photo_ids, item_ids = check_removals(photo_ids, item_ids)
        with self._guard:
            gone = {row["photo_id"] for row in self._collection.get(photo_ids, ["photo_id"])}
            gone |= {row["photo_id"] for row in self._collection.walk_items(["photo_id"], item_ids)}
            self._collection.delete(sorted(gone))
            if gone:
                self._log_change(actor)
        return len(gone)

    def _log_change(self, actor: str) -> None:
        self._collection.set_facts({"version": self.version + 1, "changed_by": actor})

    def rebuild_if_due(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Do nothing: Milvus maintains its own index."""

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: float | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d), by their nearest photo; see `Reader.search`."""
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
        limit = within(None) if callable(within) else within
        return self.version, [self._nearest(vector, k, condition, distance_form, limit) for vector in unit]

    def kept(self, name: str) -> None:
        """Return None: draws and operating points are kept by local galleries."""

    def verify(self) -> list[str]:
        """Return the vectors that are not of length one as problems; Milvus checks its own files."""
        problems = []
        for row in self._collection.walk(["photo_id", "vector"]):
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
            hits = self._collection.nearest(vector, fetch, condition)
            if not hits:
                return []
            vectors = np.array([hit["entity"]["vector"] for hit in hits], dtype=np.float32)
            squared = squared_distance(vector[None], vectors)
            distances = distance_form.transform(squared, own, distance_form.densities(vectors))
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
