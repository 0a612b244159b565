"""Search results: matches within the threshold, or the reason for a no-match; without a threshold, a ranking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .bundle.operating_point import UNANCHORED
from .images import Appearance

MATCH, NO_MATCH = "match", "no_match"
RANKED = "ranked"  # neither, because there is no threshold
UNCALIBRATED = "uncalibrated"
BEYOND_THRESHOLD = "beyond_threshold"
LOW_CERTAINTY, OUT_OF_DOMAIN = "low_certainty", "out_of_domain"
FILTERED_OUT, GALLERY_EMPTY = "filtered_out", "gallery_empty"
REVIEW_P = 0.25  # default limit of the p-value of candidates for review


def p_value_words(p_value: float) -> str:
    """Return a p-value as a clause in words."""
    share = "less than 0.1%" if p_value < 0.0005 else f"{p_value:.1%}" if p_value < 0.0995 else f"{p_value:.0%}"
    return f"an unknown item comes this close in {share} of searches"


@dataclass(frozen=True)
class Match:
    """A matching item, represented by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)
    p_value: float | None = None  # rate at which an unknown item comes as close; None if it is not known

    def to_dict(self) -> dict[str, Any]:
        """Return the match as plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class SearchResult:
    """The result of searching with one photo, or with several photos of the same item."""

    matches: tuple[Match, ...]  # best first; empty unless the decision is "match"
    decision: str  # "match", "no_match" or "ranked"
    reason: str  # of a no-match: one of the five constants above; "uncalibrated" for "ranked", "" for a match
    threshold: float | None  # None if neither the gallery nor the bundle has one
    nearest_distance: float | None  # None if no photo was compared (empty gallery or filter)
    certainty: float
    nearest: Match | None  # the closest item, match or not
    bundle_id: str
    gallery_version: int
    ranked: tuple[Match, ...] = ()  # the nearest items, best first, if the decision is "ranked"
    threshold_status: str = UNANCHORED  # certified, estimated, unanchored, extrapolated or uncalibrated
    review: tuple[Match, ...] = ()  # items beyond the threshold for a person to look at; never part of the decision
    p_value_without_filter: bool = False  # whether the search had a filter and its p-values were measured without one
    photos: int = 1  # different photos of the query
    threshold_photos: int = 1  # photos per query that the threshold was set for
    timings_ms: dict[str, float] = field(default_factory=dict, compare=False)  # decode, embed, search, describe, verify
    appearance: Appearance | None = field(default=None, compare=False)
    explanation: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def margin(self) -> float | None:
        """The threshold minus the nearest distance; negative if the nearest item is too far away."""
        if self.threshold is None or self.nearest_distance is None:
            return None
        return self.threshold - self.nearest_distance

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values, without the appearance."""
        values = {name: value for name, value in vars(self).items() if name != "appearance"} | {"margin": self.margin}
        for name in ("matches", "ranked", "review"):
            values[name] = [match.to_dict() for match in getattr(self, name)]
        values["nearest"] = None if self.nearest is None else self.nearest.to_dict()
        return values
