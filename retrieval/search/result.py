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
PERHAPS: Literal["perhaps"] = "perhaps"  # no match, but an item to confirm
NO_MATCH: Literal["no_match"] = "no_match"
PHOTO: Literal["photo"] = "photo"
BLOCK: Literal["block"] = "block"  # the thing on a plain ground, or the picture in a screenshot
REGION: Literal["region"] = "region"  # where the model responds most
RANKED: Literal["ranked"] = "ranked"  # neither, because there is no threshold
UNCALIBRATED: Literal["uncalibrated"] = "uncalibrated"
BEYOND_THRESHOLD: Literal["beyond_threshold"] = "beyond_threshold"
TWINS: Literal["twins"] = "twins"
SHARED_PHOTO: Literal["shared_photo"] = "shared_photo"
DAMAGED_PHOTO: Literal["damaged_photo"] = "damaged_photo"
FILTERED_OUT: Literal["filtered_out"] = "filtered_out"
GALLERY_EMPTY: Literal["gallery_empty"] = "gallery_empty"

BBox = tuple[float, float, float, float]  # left, upper, right, lower in pixels of the upright photo
Decision = Literal["match", "perhaps", "no_match", "ranked"]
Reason = Literal[
    "", "beyond_threshold", "twins", "shared_photo", "damaged_photo", "filtered_out", "gallery_empty", "uncalibrated"
]
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
    distance: Annotated[float, Field(description="The item distance; a match is at most the threshold away.")]
    metadata: dict[str, Any] = field(default_factory=dict)
    p_value: Annotated[
        float | None,
        Field(description="Rate at which an unknown item comes at least this close; null if it was not measured."),
    ] = None


@dataclass(frozen=True)
class Evidence:
    """What the distance of an item is made of (`index.search.item_distance`)."""

    item_id: str
    photo_id: str
    photo_distance: Annotated[float, Field(description="Plain distance to the nearest photo of the item, 0 to 2.")]
    mean_distance: Annotated[
        float | None, Field(description="Plain distance to the mean of the item's photos, 0 to 2; null if not used.")
    ]
    inliers: Annotated[int, Field(description="Details that agree with a photo of the item, if they are compared.")]


Place = tuple[float, float, float, float]


@dataclass(frozen=True)
class Explanation:
    """Details behind an answer."""

    items: Annotated[tuple[Evidence, ...], Field(description="The nearest items, up to five, best first.")]
    places: Annotated[
        tuple[Place, ...],
        Field(
            description="Where details agree with the first item's photo, if they are compared: x and y in the photo, "
            "x and y in the other one, in shares of width and height."
        ),
    ] = ()


@dataclass(frozen=True)
class SearchResult:
    """The answer to a photo, to a part of it, to several photos of the same item, or to words."""

    matches: Annotated[tuple[Match, ...], Field(description="Items within the threshold, best first.")]
    decision: Annotated[
        Decision,
        Field(
            description="perhaps: no match, but the first item for review is worth a question (for twins, the first "
            "two; for a shared photo, those that have it); ranked: there is no threshold, so the nearest items are "
            "listed without a decision."
        ),
    ]
    reason: Annotated[
        Reason,
        Field(
            description="Why there is no match; empty for a match. twins: two items look like one under two ids; "
            "shared_photo: several items have the nearest photo; damaged_photo: blocks of the sent JPEG are lost or "
            "noisy, so it is no match of anything."
        ),
    ]
    threshold: Annotated[
        float | None, Field(description="The gallery's, or else the bundle's; null if there is none for this query.")
    ]
    nearest_distance: Annotated[float | None, Field(description="Null if no photo was compared.")]
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
            description="Items beyond the threshold for a person to look at, nearest first; for twins, both of them. "
            "They are not part of the decision. There are none if the threshold was not set in this gallery."
        ),
    ] = ()
    p_value_without_filter: Annotated[
        bool,
        Field(description="Whether the search had a filter although its p-values were measured without one."),
    ] = False
    box: Annotated[
        BBox | None, Field(description="The part that was searched: left, upper, right, lower in pixels; null: all.")
    ] = None
    look: Annotated[
        Literal["photo", "block", "region"] | None,
        Field(
            description="The look that decided: at the photo or a given part of it (photo), or a second look at its "
            "`box`, which is the thing on a plain ground or the picture in a screenshot (block), or where the model "
            "responds most (region). Null for words and for several photos."
        ),
    ] = None
    norm: Annotated[
        float | None,
        Field(description="The norm of the embedding, if the model was trained with vmf_nca; null for other models."),
    ] = None
    timings_ms: Annotated[
        dict[str, float],
        Field(description="queue, decode, embed, search, and again, of second looks."),
    ] = field(default_factory=dict, compare=False)
    explanation: Explanation | None = field(default=None, compare=False)
    request_id: Annotated[str, Field(description="Id of an answer over HTTP, for feedback.")] = field(
        default="", compare=False
    )
    embedding_norm: Annotated[SkipJsonSchema[SkipValidation[float | None]], Field(exclude=True)] = field(
        default=None, compare=False
    )  # of any model, for the drift monitor
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
        """Return the matches, or the nearest items if there is no threshold."""
        return self.matches or self.ranked

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain JSON values, without what only the drift monitor reads."""
        return dict(RESULT.dump_python(self, mode="json"))


RESULT = TypeAdapter(SearchResult)  # reads and writes JSON
