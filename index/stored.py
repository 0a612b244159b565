"""The photos that a filtered search may return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .filters import Value

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Filter:
    """The photos that a search may return."""

    mask: NDArray[np.bool_]  # (n,)
    few: Rows | None  # positions of the passing photos, if there are few
    base: Any  # faiss selection that restricts a search of the base
    tail: Any
    sql: tuple[str, list[Value]]  # the filter as an SQL condition with its parameters
    confirmed: set[int] = field(default_factory=set)  # positions whose checksummed metadata has been tested, too
