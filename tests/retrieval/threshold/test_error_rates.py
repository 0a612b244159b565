"""Expected rates against a loop over items, the design effect, certified limits, and draws that are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from scipy import stats

from index.gallery import Gallery
from index.photos import NONE
from index.search.left_out import PHOTOS
from retrieval.galleries.points import as_served
from retrieval.measuring.draws import OWN, AllDraws, Draws
from retrieval.measuring.fpir import TOLERANCE, DrawnDistances
from retrieval.measuring.point import CERTIFIED, ESTIMATED, Point, Shift
from retrieval.measuring.rates import VersionRates
from retrieval.threshold import gallery_points


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
    nobody, names = np.full(40, NONE), np.arange(40).astype(str)
    distances, apart = np.linspace(0.5, 1, 40), np.linspace(0.1, 0.3, 40)
    own = Draws(names, names, nobody, distances, nobody, names[::-1], distances, apart, nobody, apart, apart, nobody)
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
    names, nobody = np.arange(30).astype(str), np.full(30, NONE)
    copies = np.where(np.arange(30) < 4, 7, NONE)
    distances = np.where(np.arange(30) < 4, 0.01, 0.9)
    none = np.full(30, np.inf)
    draws = Draws(
        *(names, names, nobody, distances, nobody, names[::-1], distances, distances, nobody, distances, none, copies)
    )
    assert DrawnDistances.of({OWN: draws}).items == 26
    assert DrawnDistances.of({OWN: draws}).fpir(0.5) == 0


def test_a_nearest_item_without_draws_is_no_drawn_item() -> None:
    drawn = DrawnDistances.of_items(np.array([0.2, 0.1]), np.array(["b", "a"]), np.array([["x"], ["b"]]))
    assert drawn.others.tolist() == [[1], [-1]]


def test_an_estimated_point_keeps_its_target_by_the_expected_rate_and_a_certified_one_by_its_bound() -> None:
    """Of 400 unknown items, 20 are accepted: 5 % as observed, a little more to expect, and up to 7.2 % by the bound."""
    generator = np.random.default_rng(2)
    order = generator.permutation(400)
    drawn = DrawnDistances.of_items(np.linspace(0.1, 1, 400)[order], generator.permutation(400).astype(str))
    rates, threshold = VersionRates(drawn), drawn.at_share(0.05)
    observed, expected, upper = drawn.fpir(threshold), drawn.expected(threshold), drawn.fpir_upper(threshold)
    assert observed == pytest.approx(0.05)
    assert observed < expected < upper
    for status, kept_from in (("estimated", expected), ("certified", upper)):
        for target in (observed - 0.001, (observed + expected) / 2, (expected + upper) / 2, upper + 0.001):
            point = Point(threshold, status, target, {})
            assert rates.keeps_target(point) == (target >= kept_from)
            assert rates.broken(point) == (target < kept_from)
            assert rates.to_dict(point)["broken"] == rates.broken(point)


def own_draws(items: int) -> Draws:
    """Return one draw of each of some items, at distances of 0.5 to 1 in no order."""
    order = np.random.default_rng(items).permutation(items)
    nobody, far = np.full(items, NONE, np.int64), np.full(items, np.inf)
    names, apart = order.astype(str), np.linspace(0.5, 1, items)[order]
    return Draws(names, names, nobody, apart, nobody, np.full(items, ""), apart, far, nobody, far, far, nobody)


@pytest.mark.parametrize(("items", "status"), [(299, ESTIMATED), (300, CERTIFIED), (19, None), (20, ESTIMATED)])
def test_other_kinds_of_query_are_certified_from_300_items_on_and_decide_from_20_on(
    items: int, status: str | None
) -> None:
    kind = PHOTOS.format(2)
    kept = AllDraws("model", {OWN: own_draws(400), kind: own_draws(items)}, frozenset())
    rates = VersionRates.of(kept, Point(0.5, CERTIFIED, 0.1, {}))
    assert rates is not None
    assert (rates.kinds[kind][1].status if kind in rates.kinds else None) == status
    estimated = VersionRates.of(kept, Point(0.5, ESTIMATED, 0.1, {}))
    assert estimated is not None
    assert all(point.status == ESTIMATED for _, point in estimated.kinds.values())


@pytest.mark.parametrize(("photos", "changed", "known"), [(1000, 0, True), (1000, 10, True), (1000, 11, False)])
def test_rates_are_known_until_more_than_a_hundredth_of_the_photos_has_changed(
    photos: int, changed: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = AllDraws("model", {OWN: own_draws(400)}, frozenset(), fingerprint=(photos, 0))
    monkeypatch.setattr(AllDraws, "read", lambda _: kept)
    monkeypatch.setattr(AllDraws, "changed", lambda *_: changed)
    monkeypatch.setattr(gallery_points, "_groups", lambda *_: 400)
    point, gallery = Point(0.5, ESTIMATED, 0.1, {"anchored": True}), cast(Gallery, None)
    assert (as_served(point, gallery, "model")[1] is not None) == known
    assert as_served(point, gallery, "another model")[1] is None
    assert as_served(Point(0.5, ESTIMATED, 0.1, {}), gallery, "model")[1] is None
