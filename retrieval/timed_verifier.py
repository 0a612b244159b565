"""A verifier that measures the time of its comparisons, for the timings of a search result."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from index.distance import Floats
from index.verified import Points, Verifier


class TimedVerifier:
    """Wraps a verifier and measures the time of its comparisons (an `index.verified.Verifier`)."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._spent = threading.local()
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
        started = time.perf_counter()
        counts = self._verifier.inliers(query, photos)
        self._spent.seconds = getattr(self._spent, "seconds", 0.0) + time.perf_counter() - started
        return counts

    def fused(self, distances: Floats, inliers: NDArray[np.int64]) -> Floats:
        """Return distances (m,) lowered by inliers (m,)."""
        return self._verifier.fused(distances, inliers)

    def take(self) -> float:
        """Return the seconds that comparisons of this thread took since the last call."""
        seconds = float(getattr(self._spent, "seconds", 0.0))
        self._spent.seconds = 0.0
        return seconds
