"""The production endpoint: a photo over HTTP, matches or an honest no-match as JSON."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from retrieval.bundle.bundle import REPORT
from retrieval.errors import RetrievalError
from serving.http.guard import REPORT_PATH
from serving.service import Service, Swap

from .catalogue_routes import item_routes, photo_routes
from .problems import STATUS, problem, problem_response
from .request_body import decoded, image_of, images_of, is_json, parsed
from .result_json import answer_of
from .schemas import (
    MOST_IMAGES,
    Alive,
    Answer,
    BatchAnswer,
    BatchRequest,
    FeedbackRequest,
    Info,
    PhotoRequest,
    Problem,
    Ready,
    Reloaded,
    SearchRequest,
    Verdicted,
)

log = logging.getLogger("retrieval.serving")
TopK = Annotated[int, Query(ge=1, le=100, description="Matches at most.")]
Where = Annotated[str | None, Query(max_length=2000, description="A filter, such as \"brand = 'x' and price < 10\".")]
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text, "content": {"application/problem+json": {}}}
    for status, text in {
        400: "Not an image, or a damaged one",
        401: "A key is needed",
        403: "The key has another scope",
        404: "Not there",
        408: "The body took too long",
        409: "What should take over was refused",
        413: "Too many bytes or pixels",
        415: "A kind of image that is not accepted",
        422: "A parameter breaks its rule",
        429: "The key asks too often",
        500: "The server's fault",
        503: "No place or no time; come back after Retry-After seconds",
    }.items()
}
FILE = {"type": "string", "format": "binary"}


def body_of(model: str, field: str, *, several: bool = False, raw: bool = True) -> dict[str, Any]:
    """Return the OpenAPI of a body that is an image, a form or JSON."""
    files = {"type": "array", "items": FILE, "maxItems": MOST_IMAGES} if several else FILE
    content: dict[str, Any] = {"image/*": {"schema": FILE}} if raw else {}
    form = {"type": "object", "required": [field], "properties": {field: files}}
    content["multipart/form-data"] = {"schema": form}
    if model:
        content["application/json"] = {"schema": {"$ref": f"#/components/schemas/{model}"}}
    return {"requestBody": {"required": bool(model), "content": content}}


def create_api(service: Service) -> FastAPI:
    """Return the endpoint of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(service.start)
        yield
        service.stop()

    app = FastAPI(
        title="Retrieval",
        summary="Which catalogue item is this, if any?",
        version="1",
        lifespan=lifespan,
        docs_url=None,  # its scripts would come from elsewhere; /openapi.json is here
        redoc_url=None,
        responses=REFUSALS,
    )
    _handle_errors(app)
    app.include_router(search_routes(service))
    app.include_router(item_routes(service))
    app.include_router(photo_routes(service))
    app.include_router(state_routes(service))
    app.include_router(probe_routes(service))
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def search_routes(service: Service) -> APIRouter:
    """Return the routes that answer photos."""
    router = APIRouter(prefix="/v1", tags=["search"])

    @router.post("/search", response_model=Answer, openapi_extra=body_of("SearchRequest", "image"))
    async def search(request: Request, top_k: TopK = 10, where: Where = None, explain: bool = False) -> Response:
        """Search with a photo: the raw image as the body, a form with the file `image`, or JSON with base64."""
        if is_json(request):
            asked = await parsed(request, SearchRequest)
            image, top_k, where, explain = decoded(asked.image), asked.top_k, asked.where, asked.explain
        else:
            image = await image_of(request)
        request_id = request.state.request_id
        result = await service.search(image, top_k=top_k, where=where, explain=explain, request_id=request_id)
        return JSONResponse(answer_of(result, request_id))

    @router.post(
        "/search/batch",
        response_model=BatchAnswer,
        openapi_extra=body_of("BatchRequest", "images", several=True, raw=False),
    )
    async def batch(request: Request, top_k: TopK = 10, where: Where = None, explain: bool = False) -> Response:
        """Search with several photos: a form with the files `images`, or JSON; a refused photo does not stop others."""
        images: list[bytes | str]
        if is_json(request):
            asked = await parsed(request, BatchRequest)
            images, top_k, where, explain = list(asked.images), asked.top_k, asked.where, asked.explain
        else:
            images = list(await images_of(request, "images"))
        if not images:
            return problem(400, "the request holds no image", "Send files in the field `images`, or JSON.")
        answers: list[dict[str, Any]] = []
        for number, image in enumerate(images):  # one after another: a batch takes one place in the queue
            request_id = f"{request.state.request_id}-{number}"
            try:
                data = decoded(image) if isinstance(image, str) else image
                result = await service.search(data, top_k=top_k, where=where, explain=explain, request_id=request_id)
                answers.append(answer_of(result, request_id))
            except RetrievalError as error:
                told = problem_response(error)
                if told.status_code not in (400, 413, 415):
                    raise
                answers.append(told.content)
        return JSONResponse({"answers": answers, "request_id": request.state.request_id})

    @router.post("/feedback", response_model=Verdicted)
    def feedback(verdict: FeedbackRequest) -> dict[str, bool]:
        """Say of an answer that it was right or wrong, or that the item is not in the catalogue."""
        service.feedback(verdict.request_id, verdict.verdict)
        return {"recorded": True}

    return router


