"""The details behind a search result, which `explain` adds to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.protocol import GalleryProtocol
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.local_density import LocalDensity

from .served import match_of


def explanation_of(
    bundle: Bundle, gallery: GalleryProtocol, vectors: NDArray[np.float32], where: str | None
) -> dict[str, Any]:
    """Return the details behind the result for one vector (1, d), as plain JSON values."""
    form = bundle.base_form
    (plain,) = gallery.search(vectors, 1, where=where)
    return {
        "distance_form": form.form if isinstance(form, LocalDensity) else form.key,
        "density": float(form.densities(vectors)[0]),
        "plain_nearest": match_of(plain[0]).to_dict() if plain else None,
        "min_certainty": bundle.operating_point.min_certainty,
        "photos": len(gallery),
        "items": gallery.items,
        "index": gallery.index()["kind"],
    }
