"""Routes for whoever keeps the catalogue: look-alikes, answers to review, calibration."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from retrieval.images.formats import format_of
from retrieval.inspect.audit import audit
from retrieval.messages import Asked, Calibrated, LookAlikes
from retrieval.search.result import PERHAPS
from retrieval.threshold.proposal import propose
from retrieval.threshold.wording import changes, describe
from serving.access.guard import CALLER
from serving.access.limits import NoSuchThing
from serving.service import Service

from .problems import answers, errors

MOST_PAIRS = 100
MOST_ANSWERS = 200


def admin_routes(service: Service) -> APIRouter:
    """Return the routes."""
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
    def asked() -> list[dict[str, str]]:
        """List recent answers that were not sure or were judged, newest first.

        Listed are answers to whole photos that are kept (`serve --feedback-photos`) and are not in the gallery yet,
        under the photo id answer-REQUEST_ID.
        """
        if service.judged is None:
            return []
        gallery = service.retriever.gallery
        to_review = (each for each in service.judged.recent() if each["decision"] == PERHAPS or each["verdict"])
        found = [each for each in to_review if gallery.photo(f"answer-{each['request_id']}") is None]
        return found[:MOST_ANSWERS]

    @router.get("/answers/{request_id}/photo", response_class=Response, responses=answers("image/*") | errors(404))
    def photo(request_id: Annotated[str, Path(description="The answer's `request_id`.", examples=["…"])]) -> Response:
        """Return the photo that was sent, if it is kept."""
        data = None if service.judged is None else service.judged.photo(request_id)
        form = None if data is None else format_of(data)
        if data is None or form is None:
            raise NoSuchThing("this photo is not kept")
        return Response(data, media_type=form.media_type, headers={"Cache-Control": "no-store"})

    @router.post("/calibrate", response_model=Calibrated, responses=errors(409, 422, 503, 507))
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
