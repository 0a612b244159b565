"""Reloads: open bundle and gallery again, compare the answers, and switch all workers."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, Timer
from typing import TYPE_CHECKING

from PIL import Image

from retrieval.retriever import Retriever
from serving.http.limits import Busy

from .batching import BatchingEmbedder
from .decision_diff import decision_diff

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger("retrieval.serving")
GPU_BATCH = 16
PREPARED_S = 900.0  # then a reload whose worker has died is given up


@dataclass(frozen=True)
class ReloadOutcome:
    """Result of a reload or of its dry run."""

    swapped: bool
    before: Retriever
    after: Retriever
    queries: int  # searched with both
    changed: list[tuple[int, list[str], list[str]]]  # query, item_ids before and after


class Reloads:
    """Reloads of a service, one at a time. For a reload of another worker, this one prepares and then switches."""

    def __init__(self, service: Service, reopen: Callable[[], Retriever]) -> None:
        self._service, self._reopen = service, reopen
        self._guard = Lock()
        self._preparing = Lock()
        self._prepared: tuple[Retriever, Timer] | None = None

    def run(self, images: Sequence[bytes] = (), *, dry_run: bool = False) -> ReloadOutcome:
        """Reopen bundle and gallery, compare both retrievers on `images`, and switch to the new one in all workers.

        The new retriever must open, verify and answer a search in every worker. Otherwise, the error is raised and the
        old one keeps serving. With `dry_run`, only the comparison is made.
        """
        service = self._service
        with service.peers.reloading(), self._alone():
            before = service.retriever
            try:
                after = self.ready(self._reopen())
                changed = decision_diff(before, after, images)
                if not dry_run:
                    service.peers.switch(after.bundle.bundle_id)
            except Exception:
                service.telemetry.reloads.labels("refused").inc()
                raise
            if not dry_run:
                service.serve(after)
            service.telemetry.reloads.labels("dry_run" if dry_run else "swapped").inc()
            return ReloadOutcome(not dry_run, before, after, len(images), changed)

    def prepare(self, bundle_id: str) -> None:
        """Open bundle and gallery for a reload of another worker.

        Raises
        ------
        RetrievalError
            If they cannot be opened or searched.
        Busy
            If a reload is under way, or the bundle is another one than that worker opened.
        """
        with self._alone():
            after = self.ready(self._reopen())
            if after.bundle.bundle_id != bundle_id:
                raise Busy("the bundle changed during the reload", remedy="Reload again")
            self.keep()  # of a reload whose worker has died
            expiry = Timer(PREPARED_S, self.keep)
            expiry.daemon = True
            self._prepared = after, expiry
            expiry.start()

    def switch(self) -> bool:
        """Switch to the prepared retriever; return whether there was one."""
        after = self._take_prepared()
        if after is not None:
            self._service.serve(after)
        return after is not None

    def keep(self) -> None:
        """Close the prepared retriever and keep serving the current one."""
        after = self._take_prepared()
        if after is not None:
            log.warning("a reload was given up; the bundle %s keeps serving", self._service.retriever.bundle.bundle_id)
            after.close()

    def _take_prepared(self) -> Retriever | None:
        with self._preparing:
            taken, self._prepared = self._prepared, None
        if taken is None:
            return None
        taken[1].cancel()
        return taken[0]

    def ready(self, retriever: Retriever) -> Retriever:
        """Return the retriever after a warm-up search, with batched embedding on a GPU or if configured."""
        gpu = "CUDAExecutionProvider" in retriever.embedder.providers
        most = self._service.settings.batch or (GPU_BATCH if gpu else 0)
        if most > 1:
            retriever.embedder = BatchingEmbedder(retriever.embedder, most=most)  # type: ignore[assignment]
        file = io.BytesIO()
        Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
        retriever.search(file.getvalue(), top_k=1)
        return retriever

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._guard.acquire(blocking=False):
            raise Busy("a reload is under way", remedy="Try again when it is done")
        try:
            yield
        finally:
            self._guard.release()
