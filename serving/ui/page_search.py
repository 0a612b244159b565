"""Searches of the page: the photo, or a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from anyio import to_thread

from retrieval.errors import ImageRefused, ImageUnreadable, InvalidParameter
from retrieval.images import Source, crop, open_image
from retrieval.search.result import RANKED, SearchResult
from serving.api.problems import problem_response
from serving.errors import NoSuchThing
from serving.http.limits import Busy
from serving.service import Service

from .page_events import EVENT, SessionAnswer
from .page_html import WAITING, answer_html, banner, shown_items
from .uploads import Uploads

TOP_K = 12
WHOLE_PHOTO = (0, 100, 0, 100)  # left, right, top, bottom of the searched region, in percent


@dataclass(frozen=True)
class Found:
    """Content of the page after a search."""

    html: str
    answer: SessionAnswer | None = None  # for feedback; None if there is nothing to judge


class PageSearch:
    """Searches of a service with the stored photos of the running event's session."""

    def __init__(self, service: Service, uploads: Uploads) -> None:
        self._service, self._uploads = service, uploads

    async def run(self, token: str | None, box: Sequence[float]) -> Found:
        """Search with a part of a photo."""
        if token is None:
            return Found(WAITING)
        event = EVENT.get()
        try:
            result = await self._result(token, box)
        except (ImageRefused, InvalidParameter, NoSuchThing, Busy) as error:
            event.status = problem_response(error).status_code
            return Found(banner("refused", "This photo cannot be searched", str(error)))
        html = answer_html(result)
        if result.nearest is None or result.decision == RANKED:
            return Found(html)
        items = tuple(match.item_id for match in shown_items(result))
        return Found(html, SessionAnswer(event.request_id, items, items[0] if result.matches else ""))

    async def _result(self, token: str, box: Sequence[float]) -> SearchResult:
        event, service = EVENT.get(), self._service
        photo: Source = await to_thread.run_sync(self._uploads.read, token, event.client)
        if tuple(box) != WHOLE_PHOTO:
            photo, _ = await service.pool.run(partial(_part_of, photo, box))
        return await service.search(photo, top_k=TOP_K, any_review=True, request_id=event.request_id)


def _part_of(source: Source, box: Sequence[float]) -> Source:
    left, right, top, bottom = box
    image = open_image(source)
    if not (0 <= left < right <= 100 and 0 <= top < bottom <= 100):
        raise ImageUnreadable("the part is empty", remedy="Left lies before right, top above bottom")
    width, height = image.width / 100, image.height / 100
    return crop(image, (left * width, top * height, right * width, bottom * height))
