"""A verifier that compares each pair of photos once, for several rounds of searches with the same photos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from index.distance import Floats
from index.verified import Points, Verifier


class RememberedInliers:
    """Wraps a verifier and caches its inliers (an `index.verified.Verifier`)."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._known: dict[tuple[bytes, bytes], int] = {}
        self.key, self.features_key = verifier.key, verifier.features_key
        self.items, self.photos, self.voted = verifier.items, verifier.photos, verifier.voted
        self.voting = verifier.voting

    def points(self, features: bytes) -> Points:
        """Return the key points of a photo (k,)."""
        return self._verifier.points(features)

    def asked(self, features: bytes) -> Points:
        """Return the words that each key point of a query votes with (k, a)."""
        return self._verifier.asked(features)

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        new = [photo for photo in photos if (query, photo) not in self._known]
        for photo, count in zip(new, self._verifier.inliers(query, new).tolist(), strict=True):
            self._known[query, photo] = count
        return np.array([self._known[query, photo] for photo in photos], dtype=np.int64)

    def fused(self, distances: Floats, inliers: NDArray[np.int64]) -> Floats:
        """Return distances (m,) lowered by inliers (m,)."""
        return self._verifier.fused(distances, inliers)
