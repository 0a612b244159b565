"""Threshold consistency across classes: utility curves, OPIS and epsilon-OPIS for pairs and searches.

Definitions follow arXiv 2307.04047 (Algorithm 1, Eq. 1 to 4), with two corrections of the printed form: Eq. 2 is a mean
over classes and grid, and Eq. 3 keeps the factor 2 of Eq. 1. For *pairs*, the two accuracies of a class are the share
of negative pairs rejected and of positive pairs accepted. For *searches*, they are the share of non-mated searches
that return nothing and of mated searches that are answered correctly.
Shapes: n embeddings, d = embedding size, T classes, N distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter

from .identification import SearchScores, threshold_at_fpir
from .pairs import EXACT, PairCounts, Pairs, grid_points
from .sampled_pairs import SampledPairs

SPECIFICITY, PRECISION = "specificity", "precision"
FAR_RANGE = (1e-2, 1e-1)
GRID = 100

Floats = NDArray[np.float64]


class PairSource(Protocol):
    """Protocol for counting pairs; `Pairs` implements it on the CPU."""

    def within(self, distances: Floats) -> PairCounts:
        """Return the number of pairs of each class within each of the distances (N,), ascending."""

    def in_ranges(self, shares: Floats, grid: int) -> tuple[Floats, PairCounts]:
        """Return quantiles (R, 2) of the distances of negative pairs, and counts within `grid_points` of them."""


Counter = Callable[[Floats, NDArray[np.int64]], PairSource]


@dataclass(frozen=True)
class UtilityCurves:
    """Accuracies and utility of each class at each of N distances."""

    distances: Floats  # (N,)
    classes: NDArray[np.generic]  # (T,) labels
    specificity: Floats  # (T, N) the first accuracy; precision if requested
    sensitivity: Floats  # (T, N) the second accuracy
    utility: Floats  # (T, N) F-score of both

    def at(self, places: NDArray[np.int64]) -> UtilityCurves:
        """Return the curves at the given positions of the distance grid."""
        curves = (curve[:, places] for curve in (self.specificity, self.sensitivity, self.utility))
        return UtilityCurves(self.distances[places], self.classes, *curves)


@dataclass(frozen=True)
class Opis:
    """Operating-point inconsistency score and its details."""

    value: float  # variance of the utility across classes, averaged over the range
    epsilon_value: float  # squared gap between the best and the worst classes, averaged over the range
    d_min: float
    d_max: float
    per_class: dict[object, float]  # mean utility over the range, worst class first


def opis(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    far_range: tuple[float, float] = FAR_RANGE,
    grid: int = GRID,
    epsilon: float = 0.1,
    distance_range: tuple[float, float] | None = None,
    c: float = 1.0,
    accuracy: str = SPECIFICITY,
    negatives_per_positive: int | None = None,
    counter: Counter = Pairs,
) -> Opis:
    """Return OPIS and epsilon-OPIS of pairs over the calibration range.

    Parameters
    ----------
    embeddings, labels:
        Arrays (n, d), which are scaled to unit length, and (n,). Classes with a single embedding are ignored.
    far_range:
        False-accept rates over all negative pairs; their distances are the ends of the range.
    grid:
        Number N of points in the range.
    epsilon:
        Share of the classes in the best and in the worst group.
    distance_range:
        Range of distances, instead of `far_range`.
    c:
        Weight of sensitivity in the F-score.
    accuracy:
        "specificity" with sensitivity, or "precision" with recall.
    negatives_per_positive:
        Number of negative pairs sampled per positive pair of each class, instead of all (the paper: 10 for large sets).
    counter:
        Implementation that counts pairs. Defaults to all CPU cores.
    """
    ranges = None if distance_range is None else [distance_range]
    return opis_of_ranges(
        embeddings,
        labels,
        far_ranges=[far_range],
        distance_ranges=ranges,
        grid=grid,
        epsilon=epsilon,
        c=c,
        accuracy=accuracy,
        negatives_per_positive=negatives_per_positive,
        counter=counter,
    )[0]


def opis_of_ranges(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    far_ranges: Sequence[tuple[float, float]] = (FAR_RANGE,),
    distance_ranges: Sequence[tuple[float, float]] | None = None,
    grid: int = GRID,
    epsilon: float = 0.1,
    c: float = 1.0,
    accuracy: str = SPECIFICITY,
    negatives_per_positive: int | None = None,
    counter: Counter = Pairs,
) -> list[Opis]:
    """Return OPIS for several calibration ranges in one pass over the pairs (sensitivity: Appendix A.1.3)."""
    if grid < 1:
        raise InvalidParameter("grid", "be at least 1", grid)
    _check_epsilon(epsilon)
    _check_accuracy(accuracy)
    unit, codes, classes = _prepare(embeddings, labels)
    pairs = _pairs(unit, codes, negatives_per_positive, counter)
    if distance_ranges is None:
        for low, high in far_ranges:
            if not 0 <= low < high <= 1:
                raise InvalidParameter("far_range", "satisfy 0 <= low < high <= 1", (low, high))
        ends, counts = pairs.in_ranges(np.asarray(far_ranges, dtype=np.float64), grid)
    else:
        ends = np.asarray(distance_ranges, dtype=np.float64)
        for low, high in ends:
            if not 0 <= low <= high <= 2:
                raise InvalidParameter("distance range", "satisfy 0 <= low <= high <= 2", (low, high))
        counts = pairs.within(grid_points(ends, grid))
    points = grid_points(ends, grid)
    curves = _curves(counts, classes, points, c, accuracy)
    return [
        _opis_of(curves.at(np.searchsorted(points, grid_points(each[None], grid))), epsilon, c, *each.tolist())
        for each in ends
    ]


def utility_curves(
    embeddings: ArrayLike,
    labels: ArrayLike,
    distances: ArrayLike,
    *,
    c: float = 1.0,
    accuracy: str = SPECIFICITY,
    negatives_per_positive: int | None = None,
    counter: Counter = Pairs,
) -> UtilityCurves:
    """Return the accuracies and the utility of every class on pairs at the given distances (N,), ascending.

    The positives of a class are its unordered pairs; its negatives are all pairs with exactly one member in it. A
    pair is accepted if its distance is at most d. Classes with a single embedding are ignored.
    """
    unit, codes, classes = _prepare(embeddings, labels)
    points = np.asarray(distances, dtype=np.float64)
    if points.ndim != 1 or not len(points) or (np.diff(points) < 0).any():
        raise InvalidParameter("distances", "be a list in ascending order", points.shape)
    _check_accuracy(accuracy)
    counts = _pairs(unit, codes, negatives_per_positive, counter).within(points)
    return _curves(counts, classes, points, c, accuracy)


def search_curves(scores: SearchScores, thresholds: ArrayLike, *, c: float = 1.0) -> UtilityCurves:
    """Return 1 - FPIR, TPIR and utility of every mated class on searches at the thresholds (N,), ascending."""
    points = np.asarray(thresholds, dtype=np.float64)
    correct = np.where(scores.own < scores.impostor, scores.own, np.inf)
    classes, codes = np.unique(scores.labels, return_inverse=True)
    quiet, found = (np.empty((len(classes), len(points))) for _ in range(2))
    mated = np.zeros(len(classes), dtype=bool)
    order = np.argsort(codes, kind="stable")
    for row, mine in enumerate(np.split(order, np.cumsum(np.bincount(codes))[:-1])):
        asked = mine[scores.mated[mine]]
        mated[row] = len(asked) > 0
        quiet[row] = 1 - _share_within(scores.impostor[mine], points)
        found[row] = _share_within(correct[asked], points) if len(asked) else 0
    quiet, found = quiet[mated], found[mated]
    return UtilityCurves(points, classes[mated], quiet, found, f_score(quiet, found, c))


def search_opis(scores: SearchScores, target_fpir: float, *, grid: int = GRID, epsilon: float = 0.1) -> Opis:
    """Return OPIS of searches, from a tenth of the target FPIR (at least five errors) up to the target."""
    _check_epsilon(epsilon)
    lowest = min(target_fpir, max(target_fpir / 10, 5 / len(scores.labels)))
    low, high = (threshold_at_fpir(scores, fpir) for fpir in (lowest, target_fpir))
    curves = search_curves(scores, np.linspace(low, high, grid))
    return _opis_of(curves, epsilon, 1.0, low, high)


def f_score(specificity: Floats, sensitivity: Floats, c: float = 1.0) -> Floats:
    """Return (1 + c²) φ ψ / (c² φ + ψ), and 0 where both are 0 (Eq. 1)."""
    return _ratio((1 + c * c) * specificity * sensitivity, c * c * specificity + sensitivity)


def _prepare(embeddings: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64], NDArray[np.generic]]:
    vectors = np.asarray(embeddings)
    classes, codes = np.unique(np.asarray(labels), return_inverse=True)
    if vectors.ndim != 2 or len(vectors) != len(codes):
        raise InvalidParameter("embeddings", "be (n, d) with one label each", (vectors.shape, codes.shape))
    if vectors.dtype != np.float32 or len(vectors) ** 2 <= EXACT:
        vectors = vectors.astype(np.float64)  # only for small sets, to save memory
    lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))[:, None]
    if not np.isfinite(lengths).all():
        raise InvalidParameter("embeddings", "be finite", "NaN or infinity")
    if not lengths.all():
        raise InvalidParameter("embeddings", "have no zero row", int((lengths == 0).sum()))
    if len(classes) < 2 or len(classes) == len(codes):
        raise InvalidParameter("labels", "name two classes or more, one of them twice", len(classes))
    return vectors / lengths, codes.astype(np.int64), classes


def _pairs(unit: Floats, codes: NDArray[np.int64], ratio: int | None, counter: Counter) -> PairSource:
    return (counter if ratio is None else partial(SampledPairs, ratio=ratio))(unit, codes)


def _curves(counts: PairCounts, classes: NDArray[np.generic], points: Floats, c: float, accuracy: str) -> UtilityCurves:
    kept = counts.all_positives > 0
    positives, negatives = counts.positives[kept], counts.negatives[kept]
    sensitivity = positives / counts.all_positives[kept, None]
    if accuracy == PRECISION:
        first = _ratio(positives.astype(np.float64), positives + negatives)
    else:
        first = 1 - negatives / counts.all_negatives[kept, None]
    return UtilityCurves(points, classes[kept], first, sensitivity, f_score(first, sensitivity, c))


def _opis_of(curves: UtilityCurves, epsilon: float, c: float, low: float, high: float) -> Opis:
    means = curves.utility.mean(axis=1)  # (T,)
    size = max(1, int(np.floor(epsilon * len(means) + 0.5)))
    order = np.argsort(-means, kind="stable")
    best, worst = (_group_utility(curves, chosen, c) for chosen in (order[:size], order[-size:]))
    return Opis(
        value=float(curves.utility.var(axis=0).mean()),
        epsilon_value=float(((best - worst) ** 2).mean()),
        d_min=low,
        d_max=high,
        per_class={curves.classes[i].item(): float(means[i]) for i in order[::-1]},
    )


def _group_utility(curves: UtilityCurves, chosen: NDArray[np.int64], c: float) -> Floats:
    return f_score(curves.specificity[chosen].mean(axis=0), curves.sensitivity[chosen].mean(axis=0), c)


def _share_within(distances: Floats, thresholds: Floats) -> Floats:
    return np.asarray(np.searchsorted(np.sort(distances), thresholds, side="right") / len(distances))


def _ratio(above: Floats, below: ArrayLike) -> Floats:
    below = np.asarray(below, dtype=np.float64)
    return np.asarray(np.divide(above, below, out=np.zeros_like(below), where=below > 0))


def _check_epsilon(epsilon: float) -> None:
    if not 0 < epsilon <= 1:
        raise InvalidParameter("epsilon", "lie in (0, 1]", epsilon)


def _check_accuracy(accuracy: str) -> None:
    if accuracy not in (SPECIFICITY, PRECISION):
        raise InvalidParameter("accuracy", f"be {SPECIFICITY} or {PRECISION}", accuracy)
