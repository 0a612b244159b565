"""Searches by item distance: the nearest items of a query.

The candidates of a query are the nearest items by their nearest photo and, where local features are compared, the items
of the photos with the most votes. All of them are rivals of each other, whatever a filter says: a filter only chooses
which items are answers.
Shapes: n queries, m candidates, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.photos import NONE, Photos

from .details import Verifier, check_query_features
from .distance import Floats, exact_unit
from .filters import Filter
from .item_distance import CANDIDATES, ItemDistance
from .shortlist import Shortlist
from .tables import Candidates, KnownItems, Table, measured


@dataclass(frozen=True)
class ItemSearch:
    """Searches photos by one item distance."""

    photos: Photos
    distance: ItemDistance
    verifier: Verifier | None = None  # compares local features, if the photos have them

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        *,
        only: Any = None,
        features: Sequence[bytes] | None = None,
    ) -> Table:
        """Return the k nearest items by item distance, best first, for unit vectors (n, d).

        The nearest 24 items by their nearest photo are ordered by item distance. Further items follow, and count as at
        least as far. `only` is a `Filter`, or whatever the photos take to restrict a search.
        """
        if self.distance.is_plain and self.verifier is None:
            return Table.by_nearest_photo(Candidates.of(self.photos, *self.photos.nearest(vectors, k, only=only)))
        most = max(k, CANDIDATES)
        around = self.photos.around(vectors, most, only=only)
        near, passed = (Candidates.of(self.photos, *each) for each in (around.near, around.passing))
        rivals, answers, further = (
            near.part(slice(CANDIDATES)),
            passed.part(slice(CANDIDATES)),
            passed.part(slice(CANDIDATES, None)),
        )
        exact = exact_unit(vectors)
        if self.verifier is not None:
            described = check_query_features(features, len(vectors))
            rivals, answers = self._compared(self.verifier, exact, described, rivals, answers, only)
            further = further.without((further.items[:, :, None] == answers.items[:, None, :]).any(axis=2))
        start = 0 if only is None else rivals.items.shape[1]  # of the answers
        every = (rivals if only is None else rivals.beside(answers)).beside(further)
        columns = np.arange(every.items.shape[1] + around.unseen[0].shape[1])[None]
        among = (columns < rivals.items.shape[1]) | (columns >= every.items.shape[1])
        stop, every = every.items.shape[1], every.beside(Candidates.unseen(*around.unseen))
        table = measured(exact, every, self.distance, KnownItems.of(self.photos, every.items), among=among)
        return _ordered(table.part(slice(start, stop)), answers.items.shape[1]).part(slice(k))

    def _compared(
        self,
        verifier: Verifier,
        exact: Floats,
        features: Sequence[bytes],
        rivals: Candidates,
        answers: Candidates,
        only: Any,
    ) -> tuple[Candidates, Candidates]:
        """Return the rivals and the answers of queries with the items that votes bring, and with their inliers."""
        found: tuple[list[Candidates], list[Candidates]] = [], []
        mask = only.mask if isinstance(only, Filter) else None
        for row in range(len(exact)):
            shortlist = Shortlist.of(self.photos, verifier, exact[[row]], features[row])
            passing = shortlist if mask is None else replace(shortlist, passes=lambda positions: mask[positions])
            for part, chosen, near in ((found[0], shortlist, rivals), (found[1], passing, answers)):
                there = near.items[row] != NONE
                listed = chosen.listed(near.positions[row][there], near.nearest[row][there])
                part.append(chosen.compared(listed))
        return Candidates.padded(found[0]), Candidates.padded(found[1])


def _ordered(table: Table, answers: int) -> Table:
    """Return the answers, which are the first columns of a table, and then the further items, best first.

    A further item counts as at least as far as those before it.
    """
    if answers == table.items.shape[1]:
        return table.take(np.lexsort((table.own, table.items == NONE), axis=1))
    is_further = np.broadcast_to(np.arange(table.items.shape[1]) >= answers, table.items.shape)
    order = np.lexsort((table.own, is_further, table.items == NONE), axis=1)
    ordered, last = table.take(order), np.take_along_axis(is_further, order, axis=1)
    farthest = np.maximum.accumulate(ordered.distances, axis=1)
    return replace(ordered, distances=np.where(last, farthest, ordered.distances))
