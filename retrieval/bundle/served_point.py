"""Operating points that a gallery keeps, one per bundle, and the choice of the one that serves.

A gallery keeps the points of two bundles of its model, so that a rollback to the previous bundle finds its point.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from index.errors import GalleryCorrupt
from retrieval.errors import command

from .bundle import Bundle
from .operating_point import EXTRAPOLATED, UNANCHORED, OperatingPoint

MOST_POINTS = 2  # bundles whose points a gallery keeps: the current and the previous one
DRAWS_ID, POINT = "draws_id", "operating_point"  # keys of a kept point
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


def pack_points(content: bytes | None, bundle: Bundle, point: OperatingPoint | None) -> bytes | None:
    """Return the points that a gallery keeps with that of this bundle replaced, or removed if the point is None."""
    points = _points(content)
    points.pop(bundle.bundle_id, None)
    if point is not None:
        points[bundle.bundle_id] = {DRAWS_ID: bundle.draws_id, POINT: point.to_dict()}
    newest = dict(list(points.items())[-MOST_POINTS:])
    return json.dumps({"points": newest}).encode() if newest else None


def stored_point(content: bytes | None, bundle: Bundle) -> OperatingPoint | None:
    """Return the operating point that a gallery keeps for this bundle, or None."""
    return next((kept.point for kept in read_points(content) if kept.bundle_id == bundle.bundle_id), None)


def read_points(content: bytes | None) -> list[KeptPoint]:
    """Return the operating points that a gallery keeps, the newest last."""
    try:
        return [
            KeptPoint(bundle_id, values[DRAWS_ID], OperatingPoint.from_dict(values[POINT]))
            for bundle_id, values in _points(content).items()
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(error) from error


def served_point(content: bytes | None, bundle: Bundle) -> OperatingPoint:
    """Return the operating point that serves, given the points that the gallery keeps."""
    return stored_point(content, bundle) or bundle.operating_point


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
        return dict(json.loads(content)["points"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> GalleryCorrupt:
    return GalleryCorrupt(
        f"the gallery's operating points cannot be read: {error!r}",
        remedy=f"Index its photos again: `{command('index', 'BUNDLE', 'PHOTOS', '-o', 'NEW')}`",
    )
