"""Request and response models of the endpoint."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from retrieval.arguments import MOST_QUERY_PHOTOS

from .examples import ANSWER
from .fields import BBOX, SIDES, Base64, Fields, ThresholdStatus, TopK, Verdict, Where

MOST_IMAGES = 64  # per batch
Id = Annotated[str, Field(min_length=1, max_length=500)]


class Strict(BaseModel):
    """Base of request models; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class SearchRequest(Strict):
    """A search request."""

    image: Base64
    bbox: Annotated[SIDES | None, Field(description=f"A part of the photo: {BBOX}")] = None
    top_k: TopK = 10
    where: Where = None
    fields: Fields = None
    explain: bool = False


class BatchRequest(Strict):
    """A search request with several photos."""

    images: Annotated[list[Base64], Field(min_length=1, max_length=MOST_IMAGES)]
    top_k: TopK = 10
    where: Where = None
    fields: Fields = None
    explain: bool = False


class PhotosRequest(BatchRequest):
    """A search request with several photos of the same item."""

    images: Annotated[list[Base64], Field(min_length=2, max_length=MOST_QUERY_PHOTOS)]


class PhotoRequest(Strict):
    """A photo to add to the gallery."""

    image: Base64
    item_id: Id
    metadata: dict[str, Any] = {}


class FeedbackRequest(Strict):
    """A verdict on an answer."""

    request_id: Annotated[
        str, Field(max_length=100, description="Request id of one of the last 4,096 answers to the same key.")
    ]
    verdict: Annotated[
        Verdict,
        Field(description="right, wrong (another item is right) or unknown (the item is not in the catalogue)."),
    ]
    item_id: Annotated[
        str, Field(max_length=500, description="The item that is right, if the verdict is wrong and it is known.")
    ] = ""
    bbox: Annotated[
        SIDES | None,
        Field(description="Box of the judged item, as in the answer by regions. Null: the verdict is on the photo."),
    ] = None


class MatchOut(BaseModel):
    """A matched item with its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any]
    p_value: float | None = Field(
        default=None,
        description="Rate at which an unknown item comes at least this close; null if it was not measured.",
    )


class VerifiedOut(BaseModel):
    """A gallery photo and the places where it matches the query.

    A place is [x, y], as shares of the width and height of the photo.
    """

    item_id: str
    photo_id: str
    inliers: int = Field(description="Number of places; 0 if there are too few to count.")
    query_photo: int = Field(
        default=1, description="Number of the photo that was sent, from 1; of several, the one that agrees most."
    )
    query: list[tuple[float, float]] = Field(description="Places in this photo.")
    photo: list[tuple[float, float]] = Field(description="The same places in the gallery photo.")


class Explanation(BaseModel):
    """Details behind an answer."""

    distance_form: str = Field(description="plain, or the form of the density correction.")
    density: float = Field(description="Local density around the query; 0 for the plain distance.")
    plain_nearest: MatchOut | None = Field(description="The nearest item by the plain distance.")
    min_certainty: float = Field(description="Certainty below which nothing is returned.")
    photos: int
    items: int
    index: str = Field(description="Kind of the candidate index.")
    verified: list[VerifiedOut] | None = Field(
        default=None,
        description="Verification of the nearest items, up to five; null if the bundle does not verify matches.",
    )


class Answer(BaseModel):
    """The answer to one photo, or to several photos of the same item."""

    model_config = ConfigDict(json_schema_extra={"examples": [ANSWER]})

    decision: Literal["match", "no_match", "ranked"] = Field(
        description="ranked: there is no threshold yet, so the nearest items are listed without a decision."
    )
    reason: Literal[
        "", "beyond_threshold", "low_certainty", "out_of_domain", "filtered_out", "gallery_empty", "uncalibrated"
    ] = Field(description="Why there is no match; empty for a match.")
    matches: list[MatchOut] = Field(description="Items within the threshold, best first, each by its nearest photo.")
    ranked: list[MatchOut] = Field(
        default=[], description="The nearest items, best first, if the decision is ranked; else empty."
    )
    nearest: MatchOut | None = Field(description="The closest item, match or not.")
    threshold: float | None = Field(
        description="The gallery's, or the bundle's; a distance up to it is a match. Null if neither has one."
    )
    nearest_distance: float | None
    margin: float | None = Field(
        description="Threshold minus nearest distance: negative for a no-match by distance, null without a threshold."
    )
    certainty: float = Field(description="How sure the model is of the photo, against `explanation.min_certainty`.")
    request_id: str
    timings_ms: dict[str, float] = Field(
        description="queue, decode, embed, search; describe and verify if the bundle verifies matches."
    )
    bundle_id: str
    gallery_version: int
    threshold_status: ThresholdStatus
    review: list[MatchOut] = Field(
        description="Items beyond the threshold for a person to look at, nearest first. They are not part of the "
        "decision. There are none if the threshold was not set in this gallery."
    )
    p_value_without_filter: bool = Field(
        description="Whether the search had a filter although its p-values were measured without one."
    )
    photos: int = Field(default=1, description="Number of different photos of the query.")
    threshold_photos: int = Field(default=1, description="Number of photos per query that the threshold was set for.")
    explanation: Explanation | None = None


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str


class BatchAnswer(BaseModel):
    """Answers in the order of the images; a refused photo has a problem document in its place."""

    answers: list[Answer | Problem]
    request_id: str


class PhotoOut(BaseModel):
    """A photo of the gallery."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any]


