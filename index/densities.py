"""Densities of gallery photos: computed from the vectors and a distance form, cached in memory and on disk.

The files are only a cache: a missing or invalid file is computed again.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .arrays import load_array
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
        if self._folder.exists():
            for file in self._folder.iterdir():
                if file.name.split("-")[0] not in names:
                    file.unlink(missing_ok=True)

    def _of_segment(self, distance_form: DistanceForm, segment: OpenSegment) -> Floats:
        rows = len(segment.seqs)
        path = self._folder / f"{segment.name}-{hashlib.sha256(distance_form.key.encode()).hexdigest()[:16]}.npy"
        if rows >= CACHED_FROM:
            cached = _read(path, rows)
            if cached is not None:
                return cached
        segment.check(np.arange(rows))
        blocks = (slice(start, start + BLOCK) for start in range(0, rows, BLOCK))
        densities = np.concatenate([np.zeros(0), *(distance_form.densities(segment.read(block)) for block in blocks)])
        if rows >= CACHED_FROM:
            self._write(path, densities)
        return densities

    def _write(self, path: Path, densities: Floats) -> None:
        partial_path = path.with_suffix(f".{uuid.uuid4().hex}.partial")
        try:
            path.parent.mkdir(exist_ok=True)
            with partial_path.open("wb") as file:
                np.save(file, densities, allow_pickle=False)
                file.write(_checksum(densities))
            partial_path.replace(path)
        except OSError:  # a read-only gallery: densities are computed at each start
            partial_path.unlink(missing_ok=True)


def _read(path: Path, rows: int) -> Floats | None:
    """Return cached densities, or None if the file is missing or invalid."""
    try:
        with path.open("rb") as file:
            densities = load_array(file)
            checksum = file.read()
    except (OSError, ValueError, EOFError):
        return None
    whole = densities.shape == (rows,) and densities.dtype == np.float64 and checksum == _checksum(densities)
    return np.asarray(densities) if whole else None


def _checksum(densities: Floats) -> bytes:
    return zlib.crc32(densities.tobytes()).to_bytes(4, "little")
