"""Upper confidence bounds on a rate, from means over independent clusters.

Uses the Hoeffding-Bentkus bound (Bates et al., Distribution-free, risk-controlling prediction sets, JACM 2021).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

Floats = NDArray[np.float64]


def items_needed(target_fpir: float) -> int:
    """Return the number of independent items that certify the target if none of them has an error."""
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
    if target >= 1:
        return 0.0
    hoeffding = math.exp(-count * _relative_entropy(observed, target))
    return min(hoeffding, math.e * _binomial_below(math.ceil(count * observed - 1e-9), count, target))


def most_hits(items: int, target: float) -> int | None:
    """Return the greatest number of items with an error that certifies the target, None if even 0 does not."""
    most = None
    for hits in range(items):
        if hits >= items * target or _binomial_below(hits, items, target) > 1 - CONFIDENCE:
            break
        most = hits
    return most


def items_bound(rate: float, items: int) -> float:
    """Return the upper 95 % Clopper-Pearson bound on a rate over items, each of which counts as much as the others.

    An item with several searches counts its share of errors; the sum over the items is rounded up.
    """
    hits, low, high = math.ceil(items * rate - 1e-9), rate, 1.0
    if hits >= items:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _binomial_below(hits, items, middle) <= 1 - CONFIDENCE else (middle, high)
    return high


def _relative_entropy(observed: float, target: float) -> float:
    one = observed * math.log(observed / target) if observed > 0 else 0.0
    return one + (1 - observed) * math.log((1 - observed) / (1 - target))


def _binomial_below(hits: int, count: int, share: float) -> float:
    """Return P(Binomial(count, share) <= hits)."""
    logs = [
        math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1)
        + i * math.log(share) + (count - i) * math.log1p(-share)
        for i in range(hits + 1)
    ]  # fmt: skip
    return math.fsum(math.exp(value) for value in logs)


def cluster_means(hits: NDArray[np.bool_] | Floats, clusters: NDArray[np.int64]) -> Floats:
    """Return the share of hits per cluster (k,)."""
    return np.asarray(np.bincount(clusters, weights=hits) / np.bincount(clusters))
