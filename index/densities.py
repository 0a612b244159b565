"""Densities of the photos of a gallery: derived from its vectors and a measure, kept in memory, never truth."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .distance import Floats, Measure

MEASURES = 2  # kept at a time: one in use, and one that takes over


class Densities:
    """Densities by measure and segment. A segment never changes, so only new ones are ever worked out."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, dict[int, Floats]] = {}

    def of(
        self,
        measure: Measure,
        segments: Mapping[int, NDArray[np.float32]],
        numbers: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> Floats:
        """Return the density around photos (n,), given the segment and the row in it of each."""
        with self._guard:
            known = self._known.pop(measure.key, {})
            known = {number: known[number] for number in segments if number in known}
            for number, vectors in segments.items():
                if number not in known:
                    known[number] = measure.densities(np.asarray(vectors))
            self._known[measure.key] = known
            while len(self._known) > MEASURES:
                del self._known[next(iter(self._known))]
        found = np.empty(len(numbers))
        for number, densities in known.items():
            mine = numbers == number
            found[mine] = densities[places[mine]]
        return found