def state_routes(service: Service) -> APIRouter:
    """Return the routes that say how the server is, and change what it serves."""
    router = APIRouter(tags=["state"])

    @router.get("/v1/info", response_model=Info)
    def info() -> dict[str, Any]:
        """Say which bundle and gallery answer, what the threshold promises, and whether live photos fit it."""
        return service.info()

    @router.post(
        "/v1/admin/reload", response_model=Reloaded, openapi_extra=body_of("", "images", several=True, raw=False)
    )
    async def reload(request: Request, dry_run: bool = False) -> Response:
        """Open bundle and gallery again and let them take over; files in `images` are asked of both first."""
        images = await images_of(request, "images")
        try:
            swap = await to_thread.run_sync(lambda: service.reload(images, dry_run=dry_run))
        except RetrievalError as error:
            if STATUS.get(type(error).__name__, 500) < 500 or problem_response(error).status_code == 503:
                raise
            log.error("the reload was refused", exc_info=error)
            return problem(409, "the reload was refused", "What serves now serves on; the server's log says why.")
        return JSONResponse(_swapped(swap))

    @router.get(REPORT_PATH, response_class=Response)
    def report() -> Response:
        """Return the bundle's report: pictures of what its threshold does."""
        bundle = service.retriever.bundle
        if REPORT not in bundle.manifest["files"]:
            return problem(404, "the bundle has no report")
        return Response((bundle.path / REPORT).read_bytes(), media_type="text/html; charset=utf-8")

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Return what Prometheus reads."""
        return Response(service.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def probe_routes(service: Service) -> APIRouter:
    """Return the routes that tell an orchestrator how the process is."""
    router = APIRouter(tags=["state"])

    @router.get("/healthz", response_model=Alive)
    async def healthz() -> dict[str, str]:
        """Say that the process answers."""
        return {"status": "alive"}

    @router.get("/readyz", response_model=Ready)
    def readyz() -> Response:
        """Say whether a search would be answered: the model has run, and the gallery opens."""
        if not service.ready:
            return problem(503, "not ready")
        try:
            len(service.retriever.gallery)
        except RetrievalError as error:
            log.error("the gallery does not open", exc_info=error)
            return problem(503, "not ready", "The gallery does not open; the server's log says why.")
        if service.retriever.gallery.damage:
            return problem(503, "not ready", "The gallery's files are damaged; `retrieval gallery verify` says which.")
        return JSONResponse({"status": "ready"})

    return router


def _swapped(swap: Swap) -> dict[str, Any]:
    before, after = swap.before, swap.after
    return {
        "swapped": swap.swapped,
        "bundle_id": {"before": before.bundle.bundle_id, "after": after.bundle.bundle_id},
        "gallery_version": {"before": before.gallery.version, "after": after.gallery.version},
        "threshold": {"before": before.bundle.threshold, "after": after.bundle.threshold},
        "asked": swap.asked,
        "changed": [{"query": n, "before": one, "after": other} for n, one, other in swap.changed],
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the JSON bodies that routes parse on their own."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        for model in (SearchRequest, BatchRequest, PhotoRequest):
            schema["components"]["schemas"][model.__name__] = model.model_json_schema()
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}, {}]
    return app.openapi_schema or {}


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RetrievalError)
    async def refused(_: Request, error: RetrievalError) -> Response:
        response = problem_response(error)
        if response.status_code >= 500 and response.status_code != 503:
            log.error("the request failed", exc_info=error)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return problem(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        told = problem(error.status_code, str(error.detail))
        told.headers.update(error.headers or {})
        return told

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        log.error("unexpected error", exc_info=error)
        return problem(500, "the request failed", "The server's log says why.")
