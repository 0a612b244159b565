"""Upper confidence bounds on a rate, and the number of items that certify a target."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

Floats = NDArray[np.float64]


def items_needed(target_fpir: float) -> int:
    """Return the number of independent items that certify the target if none of them has an error."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - target_fpir))


def binomial_bound(hits: float, count: float, *, confidence: float = CONFIDENCE) -> float:
    """Return the upper Clopper-Pearson bound on a rate, from `hits` in `count` trials.

    `hits` and `count` may be fractions, such as effective numbers of dependent trials.
    """
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if binomial_below(hits, count, middle) <= 1 - confidence else (middle, high)
    return high


def binomial_below(hits: float, count: float, share: float) -> float:
    """Return P(Binomial(count, share) <= hits), by the incomplete beta function, which also takes fractions."""
    a, b = count - hits, hits + 1
    if a <= 0 or share <= 0:
        return 1.0
    if share >= 1:
        return 0.0
    if 1 - share > (a + 1) / (a + b + 2):  # the fraction converges fast on this side only
        return 1 - _beta_fraction(b, a, share)
    return _beta_fraction(a, b, 1 - share)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) by Lentz's continued fraction (DLMF 8.17.22)."""
    tiny = 1e-300
    result = c = 1.0
    d = 0.0
    for step in range(2000):
        m, odd = divmod(step, 2)
        if step == 0:
            factor = 1.0
        elif odd:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + factor * d or tiny)
        c = 1 + factor / c or tiny
        result *= c * d
        if abs(c * d - 1) < 1e-14 and step:
            break
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x) - math.log(a)
    return math.exp(front) * (result - 1)
