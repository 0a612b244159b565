"""Server settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.cores import cores
from retrieval.errors import InvalidParameter
from retrieval.images import MAX_BYTES


@dataclass(frozen=True)
class ServeSettings:
    """Limits of one server process. The threshold is not a setting: it belongs to the bundle."""

    threads: int = field(default_factory=cores)  # concurrent searches; default: one per core
    queue: int = 32  # searches that may wait; further ones get 503
    deadline_s: float = 10.0  # time limit of a search, waiting included; then 503
    body_s: float = 15.0  # time limit for the arrival of a request body
    max_bytes: int = MAX_BYTES  # per image
    max_batch_bytes: int = 64 * 2**20  # per batch of images
    batch: int = 0  # photos embedded together; 0: 16 on a GPU, no batching on a CPU
    keys: Path | None = None  # file of API keys; None: no authentication
    rate: float = math.inf  # requests per second per key, or per address without keys
    local: bool = False  # accept loopback host names only; set where there are no keys
    feedback: Path | None = None  # file that verdicts are appended to; None: feedback is refused

    def __post_init__(self) -> None:
        for name in ("threads", "queue", "max_bytes", "max_batch_bytes"):
            if getattr(self, name) < 1:
                raise InvalidParameter(name, "be at least 1", getattr(self, name))
        for name in ("deadline_s", "body_s", "rate"):
            if not getattr(self, name) > 0:
                raise InvalidParameter(name, "be above 0", getattr(self, name))
        if self.batch < 0:
            raise InvalidParameter("batch", "be at least 0", self.batch)
