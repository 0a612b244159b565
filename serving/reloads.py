"""Reloads: open the bundle and the gallery again, on request and when their paths lead to other folders.

Threads that run the model are no daemons: Python would end these inside ONNX Runtime, and that aborts the process.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread, main_thread
from typing import Protocol

from PIL import Image

from index.ann.faiss_index import release_memory
from retrieval.errors import RetrievalError
from retrieval.retriever import Retriever

from .errors import Busy
from .ops.metrics import Metrics
from .pool import BatchingEmbedder

LOOK_S = 2.0  # between looks at the paths
WAIT_S = 30.0  # for a reload that is under way
RETRY_S = 60.0  # until folders that could not be opened are tried again
GPU_BATCH = 16  # photos that are embedded together; on a CPU, batches do not pay
log = logging.getLogger("retrieval.serving")


@dataclass(frozen=True)
class Places:
    """Paths of the bundle and the gallery. Symbolic links are resolved each time they are opened."""

    bundle: Path
    gallery: Path | str

    def open(self) -> Retriever:
        """Open the bundle and the gallery."""
        return Retriever.open(self.bundle, self.gallery)

    def state(self) -> tuple[object, ...]:
        """Return what the paths lead to; a link or a folder that is replaced changes it."""
        return tuple(_folder(place) for place in (self.bundle, self.gallery))


class Serving(Protocol):
    """The service whose retriever is replaced."""

    retriever: Retriever
    metrics: Metrics

    def serve(self, retriever: Retriever) -> None:
        """Answer the next searches with a retriever."""


class Reloads:
    """Reloads of a service, one at a time. The current retriever serves until the new one has answered a search."""

    def __init__(self, service: Serving, places: Places) -> None:
        self._service, self.places = service, places
        self._guard, self._stop = Lock(), Event()
        opened = service.retriever
        self._seen = Places(opened.bundle.path, opened.gallery.path).state()  # what was opened last, or could not be
        self._retry = float("inf")
        self._thread = Thread(target=self._follow, name="following")  # no daemon: it runs the model

    def start(self) -> None:
        """Reload from now on when the paths lead to other folders."""
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._stop.set()

    def run(self) -> tuple[Retriever, Retriever]:
        """Open bundle and gallery again and switch to them; return the retrievers before and after.

        A reload that is under way ends first. The new retriever must open and answer a search. Otherwise, the error is
        raised and the old one keeps serving.
        """
        with self._alone():
            before, outcome = self._service.retriever, "refused"
            self._seen, self._retry = self.places.state(), time.monotonic() + RETRY_S
            try:
                after = self.ready(self.places.open())
                self._service.serve(after)
                outcome, self._retry = "swapped", float("inf")
            finally:
                self._service.metrics.reloads.labels(outcome).inc()
            return before, after

    def ready(self, retriever: Retriever) -> Retriever:
        """Return the retriever after a first search, with batched embedding on a GPU."""
        if "CUDAExecutionProvider" in retriever.embedder.providers:
            retriever.embedder = BatchingEmbedder(retriever.embedder, most=GPU_BATCH)  # type: ignore[assignment]
        warm_up(retriever)
        release_memory()
        return retriever

    def follow(self) -> None:
        """Reload if the paths lead to other folders than before; errors are logged."""
        if self.places.state() == self._seen and time.monotonic() < self._retry:
            return
        try:
            _, after = self.run()
            log.info("the bundle %s and its gallery serve now", after.bundle.bundle_id)
        except Busy:
            pass
        except (RetrievalError, OSError) as error:
            log.error("what the paths lead to now cannot be served: %s", error)
        except Exception:  # a fault of ours, or of a folder that is half written, must not end the thread
            log.exception("what the paths lead to now cannot be served")

    def _follow(self) -> None:
        while main_thread().is_alive() and not self._stop.wait(LOOK_S):
            self.follow()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._guard.acquire(timeout=WAIT_S):
            raise Busy("a reload is under way", remedy="Try again when it is done")
        try:
            yield
        finally:
            self._guard.release()


def warm_up(retriever: Retriever) -> None:
    """Search with a gray photo, and with a word if there is a text tower.

    This reads the gallery and runs the model, so that no client waits for it.
    """
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "gray").save(file, "JPEG")
    retriever.search(file.getvalue(), top_k=1)
    if retriever.bundle.text_key:
        retriever.search_text("gray", top_k=1)


def warm_up_in_background(retriever: Retriever) -> None:
    """Search with a gray photo in a thread; errors are left to the service, which warms up again when it starts."""

    def search() -> None:
        with suppress(RetrievalError, OSError, RuntimeError):  # the last one if the process ends
            warm_up(retriever)

    Thread(target=search, name="warm-up").start()  # no daemon: it runs the model


def _folder(place: Path | str) -> tuple[str, int]:
    if isinstance(place, str):
        return place, 0  # an address
    path = place.resolve()
    with suppress(OSError):
        return str(path), path.stat().st_ino
    return str(path), 0
