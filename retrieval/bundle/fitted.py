"""The items and photos that a model was fitted on, as hashes.

Items that a model was fitted on do not show how close unknown items come (`retrieval.measuring.rule`), so a bundle
lists them. fitted.npz holds the first 8 bytes of the SHA-256 of each item id and of each photo's content hash. Among
the item ids are the keys of the items' groups, because other items of these groups are variants of fitted items.

A model that was fitted on a whole catalogue comes with fold models (`train --all-items`), each fitted without the items
of one fold. For these items the fold model stands for one that has not seen them. With fold models, `items` has the
photos as well, so that each has its fold: items may be merged, and photos may move between them.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays


def content_hash(data: bytes, bbox: object) -> str:
    """Return the hash of a photo: of its file and its bounding box."""
    return hashlib.sha256(data + repr(bbox).encode()).hexdigest()


SEVERAL = 255  # the fold of an item or group that models of several folds were fitted without


@dataclass(frozen=True)
class Fitted:
    """The items and photos that a model was fitted on, as hashes."""

    items: NDArray[np.uint64]
    photos: NDArray[np.uint64]
    folds: NDArray[np.uint8]  # of each of `items`, whose model was fitted without it; empty without fold models

    @classmethod
    def of(cls, item_ids: Iterable[str], contents: Iterable[str]) -> Fitted:
        """Hash item ids, with the keys of their groups (`index.groups.group_key`), and content hashes of photos."""
        return cls(_hashes(item_ids), _hashes(contents), np.zeros(0, np.uint8))

    def with_folds(self, parts: Sequence[Fitted]) -> Fitted:
        """Return these items and photos with their folds, if there are any.

        `parts` are what the model of each fold was fitted on: all but the items and photos of this fold.
        """
        if not parts:
            return Fitted(self.items, self.photos, np.zeros(0, np.uint8))
        seen = [part._items | part._photos for part in parts]
        fold_of = {
            number: fold
            for fold, own in enumerate(seen)
            for number in frozenset.intersection(*(other for other in seen if other is not own)) - own
        }
        items = np.union1d(self.items, np.array(list(fold_of), np.uint64))
        folds = [fold_of.get(number, SEVERAL) for number in items.tolist()]
        return Fitted(items, self.photos, np.array(folds, np.uint8))

    def union(self, other: Fitted | None) -> Fitted:
        """Return the union of what two models were fitted on, which has no folds; or this one if there is no other."""
        if other is None:
            return self
        items, photos = np.union1d(self.items, other.items), np.union1d(self.photos, other.photos)
        return Fitted(items, photos, np.zeros(0, np.uint8))

    def __len__(self) -> int:
        """Return the number of items and photos."""
        return len(self.items) + len(self.photos)

    def contains(self, item_id: str, content: str | None) -> bool:
        """Return whether the model was fitted on this item, or on a photo with this content hash."""
        return _hash(item_id) in self._items or (content is not None and _hash(content) in self._photos)

    def fold_of(self, item_or_content: str) -> int | None:
        """Return the fold whose model was fitted without an item, or a photo, None if there is none."""
        return self._folds.get(_hash(item_or_content))

    def seen_by_all(self, content: str) -> bool:
        """Return whether every fold model was fitted on a photo. Bundles of version 0.2.0 do not record it: False."""
        return self._tells_photos and _hash(content) in self._photos and _hash(content) not in self._folds

    def pack(self) -> bytes:
        """Serialize as npz."""
        file = io.BytesIO()
        np.savez(file, items=self.items, photos=self.photos, folds=self.folds)
        return file.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> Fitted:
        """Read the output of `pack`; raise ValueError for anything else."""
        found = cls(**load_arrays(data))
        if found.items.ndim != 1 or found.photos.ndim != 1 or found.folds.shape not in ((0,), found.items.shape):
            raise ValueError("its arrays have other shapes than a list of items and photos")
        return found

    @cached_property
    def _items(self) -> frozenset[int]:
        return frozenset(self.items.tolist())

    @cached_property
    def _folds(self) -> dict[int, int]:
        known = zip(self.items.tolist(), self.folds.tolist(), strict=True) if len(self.folds) else ()
        return {number: fold for number, fold in known if fold != SEVERAL}

    @cached_property
    def _tells_photos(self) -> bool:
        return not self._photos.isdisjoint(self._folds)

    @cached_property
    def _photos(self) -> frozenset[int]:
        return frozenset(self.photos.tolist())


def _hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    return np.unique(np.array([_hash(text) for text in texts], dtype=np.uint64))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big")
