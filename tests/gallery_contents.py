"""The photos of a gallery, for tests that compare all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery


def contents(gallery: AnyGallery) -> tuple[list[str], list[str], NDArray[np.float32]]:
    """Return photo_ids, item_ids and vectors (n, d) of all photos of one version, in the same order."""
    photos = [photo for block in gallery.walk(4096) for photo in block]
    vectors = np.array([photo.vector for photo in photos], dtype=np.float32).reshape(-1, gallery.dim)
    return [photo.photo_id for photo in photos], [photo.item_id for photo in photos], vectors
