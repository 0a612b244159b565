"""The search page at /: its HTML, which names the rates of the gallery, its files, and the examples.

The page's script searches and gives verdicts by the API. An example has a route of its own, since its search may leave
out photos of the gallery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.responses import FileResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from pydantic import BaseModel, ConfigDict

from retrieval.images.formats import format_of
from retrieval.measuring.point import CERTIFIED
from retrieval.measuring.sides import in_words, of_photos, sides_of
from retrieval.messages import BatchAnswer
from retrieval.retriever import Retriever
from retrieval.search.boxes import MOST_WINDOWS, WINDOWS, parse_bbox
from retrieval.search.result import RESULT
from serving.access.keys import CALLER
from serving.api.bodies import BoxText
from serving.api.search import shown
from serving.errors import NotFound
from serving.ops.drift import drift_warning
from serving.service import Service

from .examples import Example, Examples

FILES = ("page.css", "page.js", "icon.svg")
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
NO_THRESHOLD = (
    "This search cannot tell yet whether an item is in the catalogue: it shows the closest ones, right or not."
)
CHECK = "Check a match before you rely on it."


class ExampleQuery(BaseModel):
    """Query parameters of a search with an example: a part of it, or windows of it."""

    model_config = ConfigDict(extra="forbid")

    bbox: BoxText | None = None
    find: Literal["windows"] | None = None
    top_k: int = 10


def page_routes(service: Service, files: Sequence[Path] = ()) -> APIRouter:
    """Return the routes of the page, with some photos as examples, or else photos of the gallery."""
    examples = Examples(files)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        examples.start(service.retriever)
        yield

    router = APIRouter(include_in_schema=False, lifespan=lifespan)

    @router.get("/", response_class=Response)
    def page(request: Request) -> Response:
        contents = page_html(service, examples.shown(service.retriever), str(request.base_url))
        return Response(contents, headers=HEADERS, media_type="text/html; charset=utf-8")

    for name in FILES:
        response = partial(FileResponse, Path(__file__).with_name(name), headers=HEADERS)
        router.add_api_route(f"/page/{name}", lambda made=response: made(), response_class=Response)

    def example_of(name: str) -> Example:
        for example in examples.shown(service.retriever):
            if example.name == name:
                return example
        raise NotFound("there is no such example", remedy="Load the page again")

    @router.get("/page/examples/{name}", response_class=Response)
    def photo(name: str) -> Response:
        image = example_of(name).image
        form = format_of(image)
        kind = "application/octet-stream" if form is None else form.media_type
        return Response(image, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})

    @router.post("/page/examples/{name}", response_class=Response)
    async def search(request: Request, name: str, query: Annotated[ExampleQuery, Query()]) -> Response:
        example = example_of(name)
        told: dict[str, Any] = {"left_out": example.left_out, "top_k": query.top_k}
        request_id = "" if example.left_out else request.state.request_id  # no verdict on what was left out
        if query.find:
            parts = await service.search_boxes(example.image, WINDOWS, **told, request_id=request_id)
            names = [f"{request_id}-{number}" if request_id else "" for number in range(len(parts))]
            answers = BatchAnswer(answers=list(map(shown, parts, names)), request_id=request_id)
            return Response(answers.model_dump_json(), media_type="application/json")
        bbox = None if query.bbox is None else parse_bbox(query.bbox)
        answer = await service.search(example.image, bbox=bbox, review=1.0, explain=True, **told, request_id=request_id)
        return Response(RESULT.dump_json(shown(answer, request_id)), media_type="application/json")

    return router


def page_html(service: Service, examples: Sequence[Example], address: str = "") -> str:
    """Return the page of a service, for the caller of the running request; `address` is the page's own."""
    retriever = service.retriever
    drift = bool(drift_warning(service.drift.state()))
    return _template().render(
        **header_of(retriever, drift=drift),
        items=retriever.gallery.items,
        photos=len(retriever.gallery),
        examples=examples,
        address=address,
        chosen=any(example.photo_id for example in examples),
        reads_words=bool(retriever.bundle.text_key),
        judges=service.judged is not None,
        writes=CALLER.get().key != "" and CALLER.get().is_admin,  # without keys, anybody may be a visitor
        columns=service.settings.shown_columns,
        windows=MOST_WINDOWS,
    )


def header_of(retriever: Retriever, *, drift: bool = False) -> dict[str, Any]:
    """Return what the header says: the rates of the threshold, and warnings.

    `drift`: whether recent photos differ from those that the rates were measured with.
    """
    point, measured = retriever.gallery_point.measured()
    sides = sides_of(point, measured)
    wrong, most = point.target_fpir, None
    if measured is not None and not (point.status == CERTIFIED and not measured.broken(point)):
        wrong, most = measured.expected(point.threshold), measured.fpir_upper(point.threshold)
    rates = f"{in_words(sides)}." if sides else NO_THRESHOLD
    if not sides and point.decides:
        rates = f"Of things we do not have, about {of_photos(wrong)} is called something. "
        rates += "This was measured on other items, not in this catalogue."
    warnings = {
        "That is more than intended, because the catalogue has changed.": measured is not None
        and measured.broken(point),
        "The catalogue has changed since this was measured.": retriever.gallery_point.unmeasured,
        "That is more than intended, because the catalogue has grown.": retriever.gallery_point.outgrown,
        "Recent photos look different from those that this was measured with.": drift,
    }
    bound = (
        f"At worst, {of_photos(most, at_most=True)} is called something (95 % confidence)." if sides and most else ""
    )
    return {
        "rates": rates,
        "bound": bound,
        "warnings": [f"{text} {CHECK}" for text, holds in warnings.items() if holds],
    }


@cache
def _template() -> Template:
    made = Environment(
        loader=PackageLoader("serving.page", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return made.get_template("page.html")
