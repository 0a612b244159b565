"""HTTP client for `retrieval serve`. Requires the extra `client`."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

from PIL import Image
from pydantic import TypeAdapter, ValidationError

from index.checks import check_ids

from .bundle.text_embedder import checked_text
from .errors import ImageTooLarge, ImageUnreadable, InvalidParameter, RetrievalError, importing
from .feedback import Verdict
from .images import MAX_BYTES, Source, open_image, plain_source
from .images.formats import format_of
from .messages import (
    Asked,
    BatchAnswer,
    Calibrated,
    Info,
    Item,
    ItemPage,
    LookAlikes,
    Photo,
    Problem,
    Recorded,
    Reloaded,
    Removed,
    RemovedPhotos,
    Stored,
    Synced,
)
from .process import is_loopback
from .search.boxes import WINDOWS, bbox_text, check_boxes
from .search.looks import MOST_QUERY_PHOTOS, check_images
from .search.result import SearchResult

if TYPE_CHECKING:
    import httpx

__all__ = ["ApiError", "RetrievalClient", "Unreachable"]

T = TypeVar("T")
Fields = Sequence[str] | None  # metadata keys to return; None: all
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
LEAST_TIMEOUT_S = 0.01
BUSY, TOO_MANY = 503, 429
ANY_ADDRESS = "0.0.0.0", "::"  # noqa: S104 - which a server of this machine listens on and prints
AROUND = "To leave out the proxy, add the server's host to the variable NO_PROXY"
jitter = SystemRandom().uniform


class ApiError(RetrievalError):
    """An error response or an unexpected response. The attributes are the fields of a problem document (RFC 9457)."""

    def __init__(self, problem: Problem, request_id: str = "") -> None:
        super().__init__(f"{problem.title} (status {problem.status})", remedy=problem.detail)
        self.status, self.title, self.detail, self.type = problem.status, problem.title, problem.detail, problem.type
        self.request_id = request_id


class Unreachable(RetrievalError):
    """No response: the connection could not be opened, was interrupted, or timed out."""


class RetrievalClient:
    """A thread-safe client for a retrieval server. Images are bytes, paths, PIL images or RGB arrays.

    Every method raises ApiError for an error response, and Unreachable without a response.

    Parameters
    ----------
    base_url:
        URL of the server, such as "https://search.example.org".
    key:
        API key, as printed by `retrieval keys add`.
    timeout:
        Time limit of a call in seconds, including retries and pauses. A response that has begun may take longer.
    retries:
        Number of further attempts after a broken connection, status 503 (busy) or 429 (too many requests). `feedback`,
        `calibrate` and `reload` are retried only if no connection could be opened. If the response to a removal is
        lost, its retry reports that there is nothing to remove.
    """

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        timeout: float = 10.0,
        retries: int = 3,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if not 0 < timeout < float("inf"):
            raise InvalidParameter("timeout", "be a positive number of seconds", timeout)
        if retries < 0:
            raise InvalidParameter("retries", "be at least 0", retries)
        with importing("httpx", "client"):
            import httpx
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL:
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidParameter("base_url", "begin with http:// or https:// and a host", base_url)
        secret = (key or "").strip()  # strip the newline of a key file
        if not (secret.isascii() and secret.isprintable()):
            raise InvalidParameter("key", "be printable ASCII", "something else")
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._timeout, self._retries = timeout, retries
        proxy = "" if transport else _proxy_of(url)
        self._through = f" through the proxy {proxy.rpartition('@')[2]}" if proxy else ""
        try:
            transport = transport or httpx.HTTPTransport(proxy=proxy or None)  # which asks for no further proxy
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            _, at, shown = proxy.rpartition("@")
            words = "percent-encode its user and password" if at and not isinstance(error, ImportError) else error
            rule = f"be one that httpx can use ({words})"  # other words may hold a part of the password
            raise InvalidParameter("the proxy of the environment", rule, shown, remedy=AROUND) from error
        self._http = httpx.Client(base_url=url, headers=headers, transport=transport)

    def __enter__(self) -> RetrievalClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def search(
        self,
        image: Source,
        *,
        bbox: Sequence[float] | None = None,
        top_k: int = 10,
        where: str | None = None,
        fields: Fields = None,
        explain: bool = False,
    ) -> SearchResult:
        """Return the catalogue items that match a photo, if any.

        `bbox` is a part of the photo to search with: left, upper, right, lower in pixels of the upright photo.
        `where` filters by declared columns; `fields` selects the metadata keys to return, all by default.
        """
        query = _query(top_k, where, fields) | {"explain": explain}
        query |= {} if bbox is None else {"bbox": bbox_text(bbox)}
        return self._call(SearchResult, "POST", "/v1/search", params=query, **_raw(image))

    def search_batch(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Fields = None,
        explain: bool = False,
    ) -> list[SearchResult | ApiError]:
        """Search with several photos at once; a photo that the server refuses gets an ApiError in its place."""
        query = _query(top_k, where, fields) | {"explain": explain}
        return self._answers("/v1/search/batch", params=query, files=_files(images))

    def search_photos(
        self, images: Sequence[Source], *, top_k: int = 10, where: str | None = None, fields: Fields = None
    ) -> SearchResult:
        """Search with 2 to 4 photos of the same item as one query; the answer is "ranked" if it has no threshold."""
        check_images(images, 2, MOST_QUERY_PHOTOS)
        query = _query(top_k, where, fields)
        return self._call(SearchResult, "POST", "/v1/search/photos", params=query, files=_files(images))

    def search_boxes(
        self,
        image: Source,
        boxes: str | Sequence[Sequence[float]] = WINDOWS,
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Fields = None,
    ) -> list[SearchResult | ApiError]:
        """Return an answer for each of several parts of a photo: "windows", or 1 to 64 bounding boxes."""
        query, chosen = _query(top_k, where, fields), check_boxes(boxes)
        query |= {"find": chosen} if isinstance(chosen, str) else {"bbox": [bbox_text(box) for box in chosen]}
        return self._answers("/v1/search/boxes", params=query, **_raw(image))

    def search_text(
        self, text: str, *, top_k: int = 10, where: str | None = None, fields: Fields = None
    ) -> SearchResult:
        """Search with words; the answer is "ranked" if the gallery was not indexed with its items' names."""
        query = _query(top_k, where, fields) | {"text": checked_text(text)}
        return self._call(SearchResult, "POST", "/v1/search", params=query)

    def items(self, after: str = "", limit: int = 100, *, find: str = "") -> ItemPage:
        """Return a page of item_ids that follow `after`; `find` is a part of their ids or metadata."""
        return self._call(ItemPage, "GET", "/v1/items", params={"after": after, "limit": limit, "find": find})

    def item(self, item_id: str) -> Item:
        """Return an item and its photos."""
        return self._call(Item, "GET", _path("items", item_id))

    def remove_item(self, item_id: str) -> Removed:
        """Remove an item and its photos."""
        return self._call(Removed, "DELETE", _path("items", item_id))

    def photo(self, photo_id: str) -> Photo:
        """Return a photo's item and metadata."""
        return self._call(Photo, "GET", _path("photos", photo_id))

    def put_photo(
        self, photo_id: str, image: Source, *, item_id: str, metadata: Mapping[str, Any] | None = None
    ) -> Stored:
        """Add a photo to the gallery, or replace it."""
        if not metadata:
            return self._call(Stored, "PUT", _path("photos", photo_id), params={"item_id": item_id}, **_raw(image))
        encoded = base64.b64encode(image_bytes(image)).decode()
        values = {"image": encoded, "item_id": item_id, "metadata": dict(metadata)}
        return self._call(Stored, "PUT", _path("photos", photo_id), **_json("metadata", values))

    def remove_photo(self, photo_id: str, *others: str) -> Removed:
        """Remove a photo, or several as one change. They can be restored for a day."""
        if not others:
            return self._call(Removed, "DELETE", _path("photos", photo_id))
        photos = _json("photo_id", {"photos": [{"photo_id": each} for each in (photo_id, *others)]})
        return self._call(Removed, "POST", "/v1/admin/removed", **photos, repeatable=False)

    def thumbnail(self, photo_id: str) -> bytes:
        """Return a photo's thumbnail, a JPEG."""
        return self._respond("GET", _path("thumbnails", photo_id)).content

    def info(self) -> Info:
        """Return information about the server's bundle, gallery and threshold."""
        return self._call(Info, "GET", "/v1/info")

    def feedback(self, answer: SearchResult | str, verdict: Verdict, *, item_id: str = "") -> None:
        """Send feedback on an answer or its request_id. `item_id` names the right item, if the verdict is "wrong"."""
        request_id = answer if isinstance(answer, str) else answer.request_id
        values = {"request_id": request_id, "verdict": verdict, "item_id": item_id}
        self._call(Recorded, "POST", "/v1/feedback", repeatable=False, **_json("feedback", values))

    def undo_feedback(self, answer: SearchResult | str) -> None:
        """Undo the last verdict of this key on an answer, or on that with a request_id."""
        request_id = answer if isinstance(answer, str) else answer.request_id
        self._call(Recorded, "DELETE", _path("feedback", request_id), repeatable=False)

    def sync(
        self,
        photos: Sequence[Mapping[str, Any]],
        *,
        prune: bool = False,
        prune_at_most: float = 0.5,
        dry_run: bool = False,
    ) -> Synced:
        """Update the items and metadata of the gallery's photos from a table of all of them; return what differed.

        Each photo is a mapping with `photo_id`, `item_id` and, optionally, `metadata`. Photos that the table does not
        have are removed with `prune`, unless they are more than the share `prune_at_most` of the gallery. With
        `dry_run` nothing is changed.
        """
        values = {"photos": [dict(photo) for photo in photos], "prune": prune, "dry_run": dry_run}
        table = _json("photos", values | {"prune_at_most": prune_at_most})
        return self._call(Synced, "POST", "/v1/admin/sync", **table)

    def look_alikes(self) -> list[LookAlikes]:
        """Return pairs of items that are hard to tell apart: copies first, then those that cost most."""
        return self._call(list[LookAlikes], "GET", "/v1/admin/look-alikes")

    def answers(self) -> list[Asked]:
        """Return recent answers to review, newest first; the server keeps their photos."""
        return self._call(list[Asked], "GET", "/v1/admin/answers")

    def answer_photo(self, request_id: str) -> bytes:
        """Return the photo of an answer to review, as it was sent."""
        return self._respond("GET", f"/v1/admin/answers/{quote(request_id, safe='')}/photo").content

    def removals(self) -> list[RemovedPhotos]:
        """Return what was removed in the last day, the newest first."""
        return self._call(list[RemovedPhotos], "GET", "/v1/admin/removed")

    def restore(self, removal: str) -> Removed:
        """Add the photos of a removal again."""
        address = f"/v1/admin/removed/{quote(removal, safe='')}/restore"
        return self._call(Removed, "POST", address, repeatable=False)

    def calibrate(self, *, judged: bool = False) -> Calibrated:
        """Make the server measure its gallery and set the threshold anew; with `judged`, nothing is set.

        Then the photos of judged answers count as labelled ones.
        """
        return self._call(Calibrated, "POST", "/v1/admin/calibrate", params={"judged": judged}, repeatable=False)

    def reload(self) -> Reloaded:
        """Make the server reopen its bundle and gallery."""
        return self._call(Reloaded, "POST", "/v1/admin/reload", repeatable=False)

    def ready(self) -> bool:
        """Return whether the server is reachable and ready to answer searches."""
        try:
            self._respond("GET", "/readyz", repeatable=False)
        except Unreachable:
            return False
        except ApiError as error:
            if error.status == BUSY:
                return False
            raise
        return True

    def _answers(self, path: str, **request: Any) -> list[SearchResult | ApiError]:
        found = self._call(BatchAnswer, "POST", path, **request)
        return [ApiError(each, found.request_id) if isinstance(each, Problem) else each for each in found.answers]

    def _call(self, kind: type[T], method: str, path: str, **request: Any) -> T:
        response = self._respond(method, path, **request)
        try:
            return TypeAdapter(kind).validate_json(response.content)
        except ValidationError as error:
            raise _problem(response, f"the response{self._through} is not from this API", str(error)) from error

    def _respond(self, method: str, path: str, *, repeatable: bool = True, **request: Any) -> httpx.Response:
        """Send a request until there is a final response; raise ApiError or Unreachable.

        Pauses grow exponentially with full jitter, and are added to the server's Retry-After.
        """
        import httpx

        end, made = time.monotonic() + self._timeout, 0
        while True:
            outcome: httpx.Response | httpx.RequestError
            try:
                left = max(end - time.monotonic(), LEAST_TIMEOUT_S)
                outcome = self._http.request(method, path, timeout=left, **request)
            except UnicodeEncodeError as error:
                raise InvalidParameter("text of a request", "be valid Unicode", error.object) from error
            except httpx.RequestError as error:
                outcome = error
            pause = _retry_after(outcome) + jitter(0, min(FIRST_PAUSE_S * 2**made, LONGEST_PAUSE_S))
            if made == self._retries or pause > end - time.monotonic() or not _may_pass(outcome, repeatable=repeatable):
                break
            made += 1
            time.sleep(pause)
        if isinstance(outcome, Exception):
            url = outcome.request.url
            raise Unreachable(
                f"no answer from {url.scheme}://{url.netloc.decode()}{self._through}: "
                f"{type(outcome).__name__} {outcome}".rstrip(),
                remedy=AROUND if self._through else "Check that the server is running and that this is its address",
            ) from outcome
        if not outcome.is_success:
            raise _problem(outcome, otherwise=self._through and f"The answer came{self._through}. {AROUND}")
        return outcome


