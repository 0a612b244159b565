"""Intervals of rates over photos that are not independent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from retrieval.search.result import Match, SearchResult
from retrieval.search.true_rates import Known, Rate, TrueRates, effective_count


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


def result_of(*items: str) -> SearchResult:
    matches = tuple(Match(item, f"{item} photo", 0.1, {}, None) for item in items)
    return SearchResult(
        matches=matches,
        decision="match" if items else "no_match",
        reason="" if items else "beyond_threshold",
        threshold=0.5,
        nearest_distance=0.1,
        nearest=matches[0] if matches else None,
        bundle_id="b",
        gallery_version=1,
    )


def test_items_of_one_group_count_as_one() -> None:
    """Two colours of a mug: either answers for the other, while a plate does not."""
    groups = {"red": "mug", "blue": "mug", "plate": ""}
    red, blue, plate = (Match(item, item, 0.1, {"group": group}) for item, group in groups.items())
    answers = [
        Known(f"q{row}", "red", True, replace(result_of("x"), matches=(found,), nearest=found), "mug")
        for row, found in enumerate((red, blue, plate, red))
    ]
    rates = TrueRates.of(answers)
    assert [rate and rate.value for rate in (rates.r_at_1, rates.tpir, rates.misidentification)] == [0.75, 0.75, 0.25]
    other = TrueRates.of([replace(answer, truth=("red", "blue")[row % 2]) for row, answer in enumerate(answers)])
    assert other.tpir == rates.tpir  # with the interval of photos of one item
    without = TrueRates.of([replace(answer, group="") for answer in answers])
    assert without.tpir is not None
    assert without.tpir.value == 0.5


def test_photos_without_an_item_are_unknown_items_of_their_own() -> None:
    """Twelve strangers, three of them with a name and four photos each: five of the others return a match."""
    named = [Known(f"n{i}", f"stranger {i % 3}", False, result_of()) for i in (4, 9, 2, 0, 7, 11, 1, 5, 3, 10, 8, 6)]
    nameless = [Known(f"p{i}", "", False, result_of(*["kiwi"][: int(i < 5)])) for i in (8, 3, 0, 6, 1, 5, 2, 7, 4)]
    rates = TrueRates.of([*named, *nameless])
    assert rates.unknown_items == 12
    assert rates.fpir is not None
    assert (rates.fpir.value, rates.fpir.photos) == (5 / 21, 21)
    items = [known.truth or known.photo_id for known in (*named, *nameless)]
    hits = [known.matches for known in (*named, *nameless)]
    assert rates.fpir == Rate.of(hits, items)
    alone = TrueRates.of(nameless)
    assert alone.fpir is not None
    expected = binomtest(5, 9).proportion_ci(method="exact")
    assert (alone.fpir.lower, alone.fpir.upper) == pytest.approx((expected.low, expected.high), abs=0.02)
    assert (rates.r_at_1, rates.tpir, rates.misidentification, rates.items) == (None, None, None, 0)
