"""Local features: how the details of a query are compared with those of photos.

The gallery keeps the local features of its photos as opaque bytes. A `Verifier` compares them: it counts inliers, the
features of a query that have a counterpart in a photo under one geometric transformation. It compares a shortlist: the
nearest photos of the nearest items, and the photos with the most votes (`index.search.votes`). Inliers lower the own
distance of an item (`index.search.item_distance`).

Shapes: n queries, m photos, k key points, w visual words, a words per key point of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from index.errors import InvalidParameter

BITS = 64  # of a signature


@dataclass(frozen=True, eq=False)
class Points:
    """Visual words of key points, and signatures that are similar for near descriptors of a word."""

    words: NDArray[np.uint16]  # (k,) of a photo, (k, a) of a query
    signatures: NDArray[np.uint64]  # of the same shape


@dataclass(frozen=True, eq=False)
class Voting:
    """Parameters of the votes."""

    key: str  # identifies the settings that determine points and votes
    weights: NDArray[np.float32]  # (w,) of each visual word, at least 0
    agreement: NDArray[np.float32]  # (BITS + 1,) factor by the number of bits in which two signatures differ


class Verifier(Protocol):
    """Compares the local features of queries and photos. Thread-safe and deterministic."""

    @property
    def key(self) -> str:
        """Return a key that identifies everything that decides the inliers."""

    @property
    def features_key(self) -> str:
        """Return a key that identifies everything that decides the features of a photo."""

    @property
    def items(self) -> int:
        """Return how many of the nearest items are compared, at least 1."""

    @property
    def photos(self) -> int:
        """Return how many photos of each of these items are compared, the nearest ones."""

    @property
    def voted(self) -> int:
        """Return the number of photos on the shortlist by votes."""

    @property
    def voting(self) -> Voting:
        """Return the parameters of the votes (`index.search.votes`)."""

    def points(self, features: bytes) -> Points:
        """Return the key points of a photo (k,), for which a query can vote."""

    def asked(self, features: bytes) -> Points:
        """Return the words that each key point of a query votes with (k, a), and its signature in each."""

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,); each depends on its pair alone."""


def check_query_features(features: Sequence[bytes] | None, count: int) -> Sequence[bytes]:
    """Return the features of n queries; raise InvalidParameter if some are missing."""
    if features is None or len(features) != count:
        raise InvalidParameter(
            "features",
            f"have one entry per vector ({count}), because the details of photos are compared",
            None if features is None else len(features),
        )
    return features
