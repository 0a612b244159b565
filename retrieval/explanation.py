"""The details behind a search result, which `explain` adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery
from index.snapshot import Neighbour
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.density import LocalDensity

from .served import match_of

MOST_VERIFIED = 5  # items whose matched places are explained
DIGITS = 4  # of a coordinate

Places = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class VerifiedPhoto:
    """A gallery photo and the places where it matches the query.

    Places are (x, y), as shares of the width and height of each photo.
    """

    item_id: str
    photo_id: str
    inliers: int  # number of places; 0 if there are too few to count
    query_photo: int  # number of the query's photo, from 1: the one that agrees most
    query: Places
    photo: Places

    def to_dict(self) -> dict[str, Any]:
        """Return the photo as plain JSON values."""
        return {**vars(self), "query": [list(p) for p in self.query], "photo": [list(p) for p in self.photo]}


def explanation_of(
    bundle: Bundle, gallery: AnyGallery, vectors: NDArray[np.float32], where: str | None
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


def verified_photos(
    bundle: Bundle, gallery: AnyGallery, features: Mapping[int, bytes] | None, neighbours: Sequence[Neighbour]
) -> list[dict[str, Any]] | None:
    """Return the places where a query agrees with the photos of its nearest items.

    `features` are those of the query's photos by their number. Gallery photos that were removed meanwhile are left
    out. None if the bundle does not verify matches.
    """
    if bundle.verifier is None or features is None:
        return None
    found = []
    for neighbour in neighbours[:MOST_VERIFIED]:
        stored = gallery.features_of(neighbour.photo_id)
        if stored is not None:
            matches = {number: bundle.verifier.matches(photo, stored) for number, photo in features.items()}
            best = max(matches, key=lambda number: (len(matches[number]), -number))
            points = matches[best]
            places = _places(points.query), _places(points.photo)
            found.append(VerifiedPhoto(neighbour.item_id, neighbour.photo_id, len(points), best, *places).to_dict())
    return found


def _places(shares: NDArray[np.float64]) -> Places:
    return tuple((round(x, DIGITS), round(y, DIGITS)) for x, y in shares.tolist())
