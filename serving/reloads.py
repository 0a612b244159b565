"""Reloads: open bundle and gallery again, compare the answers, and switch all workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING

from index.ann.faiss_index import release_memory
from retrieval.retriever import Retriever
from serving.http.limits import Busy

from .batching import BatchingEmbedder
from .decision_diff import decision_diff
from .warm_up import warm_up

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger("retrieval.serving")
GPU_BATCH = 16


@dataclass(frozen=True)
class ReloadOutcome:
    """Result of a reload or of its dry run."""

    swapped: bool
    before: Retriever
    after: Retriever
    queries: int  # searched with both
    changed: list[tuple[int, list[str], list[str]]]  # query, item_ids before and after


class Reloads:
    """Reloads of a service, one at a time.

    For a reload of another worker, this one prepares, and switches when it is told to. If the other worker ends before
    that, this one switches only if the reload was decided, and so do all others.
    """

    def __init__(self, service: Service, reopen: Callable[[], Retriever]) -> None:
        self._service, self._reopen = service, reopen
        self._guard = Lock()
        self._preparing = Lock()
        self._prepared: tuple[str, Retriever] | None = None  # id of the reload

    def run(self, images: Sequence[bytes] = (), *, dry_run: bool = False) -> ReloadOutcome:
        """Reopen bundle and gallery, compare both retrievers on `images`, and switch to the new one in all workers.

        The new retriever must open, verify and answer a search in every worker. Otherwise, the error is raised and the
        old one keeps serving. With `dry_run`, only the comparison is made.
        """
        service = self._service
        with service.peers.reloading(), self._alone():
            before, outcome = service.retriever, "refused"
            try:
                after = self.ready(self._reopen())
                changed = decision_diff(before, after, images)
                if not dry_run:
                    service.peers.switch(after.bundle.bundle_id)
                    service.serve(after)
                outcome = "dry_run" if dry_run else "swapped"
            finally:
                service.telemetry.reloads.labels(outcome).inc()
            return ReloadOutcome(not dry_run, before, after, len(images), changed)

    def prepare(self, bundle_id: str, reload_id: str) -> None:
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
            self._end()  # of an earlier reload
            self._prepared = reload_id, after
        Thread(target=self.settle, name="reload", daemon=True).start()

    def switch(self) -> bool:
        """Switch to the prepared retriever; return whether there was one."""
        prepared = self._take_prepared()
        if prepared is not None:
            self._service.serve(prepared[1])
        return prepared is not None

    def settle(self) -> None:
        """Wait for the end of a reload; then switch to the prepared retriever if it was decided, else close it."""
        with self._service.peers.starting():
            self._end()

    def _end(self) -> None:
        """Switch to the prepared retriever if its reload was decided, else close it."""
        prepared = self._take_prepared()
        if prepared is None:
            return
        reload_id, after = prepared
        if reload_id == self._service.peers.decided():
            self._service.serve(after)
            return
        log.warning("a reload was given up; the bundle %s stays in use", self._service.retriever.bundle.bundle_id)
        after.close()

    def _take_prepared(self) -> tuple[str, Retriever] | None:
        with self._preparing:
            taken, self._prepared = self._prepared, None
        return taken

    def ready(self, retriever: Retriever) -> Retriever:
        """Return the retriever after a warm-up search, with batched embedding on a GPU or if configured."""
        gpu = "CUDAExecutionProvider" in retriever.embedder.providers
        most = self._service.settings.batch or (GPU_BATCH if gpu else 0)
        if most > 1:
            retriever.embedder = BatchingEmbedder(retriever.embedder, most=most)  # type: ignore[assignment]
        warm_up(retriever)
        release_memory()
        return retriever

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._guard.acquire(blocking=False):
            raise Busy("a reload is under way", remedy="Try again when it is done")
        try:
            yield
        finally:
            self._guard.release()
