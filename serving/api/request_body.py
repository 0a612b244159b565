"""Parse request bodies: images, forms, JSON and validation errors."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from retrieval.errors import ImageUnreadable, InvalidParameter

from .schemas import MOST_IMAGES

Model = TypeVar("Model", bound=BaseModel)
MOST_ERRORS = 1000  # in a body whose first error is told
PLACES = ("query", "path", "body")  # location prefixes of pydantic errors, left out of messages


def is_json(request: Request) -> bool:
    """Return whether a request's content type is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def parsed(request: Request, model: type[Model]) -> Model:
    """Return a validated JSON body; raise InvalidParameter for the first broken rule."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:  # listing them all takes seconds
            raise InvalidParameter("body", "keep to the fields of the API", f"{error.error_count():,} errors") from None
        raise broken_rule(error.errors(include_url=False)[0]) from None


def broken_rule(error: Mapping[str, Any]) -> InvalidParameter:
    """Return a pydantic error as InvalidParameter, with the parameter's name and value."""
    kind, value = error["type"], error["input"]
    name = ".".join(str(part) for part in error["loc"] if part not in PLACES)
    match = re.fullmatch(r"\w+ should (.*)", error["msg"], re.DOTALL)
    rule = match[1] if match else error["msg"]
    if kind == "missing":
        rule, value = "be given", None
    elif kind == "extra_forbidden":
        rule = "be left out: the API has no such field"
    elif kind == "json_invalid":
        name, rule = "body", f"be JSON ({error.get('ctx', {}).get('error', 'it ends too early')})"
    return InvalidParameter(name or "body", rule, value)


def decoded(text: str) -> bytes:
    """Decode base64 text; raise ImageUnreadable if it is invalid or empty."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ImageUnreadable(
            "the image is not valid base64", remedy="Encode the file's bytes, without line breaks"
        ) from None
    if not data:
        raise ImageUnreadable("the request contains no image", remedy="Send the image as the body")
    return data


def check_keys(metadata: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for metadata with a reserved key."""
    if any(key.startswith("_") for key in metadata):
        raise InvalidParameter("metadata", "have no key that begins with an underscore", sorted(metadata))


async def image_of(request: Request) -> bytes:
    """Return the image of a request: the raw body or the form field `image`."""
    if not _is_form(request):
        data = await request.body()
        if not data:
            raise ImageUnreadable("the request contains no image", remedy="Send the image as the body")
        return data
    files = await images_of(request, "image", most=1)
    if not files:
        raise ImageUnreadable("the form has no file in the field `image`", remedy="Send image=@photo.jpg")
    return files[0]


async def images_of(request: Request, field: str, *, most: int = MOST_IMAGES) -> list[bytes]:
    """Return the files of a form field; empty if the request is not a form."""
    await request.body()  # first: the body is capped, and a truncated one leaves no temporary file
    if not _is_form(request):
        return []
    async with request.form(max_files=most, max_fields=4) as form:
        parts = form.getlist(field)
        files = [await part.read() for part in parts if isinstance(part, UploadFile)]
    if not all(files) or len(files) < len(parts):
        raise ImageUnreadable(f"the field `{field}` contains an empty file or something that is not a file")
    return files


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")
