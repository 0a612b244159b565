"""Readiness check with a bounded time, even if search threads or the gallery hang."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from retrieval.errors import RetrievalError, command

if TYPE_CHECKING:
    from serving.service import Service

log = logging.getLogger("retrieval.serving")
STARTING = "The server is starting or shutting down."
UNOPENED = "The gallery cannot be opened; the server's log says why."
DAMAGED = f"The gallery's files are damaged; `{command('gallery', 'verify', 'GALLERY')}` says which."


class Readiness:
    """Readiness check of the search threads and, on a separate thread, the gallery."""

    def __init__(self, service: Service) -> None:
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
            return f"{overdue} of {pool.threads} search threads are at one photo for longer than the deadline."
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
        except (RetrievalError, OSError) as error:
            log.error("the gallery does not open", exc_info=error)
            return UNOPENED
        return DAMAGED if gallery.damage else ""
