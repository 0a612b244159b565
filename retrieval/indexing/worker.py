"""Decoding and embedding of one batch of photos, shared by all indexing engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import Embedder
from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.read import Photo
from retrieval.errors import ImageRefused
from retrieval.images import center_crop_resize, crop, open_image, thumbnail


@dataclass
class Batch:
    """The embedded, skipped and refused photos of a batch."""

    photos: list[Photo] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    thumbnails: list[bytes] = field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    skipped: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def embed_batch(embedder: Embedder, photos: Sequence[Photo], known: Mapping[str, str]) -> Batch:
    """Decode and embed photos, skipping those whose content hash equals the one in `known` (photo_id to hash)."""
    batch = Batch()
    squares = []
    sight = embedder.preprocessing
    for photo in photos:
        try:
            data = photo.read()
            digest = content_hash(data, photo.bbox)
            if known.get(photo.photo_id) == digest:
                batch.skipped += 1
                continue
            image = crop(open_image(data, min_side=sight.min_side if photo.bbox is None else 0), photo.bbox)
            squares.append(center_crop_resize(image, sight))
            batch.thumbnails.append(thumbnail(image))
        except ImageRefused as error:
            batch.refused.append((photo.photo_id, error.message))
            continue
        batch.photos.append(photo)
        batch.hashes.append(digest)
    if squares:
        batch.vectors = embedder.embed_pixels(np.stack(squares)).vectors
    return batch
