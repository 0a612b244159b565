"""The API: its application, and the routes of state, reports, reloads, probes and documentation."""

from __future__ import annotations

import logging
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import cache, partial
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from jinja2 import Environment, PackageLoader, Template
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from retrieval.errors import RetrievalError
from retrieval.images.formats import NAMES
from retrieval.measuring.sides import in_words, sides_of
from retrieval.messages import Info, Reloaded, Status
from retrieval.reports.bundle_report import render_report, report_data
from retrieval.reports.gallery_report import GalleryReport, render_gallery_report
from retrieval.retriever import Retriever
from serving.access.guard import BUNDLE_REPORT_PATH, DOCS_PATH, REPORT_PATH
from serving.ops.drift import Drift, drift_warning
from serving.problems import STATUS, problem, problem_response
from serving.service import Service

from .admin import admin_routes
from .answers import answer_routes
from .bodies import broken_rule
from .gallery import NO_QUERY, item_routes, photo_routes, removed_routes, sync_routes, thumbnail_routes
from .openapi import answers, document, errors
from .search import feedback_routes, ranking_routes, search_routes

log = logging.getLogger("retrieval.serving")
PAGE = Path(__file__).parents[1] / "page"
MANAGE_FILES = {"/manage": "manage.html", "/manage.js": "manage.js", "/manage.css": "manage.css"}
MANAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
DOCS_SOURCES = "script-src 'self'; connect-src 'self'; img-src blob:"
DESCRIPTION = (
    f"Images are {NAMES} files, also HEIC and AVIF where the server has the extra `sources`, by default of at most "
    "30 MiB and 100 megapixels; convert others before you send them. They travel as the raw body or "
    "in a form; POST /v1/search and PUT /v1/photos also take JSON with the image as base64. Ids in paths are "
    "percent-encoded. Errors are RFC 9457 problem documents; malformed request headers get a 400 on every path, and "
    "bodies that are too large a 413."
)


def create_api(service: Service, on_start: Callable[[], None] | None = None) -> FastAPI:
    """Return the FastAPI application of a service; `on_start` is called when the server starts."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if on_start is not None:
            on_start()
        await to_thread.run_sync(service.start)
        yield
        await to_thread.run_sync(service.stop)

    app = FastAPI(
        title="Retrieval",
        summary="Which catalogue item is this, if any?",
        version="1",
        lifespan=lifespan,
        description=DESCRIPTION,
        docs_url=None,  # would load scripts from another host; see docs_route
        redoc_url=None,
    )
    _handle_errors(app)
    for routes in (search_routes, ranking_routes, item_routes, photo_routes, admin_routes):
        app.include_router(routes(service))
    for routes in (feedback_routes, thumbnail_routes, sync_routes, removed_routes, answer_routes):
        app.include_router(routes(service), dependencies=NO_QUERY)
    for routes in (state_routes, report_routes):
        app.include_router(routes(service), dependencies=NO_QUERY)
    app.include_router(probe_routes(service))
    app.include_router(docs_route(app))
    app.include_router(manage_routes())
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    return app


def state_routes(service: Service) -> APIRouter:
    """Return the info, reload and metrics routes."""
    router = APIRouter(tags=["state"])

    @router.get("/v1/info", response_model=Info, responses=errors())
    def info() -> dict[str, Any]:
        """Return the bundle, the gallery, the threshold with its error rate, and the drift of live photos."""
        return server_info(service)

    @router.post("/v1/admin/reload", response_model=Reloaded, responses=errors(409, 503))
    def reload() -> Any:
        """Reopen bundle and gallery and switch to them. Other processes follow changed paths by themselves."""
        try:
            before, after = service.reloads.run()
        except RetrievalError as error:
            if STATUS.get(type(error).__name__, 500) < 500 or problem_response(error).status_code == 503:
                raise
            log.error("the reload was refused", exc_info=error)
            return problem(
                409,
                "the reload was refused",
                "The current bundle and gallery stay in service; the server's log says why.",
            )
        old, new = _identity(before), _identity(after)
        return {name: {"before": old[name], "after": new[name]} for name in old}

    @router.get("/metrics", response_class=Response, responses=answers("text/plain") | errors())
    def metrics() -> Response:
        """Return the metrics in Prometheus text format."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def probe_routes(service: Service) -> APIRouter:
    """Return the probes. They take any query parameters, since load balancers add some."""
    router = APIRouter(tags=["state"])

    @router.get("/healthz", response_model=Status)
    async def healthz() -> dict[str, str]:
        """Report that the process is alive."""
        return {"status": "alive"}

    @router.get("/readyz", response_model=Status, responses=errors(503, guarded=False))
    async def readyz() -> Response:
        """Report whether searches are served: the model has run, threads are available, and the gallery is intact."""
        if reason := await service.readiness.problem():
            return problem(503, "not ready", reason)
        return JSONResponse({"status": "ready"})

    return router


def report_routes(service: Service) -> APIRouter:
    """Return the routes of the reports."""
    router = APIRouter(tags=["state"])

    @router.get(REPORT_PATH, response_class=Response, responses=answers("text/html") | errors())
    def report() -> Response:
        """Return the report on the threshold that serves and its error rates, as HTML."""
        retriever = service.retriever
        contents = GalleryReport.of(retriever.bundle, retriever.gallery, retriever.point)
        return _html(render_gallery_report(contents, live=_live(retriever, service.drift.state())))

    @router.get(BUNDLE_REPORT_PATH, response_class=Response, responses=answers("text/html") | errors(404))
    def bundle_report() -> Response:
        """Return the report on the bundle's own threshold, made from its data: its HTML could be anybody's."""
        data = report_data(service.retriever.bundle)
        return problem(404, "the bundle has no report") if data is None else _html(render_report(data))

    return router


