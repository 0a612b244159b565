"""The bound against scipy, an exhaustive enumeration and numbers a reader can check."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import special, stats

from retrieval.measuring.bounds import (
    binomial_below,
    binomial_bound,
    bound_p_value,
    cluster_means,
    items_needed,
    upper_bound,
)


def hoeffding_bentkus(means: np.ndarray, target: float) -> float:
    """Return the p-value by scipy's entropy and binomial."""
    count, observed = len(means), float(np.mean(means))
    if observed >= target:
        return 1.0
    entropy = stats.entropy([observed, 1 - observed], [target, 1 - target])
    hits = math.ceil(round(count * observed, 6))
    return min(math.exp(-count * entropy), math.e * stats.binom.cdf(hits, count, target))


@pytest.mark.parametrize("count", [1, 7, 60, 400])
@pytest.mark.parametrize("target", [0.01, 0.05, 0.3, 0.9])
def test_the_p_value_is_the_papers(count: int, target: float) -> None:
    generator = np.random.default_rng(count)
    for share in np.linspace(0, 1.2, 13) * target:
        whole = (generator.random(count) < share).astype(float)
        parts = np.clip(share + generator.normal(0, share / 2, count), 0, 1)
        for means in (whole, parts):
            assert bound_p_value(means, target) == pytest.approx(hoeffding_bentkus(means, target), rel=1e-9)


def test_it_is_the_smaller_of_two_bounds() -> None:
    errors = np.r_[np.ones(60), np.zeros(40)]
    assert bound_p_value(errors, 0.8) == pytest.approx(math.e * stats.binom.cdf(60, 100, 0.8))  # Bentkus
    parts = np.full(100, 0.005)
    entropy = stats.entropy([0.005, 0.995], [0.05, 0.95])
    assert bound_p_value(parts, 0.05) == pytest.approx(math.exp(-100 * entropy))  # Hoeffding


def test_without_an_error_the_p_value_is_a_power() -> None:
    for count in (1, 20, 59):
        assert bound_p_value(np.zeros(count), 0.05) == pytest.approx(0.95**count)


def test_half_an_error_is_rounded_up() -> None:
    """One of 80 clusters with an error in one of its two searches: rounded down this would certify 5 %."""
    means = np.r_[0.5, np.zeros(79)]
    assert math.e * stats.binom.cdf(0, 80, 0.05) == pytest.approx(0.045, abs=5e-4)  # what rounding down gives
    assert bound_p_value(means, 0.05) == pytest.approx(0.079, abs=5e-4)
    assert upper_bound(means) > 0.05


def test_a_whole_number_of_errors_is_not_rounded_up() -> None:
    """3 of 80 is 0.0375, of which 80 times is a little more than 3 in floating point for some counts."""
    for count in range(20, 400):
        means = np.r_[np.ones(3), np.zeros(count - 3)]
        p_value = bound_p_value(means, 0.6)
        assert p_value <= math.e * stats.binom.cdf(3, count, 0.6) * (1 + 1e-9)


def test_what_cannot_be_exceeded_and_what_is_exceeded_already() -> None:
    assert bound_p_value(np.array([0.0, 0.9]), 1.0) == 0
    assert bound_p_value(np.array([1.0, 1.0]), 1.0) == 1
    assert bound_p_value(np.array([0.0, 0.5]), 0.25) == 1
    assert bound_p_value(np.array([0.0, 0.5]), 0.2) == 1


@pytest.mark.parametrize("means", [np.zeros(1), np.zeros(500), np.r_[np.ones(5), np.zeros(95)], np.full(3, 0.6)])
def test_the_upper_bound_is_where_the_p_value_is_five_percent(means: np.ndarray) -> None:
    bound = upper_bound(means)
    assert means.mean() < bound <= 1
    assert bound_p_value(means, bound * (1 + 1e-9)) <= 0.05 < bound_p_value(means, bound * (1 - 1e-9))


def test_the_upper_bound_of_all_errors_is_one() -> None:
    assert upper_bound(np.ones(50)) == 1


@pytest.mark.parametrize("share", [0.05, 0.25])
def test_it_is_valid_for_every_number_of_errors(share: float) -> None:
    """Over all outcomes of 12 coins, the chance of a p-value of at most 5 % is at most 5 %."""
    rejected = sum(
        share ** sum(flips) * (1 - share) ** (12 - sum(flips))
        for flips in product((0.0, 1.0), repeat=12)
        if bound_p_value(np.array(flips), share) <= 0.05
    )
    assert rejected <= 0.05


@pytest.mark.parametrize(("target", "items"), [(0.05, 59), (0.01, 299), (0.5, 5), (0.95, 1)])
def test_items_needed_is_the_least_number_that_certifies(target: float, items: int) -> None:
    assert items_needed(target) == items
    assert bound_p_value(np.zeros(items), target) <= 0.05 + 1e-12
    assert items == 1 or bound_p_value(np.zeros(items - 1), target) > 0.05


def test_a_cluster_counts_once_however_many_searches_it_has() -> None:
    hits, clusters = np.array([True, False, False, True, False]), np.array([0, 0, 0, 1, 2])
    assert cluster_means(hits, clusters).tolist() == pytest.approx([1 / 3, 1, 0])
    asked_often = np.repeat(np.arange(5), [1, 1, 1, 1, 60])  # positions: the last search sixty times
    assert cluster_means(hits[asked_often], clusters[asked_often]).tolist() == pytest.approx([1 / 3, 1, 0])


@pytest.mark.parametrize("count", [1.0, 7.5, 59.0, 60.3, 1000.7])
@pytest.mark.parametrize("share", [1e-4, 0.05, 0.3, 0.9])
def test_binomial_probabilities_of_whole_and_fractional_numbers(count: float, share: float) -> None:
    for hits in (0, 0.3, 0.03 * count, 0.2 * count, 0.9 * count):
        expected = special.betainc(count - hits, hits + 1, 1 - share)
        assert binomial_below(hits, count, share) == pytest.approx(expected, abs=1e-10)
    assert binomial_below(int(count / 2), int(count), share) == pytest.approx(
        stats.binom.cdf(int(count / 2), int(count), share), abs=1e-10
    )


def test_binomial_probabilities_at_the_ends() -> None:
    assert binomial_below(5, 5, 0.3) == 1
    assert binomial_below(2, 5, 0.0) == 1
    assert binomial_below(2, 5, 1.0) == 0


@pytest.mark.parametrize(("hits", "count"), [(0, 60), (3, 100), (17, 300), (99, 100), (0.4, 41.5), (100, 100)])
def test_the_binomial_bound_is_that_of_clopper_and_pearson(hits: float, count: float) -> None:
    expected = 1.0 if hits == count else stats.beta.ppf(0.95, hits + 1, count - hits)
    assert binomial_bound(hits, count) == pytest.approx(expected, abs=1e-6)
