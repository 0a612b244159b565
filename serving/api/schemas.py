"""Request and response models of the endpoint."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from retrieval.search.boxes import MOST_BBOXES
from retrieval.search.looks import MOST_QUERY_PHOTOS
from retrieval.search.result import SearchResult, ThresholdStatus

from .fields import BBOX, SIDES, Base64, Fields, TopK, Verdict, Where

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


class PhotosRequest(Strict):
    """A search request with several photos of the same item."""

    images: Annotated[list[Base64], Field(min_length=2, max_length=MOST_QUERY_PHOTOS)]
    top_k: TopK = 10
    where: Where = None
    fields: Fields = None


class BoxesRequest(Strict):
    """A search request with several parts of a photo."""

    image: Base64
    find: Annotated[
        Literal["windows", "detector"], Field(description="Windows of the photo, or the server's detector.")
    ] = "windows"
    bbox: Annotated[
        list[SIDES],
        Field(
            default_factory=list,
            max_length=MOST_BBOXES,
            description=f"Boxes to search one by one, instead of those that are found: {BBOX}",
        ),
    ]
    top_k: TopK = 10
    where: Where = None
    fields: Fields = None


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


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str


class BatchAnswer(BaseModel):
    """Answers in the order of the images; a refused photo has a problem document in its place."""

    answers: list[SearchResult | Problem]
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
