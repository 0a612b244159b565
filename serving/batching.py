"""Photos of different requests embedded together, where a device gains by it: a GPU does, a core does not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.errors import RetrievalError
from retrieval.images import Preprocessing, Source

WAIT_S = 0.003  # for company, at most


class BatchingEmbedder:
    """An embedder whose callers, each on a thread of its own, share the model's runs."""

    def __init__(self, embedder: Embedder, *, most: int) -> None:
        self._embedder, self._most = embedder, most
        self._asked: queue.SimpleQueue[tuple[NDArray[np.uint8], Future[Embeddings]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="embedding", daemon=True).start()

    @property
    def preprocessing(self) -> Preprocessing:
        """What the model sees."""
        return self._embedder.preprocessing

    def read(self, images: Sequence[Source]) -> NDArray[np.uint8]:
        """Return what the model sees of the images: on the caller's thread."""
        return self._embedder.read(images)

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> Embeddings:
        """Return the embeddings of squares (n, size, size, 3), once their batch has run."""
        answer: Future[Embeddings] = Future()
        self._asked.put((pixels, answer))
        return answer.result()

    def close(self) -> None:
        """End the thread; what was asked before is answered."""
        self._asked.put(None)

    def _work(self) -> None:
        while True:
            first = self._asked.get()
            if first is None:
                return
            batch, count = [first], len(first[0])
            while count < self._most:
                try:
                    more = self._asked.get(timeout=WAIT_S)
                except queue.Empty:
                    break
                if more is None:
                    self._asked.put(None)
                    break
                batch.append(more)
                count += len(more[0])
            self._answer(batch)

    def _answer(self, batch: list[tuple[NDArray[np.uint8], Future[Embeddings]]]) -> None:
        try:
            made = self._embedder.embed_pixels(np.concatenate([pixels for pixels, _ in batch]))
        except BaseException as error:  # every caller is told
            told = error if isinstance(error, RetrievalError) else RetrievalError(f"the model failed: {error}")
            for _, answer in batch:
                answer.set_exception(told)
            return
        start = 0
        for pixels, answer in batch:
            mine = slice(start, start + len(pixels))
            answer.set_result(Embeddings(made.vectors[mine], made.certainties[mine]))
            start = mine.stop
