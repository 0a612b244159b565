"""The parts of an answer that verdicts are about: the photo, or the regions of it that were searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from retrieval.errors import InvalidParameter
from retrieval.search.result import BBox, Match, SearchResult


@dataclass(frozen=True)
class Judged:
    """The answer about a photo, or about a region of it, without metadata."""

    decision: str
    nearest: Match | None
    bundle_id: str
    gallery_version: int
    photos: int = 1
    bbox: BBox | None = None  # of the region; None: the whole photo
    regions: str = ""  # policy that found the regions; "" for photos and for boxes of the caller
    items: int = 0  # that an answer by regions returned for its photo


Parts = Mapping[BBox | None, Judged]


def parts_of(result: SearchResult, bbox: BBox | None = None) -> Parts:
    """Return what verdicts on an answer may be about, by bounding box; None stands for the whole answer.

    `bbox` is the part of the photo that a search with one photo was limited to.
    """
    nearest = _plain(result.nearest)
    whole = Judged(result.decision, nearest, result.bundle_id, result.gallery_version, 1, bbox)
    return {None: whole} if bbox is None else {None: whole, bbox: whole}


def part(parts: Parts, bbox: BBox | None) -> Judged:
    """Return the part of an answer with a bounding box; raise InvalidParameter if there is none."""
    if bbox in parts:
        return parts[bbox]
    if bbox is None:
        raise InvalidParameter("bbox", "name one of the boxes that were searched", bbox)
    if set(parts) == {None}:
        raise InvalidParameter("bbox", "be left out, because the answer is about the whole photo", bbox)
    raise InvalidParameter(
        "bbox",
        "be that of an item in the answer, or a box that was searched",
        bbox,
        remedy="To judge another part of the photo, search with its bbox first",
    )


def _plain(match: Match | None) -> Match | None:
    return None if match is None else Match(match.item_id, match.photo_id, match.distance, {}, match.p_value)
