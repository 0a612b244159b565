"""Threshold consistency across classes: utility curves, OPIS and epsilon-OPIS of pairs, consistency of searches.

Definitions follow arXiv 2307.04047 (Algorithm 1, Eq. 1 to 4), with two corrections of the printed form: Eq. 2 is a mean
over classes and grid, and Eq. 3 keeps the factor 2 of Eq. 1. For *pairs*, the two accuracies of a class are the share
of negative pairs rejected and of positive pairs accepted. For *searches*, they are the share of non-mated searches
that return nothing and of mated searches that are answered correctly.

Up to 2,048 embeddings all pairs are compared; beyond, ten random negative pairs per positive pair of a class, as in the
paper, and at least 2,000. False-accept rates then refer to the sample.
Shapes: n embeddings, d = embedding size, T classes, N distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter

from .identification import SearchScores

FAR_RANGE = (1e-2, 1e-1)
GRID = 100
EXACT = 2048  # embeddings up to which all pairs are compared
NEGATIVES, LEAST_NEGATIVES = 10, 2000  # sampled negative pairs per positive pair, and at least, of a class
MOST_POSITIVES = 20_000  # positive pairs of a class, sampled beyond
SIMULATED = 200_000  # items drawn for OPIS by chance

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class UtilityCurves:
    """Accuracies and utility of each class at each of N distances."""

    distances: Floats  # (N,)
    classes: NDArray[np.generic]  # (T,) labels
    specificity: Floats  # (T, N)
    sensitivity: Floats  # (T, N)
    utility: Floats  # (T, N) F-score of both


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
    """
    if grid < 1:
        raise InvalidParameter("grid", "be at least 1", grid)
    if not 0 < epsilon <= 1:
        raise InvalidParameter("epsilon", "lie in (0, 1]", epsilon)
    pairs = _Pairs.of(embeddings, labels)
    if distance_range is None:
        return _opis_of_pairs(pairs, far_range, grid, epsilon, c)
    low, high = distance_range
    if not 0 <= low <= high <= 2:
        raise InvalidParameter("distance range", "satisfy 0 <= low <= high <= 2", (low, high))
    return _opis_of(pairs.curves(_points(low, high, grid), c), epsilon, c, low, high)


def opis_of_ranges(
    embeddings: ArrayLike, labels: ArrayLike, *, far_ranges: Sequence[tuple[float, float]], grid: int = GRID
) -> list[Opis]:
    """Return OPIS for several ranges of false-accept rates (sensitivity: Appendix A.1.3)."""
    pairs = _Pairs.of(embeddings, labels)
    return [_opis_of_pairs(pairs, far_range, grid, 0.1, 1.0) for far_range in far_ranges]


def utility_curves(embeddings: ArrayLike, labels: ArrayLike, distances: ArrayLike, *, c: float = 1.0) -> UtilityCurves:
    """Return the accuracies and the utility of every class on pairs at the given distances (N,), ascending.

    The positives of a class are its unordered pairs; its negatives are all pairs with exactly one member in it. A
    pair is accepted if its distance is at most d. Classes with a single embedding are ignored.
    """
    points = np.asarray(distances, dtype=np.float64)
    if points.ndim != 1 or not len(points) or (np.diff(points) < 0).any():
        raise InvalidParameter("distances", "be a list in ascending order", points.shape)
    return _Pairs.of(embeddings, labels).curves(points, c)


def search_curves(scores: SearchScores, thresholds: ArrayLike, *, c: float = 1.0) -> UtilityCurves:
    """Return 1 - FPIR, TPIR and utility of every mated class on searches at the thresholds (N,), ascending."""
    points = np.asarray(thresholds, dtype=np.float64)
    correct = scores.correct
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


@dataclass(frozen=True)
class Consistency:
    """How alike the items fare in searches at one threshold. Items count equally."""

    tpir: float
    opis: float  # variance of the utility across items
    opis_by_chance: float  # OPIS to expect if all items were alike, because each has few searches
    worse_half: float  # TPIR of the half of the items that is found worse
    never_found: float  # share of the items that no search finds


