"""What serves: the bundle and gallery in force, and everything that endpoint and page do with them.

A request takes the retriever in force once and keeps it: a swap never mixes two in one answer, and the old one goes
when its last request has ended.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from threading import Lock
from typing import Any

from PIL import Image

from index.gallery import Gallery
from index.location import open_gallery
from retrieval.errors import GalleryLocked, RetrievalError
from retrieval.images import Source, open_image, thumbnail
from retrieval.result import SearchResult
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import append_feedback, feedback_on
from serving.http.callers import CALLER
from serving.http.limits import Busy
from serving.ops.drift_monitor import Monitor
from serving.ops.readiness import Readiness
from serving.ops.telemetry import Telemetry

from .answers import Answers
from .batching import BatchingEmbedder
from .config import ServeSettings
from .pool import SearchPool

GPU_BATCH = 16
COMPARED = 10  # matches that a decision diff looks at


class NoSuchThing(RetrievalError):
    """A photo, an item or an answer that is not there."""


@dataclass(frozen=True)
class Swap:
    """A reload, done or tried."""

    swapped: bool
    before: Retriever
    after: Retriever
    asked: int
    changed: list[tuple[int, list[str], list[str]]]  # query, item_ids before and after


class Service:
    """A retriever behind a pool of threads, with its watchers."""

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
        self.monitor = Monitor(retriever.bundle)
        self.telemetry = Telemetry()
        self.telemetry.watch(self)
        self.ready = False
        self.readiness = Readiness(self)
        bundle, gallery = retriever.bundle, retriever.gallery
        self._reopen = reopen or partial(Retriever.open, bundle.path, gallery.path, trust=bundle.trust)
        self._reloading, self._writing = Lock(), Lock()
        self._answers = Answers()

    def start(self) -> None:
        """Answer one search, so that the first client does not wait for what is made once; then be ready."""
        self.retriever = self._prepared(self.retriever)
        self.retriever.gallery.check_in_background()
        self.ready = True

    def stop(self) -> None:
        """Take nothing more, and wait a moment for what is under way."""
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
        request_id: str = "",
    ) -> SearchResult:
        """Answer one photo; Busy where there is no place or no time for it."""
        retriever = self.retriever
        work = partial(retriever.search, image, top_k=top_k, where=where, explain=explain)
        try:
            result, waited = await self.pool.run(work)
        except Busy:
            self.telemetry.busy.inc()
            raise
        result.timings_ms["queue"] = round(1e3 * waited, 3)
        self.monitor.observe(result)
        self.telemetry.answer(result)
        if request_id:
            self._answers.note(CALLER.get(), request_id, result)
        return result

    def feedback(self, request_id: str, verdict: str) -> None:
        """Write down what the caller says of one of its answers; an admin may judge those of others."""
        if self.settings.feedback is None:
            raise NoSuchThing("this server takes no feedback", remedy="Start it with --feedback FILE")
        caller, retriever = CALLER.get(), self.retriever
        answered = self._answers.find(caller, request_id)
        if answered is None:
            raise NoSuchThing(
                "this request id is unknown, or its answer is no longer kept",
                remedy="Judge an answer soon after the search, and with the key that asked for it",
            )
        if answered.result.bundle_id != retriever.bundle.bundle_id:
            raise NoSuchThing("the answer came from another bundle than serves now", remedy="Search again")
        if answered.verdicts.get(caller.key) == verdict:  # it is written
            return
        made = feedback_on(
            answered.result,
            verdict,
            retriever.bundle,
            gallery_items=retriever.gallery.items,
            request_id=request_id,
            key=caller.key,
            asked_by=answered.asked_by,
        )
        append_feedback(self.settings.feedback, made)
        answered.verdicts[caller.key] = verdict

    def info(self) -> dict[str, Any]:
        """Return which bundle and gallery answer, what the threshold promises, and whether live photos fit it."""
        retriever = self.retriever
        bundle, gallery, view = retriever.bundle, retriever.gallery, retriever.outlook()
        point = bundle.operating_point
        return {
            "bundle_id": bundle.bundle_id,
            "embedding_id": bundle.embedding_id,
            "threshold": point.threshold,
            "status": point.status,
            "target_fpir": point.target_fpir,
            "distance": bundle.manifest["distance"]["form"],
            "min_certainty": point.min_certainty,
            "evidence": dict(point.evidence),
            "outlook": None if view is None else view.to_dict(),
            "gallery": {
                "version": gallery.version,
                "photos": len(gallery),
                "items": gallery.items,
                "index": gallery.index() if isinstance(gallery, Gallery) else {"kind": "milvus"},
                "columns": gallery.columns(),
            },
            "drift": {
                "warning": self.monitor.warning(),
                "statistics": [asdict(drift) for drift in self.monitor.state()],
            },
        }

    # the gallery

    @contextmanager
    def _writer(self) -> Iterator[Gallery | Any]:
        """Open the gallery to write, one at a time; another process may have it."""
        if not self._writing.acquire(timeout=self.settings.deadline_s / 2):
            raise GalleryLocked("another request is writing", remedy="Try again in a second")
        try:
            place = self.retriever.gallery.path
            with open_gallery(place) as gallery:
                yield gallery
        finally:
            self._writing.release()

    def put_photo(self, photo_id: str, item_id: str, image: bytes, metadata: dict[str, Any]) -> tuple[bool, int]:
        """Add a photo or replace it; return whether it replaced one, and the gallery's version."""
        retriever = self.retriever
        made = retriever.embedder.embed_pixels(retriever.embedder.read([image]))
        small = thumbnail(open_image(image))
        with self._writer() as gallery:
            if gallery.embedding_id != retriever.bundle.embedding_id:
                raise Busy("the gallery is being replaced", remedy="Try again in a second")
            replaced = gallery.photo(photo_id) is not None
            gallery.add(
                [photo_id],
                [item_id],
                made.vectors,
                metadata=[metadata],
                thumbnails=[small],
                upsert=True,
                actor=CALLER.get().actor,
            )
            return replaced, gallery.version

    def remove(self, *, photo_ids: Sequence[str] = (), item_ids: Sequence[str] = ()) -> tuple[int, int]:
        """Remove photos or all photos of items; return how many, and the gallery's version."""
        with self._writer() as gallery:
            count = gallery.remove(photo_ids=photo_ids, item_ids=item_ids, actor=CALLER.get().actor)
            if not count:
                raise NoSuchThing("nothing of that is in the gallery")
            return count, gallery.version

    # another bundle, another gallery

    def reload(self, images: Sequence[bytes] = (), *, dry_run: bool = False) -> Swap:
        """Open bundle and gallery again, and let them take over once they have answered a search.

        What does not open, verify or answer is refused, and the old ones serve on. `images` are asked of both first;
        with `dry_run` nothing else happens.
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
                self.monitor = Monitor(after.bundle)
                after.gallery.check_in_background()
            self.telemetry.reloads.labels("dry_run" if dry_run else "swapped").inc()
            return Swap(not dry_run, before, after, len(images), changed)
        finally:
            self._reloading.release()

    def _prepared(self, retriever: Retriever) -> Retriever:
        """Return a retriever that has answered a search, and batches where that pays."""
        gpu = "CUDAExecutionProvider" in retriever.embedder.providers
        most = self.settings.batch or (GPU_BATCH if gpu else 0)
        if most > 1:
            retriever.embedder = BatchingEmbedder(retriever.embedder, most=most)  # type: ignore[assignment]
        file = io.BytesIO()
        Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
        retriever.search(file.getvalue(), top_k=1)
        return retriever


def decision_diff(
    before: Retriever, after: Retriever, images: Sequence[bytes]
) -> list[tuple[int, list[str], list[str]]]:
    """Return the queries that two retrievers answer otherwise: number, item_ids matched by either."""
    found = []
    for number, image in enumerate(images):
        one, other = (
            [match.item_id for match in retriever.search(image, top_k=COMPARED).matches]
            for retriever in (before, after)
        )
        if one != other:
            found.append((number, one, other))
    return found
