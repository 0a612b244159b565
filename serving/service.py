"""Service: searches, feedback, gallery changes and reloads of one bundle and gallery.

A request reads the current retriever once and keeps it, so an answer never mixes two of them. After a swap the old
retriever is freed when its last request ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from index.location import AnyGallery, is_address, open_gallery
from retrieval.catalogue.photos import UploadedPhoto
from retrieval.errors import GalleryLocked
from retrieval.images import Source, check_sent
from retrieval.indexing.worker import embed_batch, write_batch
from retrieval.retriever import Retriever
from retrieval.search.result import BBox, SearchResult
from retrieval.threshold.judged import parts_of
from retrieval.verification.features import PackedFeatures
from serving.http.callers import CALLER
from serving.http.limits import TRY_AGAIN, Busy
from serving.ops.drift_monitor import Drift, DriftMonitor
from serving.ops.readiness import Readiness
from serving.ops.telemetry import Telemetry
from serving.workers.peers import Peers

from .config import ServeSettings
from .errors import GalleryMismatch, NoSuchThing
from .feedback import FeedbackRecorder
from .measuring import Measuring
from .pool import SearchPool
from .reloads import Reloads

T = TypeVar("T")


class Service:
    """A retriever behind a thread pool, with drift monitoring, metrics and readiness."""

    def __init__(
        self,
        retriever: Retriever,
        settings: ServeSettings | None = None,
        *,
        reopen: Callable[[], Retriever] | None = None,
        peers: Peers | None = None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.retriever = retriever
        self.peers = peers or Peers()
        self.pool = SearchPool(
            threads=self.settings.threads, queue=self.settings.queue, deadline_s=self.settings.deadline_s
        )
        self.monitor = DriftMonitor(retriever.bundle)
        self.telemetry = Telemetry(self.peers.folder)
        self.telemetry.watch(self)
        self.ready = False
        self.readiness = Readiness(self)
        bundle, gallery = retriever.bundle, retriever.gallery
        detector = None if retriever.detector is None else retriever.detector.path
        reopen = reopen or partial(Retriever.open, bundle.path, gallery.path, detector=detector)
        self.reloads = Reloads(self, reopen)
        self._writing = Lock()
        self.judged = FeedbackRecorder(self.settings)
        self.measuring = Measuring(self)

    def start(self) -> None:
        """Run one warm-up search and become ready. The first client does not pay for lazy initialization."""
        self.serve(self.reloads.ready(self.retriever))
        self.ready = True
        self.measuring.start()

    def serve(self, retriever: Retriever) -> None:
        """Answer the next searches with a retriever. The first worker checks the files of its gallery."""
        if retriever is not self.retriever:
            self.monitor = DriftMonitor(retriever.bundle)
        self.retriever = retriever
        if self.peers.is_first:
            check = partial(retriever.gallery.verify, rows=False)
            threading.Thread(target=check, name="gallery-check", daemon=True).start()

    def stop(self) -> None:
        """Stop accepting searches and wait briefly for running ones."""
        self.ready = False
        self.measuring.close()
        self.pool.close()
        self.readiness.close()
        self.peers.close()

    # searches

    async def search(
        self,
        image: Source,
        *,
        bbox: BBox | None = None,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        any_review: bool = False,
        request_id: str = "",
    ) -> SearchResult:
        """Search with one photo in the pool, or with a part of it.

        With `any_review` the candidates for review may have any p-value, unless the settings ask for none.

        Raises Busy when the queue is full or the deadline passes.
        """
        review = 1.0 if any_review and self.settings.review else self.settings.review
        work = partial(
            self.retriever.search, image, bbox=bbox, top_k=top_k, where=where, explain=explain, review=review
        )
        return await self._answered(work, request_id, [image], bbox)

    async def search_photos(
        self, images: Sequence[Source], *, top_k: int = 10, where: str | None = None, request_id: str = ""
    ) -> SearchResult:
        """Rank the items by several photos of the same item in the pool."""
        work = partial(self.retriever.search_photos, images, top_k=top_k, where=where)
        return await self._answered(work, request_id, images)

    async def search_boxes(
        self,
        image: Source,
        boxes: str | Sequence[Sequence[float]],
        *,
        top_k: int = 10,
        where: str | None = None,
        request_id: str = "",
    ) -> list[SearchResult]:
        """Search with several parts of a photo in the pool; the request id of an answer ends in its number."""
        work = partial(self.retriever.search_boxes, image, boxes, top_k=top_k, where=where, review=self.settings.review)
        results, waited = await self._run(work)
        for number, result in enumerate(results):
            result.timings_ms["queue"] = round(1e3 * waited, 3)
            self.telemetry.answer(result)
            if request_id:
                self.judged.add(f"{request_id}-{number}", parts_of(result, result.box), [image])
        return results

    async def _run(self, work: Callable[[], T]) -> tuple[T, float]:
        """Run a search in the pool and count a refusal; return its result and the seconds it waited."""
        try:
            return await self.pool.run(work)
        except Busy:
            self.telemetry.busy.inc()
            raise

    async def _answered(
        self, work: Callable[[], SearchResult], request_id: str, images: Sequence[Source], bbox: BBox | None = None
    ) -> SearchResult:
        """Run a search in the pool and record its result."""
        for image in images:
            check_sent(image)
        result, waited = await self._run(work)
        result.timings_ms["queue"] = round(1e3 * waited, 3)
        if len(images) == 1:  # the statistics are those of single photos
            self.monitor.observe(result)
        self.telemetry.answer(result)
        if request_id:
            self.judged.add(request_id, parts_of(result, bbox), images)
        return result

    def feedback(self, request_id: str, verdict: str, item_id: str = "", bbox: BBox | None = None) -> None:
        """Append the caller's verdict on one of its answers to the feedback file; an admin may judge any answer.

        `item_id` names the item that is right, if the verdict is that another one is. `bbox` is that of the judged
        item, in an answer by regions.
        """
        caller = CALLER.get()
        recorded = self.judged.record(self.retriever, caller, request_id, verdict, item_id, bbox)
        if not recorded and not self.peers.feedback(caller, request_id, verdict, item_id, bbox):
            raise NoSuchThing(
                "this request id is unknown, or its answer is no longer kept",
                remedy="Judge an answer soon after the search, and with the key that asked for it",
            )

    def drifts(self) -> list[Drift]:
        """Return the drift of each statistic over the searches of all workers."""
        return self.monitor.state([state.samples for state in self.peers.states()])

    # the gallery

    @contextmanager
    def writer(self) -> Iterator[AnyGallery]:
        """Open the gallery for writing, one request at a time.

        Raises GalleryLocked when another request or process is writing.
        """
        longest = self.settings.deadline_s / 2
        if not self._writing.acquire(timeout=longest):
            raise GalleryLocked("another request is writing to the gallery", remedy=TRY_AGAIN)
        try:
            served = self.retriever.gallery
            shared = is_address(served.path)  # Milvus has no write lock, and an open gallery knows its photos
            with self.peers.writing(longest), nullcontext(served) if shared else open_gallery(served.path) as gallery:
                gallery.feature_format = PackedFeatures.of(self.retriever.bundle)
                yield gallery
        finally:
            self._writing.release()

    def put_photo(self, photo_id: str, item_id: str, image: bytes, metadata: dict[str, Any]) -> tuple[bool, int]:
        """Add or replace a photo; return whether one was replaced, and the gallery version."""
        check_sent(image)
        retriever = self.retriever
        photo = UploadedPhoto(photo_id, Path(photo_id), item_id, metadata=metadata, content=image)
        batch = embed_batch(retriever.embedder, [photo], {})
        for _, error in batch.refused:
            raise error
        with self.writer() as gallery:
            if gallery.embedding_id != retriever.gallery.embedding_id:
                raise Busy("the gallery is being replaced", remedy="Try again in a second")
            if gallery.features_key != retriever.bundle.features_key:
                raise GalleryMismatch(
                    "the gallery keeps local features of its photos, which the served bundle does not compute",
                    remedy="Serve the bundle that the photos were indexed with, or index them into a new gallery",
                )
            replaced = gallery.photo(photo_id) is not None
            write_batch(gallery, batch, actor=CALLER.get().actor)
            return replaced, gallery.version

    def remove(self, *, photo_ids: Sequence[str] = (), item_ids: Sequence[str] = ()) -> tuple[int, int]:
        """Remove photos, or all photos of items; return their number and the gallery version."""
        with self.writer() as gallery:
            count = gallery.remove(photo_ids=photo_ids, item_ids=item_ids, actor=CALLER.get().actor)
            if not count:
                raise NoSuchThing("the gallery contains none of these")
            return count, gallery.version
