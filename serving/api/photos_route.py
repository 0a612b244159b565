"""The search routes for several photos of the same item, and for several parts of a photo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from retrieval.errors import InvalidParameter
from retrieval.search.boxes import parse_bbox
from retrieval.search.looks import MOST_QUERY_PHOTOS
from retrieval.search.result import SearchResult
from serving.service import Service

from .openapi import IMAGE, LIMITED, body_of, errors
from .query_parameters import BoxesQuery, CommonQuery
from .request_body import decoded, image_of, images_of, is_json, parsed
from .result_json import AnswerResponse, answer_of
from .schemas import BatchAnswer, BoxesRequest, PhotosRequest


def add_photos_route(router: APIRouter, service: Service) -> None:
    """Add the search routes for several photos of the same item and for several parts of a photo."""

    @router.post(
        "/search/photos",
        response_model=SearchResult,
        responses=errors(*LIMITED, *IMAGE, 503),
        openapi_extra=body_of("PhotosRequest", "images", several=True, raw=False, least=2, most=MOST_QUERY_PHOTOS),
    )
    async def photos(request: Request, query: Annotated[CommonQuery, Query()]) -> Response:
        """Rank the items by 2 to 4 photos of one item: send a form with the files `images`, or JSON."""
        asked: CommonQuery | PhotosRequest = query
        if is_json(request):
            asked = await parsed(request, PhotosRequest)
            images = [decoded(image) for image in asked.images]
        else:
            images = await images_of(request, "images", most=MOST_QUERY_PHOTOS)
        request_id = request.state.request_id
        result = await service.search_photos(images, top_k=asked.top_k, where=asked.where, request_id=request_id)
        return AnswerResponse(answer_of(result, request_id, asked.fields))

    @router.post(
        "/search/boxes",
        response_model=BatchAnswer,
        responses=errors(*LIMITED, *IMAGE, 503),
        openapi_extra=body_of("BoxesRequest", "image"),
    )
    async def boxes(request: Request, query: Annotated[BoxesQuery, Query()]) -> Response:
        """Search with several parts of one photo, each with an answer; boxes that the server finds only rank."""
        asked: BoxesQuery | BoxesRequest = query
        chosen: str | list[Sequence[float]]
        if is_json(request):
            asked = await parsed(request, BoxesRequest)
            image = decoded(asked.image)
            chosen = [*asked.bbox] or asked.find
        else:
            chosen = [parse_bbox(text) for text in query.bbox or ()] or query.find
            image = await image_of(request)
        if "find" in asked.model_fields_set and not isinstance(chosen, str):
            raise InvalidParameter("bbox", "be left out where boxes are to be found", chosen)
        request_id = request.state.request_id
        results = await service.search_boxes(image, chosen, top_k=asked.top_k, where=asked.where, request_id=request_id)
        answers = [answer_of(result, f"{request_id}-{n}", asked.fields) for n, result in enumerate(results)]
        return AnswerResponse({"answers": answers, "request_id": request_id})
