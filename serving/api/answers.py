"""Routes of answers to judge: the list, their photos, and the closest items now."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import Response

from retrieval.images.formats import format_of
from retrieval.messages import Asked, Closest
from retrieval.search.result import PERHAPS
from serving.errors import NotFound
from serving.service import Service

from .openapi import answers, errors

MOST_ANSWERS = 500
RequestId = Annotated[str, Path(description="The answer's `request_id`.", examples=["…"])]


def answer_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/admin/answers", tags=["gallery"])

    @router.get("", response_model=list[Asked], responses=errors())
    def asked() -> list[dict[str, str]]:
        """List recent answers that were not sure or were judged, newest first, each photo once.

        The list has answers to whole photos that are kept (`serve --feedback-photos`) and are not yet in the gallery
        under the photo id answer-REQUEST_ID.
        """
        if service.judged is None:
            return []
        gallery = service.retriever.gallery
        to_review = (each for each in service.judged.recent() if each["decision"] == PERHAPS or each["verdict"])
        new = [answer for answer in to_review if gallery.photo(f"answer-{answer['request_id']}") is None]
        return new[:MOST_ANSWERS]

    @router.get("/{request_id}/photo", response_class=Response, responses=answers("image/*") | errors(404))
    def photo(request_id: RequestId) -> Response:
        """Return the photo that was sent, if it is kept. Its ETag is the `photo` of the answer."""
        data, digest = _kept(service, request_id)
        form = format_of(data)
        if form is None:
            raise NotFound("this photo is not kept")
        return Response(data, media_type=form.media_type, headers={"Cache-Control": "no-store", "ETag": f'"{digest}"'})

    @router.get("/{request_id}/closest", response_model=list[Closest], responses=errors(404, 503))
    async def closest(request_id: RequestId) -> list[dict[str, str]]:
        """Search with the photo of an answer again, and return the closest items of the gallery as it is now."""
        data, _ = _kept(service, request_id)
        found, _ = await service.pool.run(partial(service.retriever.search, data, review=1.0))
        listed = (*found.matches, *found.review, *found.ranked, *([] if found.nearest is None else [found.nearest]))
        return list({each.item_id: {"item_id": each.item_id, "photo_id": each.photo_id} for each in listed}.values())

    return router


def _kept(service: Service, request_id: str) -> tuple[bytes, str]:
    """Return the photo of an answer and its digest; raise NotFound if it is not kept."""
    found = None if service.judged is None else service.judged.photo(request_id)
    if found is None:
        raise NotFound("this photo is not kept")
    return found
