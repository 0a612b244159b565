"""Admin routes: look-alikes and calibration."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from retrieval.galleries.measured import measure_gallery
from retrieval.inspect.alike import look_alikes
from retrieval.measuring.sentences import describe
from retrieval.messages import Calibrated, LookAlikes
from serving.access.keys import CALLER
from serving.service import Service

from .openapi import errors


def admin_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/admin", tags=["gallery"])

    @router.get("/look-alikes", response_model=list[LookAlikes], responses=errors(409))
    def alike() -> list[dict[str, Any]]:
        """List pairs of items that are hard to tell apart: copies first, then those that cost most."""
        return [vars(pair) for pair in look_alikes(service.retriever.bundle, service.retriever.gallery)]

    @router.post("/calibrate", response_model=Calibrated, responses=errors(409, 422, 503, 507))
    def calibrate() -> dict[str, Any]:
        """Make the draws of the gallery anew and set its threshold, as `retrieval calibrate` does.

        Photos can be stored during the measurement. If another threshold is set during it, that threshold stays, and
        the status is 409.
        """
        retriever = service.retriever
        measurement = measure_gallery(retriever.bundle, retriever.gallery, rule="set")  # while others go on writing
        change = measurement.change
        with service.writer() as gallery:
            measurement.set_in(gallery, actor=CALLER.get().actor)
            version = gallery.version
        told = [*change.lines(), *describe(change.after)]
        before, after = change.served.to_dict(), change.after.to_dict()
        return {"before": before, "after": after, "told": told, "gallery_version": version}

    return router
