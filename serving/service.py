"""Service: searches, feedback, gallery changes and reloads of one bundle and gallery.

A request reads the current retriever once and keeps it, so an answer never mixes two of them. After a swap the old
retriever is freed when its last request ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from anyio import to_thread

from index.groups import GROUP, group_of
from index.location import AnyGallery, is_writable, writing
from retrieval.catalogue.photos import Photo, UploadedPhoto
from retrieval.errors import DataError, GalleryLocked, RetrievalError, listed
from retrieval.feedback import Verdict
from retrieval.galleries import held
from retrieval.images import check_sent
from retrieval.indexing.worker import embed_batch, write_batch
from retrieval.retriever import Retriever
from retrieval.search.boxes import MOST_BBOXES
from retrieval.search.result import BBox, SearchResult

from .access.keys import CALLER
from .errors import TRY_AGAIN, Busy, GalleryMismatch, NotFound, PhotoChanged, ReadOnly
from .feedback import FeedbackRecorder
from .measuring import Measuring
from .ops.drift import DriftMonitor
from .ops.metrics import Metrics
from .ops.readiness import Readiness
from .pool import SearchPool
from .reloads import Places, Reloads
from .settings import ServeSettings

log = logging.getLogger("retrieval.serving")


class Service:
    """A retriever behind a thread pool, with drift monitoring, metrics and readiness."""

    def __init__(
        self, retriever: Retriever, settings: ServeSettings | None = None, *, places: Places | None = None
    ) -> None:
        self.settings = settings or ServeSettings()
        self.retriever = retriever
        self.pool = SearchPool(
            threads=self.settings.threads, queue=self.settings.queue, deadline_s=self.settings.deadline_s
        )
        self.drift = DriftMonitor(retriever.bundle)
        self.metrics = Metrics()
        self.metrics.watch(self)
        self.ready = False
        self.readiness = Readiness(self)
        self.reloads = Reloads(self, places or Places(retriever.bundle.path, retriever.gallery.path))
        self._writing = Lock()
        file = self.settings.feedback
        self.judged = None if file is None else _recorder(file, self.settings.feedback_photos)
        self.measuring = Measuring(self)

    def start(self) -> None:
        """Run one warm-up search and become ready. The first client does not pay for lazy initialization."""
        self.serve(self.reloads.ready(self.retriever))
        self.ready = True
        self.measuring.start()
        self.reloads.start()

    def serve(self, retriever: Retriever) -> None:
        """Answer the next searches with a retriever, and check the files of its gallery in the background."""
        if retriever is not self.retriever:
            self.drift = DriftMonitor(retriever.bundle)
        self.retriever = retriever
        threading.Thread(target=_check, args=(retriever.gallery,), name="gallery-check", daemon=True).start()

    def stop(self) -> None:
        """Stop accepting searches and wait briefly for running ones."""
        self.ready = False
        self.reloads.close()
        self.measuring.close()
        self.pool.close()
        self.readiness.close()
        if self.judged is not None:
            self.judged.close()

    # searches

    async def search(
        self,
        image: bytes,
        *,
        bbox: BBox | None = None,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float | None = None,
        left_out: Collection[str] = (),
        request_id: str = "",
    ) -> SearchResult:
        """Search with one photo in the pool, or with a part of it, without the photos with some ids.

        `review` is the largest p-value of the items for review, unless the settings have a smaller one.

        Raises Busy when the queue is full or the deadline passes.
        """
        search = partial(
            self.retriever.search,
            image,
            bbox=bbox,
            top_k=top_k,
            where=where,
            explain=explain,
            review=self._review(review),
            left_out=left_out,
        )
        (result,) = await self._searched([image], lambda: [search()], [request_id])
        if not left_out:
            self.drift.observe(result)
        return result

    async def search_photos(
        self, images: Sequence[bytes], *, top_k: int = 10, where: str | None = None
    ) -> SearchResult:
        """Search with several photos of the same item as one query, in the pool."""
        search = partial(self.retriever.search_photos, top_k=top_k, where=where)
        (result,) = await self._searched(images, lambda: [search(images)], [])
        return result

    async def search_text(
        self, text: str, *, top_k: int = 10, where: str | None = None, review: float | None = None
    ) -> SearchResult:
        """Search with words in the pool."""
        options: dict[str, Any] = {"top_k": top_k, "where": where, "review": self._review(review)}
        search = partial(self.retriever.search_text, text, **options)
        (result,) = await self._searched([], lambda: [search()], [])
        return result

    async def search_boxes(
        self,
        image: bytes,
        boxes: str | Sequence[Sequence[float]],
        *,
        top_k: int = 10,
        where: str | None = None,
        left_out: Collection[str] = (),
        request_id: str = "",
    ) -> list[SearchResult]:
        """Search with several parts of a photo in the pool; the request id of an answer ends in its number."""
        review = self.settings.review
        search = partial(self.retriever.search_boxes, top_k=top_k, where=where, review=review, left_out=left_out)
        names = [f"{request_id}-{number}" if request_id else "" for number in range(MOST_BBOXES)]
        return await self._searched([image], lambda: search(image, boxes), names)

    async def _searched(
        self, images: Sequence[bytes], search: Callable[[], list[SearchResult]], request_ids: Sequence[str]
    ) -> list[SearchResult]:
        """Run a search in the pool, record its results, and keep those with a request id for feedback."""
        for image in images:
            self._check_photo(image)
        caller = CALLER.get()

        def work() -> list[SearchResult]:
            results = search()
            named = {name: result for name, result in zip(request_ids, results, strict=False) if name}
            if named and self.judged is not None:
                self.judged.keep(caller, named, images[0])
            return results

        try:
            results, waited = await self.pool.run(work)
        except Busy:
            self.metrics.busy.inc()
            raise
        for result in results:
            result.timings_ms["queue"] = round(1e3 * waited, 3)
            self.metrics.answer(result)
        return results

    def _review(self, asked: float | None) -> float | None:
        """Return the largest p-value of items for review: what a client asks for, but no more than in the settings."""
        return min([limit for limit in (asked, self.settings.review) if limit is not None], default=None)

    def _check_photo(self, image: bytes) -> None:
        check_sent(image, most_bytes=self.settings.photo_bytes, most_pixels=10**6 * self.settings.photo_megapixels)

    def feedback(
        self, request_id: str, verdict: Verdict | Literal["undone"], item_id: str = "", *, photo: str = ""
    ) -> None:
        """Append the caller's verdict on one of its answers to the feedback file, or that its last one is undone.

        An admin may judge any answer. `item_id` names the right item if the verdict is that another item is right, and
        `photo` is the digest of the photo that the verdict is about, if it is known.
        """
        if self.judged is None:
            raise NotFound("this server does not accept feedback", remedy="Start it with --feedback FILE")
        self.judged.record(self.retriever, CALLER.get(), request_id, verdict, item_id, seen=photo)

    def judged_photos(self) -> list[Photo]:
        """Return the judged photos with the items that they show; raise NotFound if there are none."""
        if self.judged is None:
            raise NotFound("this server does not accept feedback", remedy="Start it with --feedback FILE")
        try:
            return self.judged.labelled()
        except DataError as error:
            raise NotFound(str(error)) from error

    # the gallery

    @contextmanager
    def writer(self) -> Iterator[AnyGallery]:
        """Open the gallery for writing, one request at a time.

        Raises GalleryLocked when another request or process is writing, and ReadOnly if the server may not write.
        """
        if not self._writing.acquire(timeout=self.settings.deadline_s / 2):
            raise GalleryLocked("another request is writing to the gallery", remedy=TRY_AGAIN)
        try:
            served = self.retriever.gallery
            if not is_writable(served):
                raise ReadOnly("the gallery is read-only here", remedy="Change it where it may be written")
            with writing(served) as gallery:
                gallery.lock()
                gallery.feature_format = self.retriever.bundle.feature_format
                yield gallery
        finally:
            self._writing.release()

    async def put_photo(
        self,
        photo_id: str,
        item_id: str,
        image: bytes,
        metadata: dict[str, Any],
        *,
        is_new: bool = False,
        etag: str | None = None,
    ) -> tuple[bool, int, str]:
        """Add or replace a photo; return whether one was replaced, the gallery version and the photo's ETag.

        Raises PhotoChanged if `is_new` and the photo exists, or if the ETag of the stored photo is not the given one.

        A new photo of an item has the item's group, unless its metadata has one.

        A photo is never written after its request was refused: once writing begins, the answer waits for its end.
        """
        self._check_photo(image)
        retriever, metadata = self.retriever, dict(metadata)
        photo = UploadedPhoto(photo_id, Path(photo_id), item_id, metadata=metadata, content=image)
        batch, _ = await self.pool.run(partial(embed_batch, retriever.embedder, [photo], {}))
        for _, error in batch.refused:
            raise error

        def write() -> tuple[bool, int, str]:
            with self.writer() as gallery:
                if gallery.embedding_id != retriever.gallery.embedding_id:
                    raise Busy("the gallery is being replaced", remedy="Try again in a second")
                if gallery.features_key != retriever.bundle.features_key:
                    raise GalleryMismatch(
                        "the gallery keeps local features of its photos, which the served bundle does not compute",
                        remedy="Serve the bundle that the photos were indexed with, or index them into a new gallery",
                    )
                replaced = gallery.photo(photo_id) is not None
                if etag is not None and not replaced:
                    raise PhotoChanged(f"there is no photo {photo_id}", remedy="Send it without If-Match")
                if replaced and is_new:
                    raise PhotoChanged(f"there is a photo {photo_id} already", remedy="Choose another id")
                check_unchanged(gallery, _known(etag, photo_id))
                if (group := _group_of(item_id, gallery)) and GROUP not in metadata:
                    metadata[GROUP] = group
                write_batch(gallery, batch, actor=CALLER.get().actor)
                return replaced, gallery.version, etag_of(gallery.photo(photo_id))

        return await to_thread.run_sync(write)  # no thread for searches waits for another process that writes

    def remove(self, etags: Mapping[str, str | None], *, item_id: str = "") -> dict[str, Any]:
        """Remove photos, given with the ETag that each must have, if any, or all photos of an item.

        They are held back for a day. Raises PhotoChanged if a photo has another ETag than the given one.
        """
        with self.writer() as gallery:
            photo_ids = [photo_id for photo_id, *_ in gallery.photos(item_id)] if item_id else list(etags)
            known = {photo_id: etag for photo_id, etag in etags.items() if etag not in (None, "", "*")}
            check_unchanged(gallery, known)
            missing = [photo_id for photo_id in photo_ids if gallery.photo(photo_id) is None]
            if missing or not photo_ids:
                raise NotFound(f"the gallery does not have {listed(missing or [item_id])}")
            name = held.remove(gallery, photo_ids, actor=CALLER.get().actor)
            return {"photos": len(photo_ids), "gallery_version": gallery.version, "removal": name}

    def restore(self, name: str) -> dict[str, int]:
        """Add the photos of a removal again; raise PhotoChanged if a photo with one of their ids was added since."""
        with self.writer() as gallery:
            removal = next((each for each in held.removals(gallery) if each.removal == name), None)
            if removal is None:
                raise NotFound("these photos are no longer held back", remedy="Add them again from your catalogue")
            if there := [photo_id for photo_id in removal.photo_ids if gallery.photo(photo_id) is not None]:
                raise PhotoChanged(f"the gallery has {listed(there)} again", remedy="Remove or rename it first")
            held.restore(gallery, removal, actor=CALLER.get().actor)
            return {"photos": len(removal.photo_ids), "gallery_version": gallery.version}


def _check(gallery: AnyGallery) -> None:
    """Read the files of a gallery, whose problems it remembers."""
    try:
        gallery.verify(rows=False)
    except RetrievalError as error:
        log.warning("the files of the gallery were not checked: %s", error)


def etag_of(row: tuple[str, str, dict[str, Any]] | None) -> str:
    """Return the ETag of a photo, given its ids and metadata with the hash of its content; "" if it does not exist."""
    return "" if row is None else f'"{hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:32]}"'


def check_unchanged(gallery: AnyGallery, known: Mapping[str, str]) -> None:
    """Raise PhotoChanged if a photo has another ETag than the known one, by photo_id."""
    changed = [photo_id for photo_id, etag in known.items() if etag_of(gallery.photo(photo_id)) != etag]
    if changed:
        raise PhotoChanged(f"somebody else has changed {listed(changed)}", remedy="Load the photos again")


def _recorder(file: Path, photos: Path | None) -> FeedbackRecorder | None:
    """Return the recorder of answers; without room for them, searches are served without feedback."""
    try:
        return FeedbackRecorder(file, photos)
    except RetrievalError as error:
        log.warning("feedback is not accepted: %s", error)
        return None


def _group_of(item_id: str, gallery: AnyGallery) -> str:
    """Return the group of an item of a gallery, "" without one."""
    return next((group for *_, metadata in gallery.photos(item_id) if (group := group_of(item_id, metadata))), "")


def _known(etag: str | None, *photo_ids: str) -> dict[str, str]:
    """Return the ETag that photos must have by the header If-Match, by photo_id."""
    return {} if etag is None or etag == "*" else dict.fromkeys(photo_ids, etag)
