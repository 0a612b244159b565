"""The items and photos that a model was fitted on, as hashes.

Items that a model was fitted on do not show how close unknown items come (`retrieval.threshold.anchor`), so a bundle
lists them. fitted.npz holds the first 8 bytes of the SHA-256 of each item id and of each photo's content hash.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays


def content_hash(data: bytes, bbox: object) -> str:
    """Return the hash of a photo: of its file and its bounding box."""
    return hashlib.sha256(data + repr(bbox).encode()).hexdigest()


@dataclass(frozen=True)
class Fitted:
    """The items and photos that a model was fitted on, as hashes."""

    items: NDArray[np.uint64]
    photos: NDArray[np.uint64]

    @classmethod
    def of(cls, item_ids: Iterable[str], contents: Iterable[str]) -> Fitted:
        """Hash item ids and the content hashes of photos."""
        return cls(_hashes(item_ids), _hashes(contents))

    def union(self, other: Fitted | None) -> Fitted:
        """Return the union of what two models were fitted on."""
        if other is None:
            return self
        return Fitted(np.union1d(self.items, other.items), np.union1d(self.photos, other.photos))

    def __len__(self) -> int:
        """Return the number of items and photos."""
        return len(self.items) + len(self.photos)

    def contains(self, item_id: str, content: str | None) -> bool:
        """Return whether the model was fitted on this item, or on a photo with this content hash."""
        return _hash(item_id) in self._items or (content is not None and _hash(content) in self._photos)

    def pack(self) -> bytes:
        """Serialize as npz."""
        file = io.BytesIO()
        np.savez(file, items=self.items, photos=self.photos)
        return file.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> Fitted:
        """Read the output of `pack`."""
        return cls(**load_arrays(data))

    @cached_property
    def _items(self) -> frozenset[int]:
        return frozenset(self.items.tolist())

    @cached_property
    def _photos(self) -> frozenset[int]:
        return frozenset(self.photos.tolist())


def _hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    return np.unique(np.array([_hash(text) for text in texts], dtype=np.uint64))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
