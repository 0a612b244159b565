"""Requests: query parameters, JSON bodies, forms and raw images."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from index.checks import LONGEST_ID
from retrieval.bundle.text_embedder import MOST_CHARACTERS
from retrieval.errors import ImageUnreadable, InvalidParameter
from retrieval.feedback import Verdict
from retrieval.images.formats import NAMES
from retrieval.indexing.plan import AT_MOST
from retrieval.search.boxes import MOST_BBOXES, SHAPE
from retrieval.search.looks import MOST_IMAGES, MOST_MATCHES, MOST_WHERE

MOST_ROWS = 100_000  # of a table
MOST_REMOVED = 10_000  # photos of one request
MOST_ERRORS = 1000  # in a body whose first error is reported
MOST_COMMAS = 100_000  # of a body: every value costs memory, an image has no commas, and metadata is at most 64 KiB
TABLE_COMMAS = 5 * MOST_ROWS  # of a table
PLACES = ("query", "path", "body")  # location prefixes of pydantic errors, left out of messages
NUMBER = r"\d{1,6}(\.\d{1,3})?"
DATA_URL = re.compile(r"\s*data:(.{0,1000};\s{0,9}base64\s{0,9},)?", re.IGNORECASE)
TEXT = re.compile(rb"\s*(\{|data:)", re.IGNORECASE)  # of a body that is sent without its type
ESCAPED = [(code, unquote(code)) for code in ("%2B", "%2b", "%2F", "%2f", "%3D", "%3d", "%0A", "%0a", "%0D", "%0d")]
URL_SAFE = bytes.maketrans(b"-_", b"+/")  # base64url has other characters for the last two values
ADDRESS = re.compile(r"\s*(https?|ftp|file|s3|gs|blob):", re.IGNORECASE)
BYTES = (
    "Send the photo's bytes, as base64 or as a data: URL in `image`, or as the body: the server fetches no addresses"
)
OBJECT = "Send a JSON object with the fields of the API, in UTF-8"
BOX = "left, upper, right, lower in pixels of the upright photo."
Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]
Base64 = Annotated[str, Field(description=f"A {NAMES} file, as base64 or base64url, or as a data: URL of it.")]
Sides = Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=4, max_length=4, description=BOX)]
BoxText = Annotated[str, Field(pattern=f"^{NUMBER}(,{NUMBER}){{3}}$")]
Find = Annotated[Literal["windows"], Field(description="Windows of the photo.", examples=["windows"])]
Model = TypeVar("Model", bound=BaseModel)


class Options(BaseModel):
    """Options of every search."""

    model_config = ConfigDict(extra="forbid")

    top_k: Annotated[int, Field(ge=1, le=MOST_MATCHES, description="Largest number of matches.", examples=[3])] = 10
    where: Annotated[
        str | None,
        Field(max_length=MOST_WHERE, description="A filter over columns.", examples=["brand = 'x' and price < 10"]),
    ] = None
    fields: Annotated[
        list[Annotated[str, Field(max_length=200)]] | None,
        Field(max_length=64, description="Metadata keys to return with each match; all by default.", examples=["name"]),
    ] = None


class Explained(Options):
    """Options of searches whose answers can be explained."""

    explain: Annotated[
        bool, Field(description="Also return what the distances of the nearest items are made of.", examples=[True])
    ] = False
    review: Annotated[
        float | None,
        Field(
            ge=0,
            le=1,
            description="Largest p-value of the items in `review`; the server may set a lower one.",
            examples=[0.2],
        ),
    ] = None


class PhotoQuery(Explained):
    """Query parameters of a search with one photo, or with words."""

    text: Annotated[
        str | None,
        Field(
            max_length=MOST_CHARACTERS,
            description="Words to search with, instead of a photo. The bundle needs a text tower.",
            examples=["red kettle with a bird"],
        ),
    ] = None
    bbox: Annotated[BoxText | None, Field(description=f"Part to search: {BOX}", examples=["0,0,200,150"])] = None


class BoxesQuery(Options):
    """Query parameters of a search with several parts of a photo."""

    find: Find = "windows"
    bbox: Annotated[
        list[BoxText] | None,
        Field(max_length=MOST_BBOXES, description="Boxes to search, instead of windows.", examples=["0,0,200,150"]),
    ] = None


class SearchRequest(Explained):
    """A search request."""

    image: Base64
    bbox: Annotated[Sides | None, Field(description=f"Part to search: {BOX}")] = None


class Labelled(BaseModel):
    """The item and the metadata of a photo of the gallery."""

    model_config = ConfigDict(extra="forbid")

    item_id: Annotated[Id, Field(description="Id of the item that the photo shows.")]
    metadata: Annotated[dict[str, Any], Field(description="Values for columns, such as a name or a price.")] = {}


class PhotoRequest(Labelled):
    """A photo to add to the gallery."""

    image: Base64


class FeedbackRequest(BaseModel):
    """A verdict on an answer."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"example": {"request_id": "…", "verdict": "wrong", "item_id": "mug-17"}}
    )

    request_id: Annotated[
        str, Field(max_length=100, description="Request id of an answer to the same key, at most a day old.")
    ]
    verdict: Annotated[
        Verdict,
        Field(description="right, wrong (another item is right) or unknown (the item is not in the catalogue)."),
    ]
    item_id: Annotated[
        str, Field(max_length=LONGEST_ID, description="The right item, if the verdict is wrong and it is known.")
    ] = ""
    photo: Annotated[
        str, Field(max_length=100, description="The `photo` of the answer to review. Another photo is not judged.")
    ] = ""


