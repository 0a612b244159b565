"""Concentration of false matches: quiet where they fall anywhere, warned of where they gather in families."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from retrieval.reports.concentration import concentration, highest_tenth
from retrieval.threshold.error_rates import DrawnDistances


def catalogue(generator: np.random.Generator, items: int, photos: int, *, tight: bool) -> DrawnDistances:
    """Return the draws of a catalogue: items anywhere or, if `tight`, a tenth of them in three narrow families."""
    centres = generator.normal(size=(items, 12))
    if tight:
        families = generator.normal(size=(3, 12))
        count = items // 10
        centres[:count] = families[generator.integers(0, 3, count)] + 0.35 * generator.normal(size=(count, 12))
    views = centres + 0.15 * generator.normal(size=(photos, items, 12))
    views /= np.linalg.norm(views, axis=2, keepdims=True)
    distances, nearest = [], []
    for view in views:
        apart = np.min([2 - 2 * view @ other.T for other in views], axis=0)
        np.fill_diagonal(apart, np.inf)
        nearest.append(apart.argmin(axis=1))
        distances.append(np.sqrt(np.maximum(apart.min(axis=1), 0)))
    codes = np.tile(np.arange(items), photos)
    return DrawnDistances.of_items(np.concatenate(distances), codes.astype(str), np.concatenate(nearest).astype(str))


@pytest.mark.parametrize(("items", "photos"), [(60, 1), (100, 3), (300, 1)])
def test_it_is_quiet_where_false_matches_fall_anywhere_and_items_have_few_draws(items: int, photos: int) -> None:
    for seed in range(12):
        drawn = catalogue(np.random.default_rng(seed), items, photos, tight=False)
        threshold = drawn.at_share(0.05)
        rates = np.sort(np.bincount(drawn.codes, drawn.distances <= threshold) / np.bincount(drawn.codes))[::-1]
        assert rates[: items // 10].mean() > 0.2  # what the rates of single items would say
        assert concentration(drawn, threshold, 0.05)["warning"] == ""


@pytest.mark.parametrize(("items", "photos"), [(300, 3), (600, 1)])
def test_it_warns_where_a_tenth_of_the_items_lies_in_narrow_families(items: int, photos: int) -> None:
    for seed in range(5):
        drawn = catalogue(np.random.default_rng(seed), items, photos, tight=True)
        told = concentration(drawn, drawn.at_share(0.05), 0.05)
        assert told["tenth"] > told["limit"] == 0.2
        assert "in the worst tenth of families" in told["warning"]
        tight = {str(item) for item in range(items // 10)}
        first = told["worst_families"][0]
        assert len(set(first["items"]) - tight) <= 1  # a stranger may be linked to a family
        assert 0.05 < first["fpir"] < first["matched"] <= 1
        assert len({each["item"] for each in told["attracting"][:5]} - tight) <= 1


@pytest.mark.parametrize(("mean", "strength"), [(0.05, 1.0), (0.05, 20.0), (0.3, 0.5), (0.02, 5.0)])
def test_the_highest_tenth_is_that_of_a_beta_distribution(mean: float, strength: float) -> None:
    a, b = mean * strength, (1 - mean) * strength
    cut = stats.beta.ppf(0.9, a, b)
    expected = mean * stats.beta.sf(cut, a + 1, b) / 0.1
    assert highest_tenth(mean, strength) == pytest.approx(expected, abs=0.005)


def test_families_that_do_not_differ_and_families_that_match_always_or_never() -> None:
    assert highest_tenth(0.05, np.inf) == 0.05
    assert highest_tenth(0.05, 0.0) == pytest.approx(0.5)
    assert highest_tenth(0.0, 1.0) == 0


def test_the_items_that_are_returned_are_listed() -> None:
    items = ["a"] * 3 + ["b"] * 3 + ["c"] * 2 + ["d"] * 3
    nearest = ["b", "x", "x", "a", "a", "a", "a", "x", "a", "a", "a"]
    distances = np.array([0.1, 0.2, 0.9, 0.1, 0.9, 0.9, 0.1, 0.1, 0.9, 0.9, 0.9])
    told = concentration(DrawnDistances.of_items(distances, np.array(items), np.array(nearest)), 0.5, 0.05)
    shares = {each["item"]: each["share"] for each in told["attracting"]}
    weights = {"b": 1 / 3, "x": 1 / 3 + 1 / 2, "a": 1 / 3 + 1 / 2}
    assert shares == pytest.approx({item: weight / 2 for item, weight in weights.items()})
