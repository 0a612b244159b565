"""Batch the embedding of concurrent requests. This pays on a GPU, not on a CPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.errors import RetrievalError
from retrieval.images import Preprocessing, Source

WAIT_S = 0.003  # maximum wait for another request


class BatchingEmbedder:
    """Thread-safe embedder that runs the photos of concurrent callers as one batch."""

    def __init__(self, embedder: Embedder, *, most: int) -> None:
        self._embedder, self._most = embedder, most
        self._requests: queue.SimpleQueue[tuple[NDArray[np.uint8], Future[Embeddings]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="embedding", daemon=True).start()

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
                except queue.Empty:
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
