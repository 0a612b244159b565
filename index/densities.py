"""Densities of gallery photos: computed from the vectors and a distance form, cached in memory and on disk.

The files are only a cache: a missing or invalid file is computed again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .cached import forget_cached, read_cached, write_cached
from .distance import DistanceForm, Floats
from .segments import OpenSegment

FORMS = 2  # measures kept at a time: the current one and its successor
CACHED_FROM = 4096  # minimum rows of a segment whose densities are cached on disk
BLOCK = 65_536  # rows computed at a time


class Densities:
    """Densities by distance form and segment. Segments never change, so only new ones are computed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._known: dict[str, dict[str, Floats]] = {}

    def of(self, distance_form: DistanceForm, segments: Sequence[OpenSegment]) -> Floats:
        """Return the density around each photo of the segments (n,), in order."""
        with self._guard:
            known = self._known.pop(distance_form.key, {})
            self._known[distance_form.key] = {
                s.name: known[s.name] if s.name in known else self._of_segment(distance_form, s) for s in segments
            }
            while len(self._known) > FORMS:
                del self._known[next(iter(self._known))]
            return np.concatenate([np.zeros(0), *self._known[distance_form.key].values()])

    def forget(self, names: set[str]) -> None:
        """Delete files of segments other than `names`; only the writer may call this."""
        forget_cached(self._folder, names)

    def _of_segment(self, distance_form: DistanceForm, segment: OpenSegment) -> Floats:
        rows = len(segment.seqs)
        path = self._folder / f"{segment.name}-{hashlib.sha256(distance_form.key.encode()).hexdigest()[:16]}.npy"
        if rows >= CACHED_FROM:
            cached = read_cached(path, 1)
            if cached is not None and cached[0].shape == (rows,) and cached[0].dtype == np.float64:
                return cached[0]
        segment.check(np.arange(rows))
        blocks = (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))
        densities = np.concatenate([np.zeros(0), *(distance_form.densities(segment.read(block)) for block in blocks)])
        if rows >= CACHED_FROM:
            write_cached(path, [densities])
        return densities
