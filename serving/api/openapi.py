"""OpenAPI document: request bodies and error responses of each route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from retrieval.errors import command
from retrieval.images.formats import NAMES

from .problems import MEDIA_TYPE
from .schemas import MOST_IMAGES, BatchRequest, BoxesRequest, PhotoRequest, PhotosRequest, Problem, SearchRequest

Responses = dict[int | str, dict[str, Any]]  # by status, in FastAPI's form
FILE = {"type": "string", "format": "binary"}
DESCRIPTION = (
    "Images travel as the raw body, in a form, or as base64 in JSON. Ids in paths are percent-encoded. Errors are RFC "
    "9457 problem documents; malformed request headers get a 400 on every path, and bodies that are "
    "too large a 413."
)
GUARDED = (401, 403, 500)  # statuses of every route except the probes
LIMITED = (*GUARDED, 429)  # of routes under /v1
BODY = (408, 413, 422)  # of routes that read a body
IMAGE = (*BODY, 400, 415)  # of routes that read an image
ERRORS: dict[int, tuple[str, str, str, str]] = {  # description, then an example: type, title, detail
    400: (
        "There is no image, or the body cannot be read",
        "/problems/image-unreadable",
        f"this is not a {NAMES} image",
        "Convert it to one of these",
    ),
    401: ("A key is needed", "about:blank", "a key is needed", "Send it as Authorization: Bearer KEY."),
    403: (
        "The scope of the key does not allow this, or a page of another site sent the request",
        "about:blank",
        "this key has no scope admin",
        f"Ask for one: {command('keys', 'add', 'FILE', 'NAME', '--scope', 'admin')}",
    ),
    404: ("It does not exist", "/problems/no-such-thing", "no such item", ""),
    408: ("The body took too long", "about:blank", "the body did not arrive in time", ""),
    409: (
        "The new bundle or gallery was refused, or the removal of too many photos, or a photo for a gallery that keeps "
        "local features which the served bundle does not compute",
        "about:blank",
        "the reload was refused",
        "The current bundle and gallery stay in service; the server's log says why.",
    ),
    413: (
        "The image has too many bytes or pixels",
        "/problems/image-too-large",
        "the image has 6000×6000 pixels, the limit is 25,000,000",
        "",
    ),
    415: (
        "The mode or shape of the image is not supported",
        "/problems/image-unsupported",
        "the image is animated",
        "Send one frame of it",
    ),
    422: (
        "A parameter has a value that is not allowed",
        "/problems/invalid-parameter",
        "top_k must be less than or equal to 100, got 500",
        "",
    ),
    429: (
        "The client sends too many requests; it may try again after Retry-After seconds",
        "about:blank",
        "this client sends too many requests",
        "Wait 0.5 seconds.",
    ),
    500: ("The server failed", "about:blank", "the request failed", "The server's log says why."),
    503: (
        "The queue is full or the deadline has passed; try again after Retry-After seconds",
        "/problems/busy",
        "the queue is full",
        "Try again in a second",
    ),
}


NOT_READY = (
    "Searches would not be answered",
    "about:blank",
    "not ready",
    "1 of 2 search threads are at one photo for longer than the deadline.",
)


def errors(*statuses: int) -> Responses:
    """Return the OpenAPI responses of a route's error statuses, each with an example."""
    return {status: error(status, *ERRORS[status]) for status in sorted(set(statuses))}


def error(status: int, meaning: str, kind: str, title: str, detail: str) -> dict[str, Any]:
    """Return the OpenAPI response of one error with its example."""
    example = {"type": kind, "title": title, "status": status, "detail": detail}
    shown = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}
    return {"description": meaning, "content": {MEDIA_TYPE: shown}}


def answers(media_type: str) -> Responses:
    """Return the OpenAPI of a successful response that is not JSON."""
    schema = FILE if media_type.startswith("image/") else {"type": "string"}
    return {200: {"description": "Successful Response", "content": {media_type: {"schema": schema}}}}


def body_of(
    model: str, field: str, *, several: bool = False, raw: bool = True, least: int = 0, most: int = MOST_IMAGES
) -> dict[str, Any]:
    """Return the OpenAPI of a request body: image, form or JSON; `least` and `most` limit several images."""
    lengths = {"minItems": least, "maxItems": most} if least else {"maxItems": most}
    files: dict[str, Any] = {"type": "array", "items": FILE, **lengths} if several else FILE
    content: dict[str, Any] = {"image/*": {"schema": FILE}} if raw else {}
    form = {"type": "object", "required": [field], "properties": {field: files}}
    content["multipart/form-data"] = {"schema": form}
    if model:
        content["application/json"] = {"schema": {"$ref": f"#/components/schemas/{model}"}}
    return {"requestBody": {"required": bool(model), "content": content}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schemas of JSON bodies that routes parse themselves."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        components = schema["components"]
        for model in (SearchRequest, BatchRequest, PhotosRequest, BoxesRequest, PhotoRequest, Problem):
            components["schemas"][model.__name__] = model.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's error format is not used
            components["schemas"].pop(name, None)
        for operation in (operation for path in schema["paths"].values() for operation in path.values()):
            validation_error = operation["responses"].get("422", {}).get("content", {})
            if "application/json" in validation_error:  # added by FastAPI to each route with parameters
                del operation["responses"]["422"]
            operation["description"] = operation.get("description", "").replace("\n", " ")
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}, {}]
    return app.openapi_schema or {}
