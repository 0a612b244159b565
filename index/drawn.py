"""Data of draws, and probes: photos from elsewhere to search with.

Shapes: n draws, m probes, d = embedding size, s photos that a draw depends on, q photos of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .distance import Floats
from .photo_groups import group_rows, mean_vectors
from .sampling import hashed
from .stored import Rows
from .verified import Features, photos_of

NOBODY = -1  # seq of a photo that does not exist

Texts = NDArray[np.str_]


@dataclass(frozen=True)
class Shortlists:
    """The shortlists of verified draws. A draw is valid as long as its shortlist does not change."""

    radius: Floats  # (n,) base distance of the last item of the shortlist, inf if all items are in it
    least_votes: Floats  # (n, q) least score of each photo's votes, 0 if every photo with a vote is on its shortlist
    photos: Rows  # (n, s) ascending seqs of the photos that were verified, nearest or left out, NOBODY first
    inliers: Rows  # (n, s, q) inliers of these photos with each photo of the query, -1 if they were not compared

    @classmethod
    def none(cls) -> Shortlists:
        """Return no shortlists."""
        return cls(np.zeros(0), np.zeros((0, 1)), np.zeros((0, 0), np.int64), np.zeros((0, 0, 1), np.int64))

    @classmethod
    def of_arrays(cls, values: Mapping[str, NDArray[Any]]) -> Shortlists:
        """Return the shortlists from their fields; those of older galleries lack the axis of a query's photos."""
        photos, least_votes, inliers = values["photos"], values["least_votes"], values["inliers"]
        if least_votes.ndim == 1:
            least_votes, inliers = least_votes[:, None], inliers[..., None]
        return cls(values["radius"], least_votes, photos, inliers)

    def rows(self, rows: Rows) -> Shortlists:
        """Return some rows."""
        return Shortlists(self.radius[rows], self.least_votes[rows], self.photos[rows], self.inliers[rows])


@dataclass(frozen=True)
class Draws:
    """A sample of searches for items that are not in the gallery."""

    ids: Texts  # (n,) photo ids of the queries
    items: Texts  # (n,) item ids of the queries
    seqs: Rows  # (n,) seqs of the query photos in the gallery, (n, m) for queries of m photos; NOBODY for a probe
    distances: Floats  # (n,) distance to the nearest other item, inf if there is none
    nearest: Rows  # (n,) seq of the nearest photo of that item, NOBODY if there is none
    nearest_items: Texts  # (n,) its item id, "" if there is none
    own: Floats  # (n,) distance to the nearest other photo of the query's own item, inf if there is none
    own_nearest: Rows  # (n,) seq of that photo, NOBODY if there is none
    duplicates: Rows  # (n,) seq of a copy of the query in another item, NOBODY if there is none
    until: int  # one more than the seq of the newest photo that was searched
    shortlists: Shortlists | None = None  # of a verified distance form

    @classmethod
    def none(cls) -> Draws:
        """Return an empty sample."""
        seqs, texts, distances = np.zeros(0, np.int64), np.zeros(0, str), np.zeros(0)
        return cls(texts, texts, seqs, distances, seqs, texts, distances, seqs, seqs, 0)

    def __len__(self) -> int:
        return len(self.ids)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays."""
        own = [field.name for field in fields(self) if field.name != "shortlists"]
        arrays = {name: np.asarray(getattr(self, name)) for name in own}
        return arrays if self.shortlists is None else {**arrays, **vars(self.shortlists)}

    @classmethod
    def of_arrays(cls, values: Mapping[str, NDArray[Any]]) -> Draws:
        """Return the draws from the output of `arrays`."""
        names = [field.name for field in fields(Shortlists)]
        shortlists = Shortlists.of_arrays(values) if names[0] in values else None
        rest = {name: value for name, value in values.items() if name not in names}
        return cls(**{**rest, "until": int(values["until"])}, shortlists=shortlists)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Probes:
    """Photos from elsewhere, m of them, to search the gallery with."""

    vectors: NDArray[np.float32]  # (m, d) of length 1
    ids: Sequence[str]
    items: Sequence[str]
    features: Sequence[Features] = ()  # of each probe, for a verified distance form

    def grouped(self, photos_per_query: int) -> Probes:
        """Return groups of `photos_per_query` photos of one item as probes; a photo is in at most one group."""
        if photos_per_query == 1:
            return self
        items, ids = np.array(self.items, dtype=str), np.array(self.ids, dtype=str)
        groups = group_rows(items, hashed(np.arange(len(items))), photos_per_query)
        names = [" + ".join(names) for names in ids[groups].tolist()]
        features = [
            tuple(photo for row in rows for photo in photos_of(self.features[row]))
            for rows in (groups.tolist() if self.features else ())
        ]
        return Probes(mean_vectors(self.vectors[groups]), names, items[groups[:, 0]].tolist(), features)


@dataclass(frozen=True)
class Queries:
    """The queries of n draws."""

    vectors: NDArray[np.float32]  # (n, d) of length 1
    numbers: NDArray[np.int32]  # (n,) or (n, i) of the items to leave out, -1 if the gallery does not have the item
    positions: Rows  # (n,) of the photos in the gallery, (n, m) for queries of m photos; NOBODY for a probe
    features: Sequence[Features] = ()  # of each probe, for a verified distance form


@dataclass(frozen=True)
class Measured:
    """The results of n draws: the fields of `Draws` that come from searches."""

    distances: Floats
    nearest: Rows
    duplicates: Rows
    own: Floats
    own_nearest: Rows
    shortlists: Shortlists | None = None
