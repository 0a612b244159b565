"""Readiness: whether a process serves searches, and why not."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from retrieval.errors import GalleryUnavailable, RetrievalError, command, counted
from retrieval.retriever import Retriever
from serving.pool import SearchPool
from serving.settings import ServeSettings

log = logging.getLogger("retrieval.serving")
STARTING = "The server is starting or shutting down."
UNOPENED = "The gallery cannot be opened; the server's log says why."
SILENT = "The gallery's server does not answer."
DAMAGED = f"The gallery's files are damaged; `{command('gallery', 'verify', 'GALLERY')}` says which."


class Serving(Protocol):
    """The part of a service that is checked."""

    ready: bool
    retriever: Retriever
    pool: SearchPool
    settings: ServeSettings


class Readiness:
    """Readiness check of the search threads and, on a thread of its own, the gallery, in bounded time."""

    def __init__(self, service: Serving) -> None:
        self._service = service
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        self._check: Future[str] | None = None

    async def problem(self) -> str:
        """Return the reason why this process does not serve searches, or an empty string."""
        service, pool = self._service, self._service.pool
        if not service.ready:
            return STARTING
        if 2 * (overdue := pool.overdue) >= pool.threads:
            log.error("%d of %d search threads hang", overdue, pool.threads)
            hanging = counted(overdue, "search thread has", "search threads have")
            return f"{hanging} exceeded the deadline and may be stuck."
        if self._check is None or self._check.done():  # otherwise wait for the running check
            self._check = self._thread.submit(self._check_gallery)
        done, _ = await asyncio.wait([asyncio.wrap_future(self._check)], timeout=service.settings.deadline_s)
        return done.pop().result() if done else "The gallery did not answer before the deadline."

    def close(self) -> None:
        """Stop the gallery check thread."""
        self._thread.shutdown(wait=False)

    def _check_gallery(self) -> str:
        gallery = self._service.retriever.gallery
        try:
            len(gallery)
        except GalleryUnavailable as error:
            log.error("%s", error.message)
            return SILENT
        except (RetrievalError, OSError) as error:
            log.error("the gallery does not open", exc_info=error)
            return UNOPENED
        return DAMAGED if gallery.damage else ""
