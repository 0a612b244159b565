"""Tables: the candidate items of n queries, up to m of each, with the evidence for each and its item distance.

Serving one photo, a thousand draws and an evaluation measure their candidates by the one routine `measured`.
Shapes: n queries, m candidates of each, u different items, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from index.photos import NONE, Photos

from .distance import Floats, Rows, exact_unit
from .exact import PAIRS
from .item_distance import ItemDistance


@dataclass(frozen=True)
class Candidates:
    """Items that may be near n queries, up to m of each; NONE and inf where there are fewer."""

    items: Rows  # (n, m) numbers
    positions: Rows  # (n, m) of their nearest photos
    nearest: Floats  # (n, m) plain distances to these
    inliers: Rows  # (n, m) local features that agree with one of their photos, 0 where none are compared

    @classmethod
    def of(cls, photos: Photos, positions: Rows, nearest: Floats) -> Candidates:
        """Return the items of photos at some positions (n, m), without local features."""
        return Candidates(photos.items_at(positions), positions, nearest, np.zeros(positions.shape, np.int64))

    @classmethod
    def unseen(cls, items: Rows, nearest: Floats) -> Candidates:
        """Return items (n, m) of which no photo is known, and how near their nearest ones may be."""
        return cls(items, np.full(items.shape, NONE), nearest, np.zeros(items.shape, np.int64))

    @classmethod
    def padded(cls, rows: Sequence[Candidates]) -> Candidates:
        """Return candidates of one query each (1, m) as one table."""
        width = max((row.items.shape[1] for row in rows), default=0)
        filled = {"items": NONE, "positions": NONE, "nearest": np.inf, "inliers": 0}
        arrays = {
            name: np.concatenate(
                [np.pad(getattr(r, name), ((0, 0), (0, width - r.items.shape[1])), constant_values=fill) for r in rows]
            )
            for name, fill in filled.items()
        }
        return Candidates(**arrays)

    def take(self, columns: Rows) -> Self:
        """Return the candidates in some columns (n, c) of each row."""
        row = np.arange(len(columns))[:, None]
        return type(self)(**{name: values[row, columns] for name, values in vars(self).items()})

    def part(self, columns: slice) -> Self:
        """Return the candidates in the same columns of every row."""
        if columns.indices(self.items.shape[1]) == (0, self.items.shape[1], 1):
            return self
        return type(self)(**{name: values[:, columns] for name, values in vars(self).items()})

    def rows(self, chosen: Rows | NDArray[np.bool_]) -> Self:
        """Return the candidates of some queries."""
        return type(self)(**{name: values[chosen] for name, values in vars(self).items()})

    def without(self, gone: NDArray[np.bool_]) -> Candidates:
        """Return the candidates with NONE in the place of those selected by a mask (n, m)."""
        items, positions = (np.where(gone, NONE, values) for values in (self.items, self.positions))
        return Candidates(items, positions, np.where(gone, np.inf, self.nearest), np.where(gone, 0, self.inliers))

    def beside(self, other: Candidates) -> Candidates:
        """Return these candidates, followed by those of another table of the same queries."""
        if not other.items.shape[1]:
            return self
        names = [each.name for each in fields(Candidates)]
        return Candidates(*(np.concatenate((getattr(self, n), getattr(other, n)), axis=1) for n in names))


@dataclass(frozen=True)
class Table(Candidates):
    """Candidates with their item distances."""

    mean: Floats  # (n, m) plain distances to the mean photos, NaN where they were not looked at
    groups: Rows  # (n, m) numbers of the groups of the items
    own: Floats  # (n, m) own distances
    distances: Floats  # (n, m) item distances

    @classmethod
    def by_nearest_photo(cls, candidates: Candidates) -> Table:
        """Return candidates whose item distance is the plain distance to their nearest photo."""
        mean, groups = np.full_like(candidates.nearest, np.nan), np.full_like(candidates.items, NONE)
        return cls(**vars(candidates), mean=mean, groups=groups, own=candidates.nearest, distances=candidates.nearest)


@dataclass(frozen=True)
class KnownItems:
    """Mean photos and groups of u items, by ascending number."""

    numbers: Rows  # (u,)
    means: Floats  # (u, d) of length one
    groups: Rows  # (u,)

    @classmethod
    def of(cls, photos: Photos, *items: Rows) -> KnownItems:
        """Return what the item distance needs of all items in some arrays, but for NONE."""
        several = items[0] if len(items) == 1 else np.concatenate([each.ravel() for each in items])
        numbers = np.unique(several[several != NONE])
        facts = photos.facts_of(numbers)
        return cls(numbers, exact_unit(facts.means) if len(numbers) else facts.means, facts.groups)

    def groups_of(self, items: Rows) -> Rows:
        """Return the numbers of the groups of known items, NONE for NONE."""
        if not len(self.numbers):
            return np.full_like(items, NONE)
        return np.where(items == NONE, NONE, self.groups[np.searchsorted(self.numbers, items)])

    def distances(self, exact: Floats, rows: Rows, items: Rows) -> Floats:
        """Return the plain distances (p,) of queries, given by their row, to the mean photos of items."""
        places, squared = np.searchsorted(self.numbers, items), np.empty(len(rows))
        for start in range(0, len(rows), PAIRS):
            some = slice(start, start + PAIRS)
            difference = exact[rows[some]] - self.means[places[some]]
            squared[some] = np.minimum(np.vecdot(difference, difference), 4.0)
        return np.sqrt(squared)


def measured(
    exact: Floats,
    candidates: Candidates,
    distance: ItemDistance,
    known: KnownItems,
    *,
    mean: Floats | None = None,
    among: NDArray[np.bool_] | None = None,
) -> Table:
    """Return candidates of queries in the same order, with their item distances.

    Parameters
    ----------
    exact:
        Queries (n, d), scaled by `exact_unit`.
    known:
        Mean photos and groups of all candidates.
    mean:
        Distances (n, m) to the mean photos, NaN where they are to be computed. By default all are.
    among:
        Which candidates (n, m), or which columns (1, m), are rivals of others. By default all.
    """
    there, groups = candidates.items != NONE, known.groups_of(candidates.items)
    rows, columns = (there if mean is None else np.isnan(mean) & there).nonzero()
    mean = np.full(there.shape, np.nan) if mean is None else mean.copy()
    mean[rows, columns] = known.distances(exact, rows, candidates.items[rows, columns])
    own = distance.own(np.where(there, candidates.nearest, 0), np.where(there, mean, 0), candidates.inliers)
    own = np.where(there, own, np.inf)
    at = np.arange(len(own))[:, None], np.argsort(own, axis=1, kind="stable")
    distances, among = np.empty_like(own), there if among is None else among & there
    distances[at] = distance.with_rivals(own[at], groups[at], among[at])
    return Table(**vars(candidates), mean=mean, groups=groups, own=own, distances=distances)
