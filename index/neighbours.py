"""Results of searches and listings of a gallery."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
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


def neighbours_of(
    nearest: Sequence[Sequence[tuple[int, float]]],
    photos_at: Callable[[NDArray[np.int64]], list[tuple[str, str, dict[str, Any]]]],
) -> list[list[Neighbour]]:
    """Return photos at positions and distances, for each query, as search results.

    `photos_at` returns photo_id, item_id and metadata of some positions. It is called once for all queries.
    """
    photos = iter(photos_at(np.array([position for best in nearest for position, _ in best], dtype=np.int64)))
    answers = []
    for best in nearest:
        facts = zip(best, photos, strict=False)  # each query takes its photos from those of all
        answers.append([Neighbour(item, photo, distance, data) for (_, distance), (photo, item, data) in facts])
    return answers
