"""The result of a search for the items in a photo, each with its region."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from retrieval.bundle.operating_point import UNANCHORED
from retrieval.result import Match

NO_REGION = "no_region"  # reason of a no-match: the detector found nothing
Per = Literal["photo", "bbox"]


@dataclass(frozen=True, kw_only=True)
class RegionMatch(Match):
    """An item in a photo, with the region that shows it."""

    bbox: tuple[float, float, float, float]  # left, upper, right, lower in pixels of the upright photo
    score: float | None = None  # of the detector


@dataclass(frozen=True)
class RegionsResult:
    """The items in a photo.

    With regions "auto" and "detector", the FPIR is the share of photos of unknown items that return a match
    (`fpir_per` is "photo"). Given bounding boxes are searched one by one, so the FPIR is a share of boxes ("bbox").
    """

    matches: tuple[RegionMatch, ...]  # best first; empty unless the decision is "match"
    decision: str  # "match", "no_match" or "ranked"
    reason: str  # of a no-match: as in `SearchResult`, or "no_region"
    threshold: float | None  # None if neither the gallery nor the bundle has one
    nearest: RegionMatch | None  # the closest item in any region, match or not
    bundle_id: str
    gallery_version: int
    regions: str  # "auto", "detector" or "given"
    searched: int  # number of regions that were searched
    width: int  # of the upright photo, in pixels
    height: int
    ranked: tuple[RegionMatch, ...] = ()  # the nearest items, best first, if the decision is "ranked"
    threshold_status: str = UNANCHORED  # certified, estimated, unanchored (not set for these regions) or uncalibrated
    fpir_per: Per = "photo"
    review: tuple[RegionMatch, ...] = ()  # items beyond the threshold for a person to look at
    p_value_without_filter: bool = False  # as in `SearchResult`
    timings_ms: dict[str, float] = field(default_factory=dict, compare=False)  # decode, regions, embed, search
    nearest_of_boxes: tuple[RegionMatch, ...] = ()  # the nearest item of each given box, match or not; not in the JSON

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        values = {name: value for name, value in vars(self).items() if name != "nearest_of_boxes"}
        for name in ("matches", "ranked", "review"):
            values[name] = [match.to_dict() for match in getattr(self, name)]
        values["nearest"] = None if self.nearest is None else self.nearest.to_dict()
        return values
