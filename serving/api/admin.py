"""Admin routes: look-alikes and calibration."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query

from retrieval.feedback import SOURCE
from retrieval.galleries.measured import measure_gallery
from retrieval.inspect.alike import look_alikes
from retrieval.measuring.sentences import describe
from retrieval.messages import Calibrated, LookAlikes
from serving.access.keys import CALLER
from serving.service import Service

from .bodies import CalibrateQuery
from .gallery import NO_QUERY
from .openapi import errors


def admin_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/admin", tags=["gallery"])

    @router.get("/look-alikes", response_model=list[LookAlikes], responses=errors(409), dependencies=NO_QUERY)
    def alike() -> list[dict[str, Any]]:
        """List pairs of items that are hard to tell apart: copies first, then those that cost most."""
        return [vars(pair) for pair in look_alikes(service.retriever.bundle, service.retriever.gallery)]

    @router.post("/calibrate", response_model=Calibrated, responses=errors(404, 409, 422, 503, 507))
    def calibrate(query: Annotated[CalibrateQuery, Query()]) -> dict[str, Any]:
        """Make the draws of the gallery anew and set its threshold, as `retrieval calibrate` does.

        With `judged`, the judged photos are labelled ones, and nothing is set. Answers that were not sure are judged
        more often than others, so these photos are harder than most.

        Photos can be stored during the measurement. If another threshold is set during it, that threshold stays, and
        the status is 409.
        """
        retriever = service.retriever
        measured = partial(measure_gallery, retriever.bundle, retriever.gallery, rule="set")  # others may write
        measurement = measured(photos=service.judged_photos(), beside=SOURCE) if query.judged else measured()
        change, version = measurement.change, retriever.gallery.version
        if not query.judged:
            with service.writer() as gallery:
                measurement.set_in(gallery, actor=CALLER.get().actor)
                version = gallery.version
        told = [*change.lines(), *describe(change.after)]
        points = {"before": change.served.to_dict(), "after": change.after.to_dict()}
        return {**points, "rates": change.rates(), "told": told, "gallery_version": version}

    return router
