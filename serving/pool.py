"""Thread pool for searches with a bounded queue and a deadline, and batches of their photos for a GPU."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock, Thread, get_ident
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.errors import RetrievalError
from retrieval.images import Preprocessing, Source

from .errors import TRY_AGAIN, Busy

Result = TypeVar("Result")
CLOSE_S = 2.0  # time for running searches to end when the pool closes
WAIT_S = 0.003  # maximum wait of a batch for another photo


class SearchPool:
    """Thread pool with a bounded queue and a deadline for each search."""

    def __init__(self, *, threads: int, queue: int, deadline_s: float) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="search")
        self._threads, self._capacity, self._deadline = threads, threads + queue, deadline_s
        self._pending: set[Future[Any]] = set()
        self._started: dict[int, float] = {}  # start time of the running search, by thread id
        self._count = 0
        self._guard = Lock()

    @property
    def threads(self) -> int:
        """Number of threads."""
        return self._threads

    @property
    def waiting(self) -> int:
        """Number of searches waiting for a thread."""
        return max(0, self._count - self._threads)

    @property
    def is_full(self) -> bool:
        """Return whether the queue is full."""
        return self._count >= self._capacity

    @property
    def overdue(self) -> int:
        """Number of threads whose current search has exceeded the deadline; they may hang."""
        now = time.monotonic()
        with self._guard:
            return sum(now - started > self._deadline for started in self._started.values())

    async def run(self, work: Callable[[], Result]) -> tuple[Result, float]:
        """Run the work on a thread; return its result and the seconds it waited.

        Raises Busy when the queue is full or closed, or when the deadline passes. A place is freed when the work ends,
        not when the client disconnects.
        """
        with self._guard:
            if self._count >= self._capacity:
                raise Busy("the queue is full", remedy=TRY_AGAIN)
            self._count += 1
        submitted = time.perf_counter()

        def timed() -> tuple[Result, float]:
            waited = time.perf_counter() - submitted
            with self._guard:
                self._started[get_ident()] = time.monotonic()
            try:
                return work(), waited
            finally:
                with self._guard:
                    del self._started[get_ident()]

        try:
            running = self._pool.submit(copy_context().run, timed)  # the work sees CALLER
        except RuntimeError as error:  # the pool is closed
            self._release(None)
            raise Busy("the server is shutting down", remedy=TRY_AGAIN) from error
        with self._guard:
            self._pending.add(running)
        running.add_done_callback(self._release)
        try:
            async with asyncio.timeout(self._deadline):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:  # waiting work is cancelled; running work ends on its own
            raise Busy("the search did not end before its deadline", remedy=TRY_AGAIN) from error

    def _release(self, future: Future[Any] | None) -> None:
        with self._guard:
            self._count -= 1
            self._pending.discard(future)

    def close(self) -> None:
        """Refuse further work and wait up to CLOSE_S for running work; threads that hang are abandoned."""
        self._pool.shutdown(wait=False)
        with self._guard:
            pending = set(self._pending)
        wait(pending, timeout=CLOSE_S)


class BatchingEmbedder:
    """Thread-safe embedder that runs the photos of concurrent callers as one batch, which pays on a GPU."""

    def __init__(self, embedder: Embedder, *, most: int) -> None:
        self._embedder, self._most = embedder, most
        self._requests: SimpleQueue[tuple[NDArray[np.uint8], Future[Embeddings]] | None] = SimpleQueue()
        Thread(target=self._work, name="embedding", daemon=True).start()

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the wrapped embedder."""
        return self._embedder.preprocessing

    def read(self, images: Sequence[Source]) -> NDArray[np.uint8]:
        """Return the preprocessed images; runs on the caller's thread."""
        return self._embedder.read(images)

    def open(self, image: Source) -> Image.Image:
        """Return the decoded image; runs on the caller's thread."""
        return self._embedder.open(image)

    def square(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the preprocessed image; runs on the caller's thread."""
        return self._embedder.square(image)

    def describe(self, image: Image.Image) -> bytes | None:
        """Return the local features of an image, if the bundle verifies matches; runs on the caller's thread."""
        return self._embedder.describe(image)

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> Embeddings:
        """Return the embeddings of pixels (n, size, size, 3); blocks until their batch has run."""
        future: Future[Embeddings] = Future()
        self._requests.put((pixels, future))
        return future.result()

    def close(self) -> None:
        """Stop the thread after the pending requests."""
        self._requests.put(None)

    def _work(self) -> None:
        while True:
            first = self._requests.get()
            if first is None:
                return
            batch, count = [first], len(first[0])
            while count < self._most:
                try:
                    more = self._requests.get(timeout=WAIT_S)
                except Empty:
                    break
                if more is None:
                    self._requests.put(None)
                    break
                batch.append(more)
                count += len(more[0])
            self._run(batch)

    def _run(self, batch: list[tuple[NDArray[np.uint8], Future[Embeddings]]]) -> None:
        try:
            embeddings = self._embedder.embed_pixels(np.concatenate([pixels for pixels, _ in batch]))
        except BaseException as error:  # every caller gets the error
            failure = error if isinstance(error, RetrievalError) else RetrievalError(f"the model failed: {error}")
            for _, future in batch:
                future.set_exception(failure)
            return
        start = 0
        for pixels, future in batch:
            rows = slice(start, start + len(pixels))
            future.set_result(embeddings.where(rows))
            start = rows.stop