class ItemOut(BaseModel):
    """An item and its photos."""

    item_id: str
    photos: list[PhotoOut]


class ItemsOut(BaseModel):
    """Items in alphabetical order; `next` continues with ?after=."""

    items: list[str]
    next: str | None


class Removed(BaseModel):
    """Number of photos removed."""

    photos: int
    gallery_version: int


class Stored(BaseModel):
    """A photo that was added or replaced."""

    photo_id: str
    item_id: str
    replaced: bool
    gallery_version: int


class GalleryOut(BaseModel):
    """Current state of the gallery."""

    version: int
    photos: int
    items: int
    index: dict[str, Any]
    columns: dict[str, str]


class Info(BaseModel):
    """The bundle, the gallery, the threshold with its error rate, and the drift of live photos."""

    bundle_id: str
    embedding_id: str
    threshold: float | None = Field(description="Null if neither the gallery nor the bundle has one.")
    status: Literal["certified", "estimated", "uncalibrated"] = Field(
        description="Of the promise; uncalibrated without a threshold."
    )
    target_fpir: float
    distance: str
    min_certainty: float
    evidence: dict[str, Any]
    threshold_status: ThresholdStatus
    in_gallery: dict[str, Any] | None = Field(
        description="What the threshold does in the gallery as it is now: FPIR, its upper 95 % bound, items measured, "
        "and a warning if it misses the target."
    )
    regions: list[dict[str, Any]] = Field(
        description="For auto and detector: the threshold of searches by regions with its FPIR per photo, or "
        "unanchored with the command that sets one. Empty if the bundle verifies matches."
    )
    gallery: GalleryOut
    drift: dict[str, Any]
    warnings: list[str] = Field(description="What an operator should know, with the command that helps.")


class Change(BaseModel):
    """A query whose answer changes."""

    query: int
    before: list[str] = Field(description="item_ids matched, best first; empty: no match.")
    after: list[str]


class Reloaded(BaseModel):
    """The outcome of a reload or of its dry run."""

    swapped: bool
    bundle_id: dict[str, str] = Field(description="before, after.")
    gallery_version: dict[str, int]
    threshold: dict[str, float | None]
    threshold_status: dict[str, ThresholdStatus]
    asked: int = Field(description="Queries that were replayed.")
    changed: list[Change]


class Verdicted(BaseModel):
    """Confirmation that feedback was recorded."""

    recorded: bool


class Ready(BaseModel):
    """Searches are served."""

    status: Literal["ready"]


class Alive(BaseModel):
    """The process is alive."""

    status: Literal["alive"]
