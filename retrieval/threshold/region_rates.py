"""Rates of searches by regions, and the check that a bundle supports such searches."""

from __future__ import annotations

from index.drawable import Drawable
from index.kept_draws import KeptDraws
from index.region_draws import of_photos
from index.verified import VerifiedDistance
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.served_point import RegionPoint
from retrieval.errors import InvalidParameter

from .drawn_distances import GalleryRates


def check_regions(bundle: Bundle) -> None:
    """Raise InvalidParameter if a bundle verifies matches, which would compare local features of every region."""
    if isinstance(bundle.distance_form, VerifiedDistance):
        raise InvalidParameter(
            "regions",
            "be bounding boxes with a bundle that verifies matches by local features",
            bundle.path.name,
            remedy="Send the bounding boxes of the items, or export a bundle with --verify off",
        )


def region_rates(gallery: Drawable, region: RegionPoint, draws_id: str) -> GalleryRates | None:
    """Return the rates of a threshold in the newest version, None unless its draws are up to date."""
    kept = KeptDraws.read(gallery, regions=region.regions)
    if kept is None or kept.model != draws_id or not kept.covers(gallery):
        return None
    return GalleryRates.of(of_photos(kept), region.point)
