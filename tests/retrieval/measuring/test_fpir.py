"""Expected rates against a loop over items, the design effect, certified limits, and draws that are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from retrieval.measuring.draws import LABELLED, OWN, PROBE, REFERENCE, UNKNOWN
from retrieval.measuring.fpir import TOLERANCE, DrawnDistances
from retrieval.measuring.point import Point, Shift
from retrieval.measuring.rates import VersionRates
from tests.retrieval.measuring.samples import all_draws, drawn_from, draws, sample


def left_out_by_item(drawn: DrawnDistances, shares: np.ndarray) -> np.ndarray:
    """Test each item at the threshold of the other items, without the draws whose nearest item it is."""
    rates = np.zeros(len(shares))
    for code in range(drawn.items):
        own = drawn.codes == code
        kept = ~own & (drawn.others[:, 0] != code)
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
        drawn = DrawnDistances.of_items(distances, own.astype(str), rivals.astype(str)[:, None])
        shares = np.linspace(0, most, 21)
        assert drawn.left_out(shares) == pytest.approx(left_out_by_item(drawn, shares), abs=1e-12)


def test_items_in_dense_regions_move_the_threshold_of_each_other() -> None:
    """Two items are nearest to each other; without one of them, the other is as far away as the rest."""
    drawn = DrawnDistances.of_items(
        np.r_[0.1, 0.1, np.linspace(0.5, 1, 8)],
        np.arange(10).astype(str),
        np.r_[1, 0, np.full(8, -1)].astype(str)[:, None],
    )
    assert drawn.left_out(np.array([0.0, 0.2]))[0] == pytest.approx(2 / 11)
    assert drawn.expected(0.1) == pytest.approx(2 / 11)
    assert drawn.expected(np.nextafter(0.5, 0)) == pytest.approx(left_out_by_item(drawn, np.array([0.2]))[0])


def pairs_of(accepted: int, items: int) -> DrawnDistances:
    """Return one draw per item; the first `accepted` ones are near, in pairs that are nearest to each other."""
    distances = np.r_[np.full(accepted, 0.1), np.linspace(0.5, 1, items - accepted)]
    nearest = np.where(np.arange(items) < accepted, np.arange(items) ^ 1, (np.arange(items) + 1) % items)
    return DrawnDistances.of_items(distances, np.arange(items), nearest[:, None])


def test_items_that_are_nearest_to_each_other_count_half() -> None:
    drawn = pairs_of(20, 400)
    assert drawn.design_effect(0.2) == pytest.approx(2)
    assert drawn.fpir_upper(0.2) == pytest.approx(stats.beta.ppf(0.95, 10 + 1, 200 - 10), abs=1e-6)


def test_items_that_make_each_other_ambiguous_count_as_fewer() -> None:
    """Three of a family find one of the others each, with the third as a rival: without one, the other two match."""
    items = np.arange(400)
    family = items - (items - 370) % 3
    third = [family + (items - family + step) % 3 for step in (1, 2)]
    others = np.where(items < 370, np.stack([items ^ 1, np.full(400, -1)]), np.stack(third)).T
    distances = np.where(items < 20, 0.1, 0.5 + items / 1000)
    without = np.where(items[:, None] < 370, np.inf, 0.1) + np.zeros((400, 2))
    assert pairs_of(20, 400).design_effect(0.2) == pytest.approx(2)
    drawn = DrawnDistances.of_items(distances, items, others, without)
    assert drawn.design_effect(0.2) == pytest.approx((20 + 20 + 30 * 2) / 20)


def test_the_design_effect_is_the_sum_over_all_pairs_of_items() -> None:
    effects = []
    for seed in range(30):
        generator = np.random.default_rng(seed)
        items, photos = 40, 60
        own, distances = generator.integers(0, items, photos), generator.random(photos).round(3)
        family = own - own % 3  # the others of a family of three decide; some are not drawn
        others = np.stack([family + (own % 3 + 1) % 3, family + (own % 3 + 2) % 3], axis=1)
        without = np.where(generator.random((photos, 2)) < 0.2, np.inf, generator.random((photos, 2)).round(3))
        drawn = DrawnDistances.of_items(distances, own, others, without)
        limit, labels = np.nextafter(np.sort(distances)[int(generator.integers(40, 50))], 0), np.unique(own)
        matched = (distances <= limit)[:, None]
        change = np.zeros((items + 2, items + 2))
        for column in (0, 1):
            moved = matched[:, 0] * 1.0 - (without[:, column] <= limit)
            np.add.at(change, (own, others[:, column]), moved / np.bincount(own, minlength=items + 2)[own])
        rates = np.array([matched[own == label].mean() for label in labels])
        apart = change[np.ix_(labels, labels)]
        expected = (np.sum(rates**2) + np.sum(apart * apart.T)) / rates.sum()
        assert drawn.design_effect(limit) == pytest.approx(max(1, expected))
        effects.append(expected)
    assert sum(effect > 1 for effect in effects) > 10


def test_a_query_shift_moves_the_distances_without_other_items_too() -> None:
    names, distances = np.arange(40).astype(str), np.linspace(0.5, 1, 40)
    own = sample(names, distances, nearest_items=names[::-1])
    without = distances[:, None] + np.linspace(-0.2, 0.3, 6)
    sources = {OWN: replace(own, without=without)}
    as_it_is, moved = DrawnDistances.of(sources), DrawnDistances.of(sources, shift=Shift(-0.1, 0.01, 30))
    assert moved.distances == pytest.approx(as_it_is.distances - 0.1)
    assert moved.without == pytest.approx(as_it_is.without - 0.1)
    assert as_it_is.without == pytest.approx(without)


def test_lone_items_count_in_full_and_several_draws_count_by_their_spread() -> None:
    distances, items = np.r_[np.full(20, 0.1), np.full(380, 0.9)], np.arange(400)
    alone = DrawnDistances.of_items(distances, items, (items + 1)[:, None] % 400)
    assert alone.design_effect(0.2) == pytest.approx(1)
    half = DrawnDistances.of_items(np.r_[distances, np.full(400, 0.9)], np.r_[items, items], np.full((800, 1), 999))
    assert half.fpir(0.2) == pytest.approx(0.025)
    assert half.design_effect(2.0) == pytest.approx(1)  # of all draws
    spread = DrawnDistances.of_items(np.linspace(0.1, 1, 3000), np.arange(3000) % 300, np.full((3000, 1), 999))
    assert spread.design_effect(0.1) == 1  # at least


def test_a_certified_limit_is_the_greatest_whose_bound_keeps_the_target() -> None:
    generator = np.random.default_rng(3)
    for photos in (1, 3):
        items = np.tile(np.arange(500), photos)
        drawn = DrawnDistances.of_items(
            generator.random(500 * photos), items, generator.integers(0, 500, (500 * photos, 1))
        )
        limit = drawn.limit(0.05, certified=True)
        assert limit is not None
        assert drawn.fpir_upper(limit) <= 0.05 < drawn.fpir_upper(np.nextafter(limit, 2))
        wary = replace(drawn, margin=0.01)
        assert wary.limit(0.05, certified=True) == pytest.approx(limit - 0.01)
        assert wary.fpir_upper(limit - 0.01) == pytest.approx(drawn.fpir_upper(limit))
        assert wary.limit(0.05, certified=False) == drawn.limit(0.05, certified=False)


def test_the_more_items_are_drawn_the_more_standard_errors_of_the_shift_a_bound_allows_for() -> None:
    """Of distances that are spread evenly, a shift by 0.01 moves the FPIR by 0.01, whatever their number."""
    found = []
    for items in (100, 1600, 25_600):
        drawn = DrawnDistances.of_items((np.arange(items) + 0.5) / items, np.arange(items))
        sampling = (0.05 * 0.95 / items) ** 0.5
        found.append(drawn.shift_errors(0.01))
        assert found[-1] == pytest.approx(1.645 * ((sampling**2 + 0.01**2) ** 0.5 - sampling) / 0.01, rel=0.02)
    assert found == sorted(found)
    assert 1.4 < found[-1] < 1.645
    assert drawn.shift_errors(0.0) == 0


def test_draws_whose_file_another_item_has_are_left_out() -> None:
    names = np.arange(30).astype(str)
    copies, distances = np.where(np.arange(30) < 4, "p7", ""), np.where(np.arange(30) < 4, 0.01, 0.9)
    own = sample(names, distances, nearest_items=names[::-1], own=distances, own_plain=distances, duplicates=copies)
    assert DrawnDistances.of({OWN: own}).items == 26
    assert DrawnDistances.of({OWN: own}).fpir(0.5) == 0


def test_a_nearest_item_without_draws_is_no_drawn_item() -> None:
    drawn = DrawnDistances.of_items(np.array([0.2, 0.1]), np.array(["b", "a"]), np.array([["x"], ["b"]]))
    assert drawn.others.tolist() == [[1], [-1]]


def test_items_count_alike_however_many_photos_they_have() -> None:
    drawn = drawn_from(draws([0.1, 0.2, 0.3, 0.9], [1, 1, 1, 2]))
    assert drawn.items == 2
    rates = [drawn.fpir(threshold) for threshold in (0.05, 0.1, 0.2, 0.3, 0.8, 0.9)]
    assert rates == pytest.approx([0, 1 / 6, 1 / 3, 0.5, 0.5, 1])


def test_items_of_one_group_count_as_one_item_and_are_left_out_together() -> None:
    """The nearest item is counted by its group too, even where another item of the group was drawn first."""
    some = draws([0.3, 0.1, 0.2, 0.9], [4, 2, 1, 3], nearest=[2, 3, 7, 1])
    some = replace(some, groups=np.array(["i4", "twins", "twins", "i3"]))
    drawn = drawn_from(some)
    assert drawn.items == 3
    assert [drawn.fpir(threshold) for threshold in (0.1, 0.2, 0.3, 0.9)] == pytest.approx([1 / 6, 1 / 3, 2 / 3, 1])
    named = ["i3", "i4", "twins"]
    assert [named[code] for code in drawn.codes] == ["twins", "twins", "i4", "i3"]
    assert [named[code] if code >= 0 else "" for code in drawn.others[:, 0]] == ["i3", "", "twins", "twins"]
    by_item = drawn_from(replace(some, groups=some.items))
    assert (by_item.items, by_item.fpir(0.1)) == (4, 0.25)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.5])
def test_a_share_gives_the_greatest_threshold_within_it(share: float) -> None:
    generator = np.random.default_rng(int(100 * share))
    drawn = drawn_from(draws(generator.random(90).round(2), generator.integers(0, 30, 90)))
    threshold = drawn.at_share(share)
    assert drawn.fpir(threshold) <= share + 1e-9
    assert drawn.fpir(np.nextafter(threshold, np.inf)) > share


@pytest.mark.parametrize(("items", "hits"), [(19, 0), (20, 0), (39, 1), (60, 2), (99, 4)])
def test_an_estimated_limit_of_items_with_one_photo_lies_between_the_draws_that_expect_the_target(
    items: int, hits: int
) -> None:
    """With one draw per item, a new item undercuts the k-th smallest of N distances with probability k / (N + 1)."""
    ordered = np.sort(np.random.default_rng(items).random(items))
    drawn = drawn_from(draws(ordered, np.arange(items)))
    limit = drawn.limit(0.05, certified=False)
    assert limit is not None
    assert (hits + 1) / (items + 1) <= 0.0501 < (hits + 2) / (items + 1)
    assert drawn.expected(limit) == pytest.approx(0.05)
    part = 0.05 * (items + 1) - (hits + 1)  # of the way from one draw to the next
    assert limit == pytest.approx(ordered[hits] + part * (ordered[hits + 1] - ordered[hits]))
    assert drawn.fpir(limit) <= 0.05


def test_items_that_are_nearest_to_each_other_support_larger_targets_only() -> None:
    """Two near items with one photo each: without one of them, the other is far from all."""
    pair = draws(np.r_[0.1, 0.1, np.linspace(0.5, 1, 42)], np.arange(44), nearest=np.r_[1, 0, np.full(42, 99)])
    assert drawn_from(pair).smallest_target == pytest.approx(2 / 45)
    assert drawn_from(pair).limit(0.04, certified=False) is None
    assert drawn_from(pair).limit(0.05, certified=False) is not None


def test_estimated_limits_realise_the_target_on_average() -> None:
    for items, photos in ((20, 1), (20, 6), (60, 3)):
        realised = []
        for seed in range(150):
            generator = np.random.default_rng((items, photos, seed))
            centres, noise = generator.normal(3, 0.5, items), generator.normal(0, 0.2, (items, photos))
            drawn = DrawnDistances.of_items((centres[:, None] + noise).ravel(), np.repeat(np.arange(items), photos))
            limit = drawn.limit(0.1, certified=False)
            new = generator.normal(3, 0.5, 2000) + generator.normal(0, 0.2, 2000)
            realised.append(float((new <= limit).mean()))
        assert 0.085 < np.mean(realised) < 0.115, (items, photos)


def test_a_certified_limit_keeps_its_bound_and_the_next_one_does_not() -> None:
    drawn = drawn_from(draws(np.random.default_rng(0).random(400), np.arange(400)))
    limit = drawn.limit(0.05, certified=True)
    assert limit is not None
    assert drawn.fpir_upper(limit) <= 0.05 < drawn.fpir_upper(np.nextafter(limit, np.inf))
    assert drawn_from(draws(np.random.default_rng(0).random(58), np.arange(58))).limit(0.05, certified=True) is None


def p_value(drawn: DrawnDistances, distance: float) -> float:
    return float(drawn.p_values(np.array([distance]))[0])


def test_a_p_value_is_the_share_of_draws_that_come_as_close_and_never_zero() -> None:
    drawn = drawn_from(draws(np.arange(1, 100) / 100, np.arange(99)))
    assert p_value(drawn, 0.0) == pytest.approx(1 / 100)
    assert p_value(drawn, 0.05) == pytest.approx(6 / 100)
    assert p_value(drawn, 2.0) == pytest.approx(1)


def test_p_values_of_unknown_items_are_uniform() -> None:
    generator = np.random.default_rng(1)
    drawn = drawn_from(draws(generator.normal(9, size=500), np.arange(500)))
    values = drawn.p_values(generator.normal(9, size=4000))
    assert max(abs(np.mean(values <= p) - p) for p in (0.05, 0.2, 0.5)) < 0.05


def test_all_sources_but_the_reference_are_one_sample() -> None:
    generator = np.random.default_rng(0)
    sources = {
        name: draws(generator.random(count), np.arange(start, start + count))
        for name, start, count in ((OWN, 0, 30), (LABELLED, 20, 30), (PROBE, 100, 10), (UNKNOWN, 200, 5))
    }
    fitted = [f"fitted {number}" for number in range(10)]
    reference = draws(generator.random(30), np.arange(300, 330))
    drawn = DrawnDistances.of({**sources, REFERENCE: reference}, without=fitted)
    every = np.concatenate([source.distances for source in sources.values()])
    assert drawn.distances == pytest.approx(np.sort(every))
    assert drawn.items == 65  # of 75 draws: ten items have an own and a labelled one
    assert drawn.weights.sum() == pytest.approx(1)
    rates = VersionRates.of(all_draws(sources, fitted), Point.uncalibrated(0.05))
    assert rates is not None
    assert rates.drawn.items == 65
    few = all_draws({PROBE: sources[PROBE], UNKNOWN: sources[UNKNOWN]})
    assert VersionRates.of(few, Point.uncalibrated(0.05)) is None


@pytest.mark.parametrize("certified", [False, True])
def test_photos_of_one_source_that_come_closer_lower_the_threshold_by_their_share(certified: bool) -> None:
    near, far = np.linspace(0.3, 1, 400), np.linspace(0.5, 1.2, 400)
    alone, mixed = (
        DrawnDistances.of({OWN: draws(far, np.arange(400)), UNKNOWN: draws(other, 1000 + np.arange(400))})
        for other in (far, near)
    )
    first, second = (drawn.limit(0.1, certified=certified) for drawn in (alone, mixed))
    strictest = drawn_from(draws(near, np.arange(400))).limit(0.1, certified=certified)
    assert first is not None
    assert second is not None
    assert strictest is not None
    assert strictest < second < first


def test_calibration_items_that_a_gallery_has_count_whether_their_own_photos_are_drawn_or_not() -> None:
    generator = np.random.default_rng(0)
    here = draws(generator.random(40), np.arange(40))
    known = draws(generator.random(60), np.arange(60), own=np.where(np.arange(60) < 50, 0.1, np.inf))
    assert DrawnDistances.of({OWN: here, PROBE: known}).items == 50
    assert DrawnDistances.of({PROBE: known}).items == 60  # a bundle's threshold


def test_the_spread_over_halves_by_hand() -> None:
    """One item of four is near in all its draws: thresholds of its half reject it, and of the other half accept it."""
    near = np.r_[np.full(10, 0.1), np.tile(np.linspace(1.0, 1.5, 10), 3)]
    items = np.repeat(np.arange(4), 10)
    assert DrawnDistances.of_items(near, items).on_other_half(0.05) == (0.0, 0.5)
    alike = np.tile(np.linspace(1.0, 1.5, 10), 4)
    assert DrawnDistances.of_items(alike, items).on_other_half(0.3) == pytest.approx((0.3, 0.3))
    assert DrawnDistances.of_items(alike[:30], items[:30]).on_other_half(0.3) == ()
