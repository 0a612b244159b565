"""The protocol `Photos`: what searches and measurements ask of the photos of a gallery, a cluster or arrays in memory.

A photo has a position and an item has a number; both are valid in one version only. No answer has the size of the
collection, so a cluster can give it as well.
Shapes: n queries, p photos, m items, d = embedding size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from index.search.details import Points, Verifier
from index.search.exact import NONE as NONE

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]

CONTENT = "_content_sha256"  # reserved metadata key: hash of the photo's file and box when it was embedded


class ItemFacts(NamedTuple):
    """What item distances need beside the nearest photos of the items."""

    means: Floats  # (m, d) of their photos, of length one
    groups: Rows  # (m,) numbers of their groups (`index.groups.number_of`): items of one group are no rivals


class Around(NamedTuple):
    """The photos and items that searches by item distance compare."""

    near: tuple[Rows, Floats]  # the nearest photos (n, k) of items, and their distances, as of `nearest`
    passing: tuple[Rows, Floats]  # the same of the photos that a filter passes
    unseen: tuple[Rows, Floats]  # numbers of further rivals (n, u) without a found photo, and their bounds


class Whole(ABC):
    """Base of photos whose nearest ones can always be found."""

    @abstractmethod
    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items, as `Photos.nearest`."""

    def around(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> Around:
        """Return what searches by item distance compare: the nearest photos, and no items beside theirs."""
        near = self.nearest(vectors, k)
        passing = near if only is None else self.nearest(vectors, k, only=only)
        return Around(near, passing, (np.zeros((len(vectors), 0), np.int64), np.zeros((len(vectors), 0))))


class Photos(Protocol):
    """The photos of one version."""

    @property
    def size(self) -> int:
        """The number of photos."""

    @property
    def item_count(self) -> int:
        """The number of items."""

    @property
    def mark(self) -> tuple[int, ...]:
        """Numbers that identify the photos, the same in a copy of them; the first is `size`."""

    def changes_since(self, mark: Sequence[int]) -> int:
        """Return how many photos were added or removed since the version that had the given mark."""

    def nearest(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> tuple[Rows, Floats]:
        """Return the nearest photo of each of the k nearest items, nearest first, for unit vectors (n, d).

        The answer is positions (n, k) and plain distances (n, k), with NONE and inf where there are fewer items. Of
        equal distances, the smaller position is first. `only` restricts the photos; each implementation has its type.
        """

    def around(self, vectors: NDArray[np.float32], k: int, *, only: Any = None) -> Around:
        """Return what searches with unit vectors (n, d) by item distance compare: up to k items, and rivals."""

    def items_at(self, positions: Rows) -> Rows:
        """Return the numbers of the items of photos, NONE for the position NONE, in the shape of `positions`."""

    def photos_of(self, items: Sequence[int]) -> list[Rows]:
        """Return the positions of the photos of each of some items, ascending."""

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and the groups of items (m,)."""

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions, of length one."""

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of the photos at some positions."""

    def positions(self, photo_ids: Sequence[str]) -> Rows:
        """Return the positions of photos, NONE for those that are not here."""

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each item that has photos here, by item id."""

    def keys_of(self, positions: Rows) -> Keys:
        """Return the hashes of the ids of the photos at some positions (`hashed`)."""

    def sample(self, most: int, *, excluded: Collection[int] = ()) -> Rows:
        """Return the positions of up to `most` photos, chosen by the hashes of their ids (`sampled`).

        The sample holds none of the items with the `excluded` numbers.
        """

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether the photos at the positions `first` (p,) show the same picture as those at `second` (p,)."""

    def features(self, positions: Rows) -> list[bytes]:
        """Return the local features of the photos at some positions; raise GalleryError if there are none."""

    def votes(self, verifier: Verifier, asked: Points) -> tuple[Rows, Floats]:
        """Return the positions of the photos with votes for the key points of a query, ascending, and these votes."""


def sampled(items: NDArray[np.integer], item_keys: Keys, photo_keys: Keys) -> Rows:
    """Return an order of p photos in which every item occurs once before any item occurs twice.

    Items are ordered by the hashes of their ids, and so are the photos of an item (`hashed`). The order is the same
    wherever the photos are stored.

    Parameters
    ----------
    items:
        Number of the item of each photo (p,).
    item_keys, photo_keys:
        Hash of the id of the item and of each photo (p,).
    """
    order = np.lexsort((photo_keys, items))
    ordered = items[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]] if len(items) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(len(items)), 0))
    turn = np.arange(len(items)) - starts  # number of photos of the same item before this one
    return np.asarray(order[np.lexsort((item_keys[order], turn))])


def hashed(ids: Iterable[str]) -> Keys:
    """Return a pseudo-random hash of each id."""
    digests = b"".join(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest() for text in ids)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
