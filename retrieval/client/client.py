"""HTTP clients for `retrieval serve`: `RetrievalClient` and `AsyncRetrievalClient`.

Both send the requests defined in `calls`, with the retries defined in `retries`. Requires the extra `client`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from retrieval.images import Source
from retrieval.search.result import SearchResult

from . import calls
from .async_client import AsyncRetrievalClient
from .base import ClientLimits
from .calls import Call, Verdict
from .connection import address, headers
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

__all__ = ["ApiError", "AsyncRetrievalClient", "RetrievalClient", "Unreachable"]

T = TypeVar("T")


class RetrievalClient(ClientLimits):
    """A thread-safe client for a retrieval server. Images are bytes, paths, PIL images or RGB arrays.

    Parameters
    ----------
    base_url:
        URL of the server, such as "https://search.example.org".
    key:
        API key, as printed by `retrieval keys add`.
    timeout:
        Time limit of a call in seconds, including retries and pauses. Each network operation is limited to the
        remaining time.
    retries:
        Number of further attempts after a broken connection, status 503 (busy) or 429 (too many requests). `feedback`
        and `reload` are retried only if no connection could be opened. If the response to a removal is lost, its
        retry reports that there is nothing to remove.
    transport:
        An httpx transport, for tests.
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
        super().__init__(timeout, retries)
        import httpx

        self._http = httpx.Client(base_url=address(base_url), headers=headers(key), transport=transport)

    def __enter__(self) -> RetrievalClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        fields: Sequence[str] | None = None,
        explain: bool = False,
    ) -> SearchResult:
        """Return the catalogue items that match a photo, if any.

        `bbox` is a part of the photo to search with: left, upper, right, lower in pixels of the upright photo.
        `where` filters by declared columns; `fields` selects the metadata keys to return, all by default.
        """
        return self._send(calls.search(image, bbox=bbox, top_k=top_k, where=where, fields=fields, explain=explain))

    def search_batch(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Sequence[str] | None = None,
        explain: bool = False,
    ) -> list[SearchResult | ApiError]:
        """Search with several photos at once; a photo that the server refuses gets an ApiError in its place."""
        return self._send(calls.search_batch(images, top_k=top_k, where=where, fields=fields, explain=explain))

    def search_photos(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> SearchResult:
        """Rank the items by 2 to 4 photos of the same item as one query."""
        return self._send(calls.search_photos(images, top_k=top_k, where=where, fields=fields))

    def search_boxes(
        self,
        image: Source,
        boxes: str | Sequence[Sequence[float]] = "windows",
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> list[SearchResult | ApiError]:
        """Return an answer for each of several parts of a photo: "windows", "detector", or 1 to 64 bounding boxes."""
        return self._send(calls.search_boxes(image, boxes, top_k=top_k, where=where, fields=fields))

    def items(self, after: str | None = None, limit: int = 100) -> ItemPage:
        """Return a page of item_ids that follow `after`."""
        return self._send(calls.items(after, limit))

    def item(self, item_id: str) -> Item:
        """Return an item and its photos."""
        return self._send(calls.item(item_id))

    def remove_item(self, item_id: str) -> Removed:
        """Remove an item and its photos."""
        return self._send(calls.remove_item(item_id))

    def photo(self, photo_id: str) -> Photo:
        """Return a photo's item and metadata."""
        return self._send(calls.photo(photo_id))

    def put_photo(
        self, photo_id: str, image: Source, *, item_id: str, metadata: Mapping[str, Any] | None = None
    ) -> Stored:
        """Add a photo to the gallery, or replace it."""
        return self._send(calls.put_photo(photo_id, image, item_id=item_id, metadata=metadata))

    def remove_photo(self, photo_id: str) -> Removed:
        """Remove a photo."""
        return self._send(calls.remove_photo(photo_id))

    def thumbnail(self, photo_id: str) -> bytes:
        """Return a photo's thumbnail, a JPEG."""
        return self._send(calls.thumbnail(photo_id))

    def info(self) -> Info:
        """Return information about the server's bundle, gallery and threshold."""
        return self._send(calls.info())

    def feedback(
        self,
        answer: SearchResult | str,
        verdict: Verdict,
        *,
        item_id: str = "",
        bbox: Sequence[float] | None = None,
    ) -> bool:
        """Send feedback on an answer or request_id; return whether the server recorded it.

        `item_id` names the item that is right, if the verdict is "wrong" and it is known. `bbox` is that of the judged
        item in an answer by regions; without it, such a verdict can only say that the photo shows no known item.
        """
        return self._send(calls.feedback(answer, verdict, item_id, bbox))

    def sync(
        self,
        photos: Sequence[Mapping[str, Any]],
        *,
        prune: bool = False,
        prune_at_most: float | None = None,
        dry_run: bool = False,
    ) -> Synced:
        """Update the items and metadata of the gallery's photos from a table of all of them; return what differed.

        Each photo is a mapping with `photo_id`, `item_id` and, optionally, `metadata`. Photos that the table does not
        have are removed with `prune`, unless they are more than the share `prune_at_most` of the gallery (0.5). With
        `dry_run` nothing is changed.
        """
        return self._send(calls.sync(photos, prune=prune, prune_at_most=prune_at_most, dry_run=dry_run))

    def reload(self, *, images: Sequence[Source] = (), dry_run: bool = False) -> Reloaded:
        """Make the server reopen its bundle and gallery; search with `images` before and after to compare."""
        return self._send(calls.reload(images, dry_run=dry_run))

    def ready(self) -> bool:
        """Return whether the server is reachable and ready to answer searches."""
        return self._send(calls.ready())

    def _send(self, call: Call[T]) -> T:
        import httpx

        attempts = self._attempts(call)
        while True:
            outcome: httpx.Response | httpx.RequestError
            try:
                outcome = self._http.send(attempts.request(self._http))
            except httpx.RequestError as error:
                outcome = error
            if (pause := attempts.pause(outcome)) is None:
                return call.result(outcome)
            sleep(pause)