def docs_route(app: FastAPI) -> APIRouter:
    """Return the routes of the API documentation, a page without resources of other hosts, and of its script."""
    router = APIRouter(include_in_schema=False)

    @router.get(DOCS_PATH, response_class=Response)
    async def docs() -> Response:  # on the event loop, as /openapi.json is: FastAPI makes the document once
        return _html(_docs_template().render(api=app.openapi()), sources=DOCS_SOURCES)

    @router.get(f"{DOCS_PATH}.js", response_class=Response)
    def script() -> Response:
        return FileResponse(Path(__file__).with_name("docs.js"), headers={"Cache-Control": "no-cache"})

    return router


def manage_routes() -> APIRouter:
    """Return the routes of the page /manage and its files. Its script calls the API."""
    router = APIRouter(include_in_schema=False)
    for path, name in MANAGE_FILES.items():
        response = partial(FileResponse, PAGE / name, headers=MANAGE_HEADERS)
        router.add_api_route(path, lambda made=response: made(), response_class=Response)
    return router


def server_info(service: Service) -> dict[str, Any]:
    """Return the state of a service as plain JSON values."""
    retriever, drifts = service.retriever, service.drift.state()
    bundle, gallery = retriever.bundle, retriever.gallery
    point, rates = retriever.gallery_point.measured()
    drifted, warning = drift_warning(drifts), retriever.gallery_point.warning()
    sides = sides_of(point, rates)
    return {
        "bundle_id": bundle.bundle_id,
        "embedding_id": bundle.embedding_id,
        "threshold": point.threshold_or_none,
        "status": point.status,
        "target_fpir": point.target_fpir,
        "item_distance": bundle.item_distance.to_dict(),
        "evidence": point.evidence,
        "threshold_status": point.served_status,
        "in_gallery": None if rates is None else {**rates.to_dict(point), "warning": warning},
        "sides": None if sides is None else {"text": in_words(sides), **asdict(sides)},
        "targets": _targets(retriever),
        "gallery": {
            "version": gallery.version,
            "photos": len(gallery),
            "items": gallery.items,
            "index": gallery.index(),
            "columns": gallery.columns(),
        },
        "warnings": [f"{text}." for text in (warning, drifted) if text],
        "drift": {"warning": drifted, "statistics": [asdict(drift) for drift in drifts]},
    }


def _targets(retriever: Retriever) -> list[dict[str, Any]]:
    """Return the threshold of each target that the gallery's draws support, and of the one that serves."""
    (served, rates), measured = retriever.gallery_point.measured(), retriever.gallery_point.at_targets()
    points = {target: (found.point, found.why) for target, found in measured.items()}
    points |= {served.target_fpir: (served, "")} if served.decides else {}
    told = []
    for target, (point, why) in sorted(points.items()):
        sides = None if point is None else sides_of(point, rates if point is served else None)
        told.append(
            {
                "target_fpir": target,
                "threshold": None if point is None else point.threshold,
                "perhaps_within": None if point is None or point.perhaps is None else point.perhaps.within,
                "text": why if sides is None else in_words(sides),
            }
        )
    return told


def _identity(retriever: Retriever) -> dict[str, Any]:
    """Return what was searched last, for the answer to a reload: the gallery before may not be readable any more."""
    version, point, _ = retriever.gallery_point.last
    return {
        "bundle_id": retriever.bundle.bundle_id,
        "gallery_version": version,
        "threshold": point.threshold_or_none,
        "threshold_status": point.served_status,
    }


def _live(retriever: Retriever, drifts: Sequence[Drift]) -> dict[str, Any]:
    """Return the values of the report about live photos."""
    differs = drift_warning(drifts) != ""
    return {
        "told": "Recent photos differ from those that the rates were measured with"
        if differs
        else "No drift was found",
        "searches": f"{max((drift.searches for drift in drifts), default=0):,}",
        "rows": [
            (drift.statistic.replace("_", " "), _number(drift.median), _number(drift.reference_median), _verdict(drift))
            for drift in drifts
        ],
        "has_bundle_report": report_data(retriever.bundle) is not None,
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _verdict(drift: Drift) -> str:
    if drift.effect is None:
        return "too few searches" if drift.reference else "nothing to compare with"
    return f"{drift.effect:.2f}, {'differs' if drift.alarm else 'as expected'}"


def _html(content: str, *, sources: str = "img-src data:") -> Response:
    """Return a page that may use its own style, what comes from some sources, and nothing else."""
    styles = re.findall("<style>(.*?)</style>", content, re.DOTALL)
    hashes = " ".join(f"'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'" for style in styles)
    policy = f"default-src 'none'; style-src {hashes}; {sources}; frame-ancestors 'none'; base-uri 'none'"
    return Response(content, headers={"Content-Security-Policy": policy}, media_type="text/html; charset=utf-8")


@cache
def _docs_template() -> Template:
    made = Environment(loader=PackageLoader("serving.api", ""), autoescape=True, trim_blocks=True)
    return made.get_template("docs.html")


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RetrievalError)
    async def refused(_: Request, error: RetrievalError) -> Response:
        response = problem_response(error)
        if response.status_code == HTTPStatus.INSUFFICIENT_STORAGE:
            log.error("the request failed: %s", error)
        elif response.status_code >= 500 and response.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
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
