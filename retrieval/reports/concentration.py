"""Concentration: whether false matches occur mainly in a few families of items, and in which.

The rate of a single item cannot be measured: one to three draws have few possible rates, so the tenth of items with the
highest rates is far above the target in every gallery. Items are therefore linked into families (`linked`). Siblings
that are not nearest to each other are matched independently, given the rate q of their family, so the share of matched
siblings among those of a matched item estimates E[q²] / E[q]. Together with the mean rate it determines a beta
distribution of q, and the mean of its highest tenth. If false matches do not depend on the family, this mean is close
to the mean rate, even with few draws per item.

There is a warning if the highest tenth exceeds four times the target and at most 5 % of random permutations of the
rates yield as many matched siblings. Items that are nearest to each other are permuted as pairs, because they are
matched together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.threshold.error_rates import DrawnDistances
from retrieval.threshold.rule import linked

TENTH = 0.1
TIMES_TARGET = 4
EXCHANGES = 200
CHANCE = 0.05
SHOWN, SHOWN_FAMILIES, SHOWN_MEMBERS = 10, 5, 5
GRID = 4000

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


def concentration(drawn: DrawnDistances, threshold: float, target: float) -> dict[str, Any]:
    """Return the rates of families and items at a threshold as plain JSON values, with a warning or ""."""
    siblings = _Siblings.of(drawn, threshold)
    mean = drawn.fpir(threshold)
    limit = min(1.0, TIMES_TARGET * target)
    strength = siblings.strength(mean)
    tenth = highest_tenth(mean, strength)
    families = siblings.worst(mean, strength, drawn.names)
    warning = ""
    if tenth > limit and siblings.exceeds_chance():
        such = f", such as that of {', '.join(families[0]['items'][:3])}" if families else ""
        warning = (
            f"False matches are concentrated in some families of items{such}; in the worst tenth of families, an "
            f"unknown item returns a match in about {tenth:.0%} of searches (average {mean:.1%}, target {target:.1%})"
        )
    return {
        "families": int(siblings.families.max(initial=-1)) + 1,
        "tenth": tenth,
        "limit": limit,
        "warning": warning,
        "worst_families": families,
        "attracting": _attracting(drawn, threshold),
    }


def highest_tenth(mean: float, strength: float) -> float:
    """Return the mean of the highest tenth of Beta(mean * strength, (1 - mean) * strength)."""
    if not 0 < mean < 1 or np.isinf(strength):
        return mean
    if strength < 1e-6:
        return min(1.0, mean / TENTH)
    x = (np.arange(GRID, 0, -1) - 0.5) / GRID  # descending
    logs = mean * strength * np.log(x) + ((1 - mean) * strength - 1) * np.log1p(-x)
    moments = np.exp(logs - logs.max())  # proportional to x times the density, which is finite at 0
    moments *= mean / moments.sum()
    within = np.minimum(np.cumsum(moments / x), TENTH)  # share of the families above x
    return float((np.diff(within, prepend=0.0) * x).sum() / TENTH)


@dataclass(frozen=True)
class _Siblings:
    """Items of a gallery (m,): the drawn ones first, then others that were nearest to a draw."""

    rates: Floats  # share of an item's draws that are within the threshold, 0 for items without draws
    drawn: NDArray[np.bool_]  # whether an item has draws
    families: Numbers
    links: Numbers  # (l, 2) pairs of a drawn item and the one that is nearest to it, each pair once

    @classmethod
    def of(cls, drawn: DrawnDistances, threshold: float) -> _Siblings:
        """Return the items with their rates at a threshold."""
        count = len(drawn.names)
        accepted = int(np.searchsorted(drawn.distances, threshold, side="right"))
        sums = np.bincount(drawn.codes[:accepted], drawn.weights[:accepted], minlength=count)
        rates = np.asarray(drawn.items * sums, dtype=np.float64)
        nearest = np.full(count, -1)
        known = drawn.rivals >= 0
        nearest[drawn.codes[known][::-1]] = drawn.rivals[known][::-1]  # that of the closest draw
        items = np.flatnonzero(nearest >= 0)
        ends = np.sort(np.stack([items, nearest[items]], axis=1), axis=1)
        links = np.unique(ends[:, 0] * count + ends[:, 1])
        pairs = np.stack(np.divmod(links, max(count, 1)), axis=1)
        families = linked(nearest)
        return cls(rates, np.arange(count) < drawn.items, families, pairs[pairs[:, 0] != pairs[:, 1]])

    def matched(self, rates: Floats) -> tuple[float, float]:
        """Return the sum of the rates of unlinked siblings of items, weighted by the items' rates, and the weight."""
        sums = np.bincount(self.families, rates)
        sizes = np.bincount(self.families, self.drawn)
        first, second = self.links[self.drawn[self.links].all(axis=1)].T
        together = (sums**2).sum() - (rates**2).sum() - 2 * (rates[first] * rates[second]).sum()
        weight = (sums * sizes).sum() - rates.sum() - (rates[first] + rates[second]).sum()
        return float(together), float(weight)

    def strength(self, mean: float) -> float:
        """Return the strength (a + b) of the beta distribution of families' rates, inf if they do not differ."""
        together, weight = self.matched(self.rates)
        again = min(1.0, together / weight) if weight > 1e-9 else mean
        return (1 - again) / (again - mean) if again > mean + 1e-9 else np.inf

    def exceeds_chance(self) -> bool:
        """Return whether at most CHANCE of random permutations of the rates yield as many matched siblings."""
        observed = self.matched(self.rates)[0]
        generator = np.random.default_rng(0)
        units = self._units()
        as_many = 0
        for _ in range(EXCHANGES):
            rates = np.zeros_like(self.rates)
            for unit in units:
                rates[unit] = self.rates[unit[generator.permutation(len(unit))]]
            as_many += self.matched(rates)[0] >= observed - 1e-9
        return (as_many + 1) / (EXCHANGES + 1) <= CHANCE

    def _units(self) -> list[Numbers]:
        """Return the drawn items in pairs (k, 2) that are linked, each item once, and alone (k, 1)."""
        count = len(self.rates)
        both = self.links[self.drawn[self.links].all(axis=1)]
        order = np.argsort(-self.rates[both].min(axis=1), kind="stable") if len(both) else np.zeros(0, np.int64)
        free, pairs = self.drawn.copy(), []
        for first, second in both[order].tolist():
            if free[first] and free[second]:
                free[first] = free[second] = False
                pairs.append((first, second))
        alone = np.arange(count)[free]
        return [np.array(pairs, dtype=np.int64).reshape(-1, 2), alone[:, None]]

    def worst(self, mean: float, strength: float, names: NDArray[np.str_]) -> list[dict[str, Any]]:
        """Return the families with the highest rates, shrunk towards the mean."""
        sums, sizes = np.bincount(self.families, self.rates), np.bincount(self.families, self.drawn)
        if np.isinf(strength):
            return []
        shrunken = np.divide(sums + mean * strength, sizes + strength, out=np.zeros(len(sums)), where=sizes > 0)
        chosen = [family for family in np.argsort(-shrunken, kind="stable")[:SHOWN_FAMILIES].tolist() if sums[family]]
        found = []
        for family in chosen:
            members = np.flatnonzero((self.families == family) & self.drawn)
            members = members[np.argsort(-self.rates[members], kind="stable")]
            found.append(
                {
                    "items": names[members[:SHOWN_MEMBERS]].tolist(),
                    "size": len(members),
                    "fpir": float(shrunken[family]),
                    "matched": float(sums[family] / sizes[family]),
                }
            )
        return found


def _attracting(drawn: DrawnDistances, threshold: float) -> list[dict[str, Any]]:
    """Return the items that false matches return most, with their share of the false matches."""
    accepted = int(np.searchsorted(drawn.distances, threshold, side="right"))
    rivals, weights = drawn.rivals[:accepted], drawn.weights[:accepted]
    shares = np.bincount(rivals[rivals >= 0], weights[rivals >= 0], minlength=len(drawn.names))
    chosen = [code for code in np.argsort(-shares, kind="stable")[:SHOWN].tolist() if shares[code] > 0]
    total = float(weights.sum())
    return [{"item": str(drawn.names[code]), "share": float(shares[code]) / total} for code in chosen]
