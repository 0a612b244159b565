"""Routes of searches and of feedback on their answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from retrieval.errors import ImageUnreadable, InvalidParameter, RetrievalError
from retrieval.feedback import UNDONE
from retrieval.messages import BatchAnswer, Problem, Recorded
from retrieval.search.boxes import check_bbox, parse_bbox
from retrieval.search.looks import MOST_QUERY_PHOTOS
from retrieval.search.result import RESULT, Match, SearchResult
from serving.problems import problem_response
from serving.service import Service

from .bodies import (
    BoxesQuery,
    Explained,
    FeedbackRequest,
    Options,
    PhotoQuery,
    SearchRequest,
    decoded,
    image_of,
    images_of,
    is_json,
    parsed,
)
from .openapi import BODY, IMAGE, body_of, errors


def search_routes(service: Service) -> APIRouter:
    """Return the routes of searches with one photo, and with each of several."""
    router = APIRouter(prefix="/v1", tags=["search"])

    @router.post(
        "/search",
        response_model=SearchResult,
        responses=errors(*IMAGE, 503),
        openapi_extra=body_of("image", "SearchRequest", required=False),
    )
    async def search(request: Request, query: Annotated[PhotoQuery, Query()]) -> Response:
        """Search with a photo or a part (raw, a form with the file `image`, or JSON with base64), or with words."""
        if query.text is not None:
            return await _with_words(service, request, query, query.text)
        options: Explained = query
        if is_json(request):
            if request.query_params:
                raise InvalidParameter(
                    "query parameter", "be a field of the JSON body", ", ".join(request.query_params)
                )
            options = body = await parsed(request, SearchRequest)
            image, part = decoded(body.image), None if body.bbox is None else check_bbox(body.bbox)
        else:
            part = None if query.bbox is None else parse_bbox(query.bbox)
            image = await image_of(request)
        request_id = request.state.request_id
        result = await service.search(image, bbox=part, **_options(options), request_id=request_id)
        return _json(RESULT.dump_json(shown(result, request_id, options.fields)))

    @router.post(
        "/search/batch",
        response_model=BatchAnswer,
        responses=errors(*BODY, 400, 503),
        openapi_extra=body_of("images", several=True),
    )
    async def batch(request: Request, query: Annotated[Explained, Query()]) -> Response:
        """Search with each photo of a form with the files `images`. A refused photo gets a problem."""
        images = await images_of(request, "images")
        if not images:
            raise ImageUnreadable(
                "the request contains no image", remedy="Send a form with files in the field `images`"
            )
        answers: list[SearchResult | Problem] = []
        for number, image in enumerate(images):  # sequential: a batch takes one place in the queue
            request_id = f"{request.state.request_id}-{number}"
            try:
                result = await service.search(image, **_options(query), request_id=request_id)
                answers.append(shown(result, request_id, query.fields))
            except RetrievalError as error:
                refusal = problem_response(error)
                if refusal.status_code not in (400, 413, 415):
                    raise
                answers.append(Problem.model_validate(refusal.content))
        return _json(BatchAnswer(answers=answers, request_id=request.state.request_id).model_dump_json().encode())

    return router


def _options(options: Explained) -> dict[str, Any]:
    """Return the options of a search with a photo."""
    return {name: getattr(options, name) for name in ("top_k", "where", "explain", "review")}


async def _with_words(service: Service, request: Request, query: PhotoQuery, text: str) -> Response:
    if await request.body() or query.bbox is not None or query.explain:
        raise InvalidParameter("text", "be sent without an image, bbox and explain", text)
    result = await service.search_text(text, top_k=query.top_k, where=query.where, review=query.review)
    return _json(RESULT.dump_json(shown(result, request.state.request_id, query.fields)))


def feedback_routes(service: Service) -> APIRouter:
    """Return the feedback route."""
    router = APIRouter(prefix="/v1", tags=["search"])

    @router.delete("/feedback/{request_id}", response_model=Recorded, responses=errors(404, 507))
    def undo(
        request_id: Annotated[str, Path(description="The answer's `request_id`.", examples=["…"])],
    ) -> dict[str, bool]:
        """Undo the last verdict of this key on an answer."""
        service.feedback(request_id, UNDONE)
        return {"recorded": True}

    @router.post("/feedback", response_model=Recorded, responses=errors(*BODY, 404, 412, 507))
    def feedback(verdict: FeedbackRequest) -> dict[str, bool]:
        """Record a verdict on an answer to this key: right, wrong, or not in the catalogue (unknown)."""
        service.feedback(verdict.request_id, verdict.verdict, verdict.item_id, photo=verdict.photo)
        return {"recorded": True}

    return router


def ranking_routes(service: Service) -> APIRouter:
    """Return the routes of searches with several photos of one item, and with several parts of a photo."""
    router = APIRouter(prefix="/v1", tags=["search"])

    @router.post(
        "/search/photos",
        response_model=SearchResult,
        responses=errors(*IMAGE, 503),
        openapi_extra=body_of("images", several=True),
    )
    async def photos(request: Request, query: Annotated[Options, Query()]) -> Response:
        """Search with 2 to 4 photos of one item as one query: send a form with the files `images`."""
        images = await images_of(request, "images", most=MOST_QUERY_PHOTOS)
        result = await service.search_photos(images, top_k=query.top_k, where=query.where)
        return _json(RESULT.dump_json(shown(result, request.state.request_id, query.fields)))

    @router.post(
        "/search/boxes",
        response_model=BatchAnswer,
        responses=errors(*IMAGE, 503),
        openapi_extra=body_of("image"),
    )
    async def boxes(request: Request, query: Annotated[BoxesQuery, Query()]) -> Response:
        """Search with several parts of one photo, each with an answer: windows, or given boxes."""
        given = [parse_bbox(text) for text in query.bbox or ()]
        if "find" in query.model_fields_set and given:
            raise InvalidParameter("bbox", "be left out where boxes are to be found", given)
        image, request_id = await image_of(request), request.state.request_id
        results = await service.search_boxes(
            image, given or query.find, top_k=query.top_k, where=query.where, request_id=request_id
        )
        answers: list[SearchResult | Problem] = [
            shown(result, f"{request_id}-{number}", query.fields) for number, result in enumerate(results)
        ]
        return _json(BatchAnswer(answers=answers, request_id=request_id).model_dump_json().encode())

    return router


def shown(result: SearchResult, request_id: str, fields: Collection[str] | None = None) -> SearchResult:
    """Return a result for a client: with its request id, and with metadata as `public` returns it."""

    def clean(match: Match | None) -> Any:
        return match and replace(match, metadata=public(match.metadata, fields))

    lists: dict[str, Any] = {name: tuple(map(clean, getattr(result, name))) for name in ("matches", "ranked", "review")}
    return replace(result, nearest=clean(result.nearest), request_id=request_id, **lists)


def public(metadata: dict[str, object], fields: Collection[str] | None = None) -> dict[str, object]:
    """Return metadata without reserved keys, those with an underscore in front; restricted to `fields` if given."""
    return {
        key: value for key, value in metadata.items() if not key.startswith("_") and (fields is None or key in fields)
    }


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")
