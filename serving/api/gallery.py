"""Routes of items, photos and thumbnails, and of updates from a table. Writing needs the scope `admin`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse, Response
from starlette.convertors import Convertor, register_url_convertor

from index.checks import check_lengths
from index.location import AnyGallery
from retrieval.catalogue.photos import UploadedPhoto
from retrieval.errors import DiskFull, InvalidParameter, listed
from retrieval.galleries.held import removals
from retrieval.indexing.plan import SyncPlan, SyncSettings, plan_table, sync_table
from retrieval.messages import Item, ItemPage, Photo, Removed, RemovedPhotos, Stored, Synced
from serving.access.keys import CALLER
from serving.errors import NotFound, PartlyWritten
from serving.problems import problem
from serving.service import Service, check_unchanged, etag_of

from .bodies import (
    TABLE_COMMAS,
    ItemsQuery,
    PhotoOwner,
    PhotoRequest,
    RemoveRequest,
    SyncRequest,
    check_keys,
    decoded,
    image_of,
    is_json,
    no_parameters,
    parsed,
)
from .openapi import BODY, IMAGE, answers, body_of, errors, json_of
from .search import public

LISTED = 100  # photo_ids in the answer to a table
ItemId = Annotated[str, PathParameter(description="The item's id, percent-encoded.", examples=["mug-17"])]
PhotoId = Annotated[str, PathParameter(description="The photo's id, percent-encoded.", examples=["mug-17/1.jpg"])]
IfNoneMatch = Annotated[Literal["*"] | None, Header(description="Replace no photo.", examples=["*"])]
IfMatch = Annotated[
    str | None,
    Header(max_length=200, description="The photo's ETag; a changed photo stays.", examples=['"5d41402abc4b"']),
]
NO_QUERY = [Depends(no_parameters)]


class AnyText(Convertor[str]):
    """Path converter that matches any text, slashes and line ends included."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        """Return the text."""
        return value

    def to_string(self, value: str) -> str:
        """Return the text."""
        return value


register_url_convertor("any", AnyText())


def item_routes(service: Service) -> APIRouter:
    """Return the item routes; ids in paths are percent-encoded."""
    router = APIRouter(prefix="/v1", tags=["gallery"])

    @router.get("/items", response_model=ItemPage, responses=errors(422))
    def items(query: Annotated[ItemsQuery, Query()]) -> dict[str, Any]:
        """List item ids in alphabetical order, page by page."""
        limit = query.limit
        item_ids = service.retriever.gallery.item_ids(after=query.after, limit=limit + 1, find=query.find)
        return {"items": item_ids[:limit], "next": item_ids[limit - 1] if len(item_ids) > limit else None}

    @router.get("/items/{item_id:any}", response_model=Item, responses=errors(404), dependencies=NO_QUERY)
    def item(item_id: ItemId) -> dict[str, Any]:
        """Return an item and its photos."""
        photos = service.retriever.gallery.photos(item_id)
        if not photos:
            raise NotFound(f"the gallery has no item {item_id}")
        return {"item_id": item_id, "photos": [_photo(photo) for photo in photos]}

    @router.delete(
        "/items/{item_id:any}",
        response_model=Removed,
        responses=errors(404, 422, 503, 507),
        dependencies=NO_QUERY,
    )
    def remove_item(item_id: ItemId) -> dict[str, Any]:
        """Remove all photos of an item. They can be restored for a day."""
        return service.remove({}, item_id=item_id)

    return router


def photo_routes(service: Service) -> APIRouter:
    """Return the photo routes."""
    router = APIRouter(prefix="/v1", tags=["gallery"])

    @router.get("/photos/{photo_id:any}", response_model=Photo, responses=errors(404), dependencies=NO_QUERY)
    def photo(photo_id: PhotoId) -> dict[str, Any]:
        """Return a photo's item and metadata."""
        row = service.retriever.gallery.photo(photo_id)
        if row is None:
            raise NotFound(f"the gallery has no photo {photo_id}")
        return _photo(row)

    @router.put(
        "/photos/{photo_id:any}",
        response_model=Stored,
        responses=errors(*IMAGE, 409, 412, 503, 507),
        openapi_extra=body_of("image", "PhotoRequest"),
    )
    async def put_photo(
        request: Request,
        photo_id: PhotoId,
        query: Annotated[PhotoOwner, Query()],
        if_none_match: IfNoneMatch = None,
        if_match: IfMatch = None,
    ) -> Response:
        """Add or replace a photo: send the raw image with ?item_id=, or JSON."""
        item_id, metadata = query.item_id, dict[str, Any]()
        if is_json(request):
            if item_id:
                raise InvalidParameter("item_id", "be a field of the JSON body", item_id)
            body = await parsed(request, PhotoRequest)
            image, item_id, metadata = decoded(body.image), body.item_id, body.metadata
        else:
            image = await image_of(request)
        if not item_id:
            raise InvalidParameter("item_id", "be given", item_id, remedy="Add ?item_id=ITEM to the address")
        check_lengths("photo_id", [photo_id])
        check_keys(metadata)
        replaced, version, etag = await service.put_photo(
            photo_id, item_id, image, metadata, is_new=if_none_match is not None, etag=if_match
        )
        stored = {"photo_id": photo_id, "item_id": item_id, "replaced": replaced}
        return JSONResponse({**stored, "gallery_version": version, "etag": etag})

    @router.delete(
        "/photos/{photo_id:any}",
        response_model=Removed,
        responses=errors(404, 412, 422, 503, 507),
        dependencies=NO_QUERY,
    )
    def remove_photo(photo_id: PhotoId, if_match: IfMatch = None) -> dict[str, Any]:
        """Remove a photo. It can be restored for a day."""
        return service.remove({photo_id: if_match})

    return router


