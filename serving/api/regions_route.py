"""The search route for the items in the regions of a photo."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from retrieval.errors import InvalidParameter
from retrieval.regions.boxes import parse_bbox
from retrieval.regions.search import Regions
from serving.service import Service

from .openapi import IMAGE, LIMITED, body_of, errors
from .query_parameters import RegionsQuery
from .region_schemas import RegionsAnswer, RegionsRequest
from .request_body import decoded, image_of, is_json, parsed
from .result_json import AnswerResponse, regions_answer_of


def add_regions_route(router: APIRouter, service: Service) -> None:
    """Add the search route for the items in the regions of a photo."""

    @router.post(
        "/search/regions",
        response_model=RegionsAnswer,
        responses=errors(*LIMITED, *IMAGE, 503),
        openapi_extra=body_of("RegionsRequest", "image"),
    )
    async def search_regions(request: Request, query: Annotated[RegionsQuery, Query()]) -> Response:
        """Find several items in one photo, each with its bounding box, with the server's settings."""
        asked: RegionsQuery | RegionsRequest = query
        if is_json(request):
            asked = await parsed(request, RegionsRequest)
            image = decoded(asked.image)
            chosen: Regions = [*asked.bbox] or asked.regions
        else:
            chosen = [parse_bbox(text) for text in query.bbox or ()] or query.regions
            image = await image_of(request)
        if "regions" in asked.model_fields_set and not isinstance(chosen, str):
            raise InvalidParameter("bbox", "be left out where regions are named", chosen)
        request_id = request.state.request_id
        result = await service.search_regions(
            image, chosen, top_k=asked.top_k, where=asked.where, request_id=request_id
        )
        return AnswerResponse(regions_answer_of(result, request_id, asked.fields))
