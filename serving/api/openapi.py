"""OpenAPI document: request bodies and error responses of each route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from index.shell import command

from .problems import MEDIA_TYPE
from .schemas import MOST_IMAGES, BatchRequest, PhotoRequest, Problem, SearchRequest

Responses = dict[int | str, dict[str, Any]]  # by status, in FastAPI's form
FILE = {"type": "string", "format": "binary"}
DESCRIPTION = (
    "Images travel as the raw body, in a form, or as base64 in JSON. Ids in paths are percent-encoded. Errors are RFC "
    "9457 problem documents; on every path a malformed head is answered 400, and a body that is too large 413."
)
GUARDED = (401, 403, 500)  # statuses of every route except the probes
LIMITED = (*GUARDED, 429)  # of routes under /v1
BODY = (408, 413, 422)  # of routes that read a body
IMAGE = (*BODY, 400, 415)  # of routes that read an image
ERRORS: dict[int, tuple[str, str, str, str]] = {  # description, then an example: type, title, detail
    400: (
        "No image, a damaged one, or one of a kind that cannot be read",
        "/problems/image-unreadable",
        "this is not a JPEG, PNG or WebP image",
        "Convert it to one of these",
    ),
    401: ("A key is needed", "about:blank", "a key is needed", "Send it as Authorization: Bearer KEY."),
    403: (
        "The key has another scope, or another site's page asks",
        "about:blank",
        "this key has no scope admin",
        f"Ask for one: {command('keys', 'add', 'FILE', 'NAME', '--scope', 'admin')}",
    ),
    404: ("Not there", "/problems/no-such-thing", "no such item", ""),
    408: ("The body took too long", "about:blank", "the body did not arrive in time", ""),
    409: (
        "What should take over was refused",
        "about:blank",
        "the reload was refused",
        "What serves now serves on; the server's log says why.",
    ),
    413: (
        "Too many bytes or pixels",
        "/problems/image-too-large",
        "the image has 6000×6000 pixels, the limit is 25,000,000",
        "",
    ),
    415: (
        "An image of a mode or shape that is not accepted",
        "/problems/image-unsupported",
        "the image is animated",
        "Send one frame of it",
    ),
    422: (
        "A parameter breaks its rule",
        "/problems/invalid-parameter",
        "top_k must be less than or equal to 100, got 500",
        "",
    ),
    429: (
        "The client asks too often; come back after Retry-After seconds",
        "about:blank",
        "this key asks too often",
        "Wait 0.5 seconds.",
    ),
    500: ("The server's fault", "about:blank", "the request failed", "The server's log says why."),
    503: (
        "No place or no time; come back after Retry-After seconds",
        "/problems/busy",
        "every place in the queue is taken",
        "Try again in a second",
    ),
}


NOT_READY = (
    "A search would not be answered",
    "about:blank",
    "not ready",
    "1 of 2 search threads have been at one photo for longer than the deadline.",
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


def body_of(model: str, field: str, *, several: bool = False, raw: bool = True) -> dict[str, Any]:
    """Return the OpenAPI of a request body: image, form or JSON."""
    files = {"type": "array", "items": FILE, "maxItems": MOST_IMAGES} if several else FILE
    found: dict[str, Any] = {"image/*": {"schema": FILE}} if raw else {}
    form = {"type": "object", "required": [field], "properties": {field: files}}
    found["multipart/form-data"] = {"schema": form}
    if model:
        found["application/json"] = {"schema": {"$ref": f"#/components/schemas/{model}"}}
    return {"requestBody": {"required": bool(model), "content": found}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schemas of JSON bodies that routes parse themselves."""
    if app.openapi_schema is None:
        schema = FastAPI.openapi(app)
        components = schema["components"]
        for model in (SearchRequest, BatchRequest, PhotoRequest, Problem):
            components["schemas"][model.__name__] = model.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's error format is not used
            components["schemas"].pop(name, None)
        for operation in (operation for path in schema["paths"].values() for operation in path.values()):
            told = operation["responses"].get("422", {}).get("content", {})
            if "application/json" in told:  # added by FastAPI to each route with parameters
                del operation["responses"]["422"]
            operation["description"] = operation.get("description", "").replace("\n", " ")
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}, {}]
    return app.openapi_schema or {}