def consistency(scores: SearchScores, threshold: float) -> Consistency:
    """Return the consistency of the items with mated searches; raise InvalidParameter if there are none.

    OPIS is 0 for items that are never found, so it compares only systems that find equally much (`at_equal_tpir`).
    """
    if not scores.mated.any():
        raise InvalidParameter("scores", "have a mated search", len(scores.labels))
    curves = search_curves(scores, [threshold])
    values = weighted_consistency(curves, np.ones((1, len(curves.classes))))
    by_chance = opis_by_chance(scores, curves)
    return Consistency(**{name: float(value[0]) for name, value in values.items()}, opis_by_chance=by_chance)


def weighted_consistency(curves: UtilityCurves, weights: Floats) -> dict[str, Floats]:
    """Return the fields of Consistency but chance (B,) of curves at one threshold, by weights of the items (B, T)."""
    utility, found = curves.utility[:, 0], curves.sensitivity[:, 0]
    shares = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    worst = np.argsort(found, kind="stable")
    half = np.diff(np.minimum(np.cumsum(shares[:, worst], axis=1), 0.5), prepend=0)  # shares of the worse half
    return {
        "tpir": shares @ found,
        "opis": shares @ utility**2 - (shares @ utility) ** 2,
        "worse_half": half @ found[worst] / 0.5,
        "never_found": shares @ (found == 0),
    }


def at_equal_tpir(systems: Sequence[SearchScores], thresholds: Sequence[float]) -> list[Consistency]:
    """Return the consistency of systems where each finds what the one that finds least finds at its threshold."""
    least = min(consistency(*each).tpir for each in zip(systems, thresholds, strict=True))
    return [consistency(scores, threshold_at_tpir(scores, least)) for scores in systems]


def threshold_at_tpir(scores: SearchScores, tpir: float) -> float:
    """Return the smallest threshold with at least this TPIR, as a mean over items, or the largest distance."""
    rows = np.flatnonzero(scores.mated)
    _, codes, counts = np.unique(scores.labels[rows], return_inverse=True, return_counts=True)
    order = np.argsort(scores.correct[rows], kind="stable")
    reached = np.cumsum(1 / counts[codes[order]]) / len(counts)
    ordered = scores.correct[rows][order]
    last = max(0, int(np.isfinite(ordered).sum()) - 1)
    return float(ordered[min(last, int(np.searchsorted(reached, tpir - 1e-9)))])


