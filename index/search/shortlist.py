"""The shortlist of a query whose local features are compared: items of photos with many votes, and counts of inliers.

Shapes: m candidates, p photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from index.photos import Photos

from .details import Verifier
from .distance import Floats, Rows, squared_from
from .tables import Candidates
from .votes import most_votes

Passes = Callable[[Rows], NDArray[np.bool_]]  # whether photos at positions (p,) may be brought by votes


class Listed(NamedTuple):
    """An item on the shortlist."""

    item: int
    position: int  # of its nearest photo
    nearest: float  # plain distance to it
    compared: tuple[int, ...] = ()  # positions of photos whose local features are compared


@dataclass(frozen=True)
class Shortlist:
    """Chooses the items whose local features are compared with those of one query, and counts its inliers."""

    photos: Photos
    verifier: Verifier
    exact: Floats  # (1, d) the query, scaled by `exact_unit`
    features: bytes  # of the query
    voted: Rows  # positions (p,) of the photos with votes
    votes: Floats  # (p,)
    itself: Rows = field(default_factory=lambda: np.zeros(0, np.int64))  # positions of the query's own photos
    passes: Passes | None = None  # by default all photos but the query's own
    inliers: dict[int, int] = field(default_factory=dict)  # with photos that were compared, by position

    @classmethod
    def of(cls, photos: Photos, verifier: Verifier, exact: Floats, features: bytes) -> Shortlist:
        """Return the shortlist of a query (1, d)."""
        voted, votes = photos.votes(verifier, verifier.asked(features))
        return cls(photos, verifier, exact, features, voted, votes)

    def without(self, items: Collection[int]) -> Shortlist:
        """Return the shortlist without the photos of some items, and without the query's own."""

        def passes(positions: Rows) -> NDArray[np.bool_]:
            gone = np.isin(self.photos.items_at(positions), list(items)) | np.isin(positions, self.itself)
            return np.asarray(~gone)

        return replace(self, passes=passes)

    def listed(self, positions: Rows, nearest: Floats) -> list[Listed]:
        """Return the items of the photos at positions (m,), nearest first, and then those of photos with most votes."""
        items = self.photos.items_at(positions).tolist()
        found = {each[0]: Listed(*each) for each in zip(items, positions.tolist(), nearest.tolist(), strict=True)}
        for item in items[: max(1, self.verifier.items)]:
            own = self.photos_of(item)
            distances = squared_from(self.exact, self.photos.vectors(own))
            first = own[np.lexsort((own, distances))[: self.verifier.photos]]
            found[item] = found[item]._replace(compared=tuple(first.tolist()))
        passing = np.ones(len(self.voted), bool) if self.passes is None else self.passes(self.voted)
        for position in most_votes(self.voted[passing], self.votes[passing], self.verifier.voted).tolist():
            item = int(self.photos.items_at(np.array(position)))
            if item not in found:
                own = self.photos_of(item)
                found[item] = self.nearest_of(item, own if self.passes is None else own[self.passes(own)])
            found[item] = found[item]._replace(compared=(*found[item].compared, position))
        return list(found.values())

    def photos_of(self, item: int) -> Rows:
        """Return the positions of the photos of an item, without the query's own ones."""
        positions = self.photos.photos_of([item])[0]
        return positions[~np.isin(positions, self.itself)] if len(self.itself) else positions

    def nearest_of(self, item: int, positions: Rows) -> Listed:
        """Return an item with the nearest of its photos at some positions (p,)."""
        squared = squared_from(self.exact, self.photos.vectors(positions))
        best = int(np.lexsort((positions, squared))[0])
        return Listed(item, int(positions[best]), float(np.sqrt(squared[best])))

    def compared(self, listed: list[Listed]) -> Candidates:
        """Return items as candidates (1, m), with their greatest number of inliers."""
        counts = [self._inliers(each.compared) for each in listed]
        columns = ([getattr(each, name) for each in listed] for name in ("item", "position", "nearest"))
        items, positions, nearest = columns
        whole = (np.array([values], dtype=np.int64) for values in (items, positions, counts))
        numbers, places, inliers = whole
        return Candidates(numbers, places, np.array([nearest], dtype=np.float64), inliers)

    def _inliers(self, positions: tuple[int, ...]) -> int:
        new = [position for position in positions if position not in self.inliers]
        if new:
            counts = self.verifier.inliers(self.features, self.photos.features(np.array(new)))
            self.inliers.update(zip(new, counts.tolist(), strict=True))
        return max((self.inliers[position] for position in positions), default=0)
