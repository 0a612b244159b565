"""The simulated galleries of the coverage benchmark: their draws, and what bounds realise in a few of them."""

from __future__ import annotations

import numpy as np
import pytest

from index.kept_draws import OWN
from research.benchmarks.coverage import TARGET, Measured
from research.benchmarks.coverage_bounds import limits
from research.benchmarks.coverage_searches import Setting, simulate
from research.benchmarks.coverage_worlds import Fit, World, fit, statistics
from retrieval.threshold.drawn_distances import PROBE, REFERENCE, DrawnDistances

WORLD = World(24, 0.3, 6.0, 0.5, 0.4, 1.0, 0.2)


def test_own_draws_are_of_items_that_were_not_fitted_and_know_their_copies() -> None:
    simulation = simulate(WORLD, 0.5, Setting(2, 100, trained=True), 0)
    own = simulation.draws[OWN]
    assert {int(item) % 2 for item in own.items} == {0}
    assert set(own.items[own.duplicates >= 0]) == {str(item) for item in range(0, 10, 2)}  # 5 items under two ids
    assert set(simulation.draws) == {OWN, PROBE, REFERENCE}
    assert set(simulate(WORLD, 0.5, Setting(2, 100), 0).draws) == {OWN}


def test_the_exact_threshold_realises_the_target() -> None:
    simulation = simulate(WORLD, 0.0, Setting(1, 200), 1)
    exact = simulation.exact(TARGET)
    assert simulation.fpir(exact) <= TARGET < simulation.fpir(exact + 1e-3)
    assert np.mean(simulation.new <= exact) < TARGET  # items of other families are farther away


def test_items_as_if_independent_certify_more_than_effective_ones() -> None:
    found = [
        limits(DrawnDistances.of(simulate(WORLD, 0.0, Setting(1, 300), seed).draws[OWN]), TARGET) for seed in range(6)
    ]
    means = {name: np.mean([limit[name] or 0.0 for limit in found]) for name in found[0]}
    assert means["items"] > means["effective items"] > means["families"]


def test_certified_thresholds_realise_less_than_the_target_in_most_worlds() -> None:
    measured = Measured(Setting(1, 600))
    for _ in range(8):
        measured.measure([Fit(WORLD, np.zeros(8), np.zeros(8))], [0.0])
    assert len(measured.certified) == 8
    assert sum(outcome.fpir <= TARGET for outcome in measured.certified) >= 7
    (row,) = measured.rows()
    assert row[:3] == ("untrained, 600 items, photos per item 1, certified", "8", "8")


def test_a_fit_finds_a_world_with_the_statistics_of_its_photos() -> None:
    generator = np.random.default_rng(5)
    families = WORLD.families(generator, 60)
    photos = families.photos(generator, families.items(generator, 60), 3)
    (near,) = fit([photos], trials=60)
    assert near.real == pytest.approx(statistics(photos))
    far = World(6, 0.0, 2.0, 0.0, 0.0, 0.15, 0.0).families(generator, 60)
    other = statistics(far.photos(generator, far.items(generator, 60), 3))
    assert np.abs(near.statistics - near.real).sum() < np.abs(other - near.real).sum()
