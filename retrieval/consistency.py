"""Does one threshold mean the same for every class? Utility curves, OPIS and epsilon-OPIS of pairs.

Threshold consistency as arXiv 2307.04047 defines it (Algorithm 1, Eq. 1 to 4), with the corrections of its
printed form: Eq. 2 is a mean over classes and grid, and Eq. 3 keeps the factor 2 of Eq. 1.
Shapes: n embeddings, d = embedding size, T classes with at least two embeddings, N grid points.
Memory is bounded: no more than a block of the n × n pairs is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidParameter

BLOCK = 2**22  # pairs held at a time
BINS = 2**16  # of the histogram that finds the distances at a false-accept rate

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UtilityCurves:
    """How well each class does at each distance of a grid."""

    distances: Floats  # (N,)
    classes: NDArray[np.generic]  # (T,) labels
    specificity: Floats  # (T, N) share of the class's negative pairs that are kept apart
    sensitivity: Floats  # (T, N) share of its positive pairs that are accepted
    utility: Floats  # (T, N) their F-score


@dataclass(frozen=True)
class Opis:
    """Operating-point inconsistency score, and what it was computed on."""

    value: float  # variance of the utility across classes, averaged over the range
    epsilon_value: float  # squared gap between the best and the worst classes, averaged over the range
    d_min: float
    d_max: float
    per_class: dict[object, float]  # mean utility over the range, worst class first


def opis(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    far_range: tuple[float, float] = (1e-2, 1e-1),
    grid: int = 100,
    epsilon: float = 0.1,
    distance_range: tuple[float, float] | None = None,
    c: float = 1.0,
) -> Opis:
    """Return OPIS and epsilon-OPIS over the calibration range.

    Parameters
    ----------
    embeddings, labels:
        (n, d), scaled to unit length here, and (n,).
    far_range:
        False-accept rates of all negative pairs, whose distances bound the range.
    grid:
        N, points of the range.
    epsilon:
        Share of the classes in the best and in the worst group.
    distance_range:
        The range itself, in place of `far_range`.
    c:
        Weight of sensitivity in the F-score.
    """
    unit, codes, classes = _prepare(embeddings, labels)
    if grid < 1:
        raise InvalidParameter("grid", "be at least 1", grid)
    if not 0 < epsilon <= 1:
        raise InvalidParameter("epsilon", "lie in (0, 1]", epsilon)
    low, high = distance_range or _distances_at_far(unit, codes, far_range)
    if not 0 <= low <= high <= 2:  # equal where a collapsed model puts everything in one place
        raise InvalidParameter("distance range", "satisfy 0 <= low <= high <= 2", (low, high))
    points = low + (high - low) * np.arange(1, grid + 1) / grid
    curves = _curves(unit, codes, classes, points, c)
    utility = curves.utility
    means = utility.mean(axis=1)  # (T,)
    size = max(1, int(np.floor(epsilon * len(means) + 0.5)))
    order = np.argsort(-means, kind="stable")
    best, worst = (_group_utility(curves, chosen, c) for chosen in (order[:size], order[-size:]))
    return Opis(
        value=float(utility.var(axis=0).mean()),
        epsilon_value=float(((best - worst) ** 2).mean()),
        d_min=float(low),
        d_max=float(high),
        per_class={curves.classes[i].item(): float(means[i]) for i in order[::-1]},
    )


def utility_curves(embeddings: ArrayLike, labels: ArrayLike, distances: ArrayLike, *, c: float = 1.0) -> UtilityCurves:
    """Return every class's specificity, sensitivity and utility at the given distances (N,), ascending.

    The positives of a class are its unordered pairs, its negatives all pairs with exactly one member in it; a
    pair is accepted when its distance is at most d. Classes with a single embedding are left out.
    """
    unit, codes, classes = _prepare(embeddings, labels)
    return _curves(unit, codes, classes, np.asarray(distances, dtype=np.float64), c)


def f_score(specificity: Floats, sensitivity: Floats, c: float = 1.0) -> Floats:
    """Return (1 + c²) φ ψ / (c² φ + ψ), and 0 where both are 0 (Eq. 1)."""
    below = c * c * specificity + sensitivity
    return np.divide((1 + c * c) * specificity * sensitivity, below, out=np.zeros_like(below), where=below > 0)


def _prepare(embeddings: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64], NDArray[np.generic]]:
    vectors = np.asarray(embeddings, dtype=np.float64)
    classes, codes = np.unique(np.asarray(labels), return_inverse=True)
    if vectors.ndim != 2 or len(vectors) != len(codes):
        raise InvalidParameter("embeddings", "be (n, d) with one label each", (vectors.shape, codes.shape))
    if not np.isfinite(vectors).all():
        raise InvalidParameter("embeddings", "be finite", "NaN or infinity")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not lengths.all():
        raise InvalidParameter("embeddings", "have no zero row", int((lengths == 0).sum()))
    if len(classes) < 2 or len(classes) == len(codes):
        raise InvalidParameter("labels", "name two classes or more, one of them twice", len(classes))
    return vectors / lengths, codes.astype(np.int64), classes


def _blocks(unit: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield (first row, distances (b, n)) of successive rows to all embeddings."""
    rows = max(1, BLOCK // len(unit))
    for start in range(0, len(unit), rows):
        cosines = unit[start : start + rows] @ unit.T
        yield start, np.sqrt(np.clip(2 - 2 * cosines, 0, 4))


def _curves(
    unit: Floats, codes: NDArray[np.int64], classes: NDArray[np.generic], points: Floats, c: float
) -> UtilityCurves:
    width = len(points) + 1
    positives = np.zeros((len(classes), width), dtype=np.int64)  # ordered pairs by first accepting point
    negatives = np.zeros_like(positives)
    for start, distances in _blocks(unit):
        own = codes[start : start + len(distances)]
        cell = own[:, None] * width + np.searchsorted(points, distances, side="left")
        same = own[:, None] == codes[None, :]
        negatives += _count(cell[~same], positives.shape)
        same[np.arange(len(own)), np.arange(len(own)) + start] = False
        positives += _count(cell[same], positives.shape)
    kept = positives.sum(axis=1) > 0
    accepted = positives[kept].cumsum(axis=1)
    sensitivity = accepted[:, :-1] / accepted[:, -1:]
    passed = negatives[kept].cumsum(axis=1)
    specificity = 1 - passed[:, :-1] / passed[:, -1:]
    utility = f_score(specificity, sensitivity, c)
    return UtilityCurves(points, classes[kept], specificity, sensitivity, utility)


def _count(cells: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)


def _group_utility(curves: UtilityCurves, chosen: NDArray[np.int64], c: float) -> Floats:
    return f_score(curves.specificity[chosen].mean(axis=0), curves.sensitivity[chosen].mean(axis=0), c)


def _distances_at_far(unit: Floats, codes: NDArray[np.int64], far_range: tuple[float, float]) -> tuple[float, float]:
    """Return the linearly interpolated quantiles of all negative distances, exactly, in two passes.

    A histogram tells which bins hold the order statistics that are needed; only those are collected.
    """
    if not 0 <= far_range[0] < far_range[1] <= 1:
        raise InvalidParameter("far_range", "satisfy 0 <= low < high <= 1", far_range)
    counts = np.zeros(BINS, dtype=np.int64)
    for distances in _negatives(unit, codes):
        counts += np.bincount(_bin(distances), minlength=BINS)
    total = int(counts.sum())
    below = np.concatenate([[0], counts.cumsum()])
    ranks = [far * (total - 1) for far in far_range]
    wanted = sorted({int(rank) for rank in ranks} | {min(int(rank) + 1, total - 1) for rank in ranks})
    bins = np.unique(np.searchsorted(below, wanted, side="right") - 1)
    found: dict[int, list[Floats]] = {int(number): [] for number in bins}
    for distances in _negatives(unit, codes):
        place = _bin(distances)
        for number, parts in found.items():
            parts.append(distances[place == number])
    ordered = {number: np.sort(np.concatenate(parts)) for number, parts in found.items()}

    def statistic(rank: int) -> float:
        number = int(np.searchsorted(below, rank, side="right") - 1)
        return float(ordered[number][rank - below[number]])

    low, high = (
        (1 - rank % 1) * statistic(int(rank)) + (rank % 1) * statistic(min(int(rank) + 1, total - 1)) for rank in ranks
    )
    return low, high


def _negatives(unit: Floats, codes: NDArray[np.int64]) -> Iterator[Floats]:
    """Yield the distances of unordered negative pairs, a block at a time."""
    for start, distances in _blocks(unit):
        rows = np.arange(start, start + len(distances))
        later = np.arange(len(unit))[None, :] > rows[:, None]
        yield distances[later & (codes[rows][:, None] != codes[None, :])]


def _bin(distances: Floats) -> NDArray[np.int64]:
    return np.minimum((distances * (BINS / 2)).astype(np.int64), BINS - 1)
