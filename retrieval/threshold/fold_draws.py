"""Cross-fitting: draws of items that the model was fitted on, by models that were fitted without them.

A model that was fitted on a whole catalogue (`train --all-items`) comes with K fold models, each fitted without the
items of one fold. A gallery keeps the vectors of its photos by every fold model (`FoldVectors`). For each
fold, the photos are searched by its model for the items that it was fitted without. These draws stand for those of the
served model: they are made in the same gallery, by the same function and the same item distance.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from index.gallery import Gallery, temporary_gallery
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from index.search.leave_one_out import (
    MOST_DRAWS,
    MOST_SEVERAL,
    OWN,
    PHOTOS,
    SEVERAL,
    Drawer,
    Draws,
    FoldVectors,
    IsCopy,
)


def fold_draws(
    gallery: Gallery,
    folds: FoldVectors,
    fold_of: Mapping[str, int],
    *,
    item_distance: ItemDistance,
    content_key: str = "",
    is_copy: IsCopy | None = None,
) -> Mapping[str, Draws]:
    """Return the draws of some items of a gallery, by kind of query: of one photo and of several.

    Parameters
    ----------
    folds:
        Vectors of its photos. Photos without any take no part.
    fold_of:
        The fold of each item to draw, whose model was fitted without it.
    item_distance, content_key, is_copy:
        As in `make_draws`. Local features are not compared.
    """
    now = gallery.snapshot()
    positions, rows = folds.positions(now)
    if not len(rows):
        return {}
    ids, item_ids, metadata = zip(*now.photos_at(positions), strict=True)
    items, count = set(item_ids), folds.vectors.shape[1]
    found: dict[str, list[Draws]] = {}
    for fold in range(count):
        drawn = {item for item in items if fold_of.get(item) == fold}
        if not drawn:
            continue
        vectors = folds.vectors[rows, fold].astype(np.float32)
        with temporary_gallery(vectors, item_ids, photo_ids=ids, metadata=metadata) as place:
            excluded = list(place.item_numbers(sorted(items - drawn)).values())
            drawer = Drawer(ItemSearch(place.snapshot(), item_distance), content_key, is_copy)
            made = {OWN: drawer.own(excluded=excluded, most=MOST_DRAWS // count)}
            for several in SEVERAL:
                made[PHOTOS.format(several)] = drawer.several(several, excluded=excluded, most=MOST_SEVERAL // count)
            seqs = place.snapshot().seqs, now.seqs[positions]
        for kind, draws in made.items():
            found.setdefault(kind, []).append(draws.renumbered(*seqs))
    return {kind: Draws.joined(parts) for kind, parts in found.items()}
