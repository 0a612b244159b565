"""Utility U_i of each item of an evaluation split over pairs of photos, across the calibration range.

They are computed as for OPIS: plain distance, all pairs of the split's photos (arXiv 2307.04047, Algorithm 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.metrics.consistency import FAR_RANGE, GRID, opis, utility_curves
from training.evaluation.evaluate import EvaluationSplit, photos_of
from training.evaluation.pair_counts import pair_counter

POINTS = 49  # points per curve
EXAMPLES = 4  # example photos per item


@dataclass(frozen=True)
class ItemUtility:
    """Utility of one item; `curve` has its values at the distances of `Utilities`."""

    item: int  # label
    utility: float  # mean over the calibration range
    photos: int
    curve: tuple[float, ...]
    examples: tuple[int, ...]  # positions of some of its photos


@dataclass(frozen=True)
class Utilities:
    """Utilities of all items with two photos or more, the lowest first."""

    items: tuple[ItemUtility, ...]
    distances: tuple[float, ...]  # calibration range, extended by its width on both sides
    mean: tuple[float, ...]  # mean of the items' curves
    d_min: float  # plain distance at FAR 1e-2
    d_max: float  # at FAR 1e-1
    opis: float


def item_utilities(split: EvaluationSplit, vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> Utilities | None:
    """Return the utility of every item; None with fewer than two items, or without an item with two photos."""
    members = photos_of([split])
    member_labels = labels[members]
    counts = np.bincount(member_labels)
    if (counts > 0).sum() < 2 or counts.max() < 2:
        return None
    consistency = opis(vectors[members], member_labels, far_range=FAR_RANGE, grid=GRID, counter=pair_counter())
    width = max(consistency.d_max - consistency.d_min, 1e-3)
    distances = np.linspace(max(0.0, consistency.d_min - width), min(2.0, consistency.d_max + width), POINTS)
    curves = utility_curves(vectors[members], member_labels, distances, counter=pair_counter())
    row_of = {int(label): row for row, label in enumerate(curves.classes)}
    items = []
    for label, utility in consistency.per_class.items():
        item = int(label)  # type: ignore[call-overload]
        photos = members[member_labels == item]
        examples = photos[np.linspace(0, len(photos) - 1, min(EXAMPLES, len(photos))).astype(np.int64)]
        curve = tuple(curves.utility[row_of[item]].tolist())
        items.append(ItemUtility(item, utility, len(photos), curve, tuple(examples.tolist())))
    return Utilities(
        items=tuple(items),
        distances=tuple(distances.tolist()),
        mean=tuple(curves.utility.mean(axis=0).tolist()),
        d_min=consistency.d_min,
        d_max=consistency.d_max,
        opis=consistency.value,
    )
