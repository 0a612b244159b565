"""Calibration: choose one threshold from labelled searches, with its evidence.

The rule (docs/architecture.md): among the thresholds with FPIR <= target, find the greatest mean utility over items,
U_i = harmonic mean of 1 - FPIR_i and TPIR_i. Thresholds within one standard error of it are equivalent; of these, the
one with the smallest variance across items wins. Ties go to the largest distance.

The target is *certified* if the upper 95 % bound on the FPIR meets it, and *estimated* if only the observed FPIR does.
The bound (`bounds`) applies to means over independent clusters, because photos of an item and items of a group are not
independent. Without groups, families of items are found by their vectors (`families_of_photos`). Thresholds are tested
in ascending order. The observed FPIR grows monotonically with the threshold, so the selection does not reduce the
coverage of the bound.

Families are found by linking each item to its nearest other item. Items of one family resemble each other, so their
errors are not independent. A family is a connected component of the links, with at least two items, so no distance
limit has to be chosen. Families tend to be too large rather than too small, which makes a bound over families
conservative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.search.distance import accepts
from retrieval.bundle.operating_point import CERTIFIED, ESTIMATED, OperatingPoint
from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.metrics.consistency import UtilityCurves, search_curves, search_opis
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir

from .bounds import CONFIDENCE, bound_p_value, cluster_means, items_needed, upper_bound

CANDIDATES = 2000  # maximum number of thresholds compared
SPLITS = 200  # number of random splits of the clusters into halves
BLOCK = 1024  # items compared at a time
ONE_GROUP = "the calibration items are all of one group, so that no search among them returns a wrong item"
MORE_GROUPS = "Give items of different groups to the partition calibration, or leave the column `group` out"
REMEDY = "Bring more calibration items, or accept the word `estimated` with --allow-estimate"

ITEMS, GROUPS, FAMILIES = "items", "groups of items", "families of similar items"  # kinds of clusters

Floats = NDArray[np.float64]


def calibrate(
    scores: SearchScores,
    *,
    target_fpir: float = 0.05,
    allow_estimate: bool = False,
    groups: ArrayLike | None = None,
    vectors: NDArray[np.float32] | None = None,
    seen_labels: Iterable[object] = (),
) -> OperatingPoint:
    """Choose a threshold on searches of items that were used for nothing else.

    Parameters
    ----------
    scores:
        Searches (n,) made with the exported model and the production search code.
    allow_estimate:
        Accept a threshold whose FPIR meets the target on these searches but cannot be certified.
    groups:
        (n,) cluster of each query, if items are not independent of each other.
    vectors:
        (n, d) unit vectors of the queries. Without groups, the clusters are families found from these vectors, or the
        items if there are none.
    seen_labels:
        Items used in training. Calibrating on any of them is an error.

    Raises
    ------
    CalibrationError
        If nothing can be certified and estimates are not allowed, if no threshold that meets the target finds anything
        (TPIR 0), or if items were seen in training.
    """
    if not 0 < target_fpir < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
    _refuse_seen(scores, seen_labels)
    if not scores.mated.any() or scores.gallery_items < 2:
        raise CalibrationError("calibration needs queries with a mate, and two items or more in the gallery")
    if not np.isfinite(scores.impostor).any():
        raise CalibrationError(ONE_GROUP, remedy=MORE_GROUPS)
    kind, clusters = _clusters(scores, groups, vectors)
    promise = _Promise(scores, clusters, target_fpir, kind)
    limit = promise.limit(certified=True)
    point = None if limit is None else choose_threshold(scores, limit)
    status = CERTIFIED
    if point is None:
        if not allow_estimate:
            raise CalibrationError(promise.why_not(), remedy=REMEDY)
        limit = promise.limit(certified=False)
        point, status = None if limit is None else choose_threshold(scores, limit), ESTIMATED
    if point is None:
        raise CalibrationError(
            f"no threshold with FPIR <= {target_fpir:g} finds a single item (TPIR 0)",
            remedy="Train a better model, or promise less with a larger --target-fpir",
        )
    return OperatingPoint(point, status, target_fpir, _evidence(scores, promise, point))


def _clusters(
    scores: SearchScores, groups: ArrayLike | None, vectors: NDArray[np.float32] | None
) -> tuple[str, NDArray[np.int64]]:
    """Return the kind of the clusters, and the cluster of each query (n,)."""
    if groups is not None:
        return GROUPS, np.unique(np.asarray(groups), return_inverse=True)[1]
    if vectors is not None:
        return FAMILIES, families_of_photos(vectors, scores.labels)
    return ITEMS, np.unique(scores.labels, return_inverse=True)[1]


def _refuse_seen(scores: SearchScores, seen_labels: Iterable[object]) -> None:
    """Raise CalibrationError if an item was seen in training."""
    seen = sorted({str(label) for label in seen_labels} & {str(label) for label in np.unique(scores.labels)})
    if seen:
        raise CalibrationError(
            f"{len(seen)} calibration items were seen in training, {seen[0]} for one",
            remedy="Calibrate on items that training never saw",
        )


@dataclass(frozen=True)
class _Promise:
    """The target FPIR, evaluated on searches."""

    scores: SearchScores
    clusters: NDArray[np.int64]
    target: float
    kind: str = ITEMS  # of the clusters

    def means(self, threshold: float) -> Floats:
        """Return the FPIR per cluster (k,)."""
        return cluster_means(accepts(self.scores.impostor, threshold), self.clusters)

    def share(self, threshold: float) -> float:
        """Return the FPIR with items weighted equally: that of a cluster with many items counts for more."""
        _, items = np.unique(self.scores.labels, return_inverse=True)
        return float(cluster_means(accepts(self.scores.impostor, threshold), items).mean())

    def limit(self, *, certified: bool) -> float | None:
        """Return the largest threshold that meets the target, as do all stricter ones; None if there is none.

        The p-value grows monotonically with the threshold, so bisection is equivalent to testing in order.
        """

        def keeps(threshold: float) -> bool:
            if not certified:
                return float(accepts(self.scores.impostor, threshold).mean()) <= self.target
            p_value = bound_p_value(self.means(threshold), self.target)
            return p_value <= 1 - CONFIDENCE and self.share(threshold) <= self.target

        errors = np.unique(self.scores.impostor[np.isfinite(self.scores.impostor)])
        ends = np.append(np.nextafter(errors, -np.inf), errors[-1] if len(errors) else 2.0)  # FPIR changes only here
        passed, failed = -1, len(ends)
        while failed - passed > 1:
            middle = (passed + failed) // 2
            passed, failed = (middle, failed) if keeps(float(ends[middle])) else (passed, middle)
        return None if passed < 0 else float(ends[passed])

    def on_other_clusters(self) -> list[float]:
        """Return the 5 % and 95 % quantiles of the FPIR on held-out halves of the clusters.

        Each threshold meets the target on one half of the clusters and is evaluated on the other half. The quantiles
        show how far the FPIR on new items may be from the target. Empty for fewer than four clusters.
        """
        count = int(self.clusters.max()) + 1
        if count < 4:
            return []
        generator, found = np.random.default_rng(0), []
        for _ in range(SPLITS):
            first = np.isin(self.clusters, generator.permutation(count)[: count // 2])
            threshold = threshold_at_fpir(self.scores.where(first), self.target)
            found.append(float(accepts(self.scores.impostor[~first], threshold).mean()))
        return [float(end) for end in np.quantile(found, [0.05, 0.95])]

    def why_not(self) -> str:
        """Return the reason why no threshold can be certified."""
        count = int(self.clusters.max()) + 1
        return (
            f"{count} independent {self.kind} cannot certify an FPIR of {self.target:g}: even without a single error, "
            f"{items_needed(self.target)} are needed"
        )


def choose_threshold(scores: SearchScores, limit: float) -> float | None:
    """Return the threshold chosen by the rule among those up to `limit`, None if none of them finds anything.

    Utility only grows between two impostor distances, so the candidates lie just below each of them and at the limit.
    """
    below = np.unique(scores.impostor[scores.impostor <= limit])
    candidates = np.append(np.nextafter(below, -np.inf), limit)
    if len(candidates) > CANDIDATES:
        picked = np.linspace(0, len(candidates) - 1, CANDIDATES).round().astype(int)
        candidates = candidates[picked]
    return best_threshold(search_curves(scores, candidates))


def best_threshold(curves: UtilityCurves) -> float | None:
    """Return the threshold chosen by the rule among the curves' distances, None if none of them finds anything."""
    found = curves.sensitivity.any(axis=0)
    if not found.any():
        return None
    utility, candidates = curves.utility[:, found], curves.distances[found]
    means, spread = utility.mean(axis=0), utility.var(axis=0)
    best = int(means.argmax())
    error = utility[:, best].std(ddof=1) / math.sqrt(len(utility)) if len(utility) > 1 else 0.0
    equal = np.flatnonzero(means >= means[best] - error)
    least = spread[equal].min()
    return float(candidates[equal[spread[equal] <= least + 1e-12][-1]])


