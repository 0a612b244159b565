"""What a server answers, as frozen values, and how it refuses; what a newer server says besides is passed over."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from retrieval.errors import RetrievalError
from retrieval.result import MATCH, Match

T = TypeVar("T")


class ApiError(RetrievalError):
    """The server refused, or answered what the client does not know; the fields are those of a problem document."""

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
    """No answer came: the connection could not be opened, broke, or the time was up."""


@dataclass(frozen=True)
class Explanation:
    """How an answer came about."""

    distance_form: str  # "plain", or how density corrects it
    density: float  # how crowded it is around the query; 0 where the distance is plain
    plain_nearest: Match | None  # the nearest item by the plain distance
    min_certainty: float  # below it nothing is returned
    photos: int
    items: int
    index: str


@dataclass(frozen=True)
class Answer:
    """The answer to one photo."""

    decision: str  # "match" or "no_match"
    reason: str  # why nothing is returned; "" for a match
    matches: tuple[Match, ...]  # best first; empty: the item is not in the catalogue
    nearest: Match | None  # the closest item, match or not
    threshold: float
    nearest_distance: float | None
    margin: float | None  # threshold minus nearest distance
    certainty: float
    request_id: str
    timings_ms: dict[str, float]
    bundle_id: str
    gallery_version: int
    explanation: Explanation | None = None

    @property
    def matched(self) -> bool:
        """Whether the photo shows something of the catalogue."""
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
    """Some item_ids in alphabetical order; `next` is the `after` of the following page, None on the last."""

    items: tuple[str, ...]
    next: str | None


@dataclass(frozen=True)
class Removed:
    """How many photos went."""

    photos: int
    gallery_version: int


@dataclass(frozen=True)
class Stored:
    """A photo was added, or replaced."""

    photo_id: str
    item_id: str
    replaced: bool
    gallery_version: int


@dataclass(frozen=True)
class GalleryInfo:
    """The gallery now."""

    version: int
    photos: int
    items: int
    index: dict[str, Any]
    columns: dict[str, str]


@dataclass(frozen=True)
class Info:
    """Which bundle and gallery answer, and what the threshold promises."""

    bundle_id: str
    embedding_id: str
    threshold: float
    status: str  # of the promise: "certified" or "estimated"
    target_fpir: float
    distance: str
    min_certainty: float
    evidence: dict[str, Any]
    outlook: dict[str, Any] | None  # what the threshold does in a gallery of this size
    gallery: GalleryInfo
    drift: dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A replayed query that is answered otherwise: item_ids matched, best first."""

    query: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Reloaded:
    """What a reload did, or would do; the mappings hold `before` and `after`."""

    swapped: bool
    bundle_id: dict[str, str]
    gallery_version: dict[str, int]
    threshold: dict[str, float]
    asked: int  # queries that were replayed
    changed: tuple[Change, ...]


def decode(kind: type[T], value: Any) -> T:
    """Return a JSON value as one of the dataclasses above; TypeError or KeyError where it is none."""
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
