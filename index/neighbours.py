"""Results of searches and listings of a gallery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Neighbour:
    """An item near a query, by its nearest photo."""

    item_id: str
    photo_id: str
    distance: float
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredPhoto:
    """A photo stored in the gallery."""

    photo_id: str
    item_id: str
    metadata: dict[str, Any]
    vector: NDArray[np.float32]  # (d,)
    features: bytes | None = None  # if they were asked for and the gallery keeps them
