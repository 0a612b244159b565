"""Service: searches, feedback, gallery changes and reloads of one bundle and gallery.

A request reads the current retriever once and keeps it, so an answer never mixes two of them. After a swap the old
retriever is freed when its last request ends.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image

from index.location import is_address, open_gallery
from index.protocol import GalleryProtocol
from retrieval.bundle.served_point import threshold_status
from retrieval.catalogue.photos import UploadedPhoto
from retrieval.errors import GalleryLocked
from retrieval.images import Source
from retrieval.indexing.worker import embed_batch, write_batch
from retrieval.result import SearchResult
from retrieval.retriever import Retriever
from retrieval.threshold.drawn_distances import unmeasured_warning
from retrieval.threshold.gallery_anchor import GalleryAnchor
from serving.http.callers import CALLER
from serving.http.limits import Busy
from serving.ops.drift_monitor import DriftMonitor
from serving.ops.readiness import Readiness
from serving.ops.telemetry import Telemetry

from .batching import BatchingEmbedder
from .config import TIGHTEN, ServeSettings
from .decision_diff import decision_diff
from .errors import GalleryMismatch, NoSuchThing
from .feedback import FeedbackRecorder
from .pool import SearchPool

GPU_BATCH = 16


@dataclass(frozen=True)
class ReloadOutcome:
    """Result of a reload or of its dry run."""

    swapped: bool
    before: Retriever
    after: Retriever
    queries: int  # searched with both
    changed: list[tuple[int, list[str], list[str]]]  # query, item_ids before and after


class Service:
    """A retriever behind a thread pool, with drift monitoring, metrics and readiness."""

    def __init__(
        self,
        retriever: Retriever,
        settings: ServeSettings | None = None,
        *,
        reopen: Callable[[], Retriever] | None = None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.retriever = retriever
        self.pool = SearchPool(
            threads=self.settings.threads, queue=self.settings.queue, deadline_s=self.settings.deadline_s
        )
        self.monitor = DriftMonitor(retriever.bundle)
        self.telemetry = Telemetry()
        self.telemetry.watch(self)
        self.ready = False
        self.readiness = Readiness(self)
        bundle, gallery = retriever.bundle, retriever.gallery
        self._reopen = reopen or partial(Retriever.open, bundle.path, gallery.path, trust=bundle.trust)
        self._reloading, self._writing = Lock(), Lock()
        self._feedback = FeedbackRecorder(self.settings)

    def start(self) -> None:
        """Run one warm-up search and become ready. The first client does not pay for lazy initialization."""
        self.retriever = self._prepared(self.retriever)
        self.retriever.gallery.check_in_background()
        self.ready = True

    def stop(self) -> None:
        """Stop accepting searches and wait briefly for running ones."""
        self.ready = False
        self.pool.close()
        self.readiness.close()

    # searches

    async def search(
        self,
        image: Source,
        *,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        any_review: bool = False,
        request_id: str = "",
    ) -> SearchResult:
        """Search with one photo in the pool.

        With `any_review` the candidates for review may have any p-value, unless the settings ask for none.

        Raises Busy when the queue is full or the deadline passes.
        """
        review = 1.0 if any_review and self.settings.review else self.settings.review
        work = partial(self.retriever.search, image, top_k=top_k, where=where, explain=explain, review=review)
        return await self._answered(work, request_id, [image])

    async def search_photos(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        any_review: bool = False,
        request_id: str = "",
    ) -> SearchResult:
        """Search with 2 to 8 photos of the same item in the pool, else as `search` does."""
        review = 1.0 if any_review and self.settings.review else self.settings.review
        work = partial(self.retriever.search_photos, images, top_k=top_k, where=where, explain=explain, review=review)
        return await self._answered(work, request_id, images)

    async def _answered(
        self, work: Callable[[], SearchResult], request_id: str, images: Sequence[Source]
    ) -> SearchResult:
        """Run a search in the pool and record its result."""
        try:
            result, waited = await self.pool.run(work)
        except Busy:
            self.telemetry.busy.inc()
            raise
        result.timings_ms["queue"] = round(1e3 * waited, 3)
        if result.photos == 1:  # the statistics are those of single photos
            self.monitor.observe(result)
        self.telemetry.answer(result)
        if request_id:
            self._feedback.add(request_id, result, images)
        return result

    def feedback(self, request_id: str, verdict: str, item_id: str = "") -> None:
        """Append the caller's verdict on one of its answers to the feedback file; an admin may judge any answer.

        `item_id` names the item that is right, if the verdict is that another one is.
        """
        self._feedback.record(self.retriever, request_id, verdict, item_id)

    def info(self) -> dict[str, Any]:
        """Return the bundle, the gallery, the threshold with its error rate, and the drift of live photos."""
        retriever = self.retriever
        bundle, gallery, forecast = retriever.bundle, retriever.gallery, retriever.fpir_forecast()
        point, rates = retriever.point, retriever.rates()
        outgrown = "" if forecast is None else forecast.warning()
        unmeasured = unmeasured_warning() if retriever.unmeasured else ""
        warnings = [outgrown if rates is None else rates.warning(point), unmeasured, self.monitor.warning()]
        return {
            "bundle_id": bundle.bundle_id,
            "embedding_id": bundle.embedding_id,
            "threshold": point.threshold_or_none,
            "status": point.status,
            "target_fpir": point.target_fpir,
            "distance": bundle.manifest["distance"]["form"],
            "min_certainty": point.min_certainty,
            "evidence": dict(point.evidence),
            "threshold_status": threshold_status(point, bundle),
            "in_gallery": None if rates is None else {**rates.to_dict(point), "warning": rates.warning(point)},
            "fpir_forecast": None if forecast is None else forecast.to_dict(),
            "gallery": {
                "version": gallery.version,
                "photos": len(gallery),
                "items": gallery.items,
                "index": gallery.index(),
                "columns": gallery.columns(),
            },
            "warnings": [f"{warning}." for warning in warnings if warning],
            "drift": {
                "warning": self.monitor.warning(),
                "statistics": [asdict(drift) for drift in self.monitor.state()],
            },
        }

    # the gallery

    @contextmanager
    def writer(self) -> Iterator[GalleryProtocol]:
        """Open the gallery for writing, one request at a time.

        Raises GalleryLocked when another request or process is writing.
        """
        if not self._writing.acquire(timeout=self.settings.deadline_s / 2):
            raise GalleryLocked("another request is writing to the gallery", remedy="Try again in a second")
        try:
            served = self.retriever.gallery
            shared = is_address(served.path)  # Milvus has no write lock, and an open gallery knows its photos
            with nullcontext(served) if shared else open_gallery(served.path) as gallery:
                anchor = GalleryAnchor(self.retriever.bundle, tighten=self.settings.auto_calibrate == TIGHTEN)
                anchor.follow(gallery, unanchored=True)
                yield gallery
        finally:
            self._writing.release()

    def put_photo(self, photo_id: str, item_id: str, image: bytes, metadata: dict[str, Any]) -> tuple[bool, int]:
        """Add or replace a photo; return whether one was replaced, and the gallery version."""
        retriever = self.retriever
        photo = UploadedPhoto(photo_id, Path(photo_id), item_id, metadata=metadata, content=image)
        batch = embed_batch(retriever.embedder, [photo], {})
        for _, error in batch.refused:
            raise error
        with self.writer() as gallery:
            if gallery.embedding_id != retriever.bundle.embedding_id:
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

    # reloads

    def reload(self, images: Sequence[bytes] = (), *, dry_run: bool = False) -> ReloadOutcome:
        """Reopen bundle and gallery, compare both retrievers on `images`, and swap to the new one.

        The new retriever must open, verify and answer a search. If it does not, the error is raised and the old one
        keeps serving. With `dry_run` only the comparison is made.
        """
        if not self._reloading.acquire(blocking=False):
            raise Busy("a reload is under way", remedy="Try again when it is done")
        try:
            before = self.retriever
            try:
                after = self._prepared(self._reopen())
                changed = decision_diff(before, after, images)
            except Exception:
                self.telemetry.reloads.labels("refused").inc()
                raise
            if not dry_run:
                self.retriever = after
                self.monitor = DriftMonitor(after.bundle)
                after.gallery.check_in_background()
            self.telemetry.reloads.labels("dry_run" if dry_run else "swapped").inc()
            return ReloadOutcome(not dry_run, before, after, len(images), changed)
        finally:
            self._reloading.release()

    def _prepared(self, retriever: Retriever) -> Retriever:
        """Run a warm-up search and return the retriever, with batched embedding on a GPU or where it is configured."""
        gpu = "CUDAExecutionProvider" in retriever.embedder.providers
        most = self.settings.batch or (GPU_BATCH if gpu else 0)
        if most > 1:
            retriever.embedder = BatchingEmbedder(retriever.embedder, most=most)  # type: ignore[assignment]
        file = io.BytesIO()
        Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
        retriever.search(file.getvalue(), top_k=1)
        return retriever
