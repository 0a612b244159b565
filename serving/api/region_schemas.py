"""Request and response models of searches by regions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from retrieval.regions.boxes import MOST_BBOXES

from .fields import BBOX, SIDES, Base64, Fields, ThresholdStatus, TopK, Where
from .schemas import MatchOut, Strict


class RegionsRequest(Strict):
    """A search request for the items in the regions of a photo."""

    image: Base64
    regions: Annotated[
        Literal["auto", "detector"], Field(description="Windows, or the boxes of the server's detector.")
    ] = "auto"
    bbox: Annotated[
        list[SIDES],
        Field(
            default_factory=list,
            max_length=MOST_BBOXES,
            description=f"Boxes to search one by one, instead of regions: {BBOX}",
        ),
    ]
    top_k: TopK = 10
    where: Where = None
    fields: Fields = None


class RegionMatchOut(MatchOut):
    """An item with its nearest photo, and the region that shows it."""

    bbox: tuple[float, float, float, float] = Field(description=f"{BBOX[:1].upper()}{BBOX[1:]}")
    score: float | None = Field(default=None, description="Score of the detector's box; null for other regions.")


class RegionsAnswer(BaseModel):
    """The items in the regions of a photo."""

    decision: Literal["match", "no_match", "ranked"] = Field(description="As in an answer to one photo.")
    reason: Literal[
        "", "beyond_threshold", "low_certainty", "filtered_out", "gallery_empty", "no_region", "uncalibrated"
    ] = Field(description="Why there is no match; no_region: the detector found nothing.")
    matches: list[RegionMatchOut] = Field(
        description="Items within the threshold, best first: each item once, and of regions that overlap by more than "
        "40 % of the smaller one, the nearest. With given boxes, the nearest item of each box."
    )
    ranked: list[RegionMatchOut] = Field(description="The nearest items, if the decision is ranked.")
    nearest: RegionMatchOut | None = Field(description="The closest item in any region, match or not.")
    threshold: float | None
    threshold_status: ThresholdStatus
    fpir_per: Literal["photo", "bbox"] = Field(
        description="Unit of the FPIR: the share of photos of unknown items that return a match, or of given boxes."
    )
    regions: Literal["auto", "detector", "given"]
    searched: int = Field(description="Number of regions that were searched.")
    width: int = Field(description="Width of the upright photo, in pixels.")
    height: int = Field(description="Height of the upright photo, in pixels.")
    review: list[RegionMatchOut] = Field(description="As in an answer to one photo.")
    p_value_without_filter: bool
    request_id: str
    timings_ms: dict[str, float] = Field(description="queue, decode, regions, embed, search.")
    bundle_id: str
    gallery_version: int
