"""Figures of unseen classes by class, for intervals that resample the classes.

Shapes: n photos, d = embedding size, T classes, N distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.benchmarks.anchoring import Data, limit
from retrieval.metrics.consistency import opis, utility_curves
from retrieval.metrics.identification import SearchScores

Floats = NDArray[np.float64]
TARGET, HALVES = 0.05, 2  # FPIR, and random divisions of the classes into two halves, each half once the gallery
GRID, RANGE, STRIDE = 100, (1e-2, 1e-1), 5  # points of OPIS, FAR at the ends of its range, step of the halves' grid
SHARES = np.linspace(0, 1, 101)  # quantiles of similarities that are kept
RANKED, ANCHORED = ("R@1", "MAP@R"), ("TPIR, anchored", "TPIR, exact", "FPIR, anchored")


def ranked_by_class(vectors: np.ndarray, labels: np.ndarray) -> dict[str, Floats]:
    """Return R@1 and MAP@R (T,) of the classes: each photo is searched among all others."""
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -np.inf)
    _classes, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    depth = int(counts.max()) - 1
    nearest = np.argpartition(-similarity, depth - 1, axis=1)[:, :depth]
    order = np.argsort(-np.take_along_axis(similarity, nearest, axis=1), axis=1, kind="stable")
    nearest = np.take_along_axis(nearest, order, axis=1)
    mates = counts[codes][:, None] - 1
    right = (codes[nearest] == codes[:, None]) & (np.arange(depth) < mates)
    precision = right * np.cumsum(right, axis=1) / np.arange(1, depth + 1)
    by_photo = {"R@1": right[:, 0].astype(float), "MAP@R": precision.sum(axis=1) / mates[:, 0]}
    return {name: np.bincount(codes, values) / counts for name, values in by_photo.items()}


def utility_by_class(vectors: np.ndarray, labels: np.ndarray) -> Floats:
    """Return the utility (T, N) of each class on the grid of OPIS."""
    return utility_curves(vectors, labels, _grid(vectors, labels)).utility


def utility_by_half(vectors: np.ndarray, labels: np.ndarray) -> Floats:
    """Return the utility (2, T, N) of each class by each half of its photos, on a coarser grid of OPIS.

    The halves share no pair, so that their covariance over classes is OPIS without the noise of few photos per class.
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    number = np.empty(len(codes), np.int64)  # of a photo within its class
    number[order] = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    points = _grid(vectors, labels)[STRIDE - 1 :: STRIDE]
    halves = (number % 2 == half for half in range(2))
    return np.stack([utility_curves(vectors[half], labels[half], points).utility for half in halves])


def _grid(vectors: np.ndarray, labels: np.ndarray) -> Floats:
    ends = opis(vectors, labels, far_range=RANGE, grid=1)
    return np.asarray(ends.d_min + (ends.d_max - ends.d_min) * np.arange(1, GRID + 1) / GRID)


def opis_of(utility: Floats) -> float:
    """Return OPIS of the classes' utility (T, N): its variance over classes, averaged over the range."""
    return float(utility.var(axis=0).mean())


def anchored_by_class(vectors: np.ndarray, labels: np.ndarray, in_gallery: np.ndarray) -> dict[str, Floats]:
    """Return TPIR and FPIR (T,) of the classes with one threshold for a target FPIR of 5 %.

    Half of the classes are known: their gallery photos are the gallery, the others are unknown. The threshold is set
    from the gallery's own draws ("anchored"), or by the unknown searches themselves so that FPIR is exactly 5 %.
    """
    classes = np.unique(labels)
    names = np.array([f"{label:06d}" for label in labels])
    data = Data(vectors.astype(np.float32), names, in_gallery)
    sums = {name: np.zeros(len(classes)) for name in ANCHORED}
    for number in range(HALVES):
        order = np.random.default_rng((5, number)).permutation(len(classes))
        for known in (order[: len(order) // 2], order[len(order) // 2 :]):
            _add_half(sums, data, labels, classes, np.sort(known))
    return {name: total / HALVES for name, total in sums.items()}


def _add_half(sums: dict[str, Floats], data: Data, labels: np.ndarray, classes: np.ndarray, known: np.ndarray) -> None:
    member = np.isin(labels, classes[known])
    shown = member & data.in_gallery
    unknown, asked = (data.searches(mask & ~data.in_gallery, shown) for mask in (~member, member))
    own, exact = data.threshold(shown), limit(unknown, TARGET)
    sums["TPIR, anchored"][known] += _by_class(asked, asked.correct <= own)
    sums["TPIR, exact"][known] += _by_class(asked, asked.correct <= exact)
    others = np.setdiff1d(np.arange(len(classes)), known)
    sums["FPIR, anchored"][others] += _by_class(unknown, unknown.impostor <= own)


def _by_class(scores: SearchScores, hits: NDArray[np.bool_]) -> Floats:
    """Return the share of hits of each class's searches, classes in ascending order."""
    classes, codes = np.unique(scores.labels, return_inverse=True)
    return np.bincount(codes, hits, minlength=len(classes)) / np.bincount(codes)


def similarity_quantiles(vectors: np.ndarray, labels: np.ndarray) -> dict[str, list[float]]:
    """Return quantiles (SHARES) of the cosines of positive and of negative pairs."""
    rows, columns = np.triu_indices(len(labels), 1)
    cosines = (vectors @ vectors.T)[rows, columns]
    same = labels[rows] == labels[columns]
    return {
        "positive": np.quantile(cosines[same], SHARES).round(4).tolist(),
        "negative": np.quantile(cosines[~same], SHARES).round(4).tolist(),
    }


def figures(vectors: np.ndarray, labels: np.ndarray, in_gallery: np.ndarray) -> dict[str, Any]:
    """Return all figures of unseen classes by class, rounded, as they are stored."""
    by_class: Mapping[str, Floats] = ranked_by_class(vectors, labels) | anchored_by_class(vectors, labels, in_gallery)
    stored: dict[str, Any] = {name: values.round(5).tolist() for name, values in by_class.items()}
    stored["utility"] = utility_by_class(vectors, labels).round(4).tolist()
    stored["utility by half"] = utility_by_half(vectors, labels).round(4).tolist()
    return stored | {"quantiles": similarity_quantiles(vectors, labels)}


def summary(vectors: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return R@1 and OPIS of validation classes, and the quantiles of the cosines of pairs."""
    found = ranked_by_class(vectors, labels)
    return {
        "R@1": float(found["R@1"].mean()),
        "MAP@R": float(found["MAP@R"].mean()),
        "OPIS": opis_of(utility_by_class(vectors, labels)),
        "quantiles": similarity_quantiles(vectors, labels),
    }
