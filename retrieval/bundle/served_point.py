"""Operating points that a gallery keeps, one per bundle, and the choice of the one that serves.

A gallery keeps the points of several bundles of its model, so that a rollback to an earlier bundle finds its point. A
query of several photos has an operating point of its own, and so has a search for the items in the regions of a photo.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from index.errors import GalleryCorrupt
from index.shell import command

from .bundle import Bundle
from .operating_point import EXTRAPOLATED, UNANCHORED, OperatingPoint

MOST_POINTS = 8  # bundles whose points a gallery keeps
DRAWS_ID, POINT, SEVERAL, REGIONS = "draws_id", "operating_point", "several_photos", "regions"  # keys of a kept point
POLICY = "policy"  # key of the policy of a region point


@dataclass(frozen=True)
class RegionPoint:
    """The operating point of searches for the items in the regions of a photo."""

    policy: Mapping[str, Any]  # what decides the regions (`retrieval.regions.policy.RegionPolicy.to_dict`)
    point: OperatingPoint

    @property
    def regions(self) -> str:
        """The name of the policy."""
        return str(self.policy["regions"])

    def to_dict(self) -> dict[str, Any]:
        """Return the point as plain JSON values."""
        return {POLICY: dict(self.policy), POINT: self.point.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RegionPoint:
        """Create a RegionPoint from the output of `to_dict`."""
        return cls(dict(values[POLICY]), OperatingPoint.from_dict(values[POINT]))


@dataclass(frozen=True)
class KeptPoint:
    """An operating point that a gallery keeps for a bundle."""

    bundle_id: str
    draws_id: str  # of the draws that measure it (`Bundle.draws_id`)
    point: OperatingPoint
    several: Mapping[int, OperatingPoint] = field(default_factory=dict)  # by the number of photos of a query, from 2
    regions: Mapping[str, RegionPoint] = field(default_factory=dict)  # by the name of the policy


def pack_points(
    content: bytes | None,
    bundle: Bundle,
    point: OperatingPoint | None,
    several: Mapping[int, OperatingPoint] | None = None,
    *,
    regions: Mapping[str, RegionPoint] | None = None,
) -> bytes | None:
    """Return the points that a gallery keeps with those of this bundle replaced, or removed if the point is None.

    `several` holds the points of queries of several photos, by their number, and `regions` those of regions, by the
    name of their policy; None keeps the ones that the gallery has.
    """
    points = _points(content)
    before = points.pop(bundle.bundle_id, {})
    if point is not None:
        points[bundle.bundle_id] = {DRAWS_ID: bundle.draws_id, POINT: point.to_dict()}
        if several:
            points[bundle.bundle_id][SEVERAL] = {str(count): each.to_dict() for count, each in sorted(several.items())}
        of_regions = (
            before.get(REGIONS) if regions is None else {name: each.to_dict() for name, each in regions.items()}
        )
        if of_regions:
            points[bundle.bundle_id][REGIONS] = of_regions
    newest = dict(list(points.items())[-MOST_POINTS:])
    return json.dumps({"points": newest}).encode() if newest else None


def stored_point(content: bytes | None, bundle: Bundle) -> OperatingPoint | None:
    """Return the operating point that a gallery keeps for this bundle, or None."""
    return next((kept.point for kept in read_points(content) if kept.bundle_id == bundle.bundle_id), None)


def stored_points(content: bytes | None, bundle: Bundle) -> dict[int, OperatingPoint]:
    """Return the operating points that a gallery keeps for this bundle, by the number of photos of a query."""
    kept = next((kept for kept in read_points(content) if kept.bundle_id == bundle.bundle_id), None)
    return {} if kept is None else {1: kept.point, **kept.several}


def stored_regions(content: bytes | None, bundle: Bundle) -> Mapping[str, RegionPoint]:
    """Return the operating points of regions that a gallery keeps for this bundle, by the name of the policy."""
    return next((kept.regions for kept in read_points(content) if kept.bundle_id == bundle.bundle_id), {})


def read_points(content: bytes | None) -> list[KeptPoint]:
    """Return the operating points that a gallery keeps, the newest last."""
    try:
        return [
            KeptPoint(
                bundle_id,
                values[DRAWS_ID],
                OperatingPoint.from_dict(values[POINT]),
                {int(count): OperatingPoint.from_dict(each) for count, each in values.get(SEVERAL, {}).items()},
                {name: RegionPoint.from_dict(each) for name, each in values.get(REGIONS, {}).items()},
            )
            for bundle_id, values in _points(content).items()
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(error) from error


def served_point(content: bytes | None, bundle: Bundle) -> OperatingPoint:
    """Return the operating point that serves, given the points that the gallery keeps."""
    return stored_point(content, bundle) or bundle.operating_point


def served_points(content: bytes | None, bundle: Bundle) -> dict[int, OperatingPoint]:
    """Return the operating points that serve, by the number of photos of a query, given what the gallery keeps."""
    return {1: bundle.operating_point, **stored_points(content, bundle)}


def threshold_status(point: OperatingPoint, bundle: Bundle, *, extrapolated: bool = False) -> str:
    """Return the status of a point that was set in the gallery, UNANCHORED for the threshold of the bundle.

    It is EXTRAPOLATED if the point is one of queries of fewer photos.
    """
    if extrapolated and point.decides:
        return EXTRAPOLATED
    return UNANCHORED if point.decides and point is bundle.operating_point else point.status


def _points(content: bytes | None) -> dict[str, Any]:
    """Return the points by bundle id, oldest first."""
    if content is None:
        return {}
    try:
        values = json.loads(content)
        if "points" in values:
            return dict(values["points"])
        bundle_id = values["bundle_id"]  # galleries of earlier versions keep one point
        return {bundle_id: {DRAWS_ID: bundle_id, POINT: values[POINT]}}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> GalleryCorrupt:
    return GalleryCorrupt(
        f"the gallery's operating points cannot be read: {error!r}",
        remedy=f"Index its photos again: `{command('index', 'BUNDLE', 'PHOTOS', '-o', 'NEW')}`",
    )
