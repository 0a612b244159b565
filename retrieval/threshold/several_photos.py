"""Operating points of queries of several photos.

A query of several photos of the same item is searched with the mean of their vectors. With a verified distance form,
each photo is verified, and the greatest number of inliers counts. Such a query comes closer to the items of a gallery
than a single photo does, so it needs a threshold of its own, set by draws with the same number of photos.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from index.contents import POINT
from index.drawable import Drawable
from index.draws import Probes
from retrieval.arguments import MOST_QUERY_PHOTOS
from retrieval.bundle.served_point import stored_points
from retrieval.errors import InvalidParameter

from .drawn_distances import GalleryRates

if TYPE_CHECKING:
    from .gallery_anchor import Anchored, GalleryAnchor


def check_counts(counts: Collection[int]) -> tuple[int, ...]:
    """Return numbers of photos of a query, ascending and without 1; raise InvalidParameter if one is out of range."""
    for count in counts:
        if not 1 <= count <= MOST_QUERY_PHOTOS:
            raise InvalidParameter("photos_per_query", f"be a whole number from 1 to {MOST_QUERY_PHOTOS}", count)
    return tuple(sorted({*counts} - {1}))


def anchored_several(
    anchor: GalleryAnchor,
    gallery: Drawable,
    counts: Collection[int],
    *,
    target_fpir: float,
    certify: bool = False,
    labelled: Probes | None = None,
) -> dict[int, Anchored]:
    """Return the operating points that follow from draws of several photos, by the number of photos."""
    return {
        count: anchor.anchored(
            gallery,
            anchor.draws(gallery, labelled=labelled, photos_per_query=count),
            target_fpir=target_fpir,
            certify=certify,
        )
        for count in check_counts(counts)
    }


def measure_again(anchor: GalleryAnchor, gallery: Drawable) -> None:
    """Update the draws of the kept operating points of several photos, if they are of an earlier version."""
    points = stored_points(gallery.kept(POINT), anchor.bundle)
    draws_id = anchor.bundle.draws_id
    for count, point in points.items():
        if count > 1 and GalleryRates.read(gallery, point, draws_id, photos_per_query=count) is None:
            draws = anchor.draws(gallery, photos_per_query=count)
            gallery.keep(draws.pack(), f"measure the threshold of {count} photos")


def describe_several(several: Mapping[int, Anchored]) -> Iterator[str]:
    """Yield a line on each operating point of several photos, or on why there is none."""
    for count, anchored in several.items():
        point = anchored.point
        if point is None:
            yield f"Queries of {count} photos: no threshold, because {anchored.why_not}."
            continue
        evidence = point.evidence
        tpir = evidence["tpir"]
        found = "" if tpir is None else f"; {tpir:.0%} of {evidence['tpir_of']}, {count} at a time, find their item"
        yield (
            f"Queries of {count} photos: threshold {point.threshold:.4f} ({point.status}); an unknown item returns a "
            f"match in about {evidence['fpir_expected']:.1%} of searches, at most {evidence['fpir_upper']:.1%} with "
            f"95 % confidence{found}."
        )