class SeenPhoto(BaseModel):
    """A photo of the gallery, as it was seen."""

    model_config = ConfigDict(extra="forbid")

    photo_id: Annotated[Id, Field(description="Id of the photo in the gallery.")]
    etag: Annotated[
        str, Field(max_length=200, description="The photo's `etag`. If it was changed since, nothing is written.")
    ] = ""


class RemoveRequest(BaseModel):
    """Photos to remove."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"photos": [{"photo_id": "mug-17/1.jpg"}]}})

    photos: Annotated[list[SeenPhoto], Field(min_length=1, max_length=MOST_REMOVED, description="The photos.")]


class TableRow(SeenPhoto, Labelled):
    """A photo of a table."""


class CalibrateQuery(BaseModel):
    """Query parameters of a calibration."""

    model_config = ConfigDict(extra="forbid")

    judged: Annotated[
        bool, Field(description="Measure with the judged photos, too, and set nothing.", examples=[True])
    ] = False


class SyncRequest(BaseModel):
    """A table of all photos that the gallery should have."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "photos": [{"photo_id": "mug-17/1.jpg", "item_id": "mug-17", "metadata": {"name": "Blue mug"}}],
                "dry_run": True,
            }
        },
    )

    photos: Annotated[list[TableRow], Field(min_length=1, max_length=MOST_ROWS, description="The rows of the table.")]
    prune: Annotated[bool, Field(description="Remove the gallery's photos that are not in the table.")] = False
    prune_at_most: Annotated[
        float, Field(ge=0, le=1, description="Refuse to remove a larger share of the gallery's photos.")
    ] = AT_MOST
    dry_run: Annotated[bool, Field(description="Change nothing.")] = False


class PhotoOwner(BaseModel):
    """Query parameter of a photo to add to the gallery."""

    model_config = ConfigDict(extra="forbid")

    item_id: Annotated[
        str, Field(max_length=LONGEST_ID, description="The photo's item, if the body is an image.", examples=["mug-17"])
    ] = ""


