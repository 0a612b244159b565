"""A verifier that measures the time of its comparisons, for the timings of a search result."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from index.search.verified import Verifier, WrappedVerifier


class TimedVerifier(WrappedVerifier):
    """Wraps a verifier and measures the time of its comparisons (an `index.search.verified.Verifier`)."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__(verifier)
        self._spent = threading.local()

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        started = time.perf_counter()
        counts = super().inliers(query, photos)
        self._spent.seconds = getattr(self._spent, "seconds", 0.0) + time.perf_counter() - started
        return counts

    def take(self) -> float:
        """Return the seconds that comparisons of this thread took since the last call."""
        seconds = float(getattr(self._spent, "seconds", 0.0))
        self._spent.seconds = 0.0
        return seconds
