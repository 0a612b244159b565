"""The operating point: from labelled searches to one threshold with its evidence.

The rule (DESIGN: two utilities, one rule): among the thresholds that keep the promise FPIR <= target, the greatest
mean utility over products, U_i = harmonic mean of 1 - FPIR_i and TPIR_i; those within one standard error of it are
equivalent, and the one with the smallest variance across products wins; ties go to the largest distance.

The promise is *certified* when an upper 95 % bound on the FPIR keeps it, *estimated* when only the observed FPIR does.
The bound is Hoeffding-Bentkus (Bates et al., JACM 2021) on means over independent clusters: photos of a product, and
products of a group, are not independent. Thresholds are tested from the strictest upwards, so that choosing one costs
no coverage: the observed FPIR only grows along the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .consistency import search_curves, search_opis
from .errors import CalibrationError, InvalidParameter
from .identification import SearchScores, identification_rates, threshold_at_fpir

CONFIDENCE = 0.95
CERTIFIED, ESTIMATED = "certified", "estimated"
CANDIDATES = 2000  # thresholds that are compared at most

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OperatingPoint:
    """One threshold, what it promises, and why that may be believed."""

    threshold: float
    status: str  # "certified" or "estimated"
    target_fpir: float
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "threshold": self.threshold,
            "status": self.status,
            "target_fpir": self.target_fpir,
            "evidence": dict(self.evidence),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OperatingPoint:
        """Build it from `to_dict`."""
        return cls(
            float(values["threshold"]), str(values["status"]), float(values["target_fpir"]), dict(values["evidence"])
        )


def calibrate(
    scores: SearchScores,
    *,
    target_fpir: float = 0.05,
    allow_estimate: bool = False,
    groups: ArrayLike | None = None,
    seen_labels: Iterable[object] = (),
) -> OperatingPoint:
    """Choose the threshold on searches of products that were used for nothing else.

    Parameters
    ----------
    scores:
        The searches (n,), through the exported model and the search code that serves.
    allow_estimate:
        Accept a threshold whose FPIR keeps the target on these searches but could not be certified.
    groups:
        (n,) cluster of each query where products are not independent of each other; the product by default.
    seen_labels:
        Items that training saw: calibrating on one of them is refused.

    Raises
    ------
    CalibrationError
        When nothing can be certified and no estimate is allowed, when every threshold that keeps the promise
        finds nothing (TPIR 0), or when the photos were seen in training.
    """
    if not 0 < target_fpir < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
    seen = sorted({str(label) for label in seen_labels} & {str(label) for label in np.unique(scores.labels)})
    if seen:
        raise CalibrationError(
            f"{len(seen)} calibration items were seen in training, {seen[0]} for one",
            remedy="Calibrate on items that training never saw",
        )
    if not scores.mated.any() or scores.gallery_items < 2:
        raise CalibrationError("calibration needs queries with a mate, and two items or more in the gallery")
    clusters = np.unique(scores.labels if groups is None else np.asarray(groups), return_inverse=True)[1]
    limit = _certified_limit(scores, clusters, target_fpir)
    point = None if limit is None else _choose(scores, limit)
    status = CERTIFIED
    count = int(clusters.max()) + 1
    if point is None:
        if not allow_estimate:
            raise CalibrationError(
                f"{count} independent products cannot certify an FPIR of {target_fpir:g}: even without a single error "
                f"it takes {products_needed(target_fpir)}",
                remedy="Bring more calibration products, or accept the word `estimated` with --allow-estimate",
            )
        point, status = _choose(scores, threshold_at_fpir(scores, target_fpir)), ESTIMATED
    if point is None:
        raise CalibrationError(
            f"no threshold with FPIR <= {target_fpir:g} finds a single item (TPIR 0)",
            remedy="Train a better model, or promise less with a larger --target-fpir",
        )
    return OperatingPoint(point, status, target_fpir, _evidence(scores, clusters, point, target_fpir))


def products_needed(target_fpir: float) -> int:
    """Return how many independent products certify the target when none of them shows an error."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - target_fpir))