class ItemsQuery(BaseModel):
    """Query parameters of a list of items."""

    model_config = ConfigDict(extra="forbid")

    after: Annotated[
        str,
        Field(
            max_length=LONGEST_ID,
            description="List the ids that follow this one: `next` of the page before.",
            examples=["mug-17"],
        ),
    ] = ""
    limit: Annotated[int, Field(ge=1, le=1000, description="Largest number of ids.", examples=[20])] = 100
    find: Annotated[
        str,
        Field(
            max_length=LONGEST_ID,
            description="Part of the item's id or metadata, in upper or lower case.",
            examples=["mug"],
        ),
    ] = ""


JSON_BODIES = (SearchRequest, PhotoRequest, SyncRequest)  # that routes read themselves


def is_json(request: Request) -> bool:
    """Return whether a request's content type is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower().endswith(("/json", "+json"))


async def parsed(request: Request, model: type[Model], *, most_commas: int = MOST_COMMAS) -> Model:
    """Return a validated JSON body; raise InvalidParameter for the first broken rule."""
    body = await request.body()
    if (commas := body.count(b",")) > most_commas:  # before parsing, which takes up to 150 bytes per value
        raise InvalidParameter("body", f"have at most {most_commas:,} values", commas)
    try:
        return model.model_validate_json(body)
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
    elif kind == "string_pattern_mismatch":  # the only texts with a pattern are boxes
        rule = SHAPE
    elif kind == "json_invalid":
        name, rule = "body", f"be JSON ({error.get('ctx', {}).get('error', 'it ends too early')})"
    name = name or "body"
    remedy = BYTES if name == "image" or "url" in name.lower() else OBJECT if name == "body" else ""
    return InvalidParameter(name, rule, value, remedy=remedy)


def decoded(text: str) -> bytes:
    """Decode base64 or base64url, also in lines, or a data: URL; raise ImageUnreadable if invalid or empty."""
    if ADDRESS.match(text):
        raise ImageUnreadable("the image is an address", remedy=BYTES)
    if head := DATA_URL.match(text):
        if head[1] is None:
            raise ImageUnreadable("the data: URL is not base64", remedy="Send data:image/jpeg;base64,… or base64 alone")
        text = text[head.end() :]
        for code, character in ESCAPED:  # `unquote` takes 40 bytes of memory per escape
            text = text.replace(code, character)
    try:
        plain = text.strip().encode("ascii").translate(URL_SAFE, b"\r\n\t")
        data = base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ImageUnreadable("the image is not valid base64", remedy="Encode all of the file's bytes") from None
    if not data:
        raise ImageUnreadable("the request contains no image", remedy="Send the image as base64")
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
        if TEXT.match(data):
            raise ImageUnreadable("the body is text", remedy="Send JSON with the header Content-Type: application/json")
        return data
    files = await images_of(request, "image", most=1)
    if not files:
        raise ImageUnreadable("the form has no file in the field `image`", remedy="Send image=@photo.jpg")
    return files[0]


async def images_of(request: Request, field: str, *, most: int = MOST_IMAGES) -> list[bytes]:
    """Return the files of a form field; empty if the request is not a form."""
    await request.body()  # first: the body is capped
    if not _is_form(request):
        return []
    parser = MultiPartParser(request.headers, request.stream(), max_files=most, max_fields=4)
    parser.spool_max_size = 2**30  # in memory, as the body is: temporary files could fill the disk, or find it full
    try:
        form = await parser.parse()
    except (MultiPartException, LookupError, UnicodeError) as error:
        raise ImageUnreadable(f"this is not a form with files: {error}", remedy=f"Send {field}=@photo.jpg") from error
    try:
        parts = form.getlist(field)
        files = [await part.read() for part in parts if isinstance(part, UploadFile)]
    finally:
        await form.close()
    if not all(files) or len(files) < len(parts):
        raise ImageUnreadable(
            f"the field `{field}` contains an empty file or something that is not a file",
            remedy=f"Send {field}=@photo.jpg",
        )
    return files


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def no_parameters(request: Request) -> None:
    """Raise InvalidParameter for a query parameter of a route that has none."""
    if request.query_params:
        raise InvalidParameter("query parameter", "be left out: this route has none", next(iter(request.query_params)))
