"""HTTP endpoint: search, feedback, state, reload, probes and API documentation."""

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
from starlette.requests import ClientDisconnect

from retrieval.bundle.bundle import REPORT
from retrieval.errors import RetrievalError
from retrieval.search.boxes import check_bbox, parse_bbox
from retrieval.search.result import SearchResult
from retrieval.threshold.gallery_points import threshold_status
from serving.http.guard import BUNDLE_REPORT_PATH, DOCS_PATH, REPORT_PATH
from serving.reloads import ReloadOutcome
from serving.server_info import server_info
from serving.service import Service

from .catalogue_routes import item_routes, photo_routes
from .docs_page import docs_page
from .openapi import BODY, DESCRIPTION, GUARDED, IMAGE, LIMITED, NOT_READY, answers, body_of, document, error, errors
from .photos_route import add_photos_route
from .problems import STATUS, problem, problem_response
from .query_parameters import PhotoQuery, SearchQuery, SearchRoute
from .report_page import report_page
from .request_body import broken_rule, decoded, image_of, images_of, is_json, parsed
from .result_json import AnswerResponse, answer_of
from .schemas import (
    Alive,
    BatchAnswer,
    BatchRequest,
    FeedbackRequest,
    Info,
    Ready,
    Reloaded,
    SearchRequest,
    Verdicted,
)
from .search_app import SearchApp
from .sync_route import sync_routes

log = logging.getLogger("retrieval.serving")


