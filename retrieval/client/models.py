"""Response models and errors of the client. Unknown fields of newer servers are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from retrieval.bundle.operating_point import UNANCHORED
from retrieval.errors import RetrievalError
from retrieval.regions.result import RegionMatch
from retrieval.result import MATCH, Match

T = TypeVar("T")


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
class VerifiedPhoto:
    """A gallery photo and the places where it matches the query.

    A place is (x, y), as shares of the width and height of the photo.
    """

    item_id: str
    photo_id: str
    inliers: int  # number of places; 0 if there are too few to count
    query: tuple[tuple[float, ...], ...]
    photo: tuple[tuple[float, ...], ...]
    query_photo: int = 1  # number of the query's photo, from 1; of several, the one that agrees most


@dataclass(frozen=True)
class Explanation:
    """Details behind an answer."""

    distance_form: str  # "plain", or the form of the density correction
    density: float  # local density around the query; 0 for the plain distance
    plain_nearest: Match | None  # the nearest item by the plain distance
    min_certainty: float  # searches below it return no match
    photos: int
    items: int
    index: str
    verified: tuple[VerifiedPhoto, ...] | None = None  # of the nearest items; None without verification


@dataclass(frozen=True)
class Answer:
    """The answer to a search with one photo, or with several photos of the same item."""

    decision: str  # "match", "no_match" or, without a threshold, "ranked"
    reason: str  # of a no-match; "uncalibrated" for "ranked", "" for a match
    matches: tuple[Match, ...]  # best first; empty unless the decision is "match"
    nearest: Match | None  # the closest item, match or not
    threshold: float | None  # None for "ranked"
    nearest_distance: float | None
    margin: float | None  # threshold minus nearest distance
    certainty: float
    request_id: str
    timings_ms: dict[str, float]
    bundle_id: str
    gallery_version: int
    ranked: tuple[Match, ...] = ()  # the nearest items, best first, if the decision is "ranked"
    threshold_status: str = UNANCHORED  # certified, estimated, unanchored, extrapolated or uncalibrated
    review: tuple[Match, ...] = ()  # items beyond the threshold for a person to look at; never part of the decision
    p_value_without_filter: bool = False  # whether the search had a filter and its p-values were measured without one
    photos: int = 1  # different photos of the query
    threshold_photos: int = 1  # photos per query that the threshold was set for
    explanation: Explanation | None = None

    @property
    def matched(self) -> bool:
        """Return whether the photo matches an item of the catalogue."""
        return self.decision == MATCH


@dataclass(frozen=True)
class RegionsAnswer:
    """The answer to a search for the items in the regions of a photo; the fields are those of `RegionsResult`."""

    decision: str
    reason: str
    matches: tuple[RegionMatch, ...]
    nearest: RegionMatch | None
    threshold: float | None
    threshold_status: str
    fpir_per: str
    regions: str
    searched: int
    width: int
    height: int
    request_id: str
    timings_ms: dict[str, float]
    bundle_id: str
    gallery_version: int
    ranked: tuple[RegionMatch, ...] = ()
    review: tuple[RegionMatch, ...] = ()
    p_value_without_filter: bool = False

    @property
    def matched(self) -> bool:
        """Return whether any region matches an item of the catalogue."""
        return self.decision == MATCH


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
    regions: tuple[dict[str, Any], ...] = ()  # thresholds of searches by regions
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


def decode(kind: type[T], value: Any) -> T:
    """Convert a JSON value to one of the dataclasses above; raise TypeError or KeyError if it does not fit."""
    decoded: T = _decode(kind, value)
    return decoded


def _decode(kind: Any, value: Any) -> Any:
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is UnionType:  # X | None
        return None if value is None else _decode(arguments[0], value)
    if origin is tuple:
        return tuple(_decode(arguments[0], entry) for entry in _require(list, value))
    if is_dataclass(kind):
        types = get_type_hints(kind)
        known = {f.name: value[f.name] for f in fields(kind) if f.name in _require(dict, value)}
        return kind(**{name: _decode(types[name], entry) for name, entry in known.items()})  # type: ignore[operator]
    return float(_require((int, float), value)) if kind is float else _require(origin or kind, value)


def _require(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind}")
    return value
