"""The search route for several photos of the same item."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from retrieval.arguments import MOST_QUERY_PHOTOS
from serving.service import Service

from .openapi import IMAGE, LIMITED, body_of, errors
from .query_parameters import SearchQuery
from .request_body import decoded, images_of, is_json, parsed
from .result_json import AnswerResponse, answer_of
from .schemas import Answer, PhotosRequest


def add_photos_route(router: APIRouter, service: Service) -> None:
    """Add the search route for several photos of the same item."""

    @router.post(
        "/search/photos",
        response_model=Answer,
        responses=errors(*LIMITED, *IMAGE, 503),
        openapi_extra=body_of("PhotosRequest", "images", several=True, raw=False, least=2, most=MOST_QUERY_PHOTOS),
    )
    async def photos(request: Request, query: Annotated[SearchQuery, Query()]) -> Response:
        """Search with 2 to 8 photos of the same item as one query: send a form with the files `images`, or JSON."""
        asked: SearchQuery | PhotosRequest = query
        if is_json(request):
            asked = await parsed(request, PhotosRequest)
            images = [decoded(image) for image in asked.images]
        else:
            images = await images_of(request, "images", most=MOST_QUERY_PHOTOS)
        request_id = request.state.request_id
        result = await service.search_photos(
            images, top_k=asked.top_k, where=asked.where, explain=asked.explain, request_id=request_id
        )
        return AnswerResponse(answer_of(result, request_id, asked.fields))
