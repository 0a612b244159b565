"""A verifier that compares each pair of photos once, for several rounds of searches with the same photos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from index.search.verified import Verifier, WrappedVerifier


class RememberedInliers(WrappedVerifier):
    """Wraps a verifier and caches its inliers (an `index.search.verified.Verifier`)."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__(verifier)
        self._known: dict[tuple[bytes, bytes], int] = {}

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        new = [photo for photo in photos if (query, photo) not in self._known]
        for photo, count in zip(new, super().inliers(query, new).tolist(), strict=True):
            self._known[query, photo] = count
        return np.array([self._known[query, photo] for photo in photos], dtype=np.int64)
