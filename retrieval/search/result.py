"""The answer to a search: matches within the threshold, or the reason for a no-match; without a threshold, a ranking.

`SearchResult` is the only declaration of an answer: of Python, of `retrieval search --json`, of the HTTP API and of the
client.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, SkipValidation, TypeAdapter, computed_field
from pydantic.dataclasses import dataclass
from pydantic.json_schema import SkipJsonSchema

from retrieval.images import Appearance

MATCH: Literal["match"] = "match"
NO_MATCH: Literal["no_match"] = "no_match"
RANKED: Literal["ranked"] = "ranked"  # neither, because there is no threshold
UNCALIBRATED: Literal["uncalibrated"] = "uncalibrated"
BEYOND_THRESHOLD: Literal["beyond_threshold"] = "beyond_threshold"
OUT_OF_DOMAIN: Literal["out_of_domain"] = "out_of_domain"
FILTERED_OUT: Literal["filtered_out"] = "filtered_out"
GALLERY_EMPTY: Literal["gallery_empty"] = "gallery_empty"
REVIEW_P = 0.25  # default limit of the p-value of candidates for review

BBox = tuple[float, float, float, float]  # left, upper, right, lower in pixels of the upright photo
Decision = Literal["match", "no_match", "ranked"]
Reason = Literal["", "beyond_threshold", "out_of_domain", "filtered_out", "gallery_empty", "uncalibrated"]
ThresholdStatus = Annotated[
    Literal["certified", "estimated", "unanchored", "uncalibrated"],
    Field(
        description="Whether the FPIR is certified or estimated in this gallery; unanchored: the bundle's threshold, "
        "set elsewhere; uncalibrated: there is no threshold for this kind of query."
    ),
]


def p_value_words(p_value: float) -> str:
    """Return a p-value as a clause in words."""
    share = "less than 0.1%" if p_value < 0.0005 else f"{p_value:.1%}" if p_value < 0.0995 else f"{p_value:.0%}"
    return f"an unknown item comes this close in {share} of searches"


@dataclass(frozen=True)
class Match:
    """An item, represented by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)
    p_value: Annotated[
        float | None,
        Field(description="Rate at which an unknown item comes at least this close; null if it was not measured."),
    ] = None


@dataclass(frozen=True)
class VerifiedPhoto:
    """The nearest photo of an item, with the number of details that agree with the query."""

    item_id: str
    photo_id: str
    inliers: int  # 0 if there are too few to count


@dataclass(frozen=True)
class Explanation:
    """Details behind an answer."""

    distance_form: Annotated[str, Field(description="plain, or the form of the density correction.")]
    density: Annotated[float, Field(description="Local density around the query; 0 for the plain distance.")]
    plain_nearest: Annotated[Match | None, Field(description="The nearest item by the plain distance.")]
    verified: Annotated[
        tuple[VerifiedPhoto, ...] | None,
        Field(description="The nearest items, up to five; null if the bundle does not verify matches."),
    ] = None


@dataclass(frozen=True)
class SearchResult:
    """The answer to a photo, to a part of it, or to several photos of the same item."""

    matches: Annotated[tuple[Match, ...], Field(description="Items within the threshold, best first.")]
    decision: Annotated[
        Decision,
        Field(description="ranked: there is no threshold, so the nearest items are listed without a decision."),
    ]
    reason: Annotated[Reason, Field(description="Why there is no match; empty for a match.")]
    threshold: Annotated[
        float | None, Field(description="The gallery's, or the bundle's; null if neither has one for this query.")
    ]
    nearest_distance: Annotated[float | None, Field(description="Null if no photo was compared.")]
    certainty: Annotated[float, Field(description="The norm of the embedding: how sure the model is of the photo.")]
    nearest: Annotated[Match | None, Field(description="The closest item, match or not.")]
    bundle_id: str
    gallery_version: int
    ranked: Annotated[
        tuple[Match, ...], Field(description="The nearest items, best first, if the decision is ranked; else empty.")
    ] = ()
    threshold_status: ThresholdStatus = "unanchored"
    review: Annotated[
        tuple[Match, ...],
        Field(
            description="Items beyond the threshold for a person to look at, nearest first. They are not part of the "
            "decision. There are none if the threshold was not set in this gallery."
        ),
    ] = ()
    p_value_without_filter: Annotated[
        bool,
        Field(description="Whether the search had a filter although its p-values were measured without one."),
    ] = False
    box: Annotated[
        BBox | None, Field(description="The part that was searched: left, upper, right, lower in pixels; null: all.")
    ] = None
    score: Annotated[float | None, Field(description="Score of the detector's box; null for other queries.")] = None
    timings_ms: Annotated[
        dict[str, float],
        Field(description="queue, decode, embed, search; describe and verify if the bundle verifies matches."),
    ] = field(default_factory=dict, compare=False)
    explanation: Explanation | None = field(default=None, compare=False)
    request_id: Annotated[str, Field(description="Of an answer by HTTP, for feedback.")] = field(
        default="", compare=False
    )
    appearance: Annotated[SkipJsonSchema[SkipValidation[Appearance | None]], Field(exclude=True)] = field(
        default=None, compare=False
    )

    @property
    def matched(self) -> bool:
        """Whether the photo matches an item of the catalogue."""
        return self.decision == MATCH

    @computed_field(  # type: ignore[prop-decorator]
        description="Threshold minus nearest distance: negative for a no-match by distance, null without a threshold."
    )
    @property
    def margin(self) -> float | None:
        """The threshold minus the nearest distance; negative if the nearest item is too far away."""
        if self.threshold is None or self.nearest_distance is None:
            return None
        return self.threshold - self.nearest_distance

    def found(self) -> tuple[Match, ...]:
        """Return the matches, or the nearest items where nothing decides."""
        return self.matches or self.ranked

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON values, without the appearance."""
        return dict(RESULT.dump_python(self, mode="json"))


RESULT = TypeAdapter(SearchResult)  # reads and writes JSON
