"""Reading from a gallery on a Milvus cluster: list, search, and read what it keeps."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.checks import check_vectors
from index.contents import POINT
from index.database import Change
from index.distance import PLAIN, DistanceForm, Floats
from index.errors import GalleryError, InvalidParameter
from index.filters import parse_where, to_milvus
from index.neighbours import Neighbour, StoredPhoto
from index.snapshot import Within
from index.verified import Features, VerifiedDistance

from .collection import Collection
from .contents import Contents
from .log import ChangeLog
from .photos import MilvusPhotos
from .search import nearest_items

LOCAL = "Use a local gallery, or a bundle without verification"
UNNUMBERED = "it was made by an earlier version, which did not number the photos; index them into a new gallery"

UNKNOWN = "-1"  # fact about the photos while they change, and after a change that was not finished


class MilvusReader:
    """Read access to a gallery on a Milvus cluster."""

    def __init__(self, collection: Collection, address: str) -> None:
        self._collection = collection
        self._contents = Contents(collection)
        self._log = ChangeLog(collection)
        self._photos: MilvusPhotos | None = None  # of the newest version that was read or written
        self._changing = False  # whether `_photos` is of a version that is being written
        self._guard = threading.RLock()
        self.path = address
        self.damage: list[str] = []
        facts = self.facts()
        self.dim, self.embedding_id = int(facts["dim"]), facts["embedding_id"]

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
        if self._collection.is_numbered:
            return self.snapshot().item_count
        return len({row["item_id"] for row in self._collection.walk(["item_id"])})

    @property
    def version(self) -> int:
        """Return the number of changes made through this interface."""
        return int(self.facts().get("version", 0))

    def facts(self) -> dict[str, str]:
        """Return the facts about the gallery: dim, embedding_id, columns, version and more."""
        return self._collection.facts()

    def index(self) -> dict[str, Any]:
        """Return the kind of index; Milvus maintains it."""
        return {"kind": "milvus"}

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        return dict(json.loads(self.facts()["columns"]))

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

    def photos(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all photos."""
        rows = self._collection.walk(["photo_id", "item_id", "metadata"])
        return [(row["photo_id"], row["item_id"], dict(row["metadata"])) for row in rows]

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

    def features_of(self, photo_id: str) -> bytes | None:  # noqa: ARG002
        """Return None: a gallery on Milvus keeps no features."""
        return None

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        rows = self._collection.get([photo_id], ["thumbnail"])
        return base64.b64decode(rows[0]["thumbnail"]) if rows and rows[0]["thumbnail"] else None

    def thumbnails(self, photo_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the JPEG thumbnails of photos by photo_id, for those that have one."""
        rows = self._collection.get(photo_ids, ["photo_id", "thumbnail"])
        return {row["photo_id"]: base64.b64decode(row["thumbnail"]) for row in rows if row["thumbnail"]}

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        return self._log.newest(self.version, limit)

    def walk(self, count: int, *, features: bool = False) -> Iterator[list[StoredPhoto]]:  # noqa: ARG002
        """Return the photos of the newest version in insertion order, `count` per batch; there are no features."""
        photos = self.snapshot()
        blocks = (photos.seqs[start : start + count].tolist() for start in range(0, len(photos.seqs), count))
        return ([*self._stored(seqs)] for seqs in blocks)

    def _stored(self, seqs: Sequence[int]) -> Iterator[StoredPhoto]:
        rows = self._collection.of_seqs(seqs, ["seq", "photo_id", "item_id", "metadata", "vector"])
        for row in sorted(rows, key=lambda row: int(row["seq"])):
            vector = np.array(row["vector"], dtype=np.float32)
            yield StoredPhoto(row["photo_id"], row["item_id"], dict(row["metadata"]), vector)

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: float | None = None,
        features: Sequence[Features] | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d), by their nearest photo; see `Reader.search`."""
        return self.search_version(
            vectors, k, where=where, distance_form=distance_form, within=within, features=features
        )[1]

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: Within = None,
        features: Sequence[Features] | None = None,  # noqa: ARG002 (a gallery on Milvus keeps none to compare with)
    ) -> tuple[int, list[list[Neighbour]]]:
        """Search as `search` does, and also return the version; raise GalleryError for a verified distance form."""
        if isinstance(distance_form, VerifiedDistance):
            self.verified_search(distance_form)
        if k < 1:
            raise InvalidParameter("k", "be at least 1", k)
        unit = check_vectors(vectors, self.dim)
        condition = to_milvus(parse_where(where, self.columns())) if where is not None else ""
        facts = self.facts()
        limit = within(self._contents.get(POINT, facts)) if callable(within) else within
        found = nearest_items(self._collection, unit, k, condition, distance_form, within=limit)
        return int(facts.get("version", 0)), [[_neighbour(row, distance) for row, distance in best] for best in found]

    def undrawable(self) -> str:
        """Return the reason why no draws can be made, "" if they can."""
        return "" if self._collection.is_numbered else UNNUMBERED

    def snapshot(self) -> MilvusPhotos:
        """Return the photos of the newest version; reads the number and item of every photo if another one was read."""
        if not self._collection.is_numbered:
            raise GalleryError(f"{self.path} keeps no draws", remedy=f"Choose another gallery: {UNNUMBERED}")
        with self._guard:
            if self._photos is None or not self._changing:
                facts = self.facts()
                version = int(facts.get("version", 0))
                if self._photos is None or self._photos.version != version or facts.get("photos") == UNKNOWN:
                    self._photos = MilvusPhotos.read(self._collection, version)
            return self._photos

    @contextmanager
    def one_version(self) -> Iterator[None]:
        """Let no other thread change the gallery."""
        with self._guard:
            yield

    def densities(self, distance_form: DistanceForm) -> tuple[Floats, float]:
        """Return the density around each photo of the newest version (n,), and their minimum."""
        return self.snapshot().densities(distance_form)

    def verified_search(self, distance_form: VerifiedDistance) -> NoReturn:  # noqa: ARG002
        """Raise GalleryError: a gallery on Milvus keeps no features."""
        raise GalleryError(f"{self.path} keeps no features, like every gallery on Milvus", remedy=LOCAL)

    def contents_since(self, seq: int, key: str) -> Iterator[tuple[str, str | None]]:
        """Yield item id and value of a metadata key for the photos from a seq on."""
        for row in self._collection.walk(["item_id", "metadata"], f"seq >= {seq}"):
            yield row["item_id"], row["metadata"].get(key)

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are in the gallery."""
        return self.snapshot().item_numbers(item_ids)

    def fingerprint(self) -> tuple[int, int]:
        """Return the number of photos and the sum of their seqs."""
        facts = self.facts()
        return int(facts.get("photos", 0)), int(facts.get("live_seqs", 0))

    def kept(self, name: str) -> bytes | None:
        """Return the content that is kept under a name with the newest version, None if there is none."""
        return self._contents.get(name, self.facts())

    def kept_names(self) -> list[str]:
        """Return the names of the kept contents."""
        return self._contents.names(self.facts())

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


def _neighbour(row: Mapping[str, Any], distance: float) -> Neighbour:
    return Neighbour(row["item_id"], row["photo_id"], distance, dict(row["metadata"]))
