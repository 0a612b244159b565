"""Whether a directory is free for a new gallery; an interrupted `create` leaves it so."""

from __future__ import annotations

from pathlib import Path

from .reader import DATABASE, SEGMENTS

ASIDE = f"{DATABASE}.partial"
LOCK = "writer.lock"
LEFTOVERS = {ASIDE, f"{ASIDE}-wal", f"{ASIDE}-shm", f"{ASIDE}-journal"}


def is_vacant(path: Path) -> bool:
    """Return whether a directory holds nothing but what an interrupted `create` leaves."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    segments = path / SEGMENTS
    return names <= LEFTOVERS | {SEGMENTS, LOCK} and not (segments.exists() and any(segments.iterdir()))
