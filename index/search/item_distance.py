"""The item distance: one number that says how far a query is from an item of the gallery. It alone decides a match.

The *own distance* of an item comes from its nearest photo and from the mean of its photos. *Rivals* are the other
items near the query. Where they are near too, the query is ambiguous or the gallery is dense, so they add a surcharge:

    own = nearest * a + mean * c - COPY_GAIN * max(0, 1 - a / copy) - details * log(1 + (inliers - 5) / 3)
    item distance = own + rival * (sqrt(2) - r1) + rivals * (sqrt(2) - r5), at least 0

with the plain distances a to the nearest photo and c to the mean photo, the own distance r1 of the nearest rival, and
the mean r5 over the five nearest rivals. A missing rival counts sqrt(2), as far as unrelated vectors are.

It follows that an exact copy of a gallery photo is at distance 0 from its item, a nearer photo never makes its item
farther, and a nearer or an additional rival never makes an item nearer. The order of items is that of their own
distances.

Shapes: n queries, m candidates of each, p photos of an item, d = embedding size.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from index.errors import InvalidParameter

from .distance import Floats, exact_unit

CANDIDATES = 24  # items whose distance is computed: the nearest ones by their nearest photo
RIVALS = 5  # nearest rivals whose mean is taken
MOST_PHOTOS = 64  # of an item, whose mean is taken
ORTHOGONAL = math.sqrt(2)  # distance of unrelated unit vectors
COPY_GAIN = 3.0  # more than the greatest distance of an item with a photo at distance 0
CHANCE, UNIT = 5, 3  # local features that agree by chance, and the unit in which others count
DETAILS = 0.4  # default weight of agreeing local features, where a bundle verifies matches
MEAN_SLACK = 2e-3  # of a cosine, for means in float16 and scores in float32
SHORTEST = 1e-6  # length of a mean vector that has a direction


@dataclass(frozen=True)
class ItemDistance:
    """The constants of the item distance. They belong to a bundle and are never fitted to a gallery."""

    nearest: float = 0.35  # weight of the nearest photo
    mean: float = 0.65  # weight of the mean photo
    rival: float = 0.40  # weight of the nearest rival
    rivals: float = 0.45  # weight of the five nearest rivals
    copy: float = 0.02  # plain distance of a copy: a photo nearer than this gains; 0 for no gain
    details: float = 0.0  # weight of agreeing local features

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf:
                raise InvalidParameter(f"item_distance {name}", "be a number of at least 0", value)

    @classmethod
    def default(cls, *, verified: bool = False) -> Self:
        """Return the default constants, with agreeing local features if matches are verified."""
        return cls(details=DETAILS if verified else 0)

    @property
    def key(self) -> str:
        """A string that identifies the constants."""
        return " ".join(f"{name} {value!r}" for name, value in asdict(self).items())

    @property
    def is_plain(self) -> bool:
        """Whether the item distance is the plain distance to the nearest photo."""
        return self == NEAREST_PHOTO

    def to_dict(self) -> dict[str, float]:
        """Return the constants as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create an ItemDistance from the output of `to_dict`."""
        return cls(**{name: float(value) for name, value in values.items()})

    def own(self, nearest: Floats, mean: Floats, inliers: NDArray[np.integer] | None = None) -> Floats:
        """Return the own distances of items, of one shape with their evidence.

        Parameters
        ----------
        nearest, mean:
            Plain distances to the nearest photo and to the mean photo; inf where there is no item.
        inliers:
            Number of local features that agree with a photo of the item, if the gallery keeps them.
        """
        own = self.nearest * nearest + self.mean * mean
        if self.copy:
            own = own - COPY_GAIN * np.maximum(0, 1 - nearest / self.copy)
        if inliers is not None and self.details:
            own = own - self.details * np.log1p(np.maximum(inliers - CHANCE, 0) / UNIT)
        return np.asarray(own)

    def with_rivals(
        self,
        own: Floats,
        groups: NDArray[np.integer],
        among: NDArray[np.bool_] | None = None,
        columns: NDArray[np.integer] | None = None,
    ) -> Floats:
        """Return the item distances of candidates (n, m), or of those in some columns of each row.

        Parameters
        ----------
        own:
            Own distances (n, m), ascending in each row; inf where there is no candidate.
        groups:
            Number of the group of each candidate (n, m). Members of one group are not rivals.
        among:
            Which candidates (n, m) may be rivals. By default all.
        columns:
            Columns (n, c) of the candidates whose distances are returned. By default all, in order.
        """
        own_groups, measured = groups, own
        if columns is not None:
            own_groups = np.take_along_axis(groups, columns, axis=1)
            measured = np.take_along_axis(own, columns, axis=1)
        if not (self.rival or self.rivals):
            return np.asarray(np.maximum(measured, 0))
        there = np.isfinite(own) if among is None else np.isfinite(own) & among
        rivals = (own_groups[:, :, None] != groups[:, None, :]) & there[:, None, :]
        turn = rivals.cumsum(axis=2, dtype=np.int16) * rivals
        gaps = ORTHOGONAL - np.clip(own, 0, ORTHOGONAL)
        row = np.arange(len(own))[:, None]
        nearest = []
        for place in range(1, RIVALS + 1):
            is_next = turn == place
            gap = gaps[row, is_next.argmax(axis=2)]
            nearest.append(np.where(is_next.any(axis=2), gap, 0.0))
        several = sum(nearest[1:], nearest[0]) / RIVALS  # one after the other: the last digit depends on no other item
        return np.asarray(np.maximum(measured + self.rival * nearest[0] + self.rivals * several, 0))


def unseen_nearest(last: float, averages: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Return how far the nearest photos of items without a photo in a list of the nearest count: at most as they are.

    `last` is the plain distance to the last photo of the list, and `averages` are the average cosines between the query
    and the photos of each item.
    """
    return np.asarray(np.minimum(last, np.sqrt(np.maximum(2 - 2 * averages, 0))))


def may_be_nearer(last: float, averages: NDArray[np.floating[Any]]) -> NDArray[np.bool_]:
    """Return whether items without a photo in such a list have nearer ones, so that the list is not complete."""
    return np.asarray(averages > 1 - last**2 / 2 + MEAN_SLACK)


NEAREST_PHOTO = ItemDistance(1, 0, 0, 0, 0)  # the plain distance to the nearest photo alone


def photos_of_mean(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the photos of an item (p, d) whose mean is taken: at most `MOST_PHOTOS`, by a hash of their vectors."""
    if len(vectors) <= MOST_PHOTOS:
        return vectors
    hashes = [(zlib.crc32(row.tobytes()), row.tobytes()) for row in np.ascontiguousarray(vectors)]
    return vectors[sorted(range(len(hashes)), key=hashes.__getitem__)[:MOST_PHOTOS]]


def mean_photo(vectors: NDArray[np.float32]) -> Floats:
    """Return the mean of the photos of an item (p, d), of length one in float64 (d,).

    The photos are those of `photos_of_mean`. Their order makes no difference. Where vectors cancel out, the smallest
    one stands for the mean.
    """
    exact = exact_unit(photos_of_mean(vectors))
    if len(exact) == 1:
        return np.asarray(exact[0])
    total = np.sort(exact, axis=0).sum(axis=0)
    length = float(np.linalg.norm(total))
    return np.asarray(total / length if length > SHORTEST else np.array(min(exact.tolist())))
