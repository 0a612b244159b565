"""Bounds that were tried for certified thresholds, on the draws of simulated galleries."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from index.kept_draws import OWN
from retrieval.threshold.bounds import CONFIDENCE, binomial_below, bound_p_value, cluster_means
from retrieval.threshold.drawn_distances import DrawnDistances
from retrieval.threshold.families import linked

from .coverage_searches import Setting, simulate
from .coverage_worlds import Fit

Passes = Callable[[DrawnDistances, float], bool]  # whether a threshold keeps the target
BOUNDS = ("effective items", "items", "half of the items", "families")


def limits(drawn: DrawnDistances, target: float) -> dict[str, float | None]:
    """Return the greatest certified threshold by each bound, None where there is none."""
    families = linked(nearest_of_items(drawn))

    def effect(value: float) -> Passes:
        def passes(drawn: DrawnDistances, threshold: float) -> bool:
            hits = drawn.items * drawn.fpir(threshold) / value
            return binomial_below(hits, drawn.items / value, target) <= 1 - CONFIDENCE

        return passes

    def of_families(drawn: DrawnDistances, threshold: float) -> bool:
        accepted = int(np.searchsorted(drawn.distances, threshold, side="right"))
        hits = np.bincount(drawn.codes[:accepted], minlength=drawn.items) / np.bincount(drawn.codes)
        return bound_p_value(cluster_means(hits, families), target) <= 1 - CONFIDENCE

    tried = {"items": effect(1.0), "half of the items": effect(2.0), "families": of_families}
    found = {name: _greatest(drawn, target, passes) for name, passes in tried.items()}
    return {"effective items": drawn.limit(target, certified=True), **found}


def nearest_of_items(drawn: DrawnDistances) -> np.ndarray:
    """Return the item nearest to each item (items,), by its closest draw; -1 if it is not among the items."""
    nearest = np.full(drawn.items, -1)
    nearest[drawn.codes[::-1]] = drawn.nearest[::-1]
    return nearest


def _greatest(drawn: DrawnDistances, target: float, passes: Passes) -> float | None:
    ends = np.nextafter(np.unique(drawn.distances[drawn.distances <= drawn.at_share(target)]), -np.inf)
    ends = np.append(ends, drawn.at_share(target))
    passed, failed = -1, len(ends)
    while failed - passed > 1:
        middle = (passed + failed) // 2
        keeps = passes(drawn, float(ends[middle]))
        passed, failed = (middle, failed) if keeps else (passed, middle)
    return None if passed < 0 else float(ends[passed])


def compare(fits: Sequence[Fit], setting: Setting, worlds: int, target: float) -> list[tuple[str, ...]]:
    """Return a row for each bound: thresholds, promises kept, mean FPIR, and TPIR relative to the exact one."""
    realised: dict[str, list[tuple[float, float, float]]] = {name: [] for name in BOUNDS}
    for seed in range(worlds):
        simulation = simulate(fits[seed % len(fits)].world, 0.0, setting, seed)
        exact = simulation.tpir(simulation.exact(target))
        for name, limit in limits(DrawnDistances.of(simulation.draws[OWN]), target).items():
            if limit is not None:
                realised[name].append((simulation.fpir(limit), simulation.tpir(limit), exact))
    rows: list[tuple[str, ...]] = []
    for name in BOUNDS:
        values = np.array(realised[name]).reshape(-1, 3)
        kept = int((values[:, 0] <= target).sum())
        means = values.mean(axis=0) if len(values) else np.full(3, np.nan)
        cells = (str(worlds), str(len(values)), str(kept), f"{means[0]:.3f}", f"{means[1] / means[2]:.2f}")
        rows.append((f"{setting.items} items, photos per item {setting.photos}, {name}", *cells))
    return rows
