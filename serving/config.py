"""Settings of one server, with the defaults and help texts of the options of `retrieval serve`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from retrieval.cli.options import setting
from retrieval.errors import InvalidParameter
from retrieval.images import MAX_BYTES
from retrieval.process import cores
from retrieval.search.result import REVIEW_P

GROUPS = ADDRESS, ACCESS, CAPACITY, PAGE = "Address", "Access", "Capacity", "Page and feedback"

MOST_WORKERS = 256


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a server. The threshold is not among them: it belongs to the gallery or the bundle."""

    workers: int = setting(
        1, CAPACITY, "Number of worker processes. One is enough for a few cores; the page runs in the first."
    )
    threads: int = setting(
        cores, CAPACITY, "Number of concurrent searches per worker.", shown="one per core, divided by the workers"
    )
    queue: int = setting(
        32, CAPACITY, "Number of searches per worker that may wait for a thread; further ones get status 503."
    )
    deadline_s: float = setting(
        10.0,
        CAPACITY,
        "Time limit of a search in seconds, with waiting; after it, the status is 503.",
        option="deadline",
    )
    batch: int = setting(
        0, CAPACITY, "Number of photos that are embedded together.", shown="16 on a GPU, no batching on a CPU"
    )
    keys: Path | None = setting(
        None, ACCESS, "File of API keys, made by `retrieval keys`; required beyond this machine.", shown="none"
    )
    rate: float = setting(
        math.inf, ACCESS, "Requests per second per key, or per address without keys.", shown="no limit"
    )
    detector: Path | None = setting(
        None, CAPACITY, "ONNX file of a detector, for searches with regions=detector.", shown="none"
    )
    review: float = setting(
        REVIEW_P,
        PAGE,
        "Largest p-value of the items beyond the threshold that answers list for review; 0 lists none.",
    )
    feedback: Path | None = setting(None, PAGE, "File that feedback is appended to.", shown="GALLERY.feedback.jsonl")
    feedback_photos: Path | None = setting(
        None,
        PAGE,
        "Folder to keep the photos of judged answers in, as they were sent, so that they can be exported.",
        shown="none: no photo is kept",
    )
    # set in Python only
    body_s: float = 15.0  # time limit for the arrival of a request body
    max_bytes: int = MAX_BYTES  # per image
    max_batch_bytes: int = 64 * 2**20  # per batch of images
    local: bool = False  # accept loopback host names only; set where there are no keys

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "queue", "max_bytes", "max_batch_bytes"):
            if getattr(self, name) < 1:
                raise InvalidParameter(name, "be at least 1", getattr(self, name))
        if self.workers > MOST_WORKERS:
            raise InvalidParameter("workers", f"be at most {MOST_WORKERS}", self.workers)
        if self.workers > 1 and os.name != "posix":
            raise InvalidParameter("workers", "be 1 on this operating system", self.workers)
        for name in ("deadline_s", "body_s", "rate"):
            if not getattr(self, name) > 0:
                raise InvalidParameter(name, "be above 0", getattr(self, name))
        if not 0 <= self.review <= 1:
            raise InvalidParameter("review", "lie between 0 and 1", self.review)
        if self.batch < 0:
            raise InvalidParameter("batch", "be at least 0", self.batch)
