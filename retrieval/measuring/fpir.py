"""FPIR: the rate at which unknown items return a match, estimated from draws, its upper bound, and p-values."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index.groups import group_number
from retrieval.metrics.bounds import CONFIDENCE, binomial_below, binomial_bound

from .draws import LABELLED, OWN, PROBE, SETTING, Draws
from .point import Shift

LEAST_ITEMS = 20  # fewer items set no threshold
LEAST_HALVED, HALVES = 4, 200  # minimum number of items, and number of random divisions of the items into halves
STEPS = 257  # numbers of accepted draws that are tried for an estimated threshold
TOLERANCE = 1e-12  # of sums of weights
REFERENCE_SHARE, REFERENCE_ITEMS = 0.05, 20  # minimum share of draws and items accepted to measure a design effect
CRITICAL = 1.645  # standard errors that 95 % of normal errors do not exceed
LEAST_EFFECT = 1.0  # lower limit of design effects: there are at most as many independent items as items

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DrawnDistances:
    """Item distances of n draws to the first other item, with items weighted equally.

    Items of one group are not independent, so they count as one item.
    """

    distances: Floats  # (n,) ascending, inf where there is no other item
    weights: Floats  # (n,) sum to 1, with an equal sum for each item
    codes: NDArray[np.int64]  # (n,) number of the item of each draw, from 0
    others: NDArray[np.int64]  # (n, k) numbers of the nearest other item and of its rivals, -1 if not among the items
    without: Floats  # (n, k) item distances if one of `others` were missing
    items: int
    margin: float = 0.0  # how much too great the distances may be; bounds allow for it
    cross_fitted: int = 0  # number of items drawn by fold models; if there are any, nothing can be certified

    @classmethod
    def of(
        cls, sources: Mapping[str, Draws], *, shift: Shift | None = None, without: Collection[str] = ()
    ) -> DrawnDistances:
        """Return the distances of all sources as one sample, with the own draws moved by the query shift.

        Draws that found no other item, as in a gallery of one item, are left out. So are draws with a copy of the photo
        in another item: the nearest other item is probably the same item under a second id. Labelled queries and
        calibration photos of the items `without` are left out too: the model was fitted on these items, so they are too
        far from other items. `setting_draws` chooses the calibration photos that count.
        """
        shift, shifts, used = shift or Shift(), [np.zeros(0)], [Draws.none()]
        for name, draws in setting_draws(sources, fitted=without).items():
            chosen = np.isfinite(draws.distances) & ~draws.is_copied
            if name in (LABELLED, PROBE):
                chosen &= ~np.isin(draws.items, list(without))
            if name in SETTING:
                shifts.append(np.full(int(chosen.sum()), shift.applied if name == OWN else 0.0))
                used.append(draws.where(chosen))
        every, moves = Draws.joined(used), np.concatenate(shifts)
        others, fewer = _deciding_groups(every), every.without + moves[:, None]
        found = cls.of_items(every.distances + moves, every.groups, others, fewer)
        own = sources.get(OWN, Draws.none())
        cross_fitted = len(set(own.items) & set(without))
        margin = shift.margin(found.shift_errors(shift.error)) if OWN in sources else 0.0
        return replace(found, margin=margin, cross_fitted=cross_fitted)

    @classmethod
    def of_items(
        cls,
        distances: Floats,
        items: NDArray[np.generic],
        others: NDArray[np.generic] | None = None,
        without: Floats | None = None,
    ) -> DrawnDistances:
        """Return distances (n,) of draws with their items.

        Where they are known, `others` are the nearest other items and their rivals (n, k), and `without` are the
        distances (n, k) if one of these were missing.
        """
        labels, codes, counts = np.unique(items, return_inverse=True, return_counts=True)
        order = np.argsort(distances, kind="stable")
        weights = 1 / counts[codes] / max(1, len(counts))
        numbers = np.full((len(distances), 1), -1)
        if others is not None:
            places = np.searchsorted(labels, others) % max(1, len(labels))
            numbers = np.where(np.isin(others, labels), places, -1)
        without = np.full(numbers.shape, np.inf) if without is None else without
        ordered = np.maximum(distances[order], 0)
        return cls(ordered, weights[order], codes[order], numbers[order], without[order], len(counts))

    def fpir(self, threshold: float) -> float:
        """Return the share of draws within a threshold."""
        return min(1.0, float(self.weights[: int(np.searchsorted(self.distances, threshold, side="right"))].sum()))

    def fpir_upper(self, threshold: float) -> float:
        """Return the upper 95 % bound on the FPIR."""
        rate, effect = self.fpir(threshold + self.margin), self.design_effect(threshold + self.margin)
        return binomial_bound(self.items * rate / effect, self.items / effect)

    def shift_errors(self, error: float) -> float:
        """Return how many standard errors of a query shift the bound allows for, given the standard error.

        Near REFERENCE_SHARE, the FPIR has two independent standard errors: one from the number of items, and one from
        the shift. The bound allows for the first alone. The margin adds what is missing to the standard error of both.
        """
        limit = self.at_share(REFERENCE_SHARE)
        moved = (self.fpir(limit + error) - self.fpir(limit - error)) / 2
        if not moved:
            return 0.0
        drawn = math.sqrt(REFERENCE_SHARE * (1 - REFERENCE_SHARE) * self.design_effect(limit) / self.items)
        return CRITICAL * (math.hypot(drawn, moved) - drawn) / moved

    def design_effect(self, threshold: float) -> float:
        """Return the variance of the FPIR of draws around that of new items, relative to independent items.

        Items are not independent where each decides whether the other is accepted: as its nearest item, or as the rival
        that makes it ambiguous. With u(i) the share of draws of item i that are accepted, and u(i, j) the same if item
        j were missing, the sum of (u(i) - u(i, j)) (u(j) - u(j, i)) over all pairs adds to the sum of u(i)². Several
        draws of one item that differ from each other reduce the variance, but the effect is LEAST_EFFECT at least. The
        bound counts `items / design_effect` independent items. At a low threshold, the effect is measured at a higher
        threshold, which accepts a share REFERENCE_SHARE of the draws and REFERENCE_ITEMS items.

        The sum follows from the second moments of what is accepted with and without two items. Counting only items that
        are nearest to each other would miss a part of that variance.
        """
        share = max(self.fpir(threshold), REFERENCE_SHARE, REFERENCE_ITEMS / max(self.items, 1))
        accepted = int(np.searchsorted(np.cumsum(self.weights), share + TOLERANCE, side="right"))
        hits = np.bincount(self.codes[:accepted], self.weights[:accepted], minlength=self.items) * self.items
        if not accepted:
            return LEAST_EFFECT
        further = self.distances[accepted] if accepted < len(self.distances) else np.inf
        changes = (np.arange(len(self.distances)) < accepted)[:, None] * 1.0 - (self.without < further)
        rows, columns = np.nonzero((changes != 0) & (self.others >= 0) & (self.others != self.codes[:, None]))
        pairs, place = np.unique(self.codes[rows] * self.items + self.others[rows, columns], return_inverse=True)
        sums = np.bincount(place, changes[rows, columns] * self.weights[rows] * self.items, minlength=len(pairs))
        first, second = np.divmod(pairs, self.items)
        _, there, back = np.intersect1d(pairs, second * self.items + first, return_indices=True)
        together = float((sums[there] * sums[back]).sum())
        return max(LEAST_EFFECT, (float((hits**2).sum()) + together) / float(hits.sum()))

    def exceeds(self, threshold: float, target: float) -> bool:
        """Return whether the FPIR to expect exceeds a target by more than its one-sided 95 % error.

        An estimated threshold lies on its limit, so new draws often show an FPIR slightly above the target.
        """
        error = math.sqrt(target * (1 - target) * self.design_effect(threshold) / max(1, self.items))
        return self.expected(threshold) > target + CRITICAL * error + TOLERANCE

    def on_other_half(self, target: float) -> tuple[float, ...]:
        """Return the 5 % and 95 % quantiles of the FPIR on held-out halves of the items.

        Each threshold meets the target on one half of the items and is evaluated on the other half. The quantiles show
        how far the FPIR on new items may be from the target. There are none for fewer than four items.
        """
        if self.items < LEAST_HALVED:
            return ()
        generator, rates = np.random.default_rng(0), []
        for _ in range(HALVES):
            is_first = np.isin(self.codes, generator.permutation(self.items)[: self.items // 2])
            first, second = (
                DrawnDistances.of_items(self.distances[some], self.codes[some]) for some in (is_first, ~is_first)
            )
            rates.append(second.fpir(first.at_share(target)))
        return tuple(np.quantile(rates, [0.05, 0.95]).tolist())

    @property
    def independent_items(self) -> float:
        """The number of independent items that the items count as, where few draws are accepted."""
        return self.items / self.design_effect(-math.inf)

    def limit(self, target: float, *, certified: bool) -> float | None:
        """Return the greatest threshold that keeps a target FPIR, None if there are too few items for it.

        A threshold that accepts a share of N draws accepts more of new items on average: with one draw per item, the
        k-th smallest distance realises k / (N + 1). Estimated thresholds are therefore set at the greatest share at
        which each item, tested at the threshold that the others set, is accepted in at most `target` of its searches,
        interpolated between draws. The bound of certified ones grows with the threshold.
        """
        if certified:
            return None if self.cross_fitted else self._certified_limit(target)
        if target + TOLERANCE < self.smallest_target:
            return None
        weights = np.cumsum(self.weights)
        last = int(np.searchsorted(weights, target + TOLERANCE, side="right"))
        counts = np.unique(np.linspace(0, last + 1, STEPS).astype(int)).clip(0, len(weights))
        shares = np.r_[0, weights][counts] if len(weights) else np.zeros(1)
        expected = self.left_out(shares)
        kept = np.flatnonzero((expected <= target + TOLERANCE) & (shares <= target + TOLERANCE))
        if not len(kept):
            return None
        step = int(kept[-1])
        limit = self.at_share(float(shares[step]))
        if step + 1 == len(shares) or expected[step + 1] <= target:
            return limit
        further = self.at_share(float(shares[step + 1]))
        part = (target - expected[step]) / (expected[step + 1] - expected[step])
        between = limit + min(max(part, 0.0), 1.0) * (further - limit)
        return float(between) if self.fpir(between) <= target + TOLERANCE else limit

    @property
    def smallest_target(self) -> float:
        """The smallest FPIR that these draws support: that of a threshold just below all of them.

        It is at least the smallest p-value: a smaller FPIR would rest on a few searches of a single item.
        """
        return max(float(self.left_out(np.zeros(1))[0]), 1 / (1 + self.items))

    def within_p_value(self, p_value: float) -> float:
        """Return the greatest distance whose p-value is at most a given one."""
        return self.at_share((p_value * (1 + self.items) - 1) / max(1, self.items))

    def _certified_limit(self, target: float) -> float | None:
        last = self.at_share(target)
        ends = np.append(np.nextafter(np.unique(self.distances[self.distances <= last]), -np.inf), last)
        passed, failed = -1, len(ends)
        while failed - passed > 1:
            middle = (passed + failed) // 2
            end = float(ends[middle])
            effect = self.design_effect(end)
            hits, count = self.items * self.fpir(end) / effect, self.items / effect
            keeps = binomial_below(hits, count, target) <= 1 - CONFIDENCE
            passed, failed = (middle, failed) if keeps else (passed, middle)
        margin = self.margin + TOLERANCE if self.margin else 0.0  # the sum with the margin must not round up
        return None if passed < 0 else float(ends[passed]) - margin

    def at_share(self, share: float) -> float:
        """Return the greatest threshold within which at most a share of the draws lies."""
        first = int(np.searchsorted(np.cumsum(self.weights), share + TOLERANCE, side="right"))
        finite = self.distances[np.isfinite(self.distances)]
        if first >= len(finite):
            return float(max(2.0, finite[-1] if len(finite) else 0.0))
        return float(np.nextafter(self.distances[first], -np.inf))

    def expected(self, threshold: float) -> float:
        """Return the FPIR to expect of new items at a threshold, interpolated between draws as `limit` is."""
        share = self.fpir(threshold)
        place = int(np.searchsorted(self.distances, threshold, side="right"))
        before = self.fpir(float(np.nextafter(self.distances[place - 1], -np.inf))) if place else 0.0
        first, second = self.left_out(np.array([before, share])).tolist()
        least, most = self.at_share(before), self.at_share(share)
        part = (threshold - least) / (most - least) if most > least else 1.0
        return float(first + min(max(part, 0.0), 1.0) * (second - first))

    def left_out(self, shares: Floats) -> Floats:
        """Return the FPIR to expect where a share of the draws is accepted, for some shares (s,).

        Each item is tested at the threshold that the other items set without it. Draws whose nearest item it is would
        be farther away, so they count as not accepted. This matters most in dense regions, where items are nearest to
        each other.
        """
        count = len(self.distances)
        places = np.arange(count)
        nearest = self.others[:, 0]
        linked = (nearest >= 0) & (nearest != self.codes)
        codes, removed = np.r_[self.codes, nearest[linked]], np.r_[places, places[linked]]
        if not count or (np.bincount(codes) == count).any():
            return np.ones(len(shares))
        weights = np.cumsum(self.weights)
        first = np.searchsorted(weights, shares + TOLERANCE, side="right")  # the place of the threshold of all draws
        touched = np.unique(codes[removed <= first.max(initial=0)])[:, None]  # the others are accepted nowhere
        order = np.lexsort((removed, codes))
        keys = codes[order] * (count + 1) + removed[order]
        sums = np.r_[0, np.cumsum(self.weights[removed[order]])]
        start, step = touched * (count + 1), np.broadcast_to(first, (len(touched), len(shares)))
        before = sums[np.searchsorted(keys, start)]
        while True:  # each removed draw up to a place moves it up by its weight
            place = step
            left = sums[np.searchsorted(keys, start + place, side="right")] - before
            step = np.searchsorted(weights, shares + TOLERANCE + left, side="right")
            if (step == place).all():
                break
        thresholds = np.append(self.distances, np.inf)[place]
        within = np.searchsorted(self.distances, thresholds, side="left")
        own = np.sort(self.codes * (count + 1) + places)
        accepted = np.searchsorted(own, start + within) - np.searchsorted(own, start)
        rates = (accepted / np.bincount(self.codes)[touched]).sum(axis=0)
        return np.asarray(rates / (self.items + 1))  # a gallery of all items has one more than those that were measured

    def p_values(self, distances: Floats) -> Floats:
        """Return the rates at which an unknown item comes at least as close (n,), each at least 1 / (1 + items)."""
        shares = np.array([self.fpir(distance) for distance in distances.tolist()])
        return np.minimum(1.0, (1 + self.items * shares) / (1 + self.items))


def setting_draws(sources: Mapping[str, Draws], *, fitted: Collection[str]) -> dict[str, Draws]:
    """Return the draws that set a gallery's threshold, by source: not all calibration items count.

    Of the calibration items that the gallery lacks, as many count as the gallery has `fitted` items. They stand for
    the fitted items, which cannot be drawn. If fewer than LEAST_ITEMS own items are drawn, calibration items make up
    the number. Further calibration items would outvote own items, and the gallery may be of another kind than the
    training catalogue.
    """
    if not {OWN, PROBE} <= sources.keys():
        return dict(sources)
    own, draws = np.unique(sources[OWN].groups), sources[PROBE]
    is_here = np.isin(draws.groups, own) | np.isfinite(draws.own)
    others = sorted(set(draws.groups[~is_here].tolist()), key=group_number)
    chosen = others[: max(len(fitted), LEAST_ITEMS - len(own))]
    return {**sources, PROBE: draws.where(is_here | np.isin(draws.groups, chosen))}


def _deciding_groups(draws: Draws) -> NDArray[np.str_]:
    """Return the groups (n, k) of the first item of each draw and of its rivals, "" for one that was not drawn."""
    items, first = np.unique(draws.items, return_index=True)
    groups = draws.groups[first]
    numbers = np.array([group_number(group) for group in groups.tolist()], dtype=np.int64)
    order = np.argsort(numbers)
    nearest = _looked_up(draws.nearest_items[:, None], items, groups)
    return np.hstack([nearest, _looked_up(draws.rivals, numbers[order], groups[order])])


def _looked_up(wanted: NDArray[np.generic], known: NDArray[np.generic], values: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the value of each wanted key, "" for one that is not among the known ones (m,), which are ascending."""
    if not len(known):
        return np.full(wanted.shape, "")
    return np.where(np.isin(wanted, known), values[np.searchsorted(known, wanted) % len(known)], "")
