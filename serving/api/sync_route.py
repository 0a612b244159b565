"""Route that updates the items and metadata of the gallery from a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from retrieval.catalogue.photos import UploadedPhoto
from retrieval.errors import InvalidParameter
from retrieval.indexing.plan import AT_MOST, SyncSettings, plan_table, sync_table
from serving.http.callers import CALLER
from serving.service import Service

from .openapi import BODY, LIMITED, errors
from .request_body import check_keys
from .schemas import Id, Strict

MOST_ROWS = 100_000  # of a table
LISTED = 100  # photo_ids in an answer


class TableRow(Strict):
    """A photo of a table."""

    photo_id: Id
    item_id: Id
    metadata: dict[str, Any] = Field(default_factory=dict)


class SyncRequest(Strict):
    """A table of all photos that the gallery should have."""

    photos: Annotated[list[TableRow], Field(min_length=1, max_length=MOST_ROWS)]
    prune: Annotated[bool, Field(description="Remove the gallery's photos that are not in the table.")] = False
    prune_at_most: Annotated[
        float, Field(ge=0, le=1, description="Refuse to remove a larger share of the gallery's photos.")
    ] = AT_MOST
    dry_run: Annotated[bool, Field(description="Change nothing.")] = False


class Synced(BaseModel):
    """Differences between the gallery and a table; the lists have the first 100 photo_ids."""

    updated: int = Field(description="Photos that got another item or other metadata.")
    unchanged: int
    missing: int = Field(description="Photos of the table that the gallery lacks; add them with `PUT /v1/photos`.")
    missing_photos: list[str]
    gone: int = Field(description="Photos of the gallery that the table does not have.")
    gone_photos: list[str]
    gallery_version: int


def sync_routes(service: Service) -> APIRouter:
    """Return the route."""
    router = APIRouter(prefix="/v1/admin", tags=["gallery"])

    @router.post("/sync", response_model=Synced, responses=errors(*LIMITED, *BODY, 400, 409, 503))
    def sync(table: SyncRequest) -> dict[str, Any]:
        """Update the items and metadata of the gallery's photos from a table, and list photos that are missing."""
        photos, settings = _photos(table), SyncSettings(prune=table.prune, prune_at_most=table.prune_at_most)
        if table.dry_run:
            gallery = service.retriever.gallery
            plan, version = plan_table(gallery, photos, settings), gallery.version
        else:
            with service.writer() as gallery:
                plan = sync_table(gallery, photos, settings, actor=CALLER.get().actor)
                version = gallery.version
        missing = [photo.photo_id for photo in plan.new]
        return {
            "updated": len(plan.updates),
            "unchanged": plan.unchanged,
            "missing": len(missing),
            "missing_photos": missing[:LISTED],
            "gone": len(plan.gone),
            "gone_photos": plan.gone[:LISTED],
            "gallery_version": version,
        }

    return router


def _photos(table: SyncRequest) -> list[UploadedPhoto]:
    for row in table.photos:
        check_keys(row.metadata)
    repeated = [name for name, count in Counter(row.photo_id for row in table.photos).items() if count > 1]
    if repeated:
        raise InvalidParameter("photos", "name each photo once", repeated[0])
    return [UploadedPhoto(row.photo_id, Path(row.photo_id), row.item_id, metadata=row.metadata) for row in table.photos]
