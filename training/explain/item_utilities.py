"""How well one threshold serves each item of a scene: utility over pairs, U_i, across the calibration range.

As `evaluate` counts OPIS: plain distance, all pairs of the scene's photos (arXiv 2307.04047, Algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.metrics.consistency import FAR_RANGE, GRID, opis, utility_curves
from training.evaluation.evaluate import Scene, photos_of
from training.evaluation.pair_counts import pair_counter

POINTS = 49  # of a curve
EXAMPLES = 4  # photos of an item


@dataclass(frozen=True)
class ItemUtility:
    """One item; `curve` is its utility at the distances of `Utilities`."""

    item: int  # label
    utility: float  # mean over the calibration range
    photos: int
    curve: tuple[float, ...]
    examples: tuple[int, ...]  # positions of some of its photos


@dataclass(frozen=True)
class Utilities:
    """All items with two photos or more, the worst first."""

    items: tuple[ItemUtility, ...]
    distances: tuple[float, ...]  # across the calibration range and as far again on either side
    mean: tuple[float, ...]  # of the items' utilities there
    d_min: float  # plain distance at FAR 1e-2
    d_max: float  # at FAR 1e-1
    opis: float


def item_utilities(scene: Scene, vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> Utilities | None:
    """Return every item's utility; None where there are fewer than two items, or no item has two photos."""
    members = photos_of([scene])
    mine = labels[members]
    counts = np.bincount(mine)
    if (counts > 0).sum() < 2 or counts.max() < 2:
        return None
    found = opis(vectors[members], mine, far_range=FAR_RANGE, grid=GRID, counter=pair_counter())
    width = max(found.d_max - found.d_min, 1e-3)
    distances = np.linspace(max(0.0, found.d_min - width), min(2.0, found.d_max + width), POINTS)
    curves = utility_curves(vectors[members], mine, distances, counter=pair_counter())
    row_of = {int(label): row for row, label in enumerate(curves.classes)}
    items = []
    for label, utility in found.per_class.items():
        item = int(label)  # type: ignore[call-overload]
        photos = members[mine == item]
        spread = photos[np.linspace(0, len(photos) - 1, min(EXAMPLES, len(photos))).astype(np.int64)]
        curve = tuple(curves.utility[row_of[item]].tolist())
        items.append(ItemUtility(item, utility, len(photos), curve, tuple(spread.tolist())))
    return Utilities(
        items=tuple(items),
        distances=tuple(distances.tolist()),
        mean=tuple(curves.utility.mean(axis=0).tolist()),
        d_min=found.d_min,
        d_max=found.d_max,
        opis=found.value,
    )
