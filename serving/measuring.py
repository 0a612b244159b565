"""Background upkeep of the served gallery: tightens a threshold that broke its promise, drops removed photos."""

from __future__ import annotations

import logging
import math
import time
from contextlib import AbstractContextManager
from threading import Event, Thread
from typing import Protocol

from index.location import AnyGallery, is_writable, measuring
from retrieval.errors import GalleryLocked, RetrievalError
from retrieval.galleries.held import drop, has_old
from retrieval.galleries.measured import changed_share, measure_gallery
from retrieval.galleries.points import STALE, has_point
from retrieval.retriever import Retriever

from .settings import ServeSettings

CHECK_S = 1.0  # between looks at the gallery's version
LONGEST_S = 3600.0  # after which any change is measured
PAUSE = 10  # times the length of a measurement until the next one may begin
LOG = logging.getLogger("retrieval.serving")


class Serving(Protocol):
    """The service whose gallery is measured."""

    retriever: Retriever
    settings: ServeSettings

    def writer(self) -> AbstractContextManager[AnyGallery]:
        """Open the gallery for writing."""


class Measuring:
    """One thread that makes the draws of the served gallery anew after enough changes; searches never wait for it.

    Of several processes that serve a gallery, one measures at a time.
    """

    def __init__(self, service: Serving) -> None:
        self._service = service
        self._stop = Event()
        self._seen: tuple[object, int] | None = None  # the retriever and gallery version that need no measurement
        self._measured: tuple[object, object] | None = None  # the retriever and the photos that were measured last
        self._told = ""  # the last failure
        self._changed = 0.0  # time of the first change that was not measured, 0 if there is none
        self._thread = Thread(target=self._run, name="measuring", daemon=True)

    @property
    def _is_fixed(self) -> bool:
        return self._service.settings.fixed_threshold

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread after a measurement that may be running, whose failure is not logged any more."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(CHECK_S):
            started = time.monotonic()
            try:
                self.drop_if_due()
                self.measure_if_due()
            except GalleryLocked:
                pass  # another process measures or writes; the next look finds what it has done
            except (RetrievalError, OSError) as error:
                if self._stop.is_set():
                    return  # the gallery was closed meanwhile
                if str(error) != self._told:  # it is tried again, and logged once
                    LOG.warning("the threshold could not be measured: %s", error)
                self._told = str(error)
            except Exception:  # a fault of ours must not end the thread: the next measurement may work
                LOG.exception("the threshold could not be measured")
            self._stop.wait(PAUSE * (time.monotonic() - started))

    def drop_if_due(self) -> None:
        """Drop the photos that were removed more than a day ago."""
        gallery = self._service.retriever.gallery
        if is_writable(gallery) and has_old(gallery):
            with self._service.writer() as writable:
                drop(writable, only_old=True)

    def measure_if_due(self) -> None:
        """Measure the gallery if 1 % of its photos changed, or any photo more than an hour ago.

        Draws that another process made of this version, such as `retrieval index`, are used as they are. Raises
        GalleryLocked if another process measures or writes.
        """
        retriever = self._service.retriever
        bundle, gallery = retriever.bundle, retriever.gallery
        version = gallery.version
        if self._seen == (retriever, version) or not is_writable(gallery):
            return  # known, or on a read-only disk, where nothing can be changed
        if self._is_fixed and not has_point(bundle, gallery):
            return  # it would get its first threshold
        share, now = changed_share(bundle, gallery), time.monotonic()
        self._changed = (self._changed or now) if share else 0.0
        if 0 < share <= STALE and now - self._changed < LONGEST_S:
            return
        photos = gallery.snapshot().mark
        if not share and self._measured == (retriever, photos):
            self._seen = retriever, version  # a server with another bundle has replaced these draws
            return
        with measuring(gallery):
            if share:
                with self._service.writer():
                    pass  # another process that is writing may go on to do so: measure when it has ended
            cap = bundle.threshold if bundle.operating_point.decides else math.inf
            measurement = measure_gallery(bundle, gallery, rule="keep" if self._is_fixed else "tighten", cap=cap)
            if measurement.is_news:
                with self._service.writer() as writable:
                    if self._service.retriever is not retriever:
                        return
                    measurement.write(writable)
        self._seen, self._measured, self._changed = (retriever, version), (retriever, photos), 0.0
        if summary := measurement.summary():
            LOG.warning(summary)