def image_bytes(image: Source) -> bytes:
    """Return an image as encoded bytes. PIL images and arrays are checked like search images and encoded as PNG."""
    source = plain_source(image)
    if isinstance(source, Image.Image):
        file = io.BytesIO()
        open_image(source).save(file, "PNG")
        source = file.getvalue()
    elif isinstance(source, Path):
        try:
            source = source.read_bytes()
        except OSError as error:
            raise ImageUnreadable(f"{image!s} cannot be read: {error.strerror}") from error
    if len(source) > MAX_BYTES:
        raise ImageTooLarge(
            f"the image has {len(source):,} bytes as a file, the limit is {MAX_BYTES:,}", remedy="Send a smaller image"
        )
    return source


def _raw(image: Source) -> dict[str, Any]:
    data = image_bytes(image)
    return {"content": data, "headers": {"Content-Type": _media_type(data)}}


def _files(images: Sequence[Source]) -> list[tuple[str, tuple[str, bytes, str]]]:
    if isinstance(images, str | bytes) or not images:
        raise InvalidParameter("images", "be a sequence of at least one image", type(images))
    files = [image_bytes(image) for image in images]
    return [("images", (f"image-{number}", data, _media_type(data))) for number, data in enumerate(files)]


def _media_type(data: bytes) -> str:
    form = format_of(data)
    return "image/jpeg" if form is None else form.media_type


