"""Messages of the HTTP API that the server and the client share. Answers to searches are `retrieval.search.result`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from .search.result import Decision, SearchResult, ThresholdStatus

Pair = Annotated[dict[str, Any], Field(description="The values before and after.")]


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""


class BatchAnswer(BaseModel):
    """Answers in the order of the images; a refused photo has a problem document in its place."""

    answers: list[SearchResult | Problem]
    request_id: str


ETag = Annotated[
    str, Field(description="Differs after any change of the photo. Send it back to change only what you saw.")
]


class Photo(BaseModel):
    """A photo of the gallery."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any]
    etag: ETag = ""


class Item(BaseModel):
    """An item and its photos."""

    item_id: str
    photos: list[Photo]


class ItemPage(BaseModel):
    """A page of item_ids in alphabetical order; `next` is the `after` of the next page, null on the last."""

    items: list[str]
    next: str | None


class Removed(BaseModel):
    """The number of photos removed, or restored."""

    photos: int
    gallery_version: int
    removal: Annotated[str, Field(description="Name by which removed photos can be restored within a day.")] = ""


class RemovedPhotos(BaseModel):
    """Photos that were removed together in the last day."""

    removal: str
    time: datetime
    until: Annotated[datetime, Field(description="The photos can be restored until then.")]
    item_ids: list[str]
    photo_ids: list[str]


class Stored(BaseModel):
    """An added or replaced photo."""

    photo_id: str
    item_id: str
    replaced: bool
    gallery_version: int
    etag: ETag = ""


class Synced(BaseModel):
    """Differences between the gallery and a table; the lists have the first 100 photo_ids."""

    updated: Annotated[int, Field(description="Photos that got another item or other metadata.")]
    unchanged: int
    missing: Annotated[int, Field(description="Photos of the table that the gallery lacks: add them with a PUT.")]
    missing_photos: list[str]
    gone: Annotated[int, Field(description="Photos of the gallery that the table does not have.")]
    gone_photos: list[str]
    gallery_version: int
    etags: Annotated[dict[str, str], Field(description="The new `etag` of each photo whose row had one.")] = {}


class LookAlikes(BaseModel):
    """Two items whose photos are hard to tell apart, by a photo of each."""

    item_id: str
    other_item_id: str
    photo_id: str
    other_photo_id: str
    why: Literal["same file", "same picture", "close"]
    cost: Annotated[
        float | None,
        Field(description="Share of catalogue photos that would find their item in addition if the two were one item."),
    ] = None


class Asked(BaseModel):
    """An answer to review, whose photo is kept."""

    request_id: str
    decision: Decision
    item_id: Annotated[str, Field(description="The nearest item, match or not.")]
    photo: Annotated[str, Field(description="Identifies the photo. Send it with a verdict, to judge this photo only.")]
    verdict: Annotated[Literal["right", "wrong", "unknown", ""], Field(description="Empty if nobody judged it.")]
    right_item_id: Annotated[str, Field(description="The item that is right, if the verdict names another one.")]


class Closest(BaseModel):
    """An item that is among the closest to a photo, and its closest photo."""

    item_id: str
    photo_id: str


class Calibrated(BaseModel):
    """A threshold that was measured anew: the operating points, and what to expect in sentences."""

    before: dict[str, Any]
    after: dict[str, Any]
    rates: Annotated[dict[str, dict[str, float | None]], Field(description="Each with `before`, `after`, `upper`.")]
    told: list[str]
    gallery_version: int


class Recorded(BaseModel):
    """Confirmation that feedback was recorded."""

    recorded: bool


class GalleryInfo(BaseModel):
    """The current state of the gallery."""

    version: int
    photos: int
    items: int
    index: dict[str, Any]
    columns: dict[str, str]


class SidesInfo(BaseModel):
    """What searches with photos of known and of unknown things answer, as shares from 0 to 1, null if not measured."""

    text: Annotated[str, Field(description="The same in a sentence.")]
    known_sure: Annotated[float | None, Field(description="The right item is a match.")]
    known_asked: Annotated[float | None, Field(description="Answered with a question (perhaps).")]
    known_closest: Annotated[float | None, Field(description="The right item comes first, match or not.")]
    unknown_called: Annotated[float | None, Field(description="Some item is a match.")]
    unknown_asked: Annotated[float | None, Field(description="Answered with a question (perhaps).")]


class TargetInfo(BaseModel):
    """The threshold for a target FPIR: the one that serves, or one that `retrieval calibrate` would set."""

    target_fpir: float
    threshold: Annotated[float | None, Field(description="Null if the draws support no threshold for this target.")]
    perhaps_within: Annotated[float | None, Field(description="Distance up to which a question is worth it, or null.")]
    text: Annotated[str, Field(description="What searches answer at this threshold, or why there is none.")]


class Info(BaseModel):
    """The bundle, the gallery, the threshold with its error rate, and the drift of live photos."""

    bundle_id: str
    embedding_id: str
    threshold: Annotated[float | None, Field(description="Null if neither the gallery nor the bundle has one.")]
    status: Literal["certified", "estimated", "uncalibrated"]
    target_fpir: float
    item_distance: Annotated[dict[str, float], Field(description="Constants of the item distance.")]
    evidence: dict[str, Any]
    threshold_status: ThresholdStatus
    in_gallery: Annotated[
        dict[str, Any] | None,
        Field(
            description="What the threshold does in the gallery as it is now: FPIR, its upper 95 % bound, items "
            "measured, and a warning if it misses the target."
        ),
    ]
    sides: Annotated[SidesInfo | None, Field(description="Null if the threshold was not measured in this gallery.")]
    targets: Annotated[
        list[TargetInfo],
        Field(
            description="The target that serves, and 1, 5 and 10 % where the threshold was measured in this gallery."
        ),
    ]
    gallery: GalleryInfo
    drift: dict[str, Any]
    warnings: Annotated[list[str], Field(description="What an operator should know, with the command that helps.")]


class Reloaded(BaseModel):
    """The outcome of a reload."""

    bundle_id: Pair
    gallery_version: Pair
    threshold: Pair
    threshold_status: Pair


class Status(BaseModel):
    """State of the server."""

    status: Literal["alive", "ready"]
