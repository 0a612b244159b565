"""Effects with intervals that resample classes and seeds, and the verdict on a claim.

A replicate draws the test classes with replacement, the same draw for all seeds and for both sides of a comparison,
and the seeds with replacement (the pigeonhole bootstrap for crossed factors, Owen 2007, which errs to wide intervals).
Shapes: S seeds, T classes, N distances, C checkpoints, B replicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
REPLICATES, LEVEL = 2000, 0.95
YES, NO, OPEN = "yes", "no", "not decided by this data"


@dataclass(frozen=True)
class Effect:
    """A value with its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, replicates: Floats) -> Effect:
        """Return a value with the quantiles of its replicates (B,)."""
        low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(value), float(low), float(high))

    def shown(self) -> str:
        """Return "+0.012 [-0.003, +0.027]"."""
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    def plain(self, digits: int = 3) -> str:
        """Return "0.512 [0.480, 0.543]"."""
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

    def percent(self) -> str:
        """Return "-12% [-20%, -3%]"."""
        return f"{self.value:+.0%} [{self.low:+.0%}, {self.high:+.0%}]"


@dataclass(frozen=True)
class Draws:
    """Weights of classes (B, T), each row adding to 1, and weights of seeds (B, S)."""

    classes: Floats
    seeds: Floats

    @classmethod
    def make(cls, *, classes: int, seeds: int, replicates: int = REPLICATES, seed: int = 0) -> Draws:
        """Return the draws of all replicates, after a first row of equal weights: the estimate itself."""
        generator = np.random.default_rng(seed)
        weights = [
            np.concatenate([np.full((1, count), 1 / count), generator.multinomial(count, share, replicates) / count])
            for count in (classes, seeds)
            for share in [np.full(count, 1 / count)]
        ]
        return cls(*weights)

    def mean(self, by_class: ArrayLike) -> Floats:
        """Return the mean (B + 1,) of values (S, T) over classes and seeds."""
        return self._over_seeds(self.classes @ np.asarray(by_class, dtype=np.float64).T)

    def log_opis(self, utility: ArrayLike) -> Floats:
        """Return the mean over seeds of log OPIS (B + 1,) of utilities (S, T, N)."""
        values = np.stack([self._covariance(one, one) for one in np.asarray(utility, dtype=np.float64)], axis=1)
        return self._over_seeds(np.log(values))

    def opis_of_halves(self, utility: ArrayLike) -> Floats:
        """Return the mean over seeds (B + 1,) of OPIS without the noise of few photos, of utilities (S, 2, T, N)."""
        values = [self._covariance(first, second) for first, second in np.asarray(utility, dtype=np.float64)]
        return self._over_seeds(np.stack(values, axis=1))

    def curves(self, by_class: ArrayLike) -> Floats:
        """Return the mean (B + 1, C) of curves (S, C, T) over classes and seeds."""
        values = np.asarray(by_class, dtype=np.float64)
        return np.asarray(np.einsum("bt,bs,sct->bc", self.classes, self.seeds, values, optimize=True))

    def _covariance(self, first: Floats, second: Floats) -> Floats:
        """Return the covariance over classes (B + 1,) of utilities (T, N), averaged over the range: OPIS if equal."""
        one, two = first - first.mean(axis=0), second - second.mean(axis=0)  # against cancellation
        products = self.classes @ (one * two) - (self.classes @ one) * (self.classes @ two)
        return np.asarray(products.mean(axis=1))

    def _over_seeds(self, values: Floats) -> Floats:
        return np.asarray((values * self.seeds).sum(axis=1))


def effect(replicates: Floats) -> Effect:
    """Return the effect of values (B + 1,) whose first is the estimate."""
    return Effect.of(replicates[0], replicates[1:])


def relative_effect(logarithms: Floats) -> Effect:
    """Return the relative change of values given as differences of logarithms (B + 1,)."""
    return effect(np.expm1(logarithms))


def first_reached(curves: Floats, goals: Floats, checkpoints: Sequence[float]) -> Floats:
    """Return the first point (B + 1,) at which each curve (B + 1, C) reaches its goal (B + 1,).

    Between two checkpoints the curve is a straight line; one that never gets there counts as the last checkpoint.
    """
    points = np.asarray(checkpoints, dtype=np.float64)
    best = np.maximum.accumulate(curves, axis=1)
    reached = best >= goals[:, None]
    found = np.where(reached.any(axis=1), reached.argmax(axis=1), len(points) - 1)
    rows, before = np.arange(len(best)), np.maximum(found - 1, 0)
    rise = best[rows, found] - best[rows, before]
    share = np.clip((goals - best[rows, before]) / np.where(rise > 0, rise, 1), 0, 1)
    return np.asarray(points[before] + np.where(rise > 0, share, 1) * (points[found] - points[before]))


def verdict(*conditions: tuple[Effect, float]) -> str:
    """Return whether every effect exceeds its bound: yes or no where the intervals decide it.

    Yes, if each whole interval is above its bound; no, if one whole interval is below; else the data do not decide.
    """
    if all(value.low > bound for value, bound in conditions):
        return YES
    if any(value.high < bound for value, bound in conditions):
        return NO
    return OPEN
