"""Pairs of pictures, a query and a gallery photo, with the places where their local features agree."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from index.location import AnyGallery
from retrieval.verification.verifier import GeometricVerifier, MatchedPoints

from .html import picture
from .images.thumbnails import thumbnail
from .places_svg import STYLE as PLACES
from .places_svg import Place, places_svg

MOST_COMPARED = 5  # photos of an item
STYLE = (
    PLACES
    + """
.card .places { width: calc(50% - .2rem); flex: none; align-self: flex-start; }
.card .places img { width: 100%; aspect-ratio: auto; }
.card p { margin: .2rem 0 .6rem; }
"""
)


@dataclass(frozen=True)
class MatchedPlaces:
    """Compares queries with gallery photos by local features, and draws the places that agree."""

    verifier: GeometricVerifier
    gallery: AnyGallery

    def of(self, query: Image.Image, photos: Mapping[str, Sequence[str]]) -> str:
        """Return a pair of pictures for each caption as HTML: the query and the photo that agrees most.

        `query` is upright and cropped. Of the photos of a caption, the first few are compared.
        """
        features, small = self.verifier.describe(query), thumbnail(query)
        pairs = []
        for caption, photo_ids in photos.items():
            best = self._best(features, photo_ids)
            if best is not None:
                photo_id, points = best
                details = "1 detail agrees" if len(points) == 1 else f"{len(points)} details agree"
                pairs.append(
                    f"<div>{_drawn(small, 'query', points.query.tolist())}"
                    f"{_drawn(self.gallery.thumbnail(photo_id) or b'', photo_id, points.photo.tolist())}</div>"
                    f"<p>{html.escape(caption)}; {details}.</p>"
                )
        return "".join(pairs)

    def _best(self, features: bytes, photo_ids: Sequence[str]) -> tuple[str, MatchedPoints] | None:
        """Return the photo with the most places that agree, and the places; None if all photos were removed."""
        stored = {photo_id: self.gallery.features_of(photo_id) for photo_id in photo_ids[:MOST_COMPARED]}
        points = {name: self.verifier.matches(features, some) for name, some in stored.items() if some is not None}
        return max(points.items(), key=lambda each: len(each[1]), default=None)


def _drawn(jpeg: bytes, alt: str, places: Sequence[Place]) -> str:
    return f'<span class="places">{picture(jpeg, alt=alt)}{places_svg(places)}</span>'
