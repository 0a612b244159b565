"""Client requests: one function per API call, each returning a `Call`."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import quote

from PIL import Image
from pydantic import TypeAdapter

from retrieval.errors import ImageTooLarge, ImageUnreadable, InvalidParameter
from retrieval.images import MAX_BYTES, Source, open_image, plain_source
from retrieval.images.formats import format_of
from retrieval.search.boxes import bbox_text, check_bbox, check_boxes
from retrieval.search.looks import MOST_QUERY_PHOTOS, check_images
from retrieval.search.result import RESULT, SearchResult

from .models import (
    ApiError,
    Info,
    Item,
    ItemPage,
    Photo,
    Reloaded,
    Removed,
    Stored,
    Synced,
    Unreachable,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Verdict = Literal["right", "wrong", "unknown"]
JSON = "application/json"
Query = Mapping[str, str | int | bool | list[str]]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, stored as plain values so that it can be resent, and the parser of its response."""

    method: str
    path: str  # with percent-encoded ids
    read: Callable[[httpx.Response], T]
    query: Query = field(default_factory=dict)
    body: bytes | None = None
    media_type: str = ""
    images: Sequence[bytes] = ()  # sent as the form files `images`, instead of a body
    repeatable: bool = True  # idempotent: safe to send twice
    accepted: frozenset[int] = frozenset()  # further statuses that `read` accepts
    if_unreachable: T | None = None  # result if there is no response; None: an error

    def request(self, http: httpx.Client | httpx.AsyncClient, *, timeout: float) -> httpx.Request:
        """Build the request, with `timeout` seconds for each network operation."""
        files = [("images", (f"image-{number}", data, media_type(data))) for number, data in enumerate(self.images)]
        return http.build_request(
            self.method,
            self.path,
            params=dict(self.query) or None,
            headers={"Content-Type": self.media_type} if self.media_type else None,
            content=self.body,
            files=files or None,
            timeout=timeout,
        )

    def result(self, outcome: httpx.Response | httpx.RequestError) -> T:
        """Return the parsed response, or raise ApiError or Unreachable."""
        if isinstance(outcome, Exception):
            if self.if_unreachable is not None:
                return self.if_unreachable
            url = outcome.request.url
            raise Unreachable(
                f"no answer from {url.scheme}://{url.netloc.decode()}: {type(outcome).__name__} {outcome}".rstrip(),
                remedy="Check that the server is running and that this is its address",
            ) from outcome
        if not outcome.is_success and outcome.status_code not in self.accepted:
            raise _problem(_json_object(outcome), outcome)
        try:
            return self.read(outcome)
        except (TypeError, KeyError, ValueError) as error:
            raise _problem({"title": "the response is not from this API", "detail": str(error)}, outcome) from error


def search(
    image: Source,
    *,
    bbox: Sequence[float] | None = None,
    top_k: int,
    where: str | None,
    fields: Sequence[str] | None,
    explain: bool,
) -> Call[SearchResult]:
    """Search with one photo, or a part of it."""
    data = image_bytes(image)
    query = search_query(top_k, where, fields, explain=explain)
    if bbox is not None:
        query = {**query, "bbox": bbox_text(bbox)}
    return Call("POST", "/v1/search", parsed_as(SearchResult), query=query, body=data, media_type=media_type(data))


def search_batch(
    images: Sequence[Source], *, top_k: int, where: str | None, fields: Sequence[str] | None, explain: bool
) -> Call[list[SearchResult | ApiError]]:
    """Search with several photos at once."""
    if not images:
        raise InvalidParameter("images", "hold at least one image", images)
    query = search_query(top_k, where, fields, explain=explain)
    return Call("POST", "/v1/search/batch", _read_batch, query=query, images=[image_bytes(i) for i in images])


