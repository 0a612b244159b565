"""Intervals of rates over photos that are not independent."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from retrieval.search.true_rates import Rate, effective_count


def test_of_independent_photos_the_interval_is_that_of_clopper_and_pearson() -> None:
    hits = [True] * 30 + [False] * 10
    rate = Rate.of(hits, [str(number) for number in range(40)])
    assert rate is not None
    expected = binomtest(30, 40).proportion_ci(method="exact")
    assert rate.value == 0.75
    assert (rate.lower, rate.upper) == pytest.approx((expected.low, expected.high), abs=0.003)


def test_photos_of_one_item_count_less_if_they_agree() -> None:
    items = [str(number // 4) for number in range(40)]
    together = np.array([number // 4 < 7 for number in range(40)], dtype=float)
    mixed = np.array([number % 4 < 3 for number in range(40)], dtype=float)
    assert effective_count(together, items) == pytest.approx(9, abs=1)
    assert effective_count(mixed, items) == 40


def test_without_errors_photos_of_one_item_count_once() -> None:
    items = [str(number // 4) for number in range(40)]
    rate = Rate.of([True] * 40, items)
    assert rate is not None
    assert rate.upper == 1
    assert rate.lower == pytest.approx(0.025 ** (1 / 10))
    assert Rate.of([], []) is None


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_interval_covers_the_rate_of_correlated_photos(share: float) -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        per_item = generator.beta(share * 2, (1 - share) * 2, 60)
        hits = generator.random((60, 4)) < per_item[:, None]
        rate = Rate.of(hits.ravel().tolist(), [str(item) for item in range(60) for _ in range(4)])
        assert rate is not None
        covered += rate.lower <= share <= rate.upper
    assert covered >= 90
