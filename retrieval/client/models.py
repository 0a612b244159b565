"""Response models and errors of the client. Unknown fields of newer servers are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from retrieval.errors import RetrievalError


class ApiError(RetrievalError):
    """An error response or an unexpected response. The attributes are the fields of a problem document (RFC 9457)."""

    def __init__(
        self, status: int, title: str, *, detail: str = "", kind: str = "about:blank", request_id: str = ""
    ) -> None:
        super().__init__(f"{title} (status {status})", remedy=detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.type = kind
        self.request_id = request_id


class Unreachable(RetrievalError):
    """No response: the connection could not be opened, was interrupted, or timed out."""


@dataclass(frozen=True)
class Photo:
    """A photo of the gallery."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """An item and its photos."""

    item_id: str
    photos: tuple[Photo, ...]


@dataclass(frozen=True)
class ItemPage:
    """A page of item_ids in alphabetical order. `next` is the `after` of the next page, None on the last."""

    items: tuple[str, ...]
    next: str | None


@dataclass(frozen=True)
class Removed:
    """The number of photos removed."""

    photos: int
    gallery_version: int


@dataclass(frozen=True)
class Stored:
    """An added or replaced photo."""

    photo_id: str
    item_id: str
    replaced: bool
    gallery_version: int


@dataclass(frozen=True)
class Synced:
    """Differences between a gallery and a table. The lists have the first 100 photo_ids."""

    updated: int  # photos that got another item or other metadata
    unchanged: int
    missing: int  # photos of the table that the gallery lacks; add them with `put_photo`
    missing_photos: tuple[str, ...]
    gone: int  # photos of the gallery that the table does not have
    gone_photos: tuple[str, ...]
    gallery_version: int


@dataclass(frozen=True)
class GalleryInfo:
    """The current state of the gallery."""

    version: int
    photos: int
    items: int
    index: dict[str, Any]
    columns: dict[str, str]


@dataclass(frozen=True)
class Info:
    """The server's bundle, gallery and threshold."""

    bundle_id: str
    embedding_id: str
    threshold: float | None  # None if there is none
    status: str  # of the target: "certified", "estimated" or "uncalibrated"
    target_fpir: float
    distance: str
    min_certainty: float
    evidence: dict[str, Any]
    threshold_status: str  # as in `Answer`
    in_gallery: dict[str, Any] | None  # what the threshold does in the gallery as it is now, if it was measured
    gallery: GalleryInfo
    drift: dict[str, Any]
    warnings: tuple[str, ...] = ()  # for operators, with the command that helps


@dataclass(frozen=True)
class Change:
    """A replayed query with a different answer: matched item_ids, best first."""

    query: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Reloaded:
    """The outcome of a reload or dry run. The mappings have the keys `before` and `after`."""

    swapped: bool
    bundle_id: dict[str, str]
    gallery_version: dict[str, int]
    threshold: dict[str, float | None]
    threshold_status: dict[str, str]  # of each threshold, as in `Answer`
    asked: int  # number of replayed queries
    changed: tuple[Change, ...]
