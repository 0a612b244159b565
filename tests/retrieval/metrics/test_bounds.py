"""The bound against scipy and numbers a reader can check."""

import pytest
from scipy import special, stats

from retrieval.metrics.bounds import binomial_below, binomial_bound, items_needed


@pytest.mark.parametrize(("target", "items"), [(0.05, 59), (0.01, 299), (0.5, 5), (0.95, 1)])
def test_items_needed_is_the_least_number_that_certifies(target: float, items: int) -> None:
    assert items_needed(target) == items
    assert binomial_below(0, items, target) <= 0.05 + 1e-12
    assert items == 1 or binomial_below(0, items - 1, target) > 0.05


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
