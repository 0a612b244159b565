"""The page /manage and the routes it needs beside those of the gallery: look-alikes, answers to review, calibration.

The page is one document with a script, which calls the API. It needs a key with the scope admin where keys are asked
for, and is open to this machine only where they are not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from retrieval.images.formats import format_of
from retrieval.inspect.audit import audit
from retrieval.threshold.anchor import propose
from retrieval.threshold.wording import changes, describe
from serving.access.guard import CALLER
from serving.access.limits import NoSuchThing
from serving.api.problems import answers, errors
from serving.service import Service

MOST_PAIRS = 100
MOST_ANSWERS = 200
FILES = {"/manage": "text/html", "/manage.js": "text/javascript", "/manage.css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class LookAlikes(BaseModel):
    """Two items whose photos are hard to tell apart, by a photo of each."""

    item_id: str
    other_item_id: str
    photo_id: str
    other_photo_id: str
    why: str = Field(description="same file, same picture, nearly the same, or close.")


class Asked(BaseModel):
    """An answer whose photo is kept, newest first."""

    request_id: str
    decision: str
    item_id: str = Field(description="The nearest item, match or not.")
    verdict: str = Field(description="right, wrong or unknown; empty if nobody has judged the answer.")
    right_item_id: str = Field(description="The item that is right, if the verdict names another one.")


class Calibrated(BaseModel):
    """A threshold that was measured anew."""

    before: dict[str, Any]
    after: dict[str, Any]
    told: list[str] = Field(description="What changed and what to expect, in sentences.")
    gallery_version: int


def page_routes() -> APIRouter:
    """Return the page and its files."""
    router = APIRouter(include_in_schema=False)
    for path, kind in FILES.items():
        router.add_api_route(path, _file_route(path, kind), response_class=Response)
    return router


def tending_routes(service: Service) -> APIRouter:
    """Return the routes for look-alikes, answers to review and calibration."""
    router = APIRouter(prefix="/v1/admin", tags=["gallery"])

    @router.get("/look-alikes", response_model=list[LookAlikes], responses=errors(409))
    def look_alikes() -> list[dict[str, str]]:
        """List pairs of items that are hard to tell apart, copies first; this searches with every photo."""
        retriever = service.retriever
        found = audit(retriever.bundle, retriever.gallery)
        pairs: dict[frozenset[str], dict[str, str]] = {}
        for pair in (*found.duplicates, *found.collisions):
            told = {name: getattr(pair, name) for name in ("item_id", "other_item_id", "photo_id", "other_photo_id")}
            pairs.setdefault(frozenset((pair.item_id, pair.other_item_id)), {**told, "why": pair.kind or "close"})
        return list(pairs.values())[:MOST_PAIRS]

    @router.get("/answers", response_model=list[Asked], responses=errors())
    def asked(
        decision: Annotated[str, Query(pattern="^(match|perhaps|no_match|ranked)?$")] = "",
        judged: bool | None = None,
    ) -> list[dict[str, str]]:
        """List recent answers whose photos are kept (`serve --feedback-photos`) and are not in the gallery yet."""
        if service.judged is None:
            return []
        gallery, found = service.retriever.gallery, []
        for answer in service.judged.recent():
            fits = decision in ("", answer["decision"]) and judged in (None, bool(answer["verdict"]))
            if fits and gallery.photo(f"answer-{answer['request_id']}") is None:
                found.append(answer)
        return found[:MOST_ANSWERS]

    @router.get("/answers/{request_id}/photo", response_class=Response, responses=answers("image/*") | errors(404))
    def photo(request_id: str) -> Response:
        """Return the photo that was sent, if it is kept."""
        data = None if service.judged is None else service.judged.photo(request_id)
        form = None if data is None else format_of(data)
        if data is None or form is None:
            raise NoSuchThing("this photo is not kept")
        return Response(data, media_type=form.media_type, headers={"Cache-Control": "no-store"})

    @router.post("/calibrate", response_model=Calibrated, responses=errors(409, 422, 503))
    def calibrate() -> dict[str, Any]:
        """Make the draws of the gallery anew and set its threshold, as `retrieval calibrate` does."""
        bundle = service.retriever.bundle
        with service.writer() as gallery:
            gallery.lock()
            proposal = propose(bundle, gallery)
            proposal.write(gallery, actor=CALLER.get().actor)
            version = gallery.version
        told = [*changes(proposal), *describe(proposal.after)]
        before, after = proposal.served.to_dict(), proposal.after.to_dict()
        return {"before": before, "after": after, "told": told, "gallery_version": version}

    return router


def _file_route(path: str, kind: str) -> Any:
    @cache
    def content() -> bytes:
        name = "manage.html" if path == "/manage" else path[1:]
        return Path(__file__).with_name(name).read_bytes()

    def file() -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return Response(content(), media_type=f"{kind}; charset=utf-8", headers=headers)

    return file
