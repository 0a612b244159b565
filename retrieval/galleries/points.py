"""The operating point that serves: the gallery's, if it was set with this bundle, else the bundle's.

A gallery keeps the points of two bundles of its model, so that a rollback to the previous bundle finds its point.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from index.database import POINT
from index.errors import GalleryCorrupt
from index.groups import group_of
from index.location import AnyGallery
from retrieval.bundle.bundle import Bundle
from retrieval.errors import command
from retrieval.measuring.draws import AllDraws
from retrieval.measuring.fpir import LEAST_ITEMS
from retrieval.measuring.point import CERTIFIED, ESTIMATED, Point
from retrieval.measuring.rates import VersionRates
from retrieval.measuring.sentences import warning_of

from .kept import read_draws

if TYPE_CHECKING:
    from retrieval.measuring.measure import Measurement

STALE = 0.01  # share of photos that may have changed since the draws were made
SEEN = 4  # times the minimum number of items: the number of items whose groups are counted
TARGETS = (0.01, 0.05, 0.1)  # FPIR whose thresholds are told beside the one that serves
MOST_POINTS = 2  # bundles whose points a gallery keeps: the current and the previous one


@dataclass(frozen=True)
class KeptPoint:
    """An operating point that a gallery keeps for a bundle."""

    bundle_id: str
    draws_id: str  # of the draws that measure it (`Bundle.draws_id`)
    point: Point


def read_points(content: bytes | None) -> list[KeptPoint]:
    """Return the operating points that a gallery keeps, the newest last; raise GalleryCorrupt if they are damaged."""
    try:
        return [
            KeptPoint(values["bundle_id"], values["draws_id"], Point.from_dict(values["operating_point"]))
            for values in ([] if content is None else json.loads(content)["points"])
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise GalleryCorrupt(
            f"the gallery's operating points cannot be read: {error!r}",
            remedy=f"Index its photos again: `{command('index', 'BUNDLE', 'PHOTOS', '-o', 'NEW')}`",
        ) from error


def pack_points(content: bytes | None, bundle: Bundle, point: Point | None) -> bytes | None:
    """Return the points that a gallery keeps with that of this bundle replaced, or removed if the point is None."""
    points = [kept for kept in read_points(content) if kept.bundle_id != bundle.bundle_id]
    if point is not None:
        points.append(KeptPoint(bundle.bundle_id, bundle.draws_id, point))
    packed: list[dict[str, Any]] = [
        {"bundle_id": kept.bundle_id, "draws_id": kept.draws_id, "operating_point": kept.point.to_dict()}
        for kept in points[-MOST_POINTS:]
    ]
    return json.dumps({"points": packed}).encode() if packed else None


def stored_point(content: bytes | None, bundle: Bundle) -> Point | None:
    """Return the operating point that a gallery keeps for this bundle, or None."""
    return next((kept.point for kept in read_points(content) if kept.bundle_id == bundle.bundle_id), None)


def has_point(bundle: Bundle, gallery: AnyGallery) -> bool:
    """Return whether a gallery keeps an operating point for a bundle."""
    return stored_point(gallery.kept(POINT), bundle) is not None


def served_point(content: bytes | None, bundle: Bundle, gallery: AnyGallery) -> Point:
    """Return the operating point that serves in a gallery, given the points that it keeps."""
    return as_served(stored_point(content, bundle) or bundle.operating_point, gallery, bundle.draws_id)[0]


def point_before(content: bytes | None, bundle: Bundle, gallery: AnyGallery) -> Point:
    """Return the operating point that served last: this bundle's, or else the previous bundle's."""
    points = read_points(content)
    if points and stored_point(content, bundle) is None:
        return points[-1].point
    return served_point(content, bundle, gallery)


def as_served(point: Point, gallery: AnyGallery, draws_id: str) -> tuple[Point, VersionRates | None]:
    """Return a point as it serves in the newest version, with its rates, None if they are not known.

    The point does not decide if too few items support its threshold, such as in a gallery that has shrunk. If the
    gallery has changed too much for its rates to be known, a certified point serves as an estimated one.
    """
    rates, least = None, point.basis.least_items or 0
    draws = recent_draws(gallery, draws_id) if point.is_anchored else None
    if draws is not None:
        rates = VersionRates.of(draws, point)
        enough = rates is not None
    elif point.is_anchored:
        enough = _groups(gallery, SEEN * LEAST_ITEMS) >= LEAST_ITEMS
        point = replace(point, status=ESTIMATED) if point.status == CERTIFIED else point
    else:
        enough = not least or _groups(gallery, SEEN * least) >= least
    return point if enough else Point.uncalibrated(point.target_fpir, origin=point.origin), rates


def recent_draws(gallery: AnyGallery, draws_id: str) -> AllDraws | None:
    """Return the draws that a gallery keeps, None if more than a share STALE of its photos has changed since.

    `draws_id` identifies what else the draws depend on (`Bundle.draws_id`).
    """
    draws = read_draws(gallery)
    if draws is None or draws.model != draws_id:
        return None
    now = gallery.snapshot()
    if len(draws.mark) != len(now.mark):  # damaged
        return None
    return draws if now.changes_since(draws.mark) <= STALE * draws.photos else None


def _groups(gallery: AnyGallery, most: int) -> int:
    """Return the number of groups among up to `most` items; an item without a group counts by itself.

    Items of one group are no rivals, and without rivals items are nearer than the threshold of a bundle assumes.
    """
    now = gallery.snapshot()
    photos = now.photos_at(now.sample(most))
    return len({group_of(item_id, metadata) or item_id for _, item_id, metadata in photos})


class GalleryPoint:
    """The operating point that serves in a gallery, searched with a bundle, and its rates. Thread-safe."""

    def __init__(self, bundle: Bundle, gallery: AnyGallery) -> None:
        self.bundle = bundle
        self.gallery = gallery
        self.last: tuple[int, Point, VersionRates | None] = -1, bundle.operating_point, None  # version read
        self._at_targets: tuple[int, dict[float, Measurement]] = -1, {}  # version read

    @property
    def point(self) -> Point:
        """The operating point that serves in the newest version."""
        return self.measured()[0]

    def rates(self) -> VersionRates | None:
        """Return the rates measured in the newest version of the gallery, None if it is not anchored."""
        return self.measured()[1]

    def measured(self) -> tuple[Point, VersionRates | None]:
        """Return the operating point that serves in the newest version, and its rates."""
        return self.measured_at(self.gallery.version, self.gallery.kept(POINT))

    def measured_at(self, version: int, stored: bytes | None) -> tuple[Point, VersionRates | None]:
        """Return the operating point that serves in a version with its kept points, and its rates.

        The rates are unknown unless the version is the newest or was read last.
        """
        last = self.last
        if version == last[0]:
            return last[1:]
        point = stored_point(stored, self.bundle) or self.bundle.operating_point
        point, rates = as_served(point, self.gallery, self.bundle.draws_id)
        if version != self.gallery.version:
            return point, None
        self.last = version, point, rates
        return point, rates

    def at_targets(self) -> dict[float, Measurement]:
        """Return what `retrieval calibrate` would set for each of TARGETS, by the draws of the newest version.

        There is nothing without draws, or if the gallery has changed too much since they were made.
        """
        from retrieval.measuring.measure import measure  # which searches do not need

        version = self.gallery.version
        if self._at_targets[0] != version:
            draws = recent_draws(self.gallery, self.bundle.draws_id) if self.point.is_anchored else None
            now, distance = self.gallery.snapshot(), self.bundle.item_distance
            found = {} if draws is None else {t: measure(now, distance, draws=draws, target_fpir=t) for t in TARGETS}
            self._at_targets = version, found
        return self._at_targets[1]

    @property
    def unmeasured(self) -> bool:
        """Return whether the gallery's own threshold serves without a known FPIR in the newest version."""
        point, rates = self.measured()
        return point.decides and point.is_anchored and rates is None

    @property
    def outgrown(self) -> bool:
        """Return whether the bundle's threshold serves in a gallery with more items than it was set for."""
        return not self.point.is_anchored and self.warning() != ""

    def warning(self, *, bundle: Path | str = "BUNDLE", gallery: Path | str = "GALLERY") -> str:
        """Return a warning with the command to run, on this bundle and gallery, if the promise is not kept."""
        return warning_of(*self.measured(), items=self.gallery.items, bundle=bundle, gallery=gallery)
