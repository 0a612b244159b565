"""How the server behaves, as plain values."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from retrieval.errors import InvalidParameter
from retrieval.images import MAX_BYTES


@dataclass(frozen=True)
class ServeSettings:
    """Limits of one server process. None of them can move the threshold, which belongs to the bundle."""

    threads: int = field(default_factory=lambda: os.cpu_count() or 1)  # searches at a time, one a core
    queue: int = 32  # searches that may wait; one more is answered 503
    max_bytes: int = MAX_BYTES  # of an image

    def __post_init__(self) -> None:
        for name in ("threads", "queue", "max_bytes"):
            if getattr(self, name) < 1:
                raise InvalidParameter(name, "be at least 1", getattr(self, name))
