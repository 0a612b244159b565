"""The expected FPIR of a share of the draws, against a loop over items."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.threshold.drawn_distances import TOLERANCE, DrawnDistances


def left_out_by_item(drawn: DrawnDistances, shares: np.ndarray) -> np.ndarray:
    """Test each item at the threshold of the other items, without the draws whose nearest item it is."""
    rates = np.zeros(len(shares))
    for code in range(drawn.items):
        own = drawn.codes == code
        kept = ~own & (drawn.nearest != code)
        others, weights = drawn.distances[kept], np.cumsum(drawn.weights[kept])
        if not len(others):
            return np.ones(len(shares))
        first = np.searchsorted(weights, shares + TOLERANCE, side="right")
        thresholds = np.where(first < len(others), others[np.minimum(first, len(others) - 1)], np.inf)
        rates += np.searchsorted(drawn.distances[own], thresholds, side="left") / own.sum()
    return rates / (drawn.items + 1)


@pytest.mark.parametrize("most", [0.05, 0.3, 1.2])
def test_the_expected_rates_are_those_of_leaving_each_item_out(most: float) -> None:
    for seed in range(60):
        generator = np.random.default_rng(seed)
        items, photos = int(generator.integers(1, 30)), int(generator.integers(1, 80))
        own = generator.integers(0, items, photos)
        rivals = (own + 1 + generator.integers(0, items, photos)) % (items + 3)  # some are not among the drawn items
        distances = generator.random(photos).round(int(generator.integers(1, 6)))  # with and without ties
        drawn = DrawnDistances.of_items(distances, own.astype(str), rivals.astype(str))
        shares = np.linspace(0, most, 21)
        assert drawn.left_out(shares) == pytest.approx(left_out_by_item(drawn, shares), abs=1e-12)


def test_items_in_dense_regions_move_the_threshold_of_each_other() -> None:
    """Two items are nearest to each other; without one of them, the other is as far away as the rest."""
    drawn = DrawnDistances.of_items(
        np.r_[0.1, 0.1, np.linspace(0.5, 1, 8)], np.arange(10).astype(str), np.r_[1, 0, np.full(8, -1)].astype(str)
    )
    assert drawn.left_out(np.array([0.0, 0.2]))[0] == pytest.approx(2 / 11)
    assert drawn.expected(0.2) == pytest.approx(left_out_by_item(drawn, np.array([0.2]))[0])
