"""Cross-fitting: draws of items that the model was fitted on, by models that were fitted without them.

A model that was fitted on a whole catalogue (`train --all-items`) comes with K fold models, each fitted without the
items of one fold. The model of each fold makes draws of the items that it was fitted without. These draws stand for
draws of the served model: they search the same photos with the same function and the same item distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.groups import GROUP
from index.photos import NONE, Photos
from index.photos.arrays import ArrayPhotos
from index.search.distance import exact_unit
from index.search.item_distance import ItemDistance

from .drawing import MOST_DRAWS, MOST_SEVERAL, SEVERAL, Drawing, PartVectors
from .draws import OWN, PHOTOS, Draws, Rows, Texts


@dataclass(frozen=True)
class FoldVectors:
    """Vectors of n photos by K fold models, with which fitted items are drawn."""

    key: str  # identifies the fold models
    ids: Texts  # (n,) photo ids
    vectors: NDArray[np.float16]  # (n, K, d)


class FoldPhotos(ArrayPhotos):
    """Photos with their vectors by a fold model."""

    def __init__(self, photos: Photos, positions: Rows, vectors: NDArray[np.float32]) -> None:
        """Take photos at some positions (n,), with vectors (n, d) of length one."""
        stored = photos.photos_at(positions)
        super().__init__(
            vectors,
            [item_id for _, item_id, _ in stored],
            photo_ids=[photo_id for photo_id, *_ in stored],
            groups=[metadata.get(GROUP, "") for *_, metadata in stored],
        )
        self._photos, self._positions = photos, positions

    def photos_at(self, positions: Rows) -> list[tuple[str, str, dict[str, Any]]]:
        """Return what is stored of photos."""
        return self._photos.photos_at(self._positions[positions])

    def copies(self, first: Rows, second: Rows) -> NDArray[np.bool_]:
        """Return whether photos are copies."""
        return self._photos.copies(self._positions[first], self._positions[second])


def fold_draws(
    photos: Photos,
    folds: FoldVectors,
    fold_of: Mapping[str, int],
    distance: ItemDistance,
    *,
    looks: PartVectors | None = None,
) -> Mapping[str, Draws]:
    """Return the draws of fitted items by source: own draws, and draws with several photos per query.

    Local features are not compared.

    Parameters
    ----------
    folds:
        Vectors of the photos. Photos without vectors take no part.
    fold_of:
        The fold of each item to draw, whose model was fitted without it.
    looks:
        Vectors of the second looks: by the model that serves, and by each of the fold models.
    """
    positions = photos.positions(folds.ids.tolist())
    rows = np.flatnonzero(positions != NONE)
    rows = rows[np.argsort(positions[rows])]
    if not len(rows):
        return {}
    count = folds.vectors.shape[1]
    parts: dict[str, list[Draws]] = {}
    for fold in range(count):
        vectors = exact_unit(folds.vectors[rows, fold].astype(np.float32)).astype(np.float32)
        among = FoldPhotos(photos, positions[rows], vectors)
        drawn = [item for item in among.item_ids.tolist() if fold_of.get(item) == fold]
        if not drawn:
            continue
        excluded = np.flatnonzero(~np.isin(among.item_ids, drawn)).tolist()
        drawing = Drawing(among, distance)
        second = None if looks is None else PartVectors(looks.ids, looks.vectors[:, 1 + fold : 2 + fold])
        made = {OWN: drawing.own(excluded=excluded, most=MOST_DRAWS // count, looks=second)}
        for several in SEVERAL:
            made[PHOTOS.format(several)] = drawing.several(several, excluded=excluded, most=MOST_SEVERAL // count)
        for kind, draws in made.items():
            parts.setdefault(kind, []).append(draws)
    return {kind: Draws.joined(some) for kind, some in parts.items()}
