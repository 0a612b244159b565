"""Query parameters of the search routes: a model for each route, read in one step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from retrieval.search.boxes import MOST_BBOXES

from .fields import BBOX, NUMBER, TopK
from .request_body import broken_rule

Where = Annotated[str | None, Field(max_length=2000, description="A filter, such as \"brand = 'x' and price < 10\".")]
Box = Annotated[str, Field(pattern=f"^{NUMBER}(,{NUMBER}){{3}}$", description=f"Part of the photo to search: {BBOX}")]
Fields = Annotated[
    list[Annotated[str, Field(max_length=200)]] | None,
    Field(
        max_length=64,
        description="Metadata key to return with each match; repeat it for several keys. All are returned by default.",
    ),
]
Find = Annotated[
    Literal["windows", "detector"], Field(description="Windows of the photo, or the boxes of the server's detector.")
]
Boxes = Annotated[
    list[Box] | None,
    Field(max_length=MOST_BBOXES, description="Boxes to search one by one; repeat it for several."),
]


class CommonQuery(BaseModel):
    """Query parameters of every search route."""

    repeated: ClassVar[tuple[str, ...]] = ("fields",)  # may have several values; of others the last one counts

    top_k: TopK = 10
    where: Where = None
    fields: Fields = None


class BoxesQuery(CommonQuery):
    """Query parameters of the search route for several parts of a photo."""

    repeated: ClassVar[tuple[str, ...]] = ("fields", "bbox")

    find: Find = "windows"
    bbox: Boxes = None


class SearchQuery(CommonQuery):
    """Query parameters of the search routes whose answers can be explained."""

    explain: bool = False


class PhotoQuery(SearchQuery):
    """Query parameters of the search route for one photo."""

    bbox: Box | None = None


Model = TypeVar("Model", bound=CommonQuery)


def query_of(request: Request, model: type[Model]) -> Model:
    """Return the query parameters of a request; raise InvalidParameter for the first broken rule."""
    if not request.scope["query_string"]:
        return model()
    given = request.query_params
    lists = {name: given.getlist(name) for name in model.repeated if name in given}
    try:
        return model.model_validate({**given, **lists})
    except ValidationError as error:
        raise broken_rule(error.errors(include_url=False)[0]) from None


class SearchRoute(APIRoute):
    """Route of an endpoint with the parameters `request` and `query`.

    FastAPI documents the query parameters. They are read by one model, which takes much less CPU time than FastAPI's
    resolution of dependencies.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        endpoint, model = self.endpoint, get_type_hints(self.endpoint)["query"]

        async def handle(request: Request) -> Response:
            response: Response = await endpoint(request, query_of(request, model))
            return response

        return handle
