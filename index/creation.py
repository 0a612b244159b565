"""Check that a directory is free for a new gallery, ignoring leftovers of an interrupted `create`."""

from __future__ import annotations

from pathlib import Path

from .reader import DATABASE, SEGMENTS

PARTIAL_DATABASE = f"{DATABASE}.partial"
LOCK = "writer.lock"
LEFTOVERS = {PARTIAL_DATABASE, f"{PARTIAL_DATABASE}-wal", f"{PARTIAL_DATABASE}-shm", f"{PARTIAL_DATABASE}-journal"}


def is_vacant(path: Path) -> bool:
    """Return whether a directory contains nothing but leftovers of an interrupted `create`."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    segments = path / SEGMENTS
    return names <= LEFTOVERS | {SEGMENTS, LOCK} and not (segments.exists() and any(segments.iterdir()))
