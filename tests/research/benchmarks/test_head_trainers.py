"""Benchmark of trainers on the same features: intervals, time to a level, and the limits of TPIR."""

from __future__ import annotations

import numpy as np
import pytest

from research.benchmarks.anchoring import Data, repeat_exact
from research.benchmarks.head_trainer_tables import gain, resampled, seconds_to, weighted_tpir
from research.benchmarks.impostors import without

ITEMS, PHOTOS, DIM = 24, 4, 6


@pytest.fixture(scope="module")
def data() -> Data:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(ITEMS, 1, DIM))
    vectors = (centres + 0.6 * generator.normal(size=(ITEMS, PHOTOS, DIM))).reshape(-1, DIM)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = np.repeat([f"item {number}" for number in range(ITEMS)], PHOTOS)
    return Data("drawn", vectors.astype(np.float32), items, np.tile([True, True, False, False], ITEMS))


def test_equal_weights_give_the_tpir_at_exactly_the_target(data: Data) -> None:
    for number in range(5):
        run = repeat_exact(data, number)
        found = weighted_tpir(run.unknown, run.known, resampled(data.items.tolist()))
        assert found[0] == pytest.approx(run.tpir(run.thresholds["exact"]))
        assert found[1:].std() > 0


def test_an_item_of_weight_zero_counts_as_if_it_were_left_out(data: Data) -> None:
    run = repeat_exact(data, 0)
    worst = str(run.unknown.labels[run.unknown.impostor.argmin()])
    weights = {str(item): np.array([float(item != worst)]) for item in data.items}
    threshold = without(run.unknown, [worst])
    assert threshold >= run.thresholds["exact"]
    assert weighted_tpir(run.unknown, run.known, weights)[0] == pytest.approx(run.tpir(threshold))


def test_a_gain_has_an_interval_around_it() -> None:
    generator = np.random.default_rng(0)
    one = 0.5 + 0.01 * generator.normal(size=(5, 200))
    assert gain(one, one) == "+0.000 [+0.000, +0.000]"
    low, high = map(float, gain(one, one - 0.1 + 0.01 * generator.normal(size=(5, 200)))[8:-1].split(", "))
    assert 0 < low < 0.1 < high


def test_a_level_is_reached_at_the_first_epoch_that_is_as_high() -> None:
    curve = [{"seconds": float(second), "mean TPIR": value} for second, value in enumerate([0.1, 0.3, 0.2, 0.4])]
    assert seconds_to(curve, 0.25) == 1
    assert seconds_to(curve, 0.05) == 0
    assert seconds_to(curve, 0.5) == np.inf