def search_photos(
    images: Sequence[Source], *, top_k: int, where: str | None, fields: Sequence[str] | None
) -> Call[SearchResult]:
    """Rank the items by several photos of the same item as one query."""
    check_images(images, 2, MOST_QUERY_PHOTOS)
    query, files = search_query(top_k, where, fields), [image_bytes(image) for image in images]
    return Call("POST", "/v1/search/photos", parsed_as(SearchResult), query=query, images=files)


def search_boxes(
    image: Source,
    boxes: str | Sequence[Sequence[float]],
    *,
    top_k: int,
    where: str | None,
    fields: Sequence[str] | None,
) -> Call[list[SearchResult | ApiError]]:
    """Search with several parts of a photo."""
    data, query, chosen = image_bytes(image), dict(search_query(top_k, where, fields)), check_boxes(boxes)
    if isinstance(chosen, str):
        query["find"] = chosen
    else:
        query["bbox"] = [bbox_text(box) for box in chosen]
    return Call("POST", "/v1/search/boxes", _read_batch, query=query, body=data, media_type=media_type(data))


def items(after: str | None, limit: int) -> Call[ItemPage]:
    """List item_ids."""
    query: Query = {"limit": limit}
    return Call("GET", "/v1/items", parsed_as(ItemPage), query=query if after is None else {"after": after, **query})


def item(item_id: str) -> Call[Item]:
    """Get an item and its photos."""
    return Call("GET", _path("items", item_id), parsed_as(Item))


def remove_item(item_id: str) -> Call[Removed]:
    """Remove an item and its photos."""
    return Call("DELETE", _path("items", item_id), parsed_as(Removed))


def photo(photo_id: str) -> Call[Photo]:
    """Get a photo's item and metadata."""
    return Call("GET", _path("photos", photo_id), parsed_as(Photo))


