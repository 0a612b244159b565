"""The production endpoint: a photo over HTTP, matches or an honest no-match as JSON."""

from __future__ import annotations

import io
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from retrieval.errors import ImageUnreadable, RetrievalError
from retrieval.retriever import Retriever

from .limits import BodyLimit, SearchPool
from .problems import problem, problem_response
from .settings import ServeSettings

log = logging.getLogger("retrieval.serving")
TopK = Annotated[int, Query(ge=1, le=100, description="Matches at most.")]
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {"image": {"type": "string", "format": "binary"}},
                }
            },
        },
    }
}


def create_app(
    retriever: Retriever,
    *,
    settings: ServeSettings | None = None,
    page: bool = True,
    examples: Sequence[Path] = (),
) -> FastAPI:
    """Return the application of one bundle and one gallery, with the page at / unless told otherwise."""
    settings = settings or ServeSettings()
    pool = SearchPool(threads=settings.threads, queue=settings.queue)
    state = {"ready": False}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await pool.run(lambda: warm_up(retriever))
        retriever.gallery.check_in_background()
        state["ready"] = True
        yield
        state["ready"] = False
        pool.close()

    app = FastAPI(
        title="Retrieval",
        summary="Which catalogue item is this, if any?",
        version="1",
        lifespan=lifespan,
        docs_url=None,  # its scripts would come from elsewhere; /openapi.json is here
        redoc_url=None,
    )
    app.add_middleware(BodyLimit, max_bytes=settings.max_bytes)
    _handle_errors(app)

    @app.post("/v1/search", openapi_extra=IMAGE_BODY)
    async def search(request: Request, top_k: TopK = 10) -> JSONResponse:
        """Search with a photo: the raw image as the body, or a multipart form with the field `image`."""
        data = await image_bytes(request)
        result = await pool.run(lambda: retriever.search(data, top_k=top_k))
        return JSONResponse(public_answer(result.to_dict()))

    @app.get("/v1/thumbnails/{photo_id:path}")
    def thumbnail(photo_id: str) -> Response:
        """Return a gallery photo's thumbnail, at most 256 pixels a side."""
        jpeg = retriever.gallery.thumbnail(photo_id)
        if jpeg is None:
            return problem(404, "no such thumbnail")
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, max-age=3600"}
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    @app.get("/v1/info")
    def info() -> dict[str, Any]:
        """Say which bundle and gallery answer, and what the threshold promises."""
        point, view = retriever.bundle.operating_point, retriever.outlook()
        return {
            "bundle_id": retriever.bundle.bundle_id,
            "threshold": point.threshold,
            "status": point.status,
            "target_fpir": point.target_fpir,
            "evidence": dict(point.evidence),
            "outlook": None if view is None else view.to_dict(),
            "gallery": {
                "version": retriever.gallery.version,
                "photos": len(retriever.gallery),
                "items": retriever.gallery.items,
            },
        }

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Say that the process answers."""
        return {"status": "alive"}

    @app.get("/readyz")
    def readyz() -> Response:
        """Say whether a search would be answered: the model has run, and the gallery opens."""
        if not state["ready"]:
            return problem(503, "not ready")
        try:
            photos = len(retriever.gallery)
        except RetrievalError as error:
            log.error("the gallery does not open", exc_info=error)
            return problem(503, "not ready", "The gallery does not open; the server's log says why.")
        if retriever.gallery.damage:
            return problem(503, "not ready", "The gallery's files are damaged; `retrieval gallery verify` says which.")
        return JSONResponse({"status": "ready", "photos": photos})

    if page:
        from .page import mount_page

        return mount_page(app, retriever, pool, examples)
    return app


async def image_bytes(request: Request) -> bytes:
    """Return the image of a request: its raw body, or the form's field `image`."""
    data = await request.body()  # a form too: it is capped, and one that is cut off leaves no file behind
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=1, max_fields=4) as form:
            field = form.get("image")
            if not isinstance(field, UploadFile):
                raise ImageUnreadable("the form has no file in the field `image`", remedy="Send image=@photo.jpg")
            data = await field.read()
    if not data:
        raise ImageUnreadable("the request holds no image", remedy="Send the image as the body")
    return data


def public_answer(values: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the reserved metadata keys, which begin with an underscore."""
    for match in [*values["matches"], *([values["nearest"]] if values["nearest"] else [])]:
        match["metadata"] = {k: v for k, v in match["metadata"].items() if not k.startswith("_")}
    return values


def warm_up(retriever: Retriever) -> None:
    """Answer one search, so that the first client does not wait for what is made once."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
    retriever.search(file.getvalue(), top_k=1)


def _handle_errors(app: FastAPI) -> None:
    @app.exception_handler(RetrievalError)
    async def refused(_: Request, error: RetrievalError) -> JSONResponse:
        response = problem_response(error)
        if response.status_code >= 500 and response.status_code != 503:
            log.error("search failed", exc_info=error)
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return problem(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        log.error("unexpected error", exc_info=error)
        return problem(500, "the search failed", "The server's log says why.")
