"""The OpenAPI document: the bodies of requests, and the errors of each route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from retrieval.images.formats import NAMES
from retrieval.messages import Problem
from serving.problems import MEDIA_TYPE

from .bodies import JSON_BODIES

Responses = dict[int | str, dict[str, Any]]  # by status, in FastAPI's form
GUARDED = (401, 403, 422, 500)  # statuses of every route except the probes
BODY = (408, 413, 422)  # of routes that read a body
IMAGE = (*BODY, 400, 415)  # of routes that read an image
FILE = {"type": "string", "format": "binary"}
MEANINGS = {
    400: "There is no image, or the body cannot be read",
    401: "An API key is required",
    403: "The scope of the key does not allow this, or a page of another site sent the request",
    404: "It does not exist",
    408: "The body took too long to arrive",
    409: "The new bundle or gallery was refused, or the removal of too many photos, or a photo for a gallery with "
    "local features which the served bundle does not compute",
    412: "A photo was changed since you saw it, or is there already",
    413: "The image has too many bytes or pixels",
    415: f"The image is none of {NAMES}, or its mode or shape is not supported",
    422: "A parameter has a value that is not allowed",
    500: "The server failed; its log says why",
    507: "The server's disk is full; the title says whether anything was changed",
    503: "The queue is full, the deadline has passed, or the server is not ready; try again after Retry-After seconds",
}


def errors(*statuses: int, guarded: bool = True) -> Responses:
    """Return the OpenAPI responses of a route's error statuses."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {"description": MEANINGS[status], "content": {MEDIA_TYPE: schema}}
        for status in sorted({*statuses, *(GUARDED if guarded else ())})
    }


def answers(media_type: str) -> Responses:
    """Return the OpenAPI response of a route that does not return JSON."""
    schema = FILE if media_type.startswith("image/") else {"type": "string"}
    return {200: {"description": "Successful Response", "content": {media_type: {"schema": schema}}}}


def body_of(field: str, model: str = "", *, several: bool = False, required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI of a body of images: a form with a field, raw if it is one image, or JSON of a model."""
    kind: dict[str, Any] = {"type": "array", "items": FILE} if several else FILE
    files = {**kind, "description": "JPEG, PNG or WebP."}
    form = {"type": "object", "required": [field], "properties": {field: files}}
    content: dict[str, Any] = {} if several else {"image/*": {"schema": FILE}}
    content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": required, "content": content | (_json_of(model) if model else {})}}


def json_of(model: str) -> dict[str, Any]:
    """Return the OpenAPI of a JSON body."""
    return {"requestBody": {"required": True, "content": _json_of(model)}}


def _json_of(model: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{model}"}}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schemas of JSON bodies that routes parse themselves."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        components = schema["components"]
        for model in (*JSON_BODIES, Problem):
            described = model.model_json_schema(ref_template="#/components/schemas/{model}")
            components["schemas"] |= described.pop("$defs", {}) | {model.__name__: described}
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's error format is not used
            components["schemas"].pop(name, None)
        for operation in (operation for path in schema["paths"].values() for operation in path.values()):
            if "application/json" in operation["responses"].get("422", {}).get("content", {}):
                del operation["responses"]["422"]  # added by FastAPI to each route with parameters
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}, {}]
    return app.openapi_schema or {}