def put_photo(photo_id: str, image: Source, *, item_id: str, metadata: Mapping[str, Any] | None) -> Call[Stored]:
    """Add or replace a photo. A photo with metadata is sent as JSON."""
    path, data = _path("photos", photo_id), image_bytes(image)
    if not metadata:
        query = {"item_id": item_id}
        return Call("PUT", path, parsed_as(Stored), query=query, body=data, media_type=media_type(data))
    values = {"image": base64.b64encode(data).decode(), "item_id": item_id, "metadata": dict(metadata)}
    try:
        body = json.dumps(values, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidParameter("metadata", "hold plain JSON values", metadata) from error
    return Call("PUT", path, parsed_as(Stored), body=body, media_type=JSON)


def remove_photo(photo_id: str) -> Call[Removed]:
    """Remove a photo."""
    return Call("DELETE", _path("photos", photo_id), parsed_as(Removed))


def thumbnail(photo_id: str) -> Call[bytes]:
    """Get a photo's thumbnail, a JPEG."""
    return Call("GET", _path("thumbnails", photo_id), lambda response: response.content)


def info() -> Call[Info]:
    """Get information about the server's bundle and gallery."""
    return Call("GET", "/v1/info", parsed_as(Info))


def feedback(
    about: SearchResult | str, verdict: Verdict, item_id: str = "", bbox: Sequence[float] | None = None
) -> Call[bool]:
    """Send feedback on an answer."""
    values: dict[str, Any] = {"request_id": about if isinstance(about, str) else about.request_id, "verdict": verdict}
    values |= ({"item_id": item_id} if item_id else {}) | ({} if bbox is None else {"bbox": check_bbox(bbox)})
    body = json.dumps(values).encode()
    return Call("POST", "/v1/feedback", _read_recorded, body=body, media_type=JSON, repeatable=False)


def sync(
    photos: Sequence[Mapping[str, Any]], *, prune: bool, prune_at_most: float | None, dry_run: bool
) -> Call[Synced]:
    """Update the items and metadata of the gallery from a table of all its photos."""
    values: dict[str, Any] = {"photos": [dict(photo) for photo in photos], "prune": prune, "dry_run": dry_run}
    values |= {} if prune_at_most is None else {"prune_at_most": prune_at_most}
    try:
        body = json.dumps(values, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidParameter("photos", "hold plain JSON values", str(error)) from error
    return Call("POST", "/v1/admin/sync", parsed_as(Synced), body=body, media_type=JSON)


def reload(images: Sequence[Source], *, dry_run: bool) -> Call[Reloaded]:
    """Make the server reopen its bundle and gallery."""
    files = [image_bytes(image) for image in images]
    query = {"dry_run": dry_run}
    return Call("POST", "/v1/admin/reload", parsed_as(Reloaded), query=query, images=files, repeatable=False)


def ready() -> Call[bool]:
    """Check whether the server is reachable and ready to answer searches."""
    busy = HTTPStatus.SERVICE_UNAVAILABLE
    accepted = frozenset({busy})
    return Call(
        "GET", "/readyz", lambda response: response.status_code != busy, accepted=accepted, if_unreachable=False
    )


def image_bytes(image: Source) -> bytes:
    """Return an image as encoded bytes. PIL images and arrays are checked like search images and encoded as PNG."""
    source = plain_source(image)
    if isinstance(source, Image.Image):
        file = io.BytesIO()
        open_image(source).save(file, "PNG")
        data = file.getvalue()
    else:
        data = source if isinstance(source, bytes) else _read_file(source)
    if len(data) > MAX_BYTES:
        remedy = "Send the file that it came from, or a smaller image" if isinstance(source, Image.Image) else ""
        raise ImageTooLarge(f"the image has {len(data):,} bytes as a file, the limit is {MAX_BYTES:,}", remedy=remedy)
    return data


def media_type(data: bytes) -> str:
    """Return the media type that an image's header suggests; the server checks the content itself."""
    form = format_of(data)
    return "image/jpeg" if form is None else form.media_type


def search_query(top_k: int, where: str | None, fields: Sequence[str] | None, *, explain: bool | None = None) -> Query:
    """Return the query parameters of every search."""
    if isinstance(fields, str):
        raise InvalidParameter("fields", "be a sequence of metadata keys", fields, remedy=f"Pass [{fields!r}]")
    query: dict[str, str | int | bool | list[str]] = {"top_k": top_k}
    if explain is not None:
        query["explain"] = explain
    if where is not None:
        query["where"] = where
    if fields is not None:
        query["fields"] = list(fields) or [""]  # matches no key: no metadata is returned
    return query


def _path(collection: str, name: str) -> str:
    if not name:
        raise InvalidParameter("id", "not be empty", name)
    encoded = quote(name, safe="")
    if name in (".", ".."):  # path normalization would remove these
        encoded = name.replace(".", "%2E")
    return f"/v1/{collection}/{encoded}"


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ImageUnreadable(f"{path} cannot be read: {error.strerror}") from error


def parsed_as(kind: type[T]) -> Callable[[httpx.Response], T]:
    """Return a function that reads a response as a model."""
    adapter = TypeAdapter(kind)
    return lambda response: adapter.validate_json(response.content, strict=True)


def _read_batch(response: httpx.Response) -> list[SearchResult | ApiError]:
    entries = response.json()["answers"]
    return [
        RESULT.validate_python(entry) if "decision" in entry else _problem(dict(entry), response) for entry in entries
    ]


def _read_recorded(response: httpx.Response) -> bool:
    return bool(response.json()["recorded"])


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        values = response.json()
    except ValueError:  # such as a proxy's HTML page
        return {}
    return values if isinstance(values, dict) else {}


def _problem(values: dict[str, Any], response: httpx.Response) -> ApiError:
    status = values.get("status")
    return ApiError(
        status if isinstance(status, int) else response.status_code,
        str(values.get("title") or response.reason_phrase),
        detail=str(values.get("detail", "")),
        kind=str(values.get("type", "about:blank")),
        request_id=response.headers.get("X-Request-ID", ""),
    )