def _evidence(scores: SearchScores, promise: _Promise, threshold: float) -> dict[str, Any]:
    rates = identification_rates(scores, threshold)
    means = promise.means(threshold)
    halves = promise.on_other_clusters()
    return {
        "fpir": rates.fpir,
        "fpir_upper": max(upper_bound(means), promise.share(threshold)),
        "confidence": CONFIDENCE,
        "fpir_on_other_half": halves,
        "tpir": rates.tpir,
        "fnir_any_rank": rates.fnir_any_rank,
        "misidentification": rates.misidentification,
        "search_opis": search_opis(scores, promise.target).value,
        "queries": rates.queries,
        "items": len(np.unique(scores.labels)),
        "clusters": len(means),
        "clusters_are": promise.kind,
        "items_needed": items_needed(promise.target),
        "gallery_items": scores.gallery_items,
    }


def linked(nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the family (n,) of each item, from the number of its nearest other item (n,), -1 if there is none."""
    count = len(nearest)
    target = np.where(nearest >= 0, nearest, np.arange(count))
    families = np.arange(count)
    while True:
        lowest = np.minimum(families, families[target])
        np.minimum.at(lowest, target, lowest.copy())
        if (lowest == families).all():
            break
        families = lowest
    return np.unique(families, return_inverse=True)[1]


def families_of_photos(vectors: NDArray[np.float32], items: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the family of each photo's item (n,), from unit vectors (n, d) and items (n,), compared by their means."""
    names, codes = np.unique(items, return_inverse=True)
    means = np.zeros((len(names), vectors.shape[1]))
    np.add.at(means, codes, vectors)
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    nearest = np.full(len(names), -1)
    for start in range(0, len(names) if len(names) > 1 else 0, BLOCK):
        alike = means[start : start + BLOCK] @ means.T
        rows = np.arange(len(alike))
        alike[rows, start + rows] = -2
        nearest[start : start + BLOCK] = alike.argmax(axis=1)
    return linked(nearest)[codes]
