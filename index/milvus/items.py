"""The items of a gallery on Milvus: one row for each, with the mean of its photos.

Photos are taken into the mean by a hash of their vectors (`index.search.item_distance.photos_of_mean`). A row knows the
greatest hash that was taken, so a further photo of an item with many changes the number of photos alone.
Shapes: p photos, d = embedding size.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.groups import number_of
from index.photos import hashed
from index.search.distance import Floats, exact_unit
from index.search.item_distance import MOST_PHOTOS, mean_photo, photos_of_mean

FIELDS = ["item_id", "photos", "item_group", "cosine", "largest", "mean"]  # of a row, but for its vector and key
SPREAD = 2  # bits by which keys are smaller than hashes: Milvus reads no number of 64 bits


class Item(NamedTuple):
    """An item: the number of its photos, the number of its group, and the mean of its photos."""

    item_id: str
    photos: int
    group: int
    cosine: float  # average cosine between the mean and the photos whose mean it is
    largest: int  # greatest hash of these photos' vectors
    mean: Floats  # (d,) of length one

    @classmethod
    def of(cls, item_id: str, photos: Sequence[Mapping[str, Any]]) -> Item:
        """Return an item, given the rows of all its photos."""
        vectors = np.array([row["vector"] for row in photos], dtype=np.float32)
        taken, mean = photos_of_mean(vectors), mean_photo(vectors)
        hashes = sorted((hash_of(row), row.tobytes(), place) for place, row in enumerate(vectors))
        cosine = float((exact_unit(taken) @ mean).mean())
        group = number_of(item_id, photos[hashes[0][2]]["metadata"])
        return cls(item_id, len(photos), group, cosine, hashes[: len(taken)][-1][0], mean)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Item:
        """Return the item of a stored row."""
        mean = np.frombuffer(base64.b64decode(row["mean"]), dtype="<f8")
        return cls(row["item_id"], row["photos"], row["item_group"], row["cosine"], row["largest"], mean)

    def row(self) -> dict[str, Any]:
        """Return the row to store."""
        return {
            "item_id": self.item_id,
            "key": key_of(self.item_id),
            "photos": self.photos,
            "item_group": self.group,
            "cosine": self.cosine,
            "largest": self.largest,
            "mean": base64.b64encode(self.mean.astype("<f8").tobytes()).decode(),
            "vector": self.mean.astype(np.float32).tolist(),
        }

    def keeps_mean(self, vectors: Sequence[NDArray[np.float32]]) -> bool:
        """Return whether further photos, given by their vectors, leave the mean as it is."""
        return self.photos >= MOST_PHOTOS and all(hash_of(vector) > self.largest for vector in vectors)


def hash_of(vector: NDArray[np.float32]) -> int:
    """Return the hash of a vector (d,)."""
    return zlib.crc32(np.ascontiguousarray(vector, dtype=np.float32).tobytes())


def key_of(text: str) -> int:
    """Return the hash of an id, as a number that Milvus can compare."""
    return int(hashed([text])[0]) >> SPREAD