def _json(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = json.dumps(values, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidParameter(name, "hold plain JSON values", str(error)) from error
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def _query(top_k: int, where: str | None, fields: Fields) -> dict[str, Any]:
    if isinstance(fields, str):
        raise InvalidParameter("fields", "be a sequence of metadata keys", fields, remedy=f"Pass [{fields!r}]")
    query: dict[str, Any] = {"top_k": top_k} | ({} if where is None else {"where": where})
    return query if fields is None else query | {"fields": list(fields) or [""]}  # "" is no key: no metadata


def _path(collection: str, name: str) -> str:
    check_ids("id", [name])
    encoded = quote(name, safe="")
    return f"/v1/{collection}/{name.replace('.', '%2E') if name in ('.', '..') else encoded}"


def _proxy_of(url: httpx.URL) -> str:
    """Return the proxy of the environment for a server, "" for none: one on this machine is never asked through it."""
    if is_loopback(url.host) or url.host in ANY_ADDRESS or proxy_bypass(url.netloc.decode()):
        return ""
    proxies = getproxies()
    proxy = (proxies.get(url.scheme) or proxies.get("all", "")).strip()
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _problem(response: httpx.Response, title: str = "", detail: str = "", *, otherwise: str = "") -> ApiError:
    """Return the error of a response; `otherwise` is the detail if it is no problem document of a server."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # such as a proxy's HTML page
        problem = Problem(detail=otherwise)
    told = {"title": title or problem.title or response.reason_phrase, "detail": detail or problem.detail}
    made = problem.model_copy(update={**told, "status": response.status_code})
    return ApiError(made, response.headers.get("X-Request-ID", ""))


def _may_pass(outcome: httpx.Response | httpx.RequestError, *, repeatable: bool) -> bool:
    """Return whether the outcome of a request may be another one if it is sent again."""
    import httpx

    if isinstance(outcome, httpx.Response):
        return repeatable and outcome.status_code in (BUSY, TOO_MANY)
    if isinstance(outcome, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        return True  # nothing was sent
    return repeatable and isinstance(outcome, (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError))


def _retry_after(outcome: httpx.Response | httpx.RequestError) -> float:
    """Return the Retry-After of a response in seconds; the header may be a date."""
    value = "" if isinstance(outcome, Exception) else outcome.headers.get("Retry-After", "")
    try:
        return float(value) if value.isdecimal() else max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):  # neither seconds nor a date
        return 0.0
