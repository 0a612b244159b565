"""Searches of the page: the photo, or a part of it, and the other photos of the same item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from anyio import to_thread

from retrieval.errors import ImageRefused, ImageUnreadable, InvalidParameter
from retrieval.images import Source, crop, open_image
from retrieval.regions.policy import AUTO
from retrieval.result import RANKED, SearchResult
from serving.api.problems import problem_response
from serving.errors import NoSuchThing
from serving.http.limits import Busy
from serving.service import Service

from .page_events import EVENT, SessionAnswer
from .page_html import WAITING, answer_html, banner, shown_items
from .regions_html import regions_html, shown_regions
from .uploads import Uploads
from .verified_html import AskedPhotos

TOP_K = 12
WHOLE_PHOTO = (0, 100, 0, 100)  # left, right, top, bottom of the searched region, in percent


@dataclass(frozen=True)
class Found:
    """Content of the page after a search."""

    html: str
    answer: SessionAnswer | None = None  # for feedback; None if there is nothing to judge
    takes_more: bool = False  # whether more photos of the same item can be added


class PageSearch:
    """Searches of a service with the stored photos of the running event's session."""

    def __init__(self, service: Service, uploads: Uploads) -> None:
        self._service, self._uploads = service, uploads

    async def run(self, token: str | None, box: Sequence[float], another: str | None = None) -> Found:
        """Search with a part of a photo and all photos that were added to it.

        `another` was added just now. If it cannot be used, it is deleted, and the others are searched.
        """
        if token is None:
            return Found(WAITING)
        event = EVENT.get()
        several = False
        try:
            added = self._uploads.added(event.client, event.session)
            several = bool(added)
            result = await self._result(token, box, added)
        except (ImageRefused, InvalidParameter, NoSuchThing, Busy) as error:
            event.status = problem_response(error).status_code
            if another is not None and isinstance(error, ImageRefused):
                self._uploads.remove_added(another, event.client, event.session)
                refusal = banner("refused", "This photo was not added", str(error))
                found = await self.run(token, box)
                return replace(found, html=refusal + found.html)
            title = "These photos cannot be searched" if several else "This photo cannot be searched"
            return Found(banner("refused", title, str(error)))
        html = answer_html(result, AskedPhotos([token, *added], tuple(box)))
        if result.nearest is None or result.decision == RANKED:
            return Found(html, takes_more=True)
        items = tuple(match.item_id for match in shown_items(result))
        answer = SessionAnswer(event.request_id, items, items[0] if result.matches else "")
        return Found(html, answer, takes_more=True)

    async def run_regions(self, token: str | None) -> Found:
        """Search for all items in a photo."""
        if token is None:
            return Found(WAITING)
        event = EVENT.get()
        try:
            photo = await to_thread.run_sync(self._uploads.read, token, event.client)
            result = await self._service.search_regions(photo, AUTO, top_k=TOP_K, request_id=event.request_id)
        except (ImageRefused, InvalidParameter, NoSuchThing, Busy) as error:
            event.status = problem_response(error).status_code
            return Found(banner("refused", "This photo cannot be searched", str(error)))
        html = regions_html(result, token, None)
        if result.nearest is None or result.decision == RANKED:
            return Found(html)
        shown = shown_regions(result)
        items, boxes = tuple(match.item_id for match in shown), tuple(match.bbox for match in shown)
        return Found(html, SessionAnswer(event.request_id, items, items[0] if result.matches else "", boxes))

    async def _result(self, token: str, box: Sequence[float], added: Sequence[str]) -> SearchResult:
        event, service = EVENT.get(), self._service
        image, *others = [await to_thread.run_sync(self._uploads.read, each, event.client) for each in (token, *added)]
        photo: Source = image
        if tuple(box) != WHOLE_PHOTO:
            photo, _ = await service.pool.run(partial(_part_of, image, box))
        explain = service.retriever.bundle.verifier is not None  # to draw the places that agree
        if others:
            return await service.search_photos(
                [photo, *others], top_k=TOP_K, any_review=True, explain=explain, request_id=event.request_id
            )
        return await service.search(photo, top_k=TOP_K, any_review=True, explain=explain, request_id=event.request_id)


def _part_of(source: Source, box: Sequence[float]) -> Source:
    left, right, top, bottom = box
    image = open_image(source)
    if not (0 <= left < right <= 100 and 0 <= top < bottom <= 100):
        raise ImageUnreadable("the part is empty", remedy="Left lies before right, top above bottom")
    width, height = image.width / 100, image.height / 100
    return crop(image, (left * width, top * height, right * width, bottom * height))
