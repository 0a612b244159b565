"""Diversity of an embedding space, independent of any retrieval task.

Shapes: n photos, d = embedding size. Distances between photos are plain ones, sqrt(2 - 2 cos).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter

BLOCK = 2**22  # distances in memory at a time
FLOOR = 1e-8  # relative to the largest singular value; smaller ones are 0 in float64

Vectors = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Diversity:
    """Diversity measures of labelled photos; NaN if no item has two photos, or if there is only one item."""

    intra: float  # mean distance between two photos of an item (π_intra of Roth et al.)
    inter: float  # mean distance between the mean directions of two items (π_inter)
    density: float  # intra / inter (π_ratio)
    spectral_decay: float  # ρ, see `spectral_decay`
    feature_diversity: float  # exp(-ρ): the effective share of directions, 1 for a uniform spectrum
    cluster_diversity: float  # variance of the distances within an item, averaged over items


def diversity(vectors: Vectors, labels: ArrayLike, *, skip: int = 0) -> Diversity:
    """Return the diversity measures of unit vectors (n, d) with labels (n,).

    Density and decay follow Roth et al. (ICML 2020, Section 5). Feature and cluster diversity follow the description of
    Table 5 in the non-isotropic vMF paper (arXiv 2207.03784), which gives no formula: the uniformity of the spectral
    values, and the variance of distances within a class. Items have equal weight; items with a single photo have no
    distances within. `skip` is passed to `spectral_decay`.
    """
    labels = np.asarray(labels)
    if len(vectors) != len(labels) or not len(labels):
        raise InvalidParameter("labels", "have one value a vector", (vectors.shape, labels.shape))
    means, variances, centres = [], [], []
    for members in _items(labels):
        own = vectors[members].astype(np.float64)
        own /= np.maximum(
            np.linalg.norm(own, axis=1, keepdims=True), 1e-12
        )  # float64, because rounding would separate identical photos
        total = own.sum(axis=0)
        centres.append(total / max(float(np.linalg.norm(total)), 1e-12))
        mean, variance = _pair_distances(own)
        means.append(mean)
        variances.append(variance)
    within = [value for value in means if not np.isnan(value)]
    intra = float(np.mean(within)) if within else float("nan")
    inter = _pair_distances(np.array(centres))[0]
    decay = spectral_decay(vectors, skip=skip)
    spread = [value for value in variances if not np.isnan(value)]
    return Diversity(
        intra=intra,
        inter=inter,
        density=intra / inter if inter > 0 else float("nan"),
        spectral_decay=decay,
        feature_diversity=float(np.exp(-decay)),
        cluster_diversity=float(np.mean(spread)) if spread else float("nan"),
    )


def spectral_decay(vectors: Vectors, *, skip: int = 0) -> float:
    """Return ρ = KL(uniform ‖ singular values of the vectors (n, d), scaled to sum 1), which is at least 0.

    A small ρ means that many directions carry variance (Roth et al., ICML 2020). `skip` is the number of largest values
    to leave out; their evaluation uses 1. Values below 1e-8 of the largest, as for n < d, are raised to that.
    """
    if not 0 <= skip < vectors.shape[1]:
        raise InvalidParameter("skip", f"be at least 0 and below the {vectors.shape[1]} dimensions", skip)
    products = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), max(1, BLOCK // vectors.shape[1])):
        block = vectors[start : start + max(1, BLOCK // vectors.shape[1])].astype(np.float64)
        products += block.T @ block
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(products)[::-1], 0.0))
    if values[0] == 0:
        raise InvalidParameter("vectors", "differ from 0", len(vectors))
    kept = np.maximum(values, FLOOR * values[0])[skip:]
    shares = kept / kept.sum()
    return max(0.0, float(-np.log(len(shares) * shares).mean()))


def _items(labels: NDArray[np.generic]) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of each label."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(labels[order][1:] != labels[order][:-1]) + 1
    yield from np.split(order, starts)


def _pair_distances(unit: Floats) -> tuple[float, float]:
    """Return mean and variance of the distances between unordered pairs of rows; NaN for a single row."""
    total = squares = 0.0
    rows = max(1, BLOCK // max(1, len(unit)))
    for start in range(0, len(unit), rows):
        cosines = unit[start : start + rows] @ unit.T
        later = np.arange(len(unit)) > np.arange(start, start + len(cosines))[:, None]
        squared = np.maximum(2 - 2 * cosines[later], 0.0)
        total += float(np.sqrt(squared).sum())
        squares += float(squared.sum())
    pairs = len(unit) * (len(unit) - 1) / 2
    if not pairs:
        return float("nan"), float("nan")
    mean = total / pairs
    return mean, max(0.0, squares / pairs - mean**2)
