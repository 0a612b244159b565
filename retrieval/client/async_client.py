"""The asyncio client."""

from __future__ import annotations

from asyncio import sleep as async_sleep
from asyncio import to_thread
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from retrieval.images import Source
from retrieval.search.result import SearchResult

from . import calls
from .base import ClientLimits
from .calls import Call, Verdict
from .connection import address, headers
from .models import ApiError, Info, Item, ItemPage, Photo, Reloaded, Removed, Stored, Synced

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncRetrievalClient(ClientLimits):
    """The asyncio version of `RetrievalClient`, with the same parameters."""

    def __init__(
        self,
        base_url: str,
        *,
        key: str | None = None,
        timeout: float = 10.0,
        retries: int = 3,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(timeout, retries)
        import httpx

        self._http = httpx.AsyncClient(base_url=address(base_url), headers=headers(key), transport=transport)

    async def __aenter__(self) -> AsyncRetrievalClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def search(
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
        call = await to_thread(calls.search, image, bbox=bbox, top_k=top_k, where=where, fields=fields, explain=explain)
        return await self._send(call)

    async def search_batch(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Sequence[str] | None = None,
        explain: bool = False,
    ) -> list[SearchResult | ApiError]:
        """Search with several photos at once; a photo that the server refuses gets an ApiError in its place."""
        call = await to_thread(calls.search_batch, images, top_k=top_k, where=where, fields=fields, explain=explain)
        return await self._send(call)

    async def search_photos(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> SearchResult:
        """Rank the items by 2 to 4 photos of the same item as one query."""
        call = await to_thread(calls.search_photos, images, top_k=top_k, where=where, fields=fields)
        return await self._send(call)

    async def search_boxes(
        self,
        image: Source,
        boxes: str | Sequence[Sequence[float]] = "windows",
        *,
        top_k: int = 10,
        where: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> list[SearchResult | ApiError]:
        """Return an answer for each of several parts of a photo: "windows", "detector", or 1 to 64 bounding boxes."""
        call = await to_thread(calls.search_boxes, image, boxes, top_k=top_k, where=where, fields=fields)
        return await self._send(call)

    async def items(self, after: str | None = None, limit: int = 100) -> ItemPage:
        """Return a page of item_ids that follow `after`."""
        return await self._send(calls.items(after, limit))

    async def item(self, item_id: str) -> Item:
        """Return an item and its photos."""
        return await self._send(calls.item(item_id))

    async def remove_item(self, item_id: str) -> Removed:
        """Remove an item and its photos."""
        return await self._send(calls.remove_item(item_id))

    async def photo(self, photo_id: str) -> Photo:
        """Return a photo's item and metadata."""
        return await self._send(calls.photo(photo_id))

    async def put_photo(
        self, photo_id: str, image: Source, *, item_id: str, metadata: Mapping[str, Any] | None = None
    ) -> Stored:
        """Add a photo to the gallery, or replace it."""
        call = await to_thread(calls.put_photo, photo_id, image, item_id=item_id, metadata=metadata)
        return await self._send(call)

    async def remove_photo(self, photo_id: str) -> Removed:
        """Remove a photo."""
        return await self._send(calls.remove_photo(photo_id))

    async def thumbnail(self, photo_id: str) -> bytes:
        """Return a photo's thumbnail, a JPEG."""
        return await self._send(calls.thumbnail(photo_id))

    async def info(self) -> Info:
        """Return information about the server's bundle, gallery and threshold."""
        return await self._send(calls.info())

    async def feedback(
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
        return await self._send(calls.feedback(answer, verdict, item_id, bbox))

    async def sync(
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
        call = await to_thread(calls.sync, photos, prune=prune, prune_at_most=prune_at_most, dry_run=dry_run)
        return await self._send(call)

    async def reload(self, *, images: Sequence[Source] = (), dry_run: bool = False) -> Reloaded:
        """Make the server reopen its bundle and gallery; search with `images` before and after to compare."""
        return await self._send(await to_thread(calls.reload, images, dry_run=dry_run))

    async def ready(self) -> bool:
        """Return whether the server is reachable and ready to answer searches."""
        return await self._send(calls.ready())

    async def _send(self, call: Call[T]) -> T:
        import httpx

        attempts = self._attempts(call)
        while True:
            outcome: httpx.Response | httpx.RequestError
            try:
                outcome = await self._http.send(attempts.request(self._http))
            except httpx.RequestError as error:
                outcome = error
            if (pause := attempts.pause(outcome)) is None:
                return call.result(outcome)
            await async_sleep(pause)
