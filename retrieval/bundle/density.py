"""Local-density correction of distances: one threshold for dense and sparse regions.

A small distance is weak evidence in a dense region. The density b(x) around an embedding is measured against a fixed
*cohort*: photos of training items, stored in the bundle. Each cohort item contributes the cosine of its nearest photo.
The nearest item is left out, because x may show it (galleries often hold the training items); b(x) is the mean cosine
of the next k items.

Shapes: n vectors, d = embedding size, m cohort photos.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.files import load_arrays
from index.search.distance import PLAIN, DistanceForm, Floats
from retrieval.errors import BundleCorrupt, InvalidParameter

ADDITIVE, LOCAL_SCALING = "additive", "local_scaling"
NEIGHBOURS = (4, 8, 16, 64)  # candidate values of k
RAMP = 0.05  # squared plain distance at which the additive term is full; it is 0 at distance 0
OUTSIDE = 0.001  # share of the cohort's own photos that may be called out of domain
LOWEST = 0.02  # quantile of the cohort's own densities that sets the floor
PHOTOS_OF_AN_ITEM, ITEMS = 8, 2000  # maximum in a cohort
BLOCK = 2**22  # cosines in memory at once


@dataclass(frozen=True)
class Cohort:
    """Photos of items, sorted by item."""

    vectors: NDArray[np.float32]  # (m, d) unit
    items: NDArray[np.int64]  # (m,) item codes, ascending

    def __post_init__(self) -> None:
        if len(self.vectors) != len(self.items) or (np.diff(self.items) < 0).any():
            raise InvalidParameter("items", "be ascending, one a vector", self.items.shape)

    @classmethod
    def of(cls, vectors: ArrayLike, labels: ArrayLike, *, seed: int = 0) -> Cohort:
        """Sample a cohort from labelled unit vectors: up to 2,000 items with 8 photos per item."""
        codes = np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)
        generator = np.random.default_rng(seed)
        order = generator.permutation(len(codes))
        order = order[np.argsort(codes[order], kind="stable")]
        starts = np.concatenate([[0], np.cumsum(np.bincount(codes))])
        items = np.sort(generator.permutation(len(starts) - 1)[:ITEMS])
        chosen = np.concatenate([order[starts[p] : starts[p + 1]][:PHOTOS_OF_AN_ITEM] for p in items])
        return cls(np.asarray(vectors, dtype=np.float32)[chosen], codes[chosen])

    @property
    def size(self) -> int:
        """The number of items."""
        return len(np.unique(self.items))

    @cached_property
    def key(self) -> str:
        """The hash of the content."""
        return hashlib.sha256(self.vectors.tobytes() + self.items.tobytes()).hexdigest()

    @cached_property
    def _exact(self) -> tuple[Floats, NDArray[np.int64]]:
        """The photos as float64 (d, m), and the start of each item."""
        return self.vectors.astype(np.float64).T, np.flatnonzero(np.diff(self.items, prepend=-1))

    def nearest(self, vectors: NDArray[np.float32]) -> Floats:
        """Return the cosines of vectors (n, d) with each item's nearest photo, descending, (n, size)."""
        photos, starts = self._exact
        rows = max(1, BLOCK // len(self.items))
        found = np.empty((len(vectors), len(starts)))
        for start in range(0, len(vectors), rows):
            cosines = vectors[start : start + rows].astype(np.float64) @ photos
            found[start : start + rows] = -np.sort(-np.maximum.reduceat(cosines, starts, axis=1), axis=1)
        return found

    def density(self, vectors: NDArray[np.float32], k: int) -> Floats:
        """Return the densities b (n,) of vectors (n, d)."""
        return density_of(self.nearest(vectors), k)


def density_of(nearest: Floats, k: int) -> Floats:
    """Return the mean of the k cosines after the first, for descending cosines (n, items)."""
    return np.asarray(nearest[:, 1 : 1 + k].mean(axis=1))


@dataclass(frozen=True)
class LocalDensity:
    """A distance corrected by the densities of query and photo (a `DistanceForm`).

    With x the squared plain distance and b the densities of query q and photo g:
    local scaling, sqrt(x / sqrt(s_q s_g)) with s = max(floor, 1 - b);
    additive, sqrt(x + (b'_q + b'_g) min(1, x / 0.05)) with b' = max(0, b - floor).
    """

    form: str
    k: int
    floor: float
    cohort: Cohort
    sparsest: float = -1.0  # density that nearly all cohort photos exceed

    def __post_init__(self) -> None:
        if self.form not in (ADDITIVE, LOCAL_SCALING):
            raise InvalidParameter("form", f"be {ADDITIVE} or {LOCAL_SCALING}", self.form)
        if not 1 <= self.k < self.cohort.size:
            raise InvalidParameter("k", f"lie between 1 and {self.cohort.size - 1}, items beside the nearest", self.k)
        if self.form == LOCAL_SCALING and not self.floor > 0:
            raise InvalidParameter("floor", "be positive", self.floor)

    @classmethod
    def fit(cls, form: str, k: int, cohort: Cohort, *, nearest: Floats | None = None) -> LocalDensity:
        """Create a form whose floor is a low percentile over the cohort's own photos.

        `nearest` is `cohort.nearest(cohort.vectors)`, if already computed.
        """
        own = density_of(cohort.nearest(cohort.vectors) if nearest is None else nearest, k)
        lowest = float(np.quantile(own if form == ADDITIVE else 1 - own, LOWEST))
        return cls(form, k, lowest if form == ADDITIVE else max(1e-3, lowest), cohort, float(np.quantile(own, OUTSIDE)))

    @property
    def key(self) -> str:
        """A string that identifies this form."""
        return f"{self.form}-{self.k}-{self.floor!r}-{self.cohort.key}"

    def densities(self, vectors: NDArray[np.float32]) -> Floats:
        """Return the densities b (n,) of vectors (n, d)."""
        return self.cohort.density(vectors, self.k)

    def transform(self, squared: Floats, query: ArrayLike, photo: ArrayLike) -> Floats:
        """Return corrected distances from squared plain distances and the densities of query and photo."""
        both = np.asarray(query, dtype=np.float64), np.asarray(photo, dtype=np.float64)
        if self.form == LOCAL_SCALING:
            spread = [np.maximum(self.floor, 1 - b) for b in both]
            return np.asarray(np.sqrt(squared / np.sqrt(spread[0] * spread[1])))
        crowd = [np.maximum(0, b - self.floor) for b in both]
        return np.asarray(np.sqrt(squared + (crowd[0] + crowd[1]) * np.minimum(1, squared / RAMP)))

    def is_outside(self, vectors: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return which vectors (n, d) are out of domain, in a region sparser than nearly all cohort photos."""
        return np.asarray(self.densities(vectors) < self.sparsest)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values; the cohort is stored in its own file."""
        return {"form": self.form, "k": self.k, "floor": self.floor, "sparsest": self.sparsest}


def pack_cohort(cohort: Cohort) -> bytes:
    """Return a cohort as npz."""
    file = io.BytesIO()
    np.savez(file, vectors=cohort.vectors, products=cohort.items)
    return file.getvalue()


def unpack_distance_form(values: Mapping[str, Any], data: bytes | None) -> DistanceForm:
    """Return the distance form in a manifest; raise BundleCorrupt if it needs a cohort and `data` is None."""
    if values["form"] == PLAIN.key:
        return PLAIN
    if data is None:
        raise BundleCorrupt(f"the distance form is {values['form']} and the manifest lists no cohort")
    arrays = load_arrays(data)
    cohort = Cohort(arrays["vectors"], arrays["products"])
    return LocalDensity(
        str(values["form"]), int(values["k"]), float(values["floor"]), cohort, float(values["sparsest"])
    )