def create_api(service: Service) -> FastAPI:
    """Return the FastAPI application of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(service.start)
        yield
        await to_thread.run_sync(service.stop)

    app = SearchApp(
        title="Retrieval",
        summary="Which catalogue item is this, if any?",
        version="1",
        lifespan=lifespan,
        description=DESCRIPTION,
        docs_url=None,  # would load scripts from another host; see docs_routes
        redoc_url=None,
    )
    _handle_errors(app)
    searches = search_routes(service)
    app.include_router(searches)
    app.answer_directly(searches.routes)
    app.include_router(feedback_routes(service))
    app.include_router(item_routes(service))
    app.include_router(photo_routes(service))
    app.include_router(sync_routes(service))
    app.include_router(state_routes(service))
    app.include_router(probe_routes(service))
    app.include_router(docs_routes(app))
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


def search_routes(service: Service) -> APIRouter:
    """Return the search routes."""
    router = APIRouter(prefix="/v1", tags=["search"], route_class=SearchRoute)

    add_photo_route(router, service)

    @router.post(
        "/search/batch",
        response_model=BatchAnswer,
        responses=errors(*LIMITED, *BODY, 400, 503),
        openapi_extra=body_of("BatchRequest", "images", several=True, raw=False),
    )
    async def batch(request: Request, query: Annotated[SearchQuery, Query()]) -> Response:
        """Search with several photos: send a form with the files `images`, or JSON. Refused photos get a problem."""
        images: list[bytes | str]
        asked: SearchQuery | BatchRequest = query
        if is_json(request):
            asked = await parsed(request, BatchRequest)
            images = list(asked.images)
        else:
            images = list(await images_of(request, "images"))
        if not images:
            return problem(400, "the request contains no image", "Send files in the field `images`, or JSON.")
        answers: list[dict[str, Any]] = []
        for number, image in enumerate(images):  # sequential: a batch takes one place in the queue
            request_id = f"{request.state.request_id}-{number}"
            try:
                data = decoded(image) if isinstance(image, str) else image
                result = await service.search(
                    data, top_k=asked.top_k, where=asked.where, explain=asked.explain, request_id=request_id
                )
                answers.append(answer_of(result, request_id, asked.fields))
            except RetrievalError as error:
                problem_document = problem_response(error)
                if problem_document.status_code not in (400, 413, 415):
                    raise
                answers.append(problem_document.content)
        return AnswerResponse({"answers": answers, "request_id": request.state.request_id})

    add_photos_route(router, service)
    return router


def add_photo_route(router: APIRouter, service: Service) -> None:
    """Add the search route for one photo."""

    @router.post(
        "/search",
        response_model=SearchResult,
        responses=errors(*LIMITED, *IMAGE, 503),
        openapi_extra=body_of("SearchRequest", "image"),
    )
    async def search(request: Request, query: Annotated[PhotoQuery, Query()]) -> Response:
        """Search with one photo or a part: send the raw image, a form with the file `image`, or JSON with base64."""
        asked: SearchQuery | SearchRequest = query
        if is_json(request):
            asked = await parsed(request, SearchRequest)
            image = decoded(asked.image)
            part = None if asked.bbox is None else check_bbox(asked.bbox)
        else:
            part = None if query.bbox is None else parse_bbox(query.bbox)
            image = await image_of(request)
        request_id = request.state.request_id
        result = await service.search(
            image, bbox=part, top_k=asked.top_k, where=asked.where, explain=asked.explain, request_id=request_id
        )
        return AnswerResponse(answer_of(result, request_id, asked.fields))


def feedback_routes(service: Service) -> APIRouter:
    """Return the feedback route."""
    router = APIRouter(prefix="/v1", tags=["search"])

    @router.post("/feedback", response_model=Verdicted, responses=errors(*LIMITED, *BODY, 404))
    def feedback(verdict: FeedbackRequest) -> dict[str, bool]:
        """Record a verdict on an answer to this key: right, wrong, or not in the catalogue (unknown)."""
        bbox = None if verdict.bbox is None else check_bbox(verdict.bbox)
        service.feedback(verdict.request_id, verdict.verdict, verdict.item_id, bbox)
        return {"recorded": True}

    return router


def state_routes(service: Service) -> APIRouter:
    """Return the info, reload, report and metrics routes."""
    router = APIRouter(tags=["state"])

    @router.get("/v1/info", response_model=Info, responses=errors(*LIMITED))
    def info() -> dict[str, Any]:
        """Return the bundle, the gallery, the threshold with its error rate, and the drift of live photos."""
        return server_info(service)

    @router.post(
        "/v1/admin/reload",
        response_model=Reloaded,
        responses=errors(*LIMITED, *IMAGE, 409, 503),
        openapi_extra=body_of("", "images", several=True, raw=False),
    )
    async def reload(request: Request, dry_run: bool = False) -> Response:
        """Reopen bundle and gallery and switch to them; files in `images` are first searched with both."""
        images = await images_of(request, "images")
        try:
            outcome = await to_thread.run_sync(lambda: service.reloads.run(images, dry_run=dry_run))
        except RetrievalError as error:
            if STATUS.get(type(error).__name__, 500) < 500 or problem_response(error).status_code == 503:
                raise
            log.error("the reload was refused", exc_info=error)
            return problem(
                409,
                "the reload was refused",
                "The current bundle and gallery stay in service; the server's log says why.",
            )
        return JSONResponse(_reload_json(outcome))

    @router.get(REPORT_PATH, response_class=Response, responses=answers("text/html") | errors(*LIMITED))
    def report() -> Response:
        """Return the report on the threshold that serves and its error rates, as HTML."""
        return Response(report_page(service), media_type="text/html; charset=utf-8")

    @router.get(BUNDLE_REPORT_PATH, response_class=Response, responses=answers("text/html") | errors(*LIMITED, 404))
    def bundle_report() -> Response:
        """Return the bundle's report on its own threshold."""
        bundle = service.retriever.bundle
        if REPORT not in bundle.manifest["files"]:
            return problem(404, "the bundle has no report")
        return Response(bundle.read(REPORT), media_type="text/html; charset=utf-8")

    @router.get("/metrics", response_class=Response, responses=answers("text/plain") | errors(*GUARDED))
    def metrics() -> Response:
        """Return the metrics in Prometheus text format."""
        return Response(service.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def probe_routes(service: Service) -> APIRouter:
    """Return the liveness and readiness probes."""
    router = APIRouter(tags=["state"])

    @router.get("/healthz", response_model=Alive)
    async def healthz() -> dict[str, str]:
        """Report that the process is alive."""
        return {"status": "alive"}

    @router.get("/readyz", response_model=Ready, responses={503: error(503, *NOT_READY)})
    async def readyz() -> Response:
        """Report whether searches are served: the model has run, threads are available, and the gallery is intact."""
        if reason := await service.readiness.problem():
            return problem(503, "not ready", reason)
        return JSONResponse({"status": "ready"})

    return router


def docs_routes(app: FastAPI) -> APIRouter:
    """Return the API documentation route."""
    router = APIRouter(include_in_schema=False)

    @router.get(DOCS_PATH, response_class=Response)
    def docs() -> Response:
        """Return the API documentation as HTML."""
        return Response(docs_page(app.openapi()), media_type="text/html; charset=utf-8")

    return router


def _reload_json(outcome: ReloadOutcome) -> dict[str, Any]:
    before, after = outcome.before, outcome.after
    status = {name: threshold_status(r.point, r.bundle) for name, r in (("before", before), ("after", after))}
    return {
        "swapped": outcome.swapped,
        "bundle_id": {"before": before.bundle.bundle_id, "after": after.bundle.bundle_id},
        "gallery_version": {"before": before.gallery.version, "after": after.gallery.version},
        "threshold": {"before": before.point.threshold_or_none, "after": after.point.threshold_or_none},
        "threshold_status": status,
        "asked": outcome.queries,
        "changed": [{"query": n, "before": old, "after": new} for n, old, new in outcome.changed],
    }


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RetrievalError)
    async def refused(_: Request, error: RetrievalError) -> Response:
        response = problem_response(error)
        if response.status_code >= 500 and response.status_code != 503:
            log.error("the request failed", exc_info=error)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return problem_response(broken_rule(error.errors()[0]))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        problem_document = problem(error.status_code, str(error.detail))
        problem_document.headers.update(error.headers or {})
        return problem_document

    @app.exception_handler(ClientDisconnect)
    async def left(_: Request, __: ClientDisconnect) -> Response:
        return problem(400, "the body is incomplete")  # for the log and the metrics

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        log.error("unexpected error", exc_info=error)
        return problem(500, "the request failed", "The server's log says why.")
