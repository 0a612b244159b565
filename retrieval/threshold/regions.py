"""Thresholds of searches by regions, one per policy.

A search with many regions comes closer to the items of a gallery than a search with the whole photo, so it needs a
threshold of its own. Its draws are searches with photos that are divided into the same regions and whose items are left
out, so the FPIR is a share of photos.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from index.contents import POINT
from index.drawable import Drawable
from index.kept_draws import KeptDraws
from index.protocol import GalleryProtocol
from index.region_draws import of_photos, update_region_draws
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import RegionPoint, pack_points, stored_point, stored_points, stored_regions
from retrieval.catalogue.photos import Photo
from retrieval.errors import CalibrationError, DataError, InvalidParameter
from retrieval.indexing.worker import CONTENT
from retrieval.regions.policy import RegionPolicy

from .region_photos import PHOTOS, RegionPhotos, embed_region_photos
from .region_rates import check_regions, region_rates

if TYPE_CHECKING:
    from .gallery_anchor import Anchored, GalleryAnchor


def region_draws(
    anchor: GalleryAnchor, gallery: Drawable, regions: str, photos: RegionPhotos, *, again: bool = False
) -> KeptDraws:
    """Return the draws of the regions of photos in the newest version, reusing those that the gallery keeps.

    With `again` none are reused, for photos that the gallery does not keep yet.
    """
    fitted = anchor.bundle.fitted
    items = {item for items in photos.probes.items for item in items}
    known = frozenset(item for item in items if fitted is None or fitted.contains(item, None))
    draws = update_region_draws(
        gallery,
        None if again else KeptDraws.read(gallery, regions=regions),
        model=anchor.bundle.draws_id,
        distance_form=anchor.bundle.distance_form,
        probes=photos.by_source(known),
        regions=regions,
    )
    return replace(draws, fitted=known)


def follow_regions(
    anchor: GalleryAnchor, gallery: Drawable
) -> tuple[dict[str, bytes | None], dict[str, RegionPoint] | None]:
    """Return the updated draws of the policies that have a threshold, and the points if one becomes stricter."""
    points = dict(stored_regions(gallery.kept(POINT), anchor.bundle))
    contents: dict[str, bytes | None] = {}
    stricter = {}
    for name, region in points.items():
        photos = RegionPhotos.read(gallery, name)
        if photos is None:
            continue
        draws = region_draws(anchor, gallery, name, photos)
        contents |= draws.pack()
        whole = of_photos(draws, found=photos.indexed)
        point = anchor.stricter(gallery, whole, region.point) if anchor.tighten else None
        if point is not None:
            stricter[name] = replace(region, point=point)
    return contents, {**points, **stricter} if stricter else None


def measure_regions_again(anchor: GalleryAnchor, gallery: Drawable) -> None:
    """Update the draws of the region thresholds that a gallery keeps, if they belong to an earlier version."""
    for name, region in stored_regions(gallery.kept(POINT), anchor.bundle).items():
        photos = RegionPhotos.read(gallery, name)
        if photos is not None and region_rates(gallery, region, anchor.bundle.draws_id) is None:
            draws = region_draws(anchor, gallery, name, photos)
            gallery.keep(draws.pack(), f"measure the threshold of regions {name}")


@dataclass(frozen=True)
class RegionProposal:
    """A new threshold for searches by the regions of one policy."""

    anchor: GalleryAnchor
    policy: RegionPolicy
    photos: RegionPhotos
    draws: KeptDraws  # of the regions
    before: RegionPoint | None
    anchored: Anchored
    refused: Sequence[tuple[str, str]] = field(default_factory=list)  # photo_id and reason

    @property
    def after(self) -> OperatingPoint:
        """Return the new operating point; raise CalibrationError if there is none."""
        if self.anchored.point is None:
            raise CalibrationError(self.anchored.why_not)
        return self.anchored.point

    def to_dict(self) -> dict[str, Any]:
        """Return the proposal as plain JSON values."""
        return {
            "policy": self.policy.to_dict(),
            "photos": len(self.photos.probes.ids),
            "before": None if self.before is None else self.before.to_dict(),
            "after": self.after.to_dict(),
            "refused": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused],
        }

    def lines(self) -> Iterator[str]:
        """Yield sentences about the new threshold."""
        evidence, photos = self.after.evidence, len(self.photos.probes.ids)
        each = len(self.photos.probes.photos) / photos
        before = "" if self.before is None else f", {self.before.point.threshold:.4f} before"
        yield f"The threshold of searches by regions ({self.policy.name}) is {self.after.threshold:.4f}{before}."
        yield (
            f"A photo of unknown items returns a match in about {evidence['fpir_expected']:.1%} of searches, at most "
            f"{evidence['fpir_upper']:.1%} with 95 % confidence ({self.after.status} from {photos} photos with "
            f"{each:.0f} regions each)."
        )
        if evidence["tpir"] is not None:
            yield f"The first match is one of their items for {evidence['tpir']:.0%} of the labelled photos."
        yield "This assumes:"
        yield from (f"  - {assumption}" for assumption in evidence["assumptions"])

    def write(self, gallery: GalleryProtocol) -> None:
        """Keep the threshold, its photos and their draws as one change."""
        name, content = self.policy.name, gallery.kept(POINT)
        point = stored_point(content, self.anchor.bundle)
        if point is None:
            raise _no_point()
        regions = {**stored_regions(content, self.anchor.bundle), name: RegionPoint(self.policy.to_dict(), self.after)}
        kept = with_regions(content, self.anchor.bundle, regions)
        contents = {POINT: kept, PHOTOS.format(name): self.photos.pack(), **self.draws.pack()}
        gallery.keep(contents, f"calibrate regions {name}")


def with_regions(content: bytes | None, bundle: Bundle, regions: Mapping[str, RegionPoint]) -> bytes | None:
    """Return the points that a gallery keeps with those of the regions of this bundle replaced."""
    points = stored_points(content, bundle)
    return pack_points(content, bundle, points.pop(1, None), points, regions=regions)


def propose_regions(
    bundle: Bundle,
    gallery: GalleryProtocol,
    policy: RegionPolicy,
    *,
    photos: Sequence[Photo] | None = None,
    target_fpir: float | None = None,
    certify: bool = False,
) -> RegionProposal:
    """Return the threshold that follows from photos divided by a policy, without writing it.

    Parameters
    ----------
    photos:
        Photos like those that users send. Lines with the same file are one photo with several items, which are left out
        of its search; an empty item stands for unknown items. By default, the photos that the gallery keeps from an
        earlier calibration of the same policy.
    target_fpir:
        Target FPIR. Defaults to that of the threshold of whole photos.

    Raises
    ------
    CalibrationError
        If the gallery has no threshold of its own. Other reasons are in `RegionProposal.anchored`.
    DataError
        If no photo can be used.
    InvalidParameter
        If the bundle verifies matches.
    """
    from .gallery_anchor import GalleryAnchor

    check_regions(bundle)
    single = stored_point(gallery.kept(POINT), bundle)
    if single is None:
        raise _no_point()
    before = stored_regions(gallery.kept(POINT), bundle).get(policy.name)
    refused: list[tuple[str, str]] = []
    if photos is None:
        kept = RegionPhotos.read(gallery, policy.name)
        if kept is None or before is None or before.policy != policy.to_dict():
            raise InvalidParameter(
                "queries", "be given: the gallery keeps no photos for these regions", None, remedy="Pass --queries"
            )
    else:
        kept, refused = embed_region_photos(bundle, photos, policy, set(gallery.values(CONTENT).values()))
        _check_items(gallery, kept)
    anchor = GalleryAnchor(bundle)
    draws = region_draws(anchor, gallery, policy.name, kept, again=photos is not None)
    anchored = anchor.anchored(
        gallery,
        of_photos(draws, found=kept.indexed),
        target_fpir=single.target_fpir if target_fpir is None else target_fpir,
        certify=certify,
    )
    if anchored.point is not None:
        evidence = {**anchored.point.evidence, "regions": policy.to_dict(), "photos": len(kept.probes.ids)}
        anchored = replace(anchored, point=replace(anchored.point, evidence=evidence))
    return RegionProposal(anchor, policy, kept, draws, before, anchored, refused)


def _check_items(gallery: GalleryProtocol, photos: RegionPhotos) -> None:
    """Raise DataError if most items of the photos are not in the gallery."""
    items = sorted({item for items in photos.probes.items for item in items})
    missing = [item for item in items if not gallery.item(item)]
    if 2 * len(missing) > len(items):
        raise DataError(
            f"{len(missing)} of {len(items)} items of the photos are not in the gallery, such as {missing[0]!r}",
            remedy="Use the item ids of the gallery, or an empty one where a photo shows no item of it",
        )


def _no_point() -> CalibrationError:
    return CalibrationError(
        "the gallery has no threshold of its own for whole photos yet",
        remedy="Set it first, with `retrieval calibrate` without --regions",
    )
