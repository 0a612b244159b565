"""How the server behaves, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.cores import cores
from retrieval.errors import InvalidParameter
from retrieval.images import MAX_BYTES


@dataclass(frozen=True)
class ServeSettings:
    """Limits of one server process. None of them can move the threshold, which belongs to the bundle."""

    threads: int = field(default_factory=cores)  # searches at a time, one a core
    queue: int = 32  # searches that may wait; one more is answered 503
    deadline_s: float = 10.0  # that a search may take, waiting included; then it is answered 503
    body_s: float = 15.0  # that a request's body may take to arrive
    max_bytes: int = MAX_BYTES  # of an image
    max_batch_bytes: int = 64 * 2**20  # of a batch of images
    batch: int = 0  # photos embedded together, where that pays (a GPU); 0: where there is one
    keys: Path | None = None  # file of API keys; None: no key is needed
    rate: float = math.inf  # requests per second of a key, or of an address where there are no keys
    local: bool = False  # asked by this machine's own names alone, as nothing else protects it
    feedback: Path | None = None  # file that verdicts are appended to; None: none is taken

    def __post_init__(self) -> None:
        for name in ("threads", "queue", "max_bytes", "max_batch_bytes"):
            if getattr(self, name) < 1:
                raise InvalidParameter(name, "be at least 1", getattr(self, name))
        for name in ("deadline_s", "body_s", "rate"):
            if not getattr(self, name) > 0:
                raise InvalidParameter(name, "be above 0", getattr(self, name))
        if self.batch < 0:
            raise InvalidParameter("batch", "be at least 0", self.batch)
