"""What a search answers: matches within the threshold, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MATCH, NO_MATCH = "match", "no_match"
LOW_CERTAINTY, OUT_OF_DOMAIN, GALLERY_EMPTY = "low_certainty", "out_of_domain", "gallery_empty"


@dataclass(frozen=True)
class Match:
    """An item, by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class SearchResult:
    """The answer to one photo."""

    matches: tuple[Match, ...]  # best first; empty: the item is not in the catalogue
    decision: str  # "match" or "no_match"
    reason: str  # of a no-match: "no_match", "low_certainty", "out_of_domain" or "gallery_empty"; "" for a match
    threshold: float
    nearest_distance: float | None  # None: the gallery holds nothing to compare with
    certainty: float
    nearest: Match | None  # the closest item, match or not
    bundle_id: str
    gallery_version: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = dict(vars(self))
        values["matches"] = [match.to_dict() for match in self.matches]
        values["nearest"] = None if self.nearest is None else self.nearest.to_dict()
        return values
