"""Copies of photos on both sides of a partition: items that the model is fitted on, and items that are held out."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence

from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.reading import in_order
from retrieval.errors import ImageRefused

from .splits import Splits

BLOCK = 64  # photos that a thread reads


def copies_across(photos: Sequence[Photo], splits: Splits, *, added: Collection[str], threads: int = 0) -> list[str]:
    """Return the ids of added photos that are copies of photos on the other side.

    A copy has the same file content and bounding box, under any name. Of two added photos, the later one is returned.
    """
    if not added:
        return []
    fit = set(splits.fit)
    sides: dict[str, set[bool]] = defaultdict(set)
    found = []
    ordered = sorted(photos, key=lambda photo: photo.photo_id in added)
    blocks = (ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK))
    hashes = in_order(_hashes, blocks, threads=threads or os.cpu_count() or 1)
    for photo, digest in zip(ordered, (digest for block in hashes for digest in block), strict=True):
        is_fit = photo.item_id in fit
        if digest is None:
            continue
        if photo.photo_id in added and (not is_fit) in sides[digest]:
            found.append(photo.photo_id)
        else:
            sides[digest].add(is_fit)
    return found


def _hashes(photos: Sequence[Photo]) -> list[str | None]:
    """Return the content hash of each photo, None where it cannot be read: training reports such photos."""
    return [_hash(photo) for photo in photos]


def _hash(photo: Photo) -> str | None:
    try:
        return content_hash(photo.read(), photo.bbox)
    except ImageRefused:
        return None