def removed_routes(service: Service) -> APIRouter:
    """Return the routes of removals of several photos, and of removed photos that can be restored."""
    router = APIRouter(prefix="/v1/admin/removed", tags=["gallery"])

    @router.get("", response_model=list[RemovedPhotos], responses=errors())
    def removed() -> list[dict[str, Any]]:
        """List the removals of the last day, the newest first."""
        return [
            {
                "removal": each.removal,
                "time": each.time,
                "until": each.until,
                "item_ids": sorted({*each.item_ids}),
                "photo_ids": list(each.photo_ids),
            }
            for each in removals(service.retriever.gallery)
        ]

    @router.post("", response_model=Removed, responses=errors(*BODY, 404, 412, 503, 507))
    def remove(given: RemoveRequest) -> dict[str, Any]:
        """Remove several photos as one change. They can be restored for a day."""
        return service.remove({photo.photo_id: photo.etag for photo in given.photos})

    @router.post("/{removal}/restore", response_model=Removed, responses=errors(404, 412, 422, 503, 507))
    def restore(removal: Annotated[str, PathParameter(description="The `removal`.", examples=["…"])]) -> dict[str, int]:
        """Add the photos of a removal again, with their items, metadata and vectors."""
        return service.restore(removal)

    return router


def thumbnail_routes(service: Service) -> APIRouter:
    """Return the thumbnail route."""
    router = APIRouter(prefix="/v1", tags=["gallery"])

    @router.get(
        "/thumbnails/{photo_id:any}",
        response_class=Response,
        responses=answers("image/jpeg") | errors(404),
    )
    async def thumbnail(photo_id: PhotoId) -> Response:
        """Return a gallery photo's thumbnail, a JPEG of at most 256 pixels per side."""
        jpeg = await to_thread.run_sync(service.retriever.gallery.thumbnail, photo_id)
        if jpeg is None:
            return problem(404, "no such thumbnail")
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    return router


def sync_routes(service: Service) -> APIRouter:
    """Return the route."""
    router = APIRouter(prefix="/v1/admin", tags=["gallery"])

    @router.post(
        "/sync",
        response_model=Synced,
        responses=errors(*BODY, 400, 409, 412, 503, 507),
        openapi_extra=json_of("SyncRequest"),
    )
    async def sync(request: Request) -> dict[str, Any]:
        """Update the items and metadata of the gallery's photos from a table, and list photos that are missing."""
        return await to_thread.run_sync(synced, await parsed(request, SyncRequest, most_commas=TABLE_COMMAS))

    def synced(table: SyncRequest) -> dict[str, Any]:
        photos, settings = _photos(table), SyncSettings(prune=table.prune, prune_at_most=table.prune_at_most)
        known = {row.photo_id: row.etag for row in table.photos if row.etag}
        if table.dry_run:
            gallery = service.retriever.gallery
            check_unchanged(gallery, known)
            plan, version, etags = plan_table(gallery, photos, settings), gallery.version, {}
        else:
            with service.writer() as gallery:
                check_unchanged(gallery, known)
                plan = _write(gallery, photos, settings)
                version, etags = gallery.version, {photo_id: etag_of(gallery.photo(photo_id)) for photo_id in known}
        missing = [photo.photo_id for photo in plan.new]
        return {
            "updated": len(plan.updates),
            "unchanged": plan.unchanged,
            "missing": len(missing),
            "missing_photos": missing[:LISTED],
            "gone": len(plan.gone),
            "gone_photos": plan.gone[:LISTED],
            "gallery_version": version,
            "etags": etags,
        }

    return router


def _write(gallery: AnyGallery, photos: Sequence[UploadedPhoto], settings: SyncSettings) -> SyncPlan:
    """Update a gallery from a table; raises PartlyWritten if the disk becomes full on the way."""
    before = gallery.version
    try:
        return sync_table(gallery, photos, settings, actor=CALLER.get().actor)
    except DiskFull as error:
        if gallery.version == before:
            raise
        raise PartlyWritten(
            "the server's disk is full; a part of the table was written",
            remedy="When its operator has made room, send the table again",
        ) from error


def _photos(table: SyncRequest) -> list[UploadedPhoto]:
    for row in table.photos:
        check_keys(row.metadata)
    repeated = [name for name, count in Counter(row.photo_id for row in table.photos).items() if count > 1]
    if repeated:
        raise InvalidParameter("photos", "name each photo once", listed(repeated))
    return [UploadedPhoto(row.photo_id, Path(row.photo_id), row.item_id, metadata=row.metadata) for row in table.photos]


def _photo(row: tuple[str, str, dict[str, Any]]) -> dict[str, Any]:
    photo_id, item_id, metadata = row
    return {"photo_id": photo_id, "item_id": item_id, "metadata": public(metadata), "etag": etag_of(row)}