def opis_by_chance(scores: SearchScores, curves: UtilityCurves) -> float:
    """Return the mean OPIS of simulated items that all have the mean rates, with as many searches as the items have."""
    in_mated = np.isin(scores.labels, curves.classes)
    generator, size = np.random.default_rng(0), (max(1, SIMULATED // len(curves.classes)), len(curves.classes))
    quiet, found = (
        generator.binomial(count, min(1.0, float(rates.mean())), size) / count
        for among, rates in ((in_mated, curves.specificity), (scores.mated, curves.sensitivity))
        for count in [np.unique(scores.labels[among], return_counts=True)[1]]
    )
    return float(f_score(quiet, found).var(axis=1).mean())


def f_score(specificity: Floats, sensitivity: Floats, c: float = 1.0) -> Floats:
    """Return (1 + c²) φ ψ / (c² φ + ψ), and 0 where both are 0 (Eq. 1)."""
    return _ratio((1 + c * c) * specificity * sensitivity, c * c * specificity + sensitivity)


@dataclass(frozen=True)
class _Pairs:
    """Distances of the pairs of each class with two embeddings or more, ascending."""

    classes: NDArray[np.generic]  # (T,) labels
    positives: Sequence[Floats]  # inside the class
    negatives: Sequence[Floats]  # with exactly one member in it
    apart: Floats  # of all negative pairs: each once, or those of the sample

    @classmethod
    def of(cls, embeddings: ArrayLike, labels: ArrayLike, *, seed: int = 0) -> _Pairs:
        """Compare all pairs, or a sample of them."""
        unit, codes, classes = _prepare(embeddings, labels)
        order = np.argsort(codes, kind="stable")
        sizes = np.bincount(codes)
        starts = np.cumsum(sizes) - sizes
        exact, generator = len(codes) <= EXACT, np.random.default_rng(seed)
        positives, negatives, apart = [], [], []
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            inside = order[start : start + size]
            outside = np.concatenate([order[:start], order[start + size :]])
            if exact:
                across = _distances_of(unit[inside] @ unit[outside].T)
                apart.append(across[:, start:].ravel())  # with later classes
            if size < 2:
                continue
            first, second = np.triu_indices(size, 1)
            if len(first) > MOST_POSITIVES and not exact:
                chosen = generator.choice(len(first), MOST_POSITIVES, replace=False)
                first, second = first[chosen], second[chosen]
            positives.append(np.sort(distances_between(unit, inside[first], inside[second])))
            if not exact:
                wanted = max(NEGATIVES * len(first), LEAST_NEGATIVES)
                own, other = generator.integers(size, size=wanted), generator.integers(len(outside), size=wanted)
                across = distances_between(unit, inside[own], outside[other])
                apart.append(across)
            negatives.append(np.sort(across, axis=None))
        return cls(classes[sizes > 1], positives, negatives, np.concatenate(apart))

    def curves(self, points: Floats, c: float) -> UtilityCurves:
        """Return the accuracies and the utility of each class at distances (N,), ascending."""
        rejected, accepted = (
            np.array([np.searchsorted(own, points, side="right") / len(own) for own in part])
            for part in (self.negatives, self.positives)
        )
        return UtilityCurves(points, self.classes, 1 - rejected, accepted, f_score(1 - rejected, accepted, c))


def distances_between(
    unit: NDArray[np.floating], first: NDArray[np.int64], second: NDArray[np.int64], *, block: int = 2**12
) -> Floats:
    """Return the distances (p,) of pairs of unit vectors (n, d), computed a few thousand pairs at a time."""
    parts = [slice(start, start + block) for start in range(0, len(first), block)]
    cosines = [np.einsum("nd,nd->n", unit[first[part]], unit[second[part]]) for part in parts]
    return _distances_of(np.concatenate(cosines)) if cosines else np.zeros(0)


def _distances_of(cosines: NDArray[np.floating]) -> Floats:
    return np.asarray(np.sqrt(np.clip(2 - 2 * cosines, 0, 4)), dtype=np.float64)


def _prepare(embeddings: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64], NDArray[np.generic]]:
    vectors = np.asarray(embeddings, dtype=np.float64)
    classes, codes = np.unique(np.asarray(labels), return_inverse=True)
    if vectors.ndim != 2 or len(vectors) != len(codes):
        raise InvalidParameter("embeddings", "be (n, d) with one label each", (vectors.shape, codes.shape))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(lengths).all():
        raise InvalidParameter("embeddings", "be finite", "NaN or infinity")
    if not lengths.all():
        raise InvalidParameter("embeddings", "have no zero row", int((lengths == 0).sum()))
    if len(classes) < 2 or len(classes) == len(codes):
        raise InvalidParameter("labels", "name two classes or more, one of them twice", len(classes))
    return vectors / lengths, codes.astype(np.int64), classes


def _points(low: float, high: float, grid: int) -> Floats:
    """Return the grid of a range (N,), which ends at `high` and leaves out `low`."""
    return np.asarray(low + (high - low) * np.arange(1, grid + 1) / grid)


def _opis_of_pairs(pairs: _Pairs, far_range: tuple[float, float], grid: int, epsilon: float, c: float) -> Opis:
    if not 0 <= far_range[0] < far_range[1] <= 1:
        raise InvalidParameter("far_range", "satisfy 0 <= low < high <= 1", far_range)
    low, high = np.quantile(pairs.apart, far_range).tolist()
    return _opis_of(pairs.curves(_points(low, high, grid), c), epsilon, c, low, high)


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
