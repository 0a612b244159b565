"""Admin routes: look-alikes, answers to review, calibration."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from threading import Thread
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from retrieval.galleries.measured import measure_gallery
from retrieval.images.formats import format_of
from retrieval.inspect.audit import audit
from retrieval.measuring.sentences import describe
from retrieval.messages import Asked, Calibrated, LookAlikes
from retrieval.retriever import Retriever
from retrieval.search.result import PERHAPS
from serving.access.keys import CALLER
from serving.errors import Busy, NotFound
from serving.service import Service

from .openapi import answers, errors

MOST_PAIRS = 100
KEPT_S = 600.0  # from the start of a comparison
MOST_ANSWERS = 200


class Comparison:
    """Comparison of all photos of the gallery, on a thread of its own. All requests in the meantime share it."""

    def __init__(self) -> None:
        self._running: Future[list[dict[str, str]]] | None = None  # or has ended, but no request has fetched its pairs
        self._begun = 0.0

    async def pairs(self, retriever: Retriever, seconds: float) -> list[dict[str, str]]:
        """Return the pairs of items that look alike; raise Busy if there are none within some seconds.

        In that case the comparison goes on, and a request within KEPT_S gets its pairs.
        """
        running, now = self._running, time.monotonic()
        if running is None or (running.done() and now - self._begun > KEPT_S):
            running, self._begun = Future(), now
            running.set_running_or_notify_cancel()  # a client that disconnects does not end it
            Thread(target=_compare, args=(retriever, running), name="comparison", daemon=True).start()
        self._running = running
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:
            raise Busy("the photos are being compared", remedy="Ask again in a minute") from error
        finally:
            if running.done() and self._running is running:
                self._running = None


def _compare(retriever: Retriever, outcome: Future[list[dict[str, str]]]) -> None:
    try:
        report = audit(retriever.bundle, retriever.gallery)
        pairs: dict[frozenset[str], dict[str, str]] = {}
        for pair in (*report.duplicates, *report.collisions):
            ids = {name: getattr(pair, name) for name in ("item_id", "other_item_id", "photo_id", "other_photo_id")}
            pairs.setdefault(frozenset((pair.item_id, pair.other_item_id)), {**ids, "why": pair.kind or "close"})
        outcome.set_result(list(pairs.values())[:MOST_PAIRS])
    except BaseException as error:  # whoever asked gets it
        outcome.set_exception(error)


def admin_routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/admin", tags=["gallery"])
    comparison = Comparison()

    @router.get("/look-alikes", response_model=list[LookAlikes], responses=errors(409, 503))
    async def look_alikes() -> list[dict[str, str]]:
        """List pairs of items that are hard to tell apart, copies first.

        This searches with every photo. If it takes longer than a search may, the status is 503. The comparison goes on,
        and a later request gets the pairs.
        """
        return await comparison.pairs(service.retriever, service.settings.deadline_s)

    @router.get("/answers", response_model=list[Asked], responses=errors())
    def asked() -> list[dict[str, str]]:
        """List recent answers that were not sure or were judged, newest first.

        The list has answers to whole photos that are kept (`serve --feedback-photos`) and are not yet in the gallery
        under the photo id answer-REQUEST_ID.
        """
        if service.judged is None:
            return []
        gallery = service.retriever.gallery
        recent = service.judged.recent()
        to_review = (answer for answer in recent if answer["decision"] == PERHAPS or answer["verdict"])
        new = [answer for answer in to_review if gallery.photo(f"answer-{answer['request_id']}") is None]
        return new[:MOST_ANSWERS]

    @router.get("/answers/{request_id}/photo", response_class=Response, responses=answers("image/*") | errors(404))
    def photo(request_id: Annotated[str, Path(description="The answer's `request_id`.", examples=["…"])]) -> Response:
        """Return the photo that was sent, if it is kept."""
        data = None if service.judged is None else service.judged.photo(request_id)
        form = None if data is None else format_of(data)
        if data is None or form is None:
            raise NotFound("this photo is not kept")
        return Response(data, media_type=form.media_type, headers={"Cache-Control": "no-store"})

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