def upper_bound(means: Floats) -> float:
    """Return the upper 95 % Hoeffding-Bentkus bound on the expectation of cluster means (k,) in [0, 1]."""
    low, high = float(means.mean()), 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if bound_p_value(means, middle) <= 1 - CONFIDENCE else (middle, high)
    return high


def bound_p_value(means: Floats, target: float) -> float:
    """Return the p-value of "the expectation exceeds `target`" for independent means (k,) in [0, 1]."""
    count, observed = len(means), float(means.mean())
    if observed >= target:
        return 1.0
    hoeffding = math.exp(-count * _relative_entropy(observed, target))
    return min(hoeffding, math.e * _binomial_below(math.ceil(count * observed - 1e-9), count, target))


def _relative_entropy(observed: float, target: float) -> float:
    one = observed * math.log(observed / target) if observed > 0 else 0.0
    if target >= 1:
        return math.inf
    return one + (1 - observed) * math.log((1 - observed) / (1 - target))


def _binomial_below(hits: int, count: int, share: float) -> float:
    """Return P(Binomial(count, share) <= hits)."""
    if share >= 1:
        return 1.0 if hits >= count else 0.0
    logs = [
        math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1)
        + i * math.log(share) + (count - i) * math.log1p(-share)
        for i in range(hits + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def cluster_means(hits: NDArray[np.bool_], clusters: NDArray[np.int64]) -> Floats:
    """Return the share of hits in each cluster (k,)."""
    return np.asarray(np.bincount(clusters, weights=hits) / np.bincount(clusters))


def _certified_limit(scores: SearchScores, clusters: NDArray[np.int64], target: float) -> float | None:
    """Return the largest threshold up to which every stricter one is certified, None where there is none."""
    errors = np.sort(scores.impostor[np.isfinite(scores.impostor)])
    passed, failed = -1, len(errors)  # how many impostors may be accepted
    while failed - passed > 1:  # the p-value only grows with the threshold, so bisection equals testing in order
        middle = (passed + failed) // 2
        threshold = np.nextafter(errors[middle], -np.inf)
        keeps = bound_p_value(cluster_means(scores.impostor <= threshold, clusters), target) <= 1 - CONFIDENCE
        passed, failed = (middle, failed) if keeps else (passed, middle)
    if passed < 0:
        return None
    return float(np.nextafter(errors[passed], -np.inf))


def _choose(scores: SearchScores, limit: float) -> float | None:
    """Return the threshold of the rule among those up to `limit`, None when none of them finds anything.

    Between two impostor distances utility only grows, so the candidates lie just below those, and at the limit.
    """
    below = np.unique(scores.impostor[scores.impostor <= limit])
    candidates = np.append(np.nextafter(below, -np.inf), limit)
    if len(candidates) > CANDIDATES:
        picked = np.linspace(0, len(candidates) - 1, CANDIDATES).round().astype(int)
        candidates = candidates[picked]
    curves = search_curves(scores, candidates)
    found = curves.sensitivity.any(axis=0)
    if not found.any():
        return None
    utility, candidates = curves.utility[:, found], candidates[found]
    means, spread = utility.mean(axis=0), utility.var(axis=0)
    best = int(means.argmax())
    error = utility[:, best].std(ddof=1) / math.sqrt(len(utility)) if len(utility) > 1 else 0.0
    equal = np.flatnonzero(means >= means[best] - error)
    least = spread[equal].min()
    return float(candidates[equal[spread[equal] <= least + 1e-12][-1]])


def _evidence(
    scores: SearchScores, clusters: NDArray[np.int64], threshold: float, target_fpir: float
) -> dict[str, Any]:
    rates = identification_rates(scores, threshold)
    means = cluster_means(scores.impostor <= threshold, clusters)
    return {
        "fpir": rates.fpir,
        "fpir_upper": upper_bound(means),
        "confidence": CONFIDENCE,
        "tpir": rates.tpir,
        "fnir_any_rank": rates.fnir_any_rank,
        "misidentification": rates.misidentification,
        "search_opis": search_opis(scores, target_fpir).value,
        "queries": rates.queries,
        "products": len(np.unique(scores.labels)),
        "clusters": len(means),
        "products_needed": products_needed(target_fpir),
        "gallery_items": scores.gallery_items,
    }
