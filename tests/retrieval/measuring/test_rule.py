"""The rule for the threshold of a bundle: calibration photos are searched for among calibration photos."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.measuring.draws import PROBE, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import BUNDLE, Point
from retrieval.measuring.rates import Mated
from retrieval.measuring.rule import best_threshold, choose_threshold
from retrieval.metrics.bounds import binomial_bound
from retrieval.metrics.consistency import UtilityCurves, consistency, search_curves
from retrieval.metrics.identification import SearchScores, identification_rates

from .samples import draws, set_point


def apart(items: int, *, photos: int = 6, seed: int = 0, hard: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Return how near others come to the photos of items, and the distances to their own items."""
    generator = np.random.default_rng(seed)
    centre = 0.9 + hard * generator.normal(size=items)
    impostor = np.repeat(centre, photos) + 0.05 * generator.normal(size=items * photos)
    return np.clip(impostor, 0.01, 2), np.abs(0.4 + 0.15 * generator.normal(size=items * photos))


def searches(items: int, *, photos: int = 6, seed: int = 0, hard: float = 0.1, farther: float = 0.0) -> Draws:
    """Return draws of items that differ in how near others come, with their own photos farther than usual."""
    others, own = apart(items, photos=photos, seed=seed, hard=hard)
    return draws(others, np.repeat(np.arange(items), photos), own=own + farther)


def calibrate(source: Draws, target_fpir: float = 0.05, *, certify: bool = False) -> Point:
    """Return the point that calibration photos set for a bundle."""
    items = len(np.unique(source.items))
    return set_point({PROBE: source}, target_fpir, items=items, certify=certify, origin=BUNDLE)


def scores_of(source: Draws) -> SearchScores:
    """Return draws as searches among as many items."""
    mated = Mated.of({PROBE: source}, gallery_items=len(np.unique(source.items)))
    assert mated is not None
    return mated.scores


def test_many_easy_items_are_certified_on_request_and_the_promise_holds() -> None:
    source = searches(300)
    point = calibrate(source, certify=True)
    assert point.status == "certified"
    assert point.rates.fpir is not None
    assert point.rates.fpir_upper is not None
    assert point.rates.fpir < point.rates.fpir_upper <= 0.05
    assert point.rates.items == 300
    assert identification_rates(scores_of(source), point.threshold).tpir == point.rates.tpir
    assert point.rates.tpir is not None
    assert point.rates.tpir > 0.5
    assert calibrate(source).status == "estimated"


@pytest.mark.end_to_end
def test_coverage_on_fresh_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.measuring.fpir.HALVES", 1)  # which decide nothing, and take most of the time
    broken, ratios = 0, []
    for seed in range(200):
        point = calibrate(searches(300, seed=seed), certify=True)
        fresh, _ = apart(4000, seed=10_000 + seed)
        broken += (fresh <= point.threshold).mean() > 0.05
        ratios.append(point.rates.tpir)
    assert broken <= 16
    assert np.mean(np.array(ratios, dtype=float)) > 0.5


def test_too_few_items_set_no_threshold_or_certify_none() -> None:
    with pytest.raises(CalibrationError, match=r"^15 items can be used to set a threshold, and 20 are needed"):
        calibrate(searches(15), 0.2)
    with pytest.raises(CalibrationError, match=r"30 items cannot certify an FPIR of 0\.05.* and 59 are needed"):
        calibrate(searches(30), certify=True)
    point = calibrate(searches(30))
    assert point.status == "estimated"
    assert (point.basis.items_needed, point.basis.confidence) == (59, 0.95)


def test_items_of_one_group_count_as_one() -> None:
    source = searches(300)
    numbers = np.repeat(np.arange(300), 6)
    fifteen, sixty = (Draws(**source.arrays() | {"groups": (numbers // n).astype(str)}) for n in (20, 5))
    with pytest.raises(CalibrationError, match="15 items can be used"):
        calibrate(fifteen)
    point = calibrate(sixty)
    assert (point.basis.clusters, point.basis.clusters_are, point.rates.items) == (60, "groups of items", 300)
    assert (calibrate(source).basis.clusters, calibrate(source).basis.clusters_are) == (300, "items")


def test_of_the_thresholds_that_find_most_the_most_even_serves() -> None:
    source = searches(20)
    point, scores = calibrate(source, 0.3), scores_of(source)
    limit = DrawnDistances.of({PROBE: source}).limit(0.3, certified=False)
    assert limit is not None
    everywhere = np.unique(np.concatenate([scores.own, scores.impostor]))
    allowed = everywhere[everywhere <= limit]
    found = search_curves(scores, np.append(allowed, point.threshold))
    tpir, variances = found.sensitivity.mean(axis=0), found.utility.var(axis=0)
    assert tpir[-1] == pytest.approx(tpir.max())
    assert variances[-1] <= variances[np.isclose(tpir, tpir.max())].min() + 1e-12


def test_a_threshold_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="TPIR 0"):
        calibrate(searches(100, farther=2.0))


def test_bad_targets_are_refused() -> None:
    for target in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidParameter, match="target_fpir"):
            calibrate(searches(100), target)


def rising(items: int, allowed: int, *, seed: int = 0) -> Draws:
    """Return one search an item; `allowed` of them come nearer to another item than half of the own photos do.

    The other half of the own photos lies behind the next impostor: one step further finds twice as much.
    """
    generator = np.random.default_rng(seed)
    impostor = np.sort(generator.uniform(0.4, 1.9, items))
    first, second = (impostor[allowed + step : allowed + step + 2].mean() for step in (-1, 0))
    order = generator.permutation(items)
    own = np.where(np.arange(items) % 2, first, second)
    return draws(impostor[order], np.arange(items), own=own[order])


@pytest.mark.parametrize("seed", range(12))
def test_the_limit_is_the_last_threshold_that_is_certified(seed: int) -> None:
    """Twelve catalogues where more is found up to the limit, and twice as much one impostor behind it."""
    count = 100 + 10 * seed
    allowed = max(wrong for wrong in range(20) if binomial_bound(wrong, count) <= 0.1)
    source = rising(count, allowed, seed=seed)
    point = calibrate(source, 0.1, certify=True)
    assert point.threshold == np.nextafter(np.sort(source.distances)[allowed], 0)
    assert point.rates.fpir == pytest.approx(allowed / count)
    assert point.rates.fpir_upper is not None
    assert point.rates.fpir_upper <= 0.1 < binomial_bound(allowed + 1, count)


@pytest.mark.parametrize(("count", "target", "allowed"), [(29, 0.1, 2), (39, 0.05, 1), (59, 0.05, 2), (49, 0.04, 1)])
def test_an_expected_rate_of_exactly_the_target_is_kept(count: int, target: float, allowed: int) -> None:
    """Of 39 items one may be matched at 5 %: with it, and with the new one, 2 of 40 are expected."""
    point = calibrate(rising(count, allowed), target)
    assert point.status == "estimated"
    assert point.rates.fpir == pytest.approx(allowed / count)
    assert point.rates.fpir_expected == pytest.approx(target, abs=0.005)
    assert point.rates.fpir_expected <= target + 1e-9


def curves(found: list[list[float]], utility: list[list[float]]) -> UtilityCurves:
    """Return curves at 0.1, 0.2 and so on, with what each item finds and its utility."""
    values, rates = np.array(utility), np.array(found)
    return UtilityCurves(np.arange(1, len(values[0]) + 1) / 10, np.arange(len(values)), values, rates, values)


def test_of_thresholds_that_find_as_much_the_most_even_serves() -> None:
    found = [[0.2, 0.9, 0.9, 0.9], [0.2, 0.3, 0.3, 0.3]]
    assert best_threshold(curves(found, [[0.3, 0.9, 0.8, 0.9], [0.3, 0.5, 0.6, 0.4]])) == 0.3


def test_a_threshold_that_finds_less_never_serves_however_even_it_is() -> None:
    assert best_threshold(curves([[0.5, 0.9], [0.5, 0.3]], [[0.6, 0.9], [0.6, 0.4]])) == 0.2
    assert best_threshold(curves([[0.0, 0.3], [0.0, 0.0]], [[0.0, 0.4], [0.0, 0.0]])) == 0.2


def test_of_equal_thresholds_the_largest_serves() -> None:
    """Nothing tells the last three apart; the first finds less."""
    found = [[0.2, 0.8, 0.8, 0.8], [0.2, 0.7, 0.7, 0.7]]
    assert best_threshold(curves(found, [[0.3, 0.9, 0.9, 0.9], [0.3, 0.8, 0.8, 0.8]])) == 0.4


def test_thresholds_that_find_nothing_are_no_candidates() -> None:
    assert best_threshold(curves([[0.0, 0.0]], [[0.0, 0.0]])) is None


def test_few_candidates_hold_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is among them however many there are."""
    scores = scores_of(rising(150, 7))
    whole = choose_threshold(scores, 1.5)
    monkeypatch.setattr("retrieval.measuring.rule.CANDIDATES", 2)
    assert choose_threshold(scores, 1.5) == 1.5
    monkeypatch.setattr("retrieval.measuring.rule.CANDIDATES", 151)
    assert choose_threshold(scores, 1.5) == whole
    early = SearchScores(np.arange(150), np.full(150, 0.01), scores.impostor, 150)
    monkeypatch.setattr("retrieval.measuring.rule.CANDIDATES", 2)
    fourth = float(np.sort(scores.impostor)[3])
    assert choose_threshold(early, fourth) == float(np.nextafter(scores.impostor.min(), 0))


def test_where_every_stranger_may_be_answered_the_farthest_is() -> None:
    """Every second photo is behind the last impostor, at 0.9; so is the limit."""
    own = np.where(np.arange(80) % 2, 0.89, 0.95)
    scores = SearchScores(np.arange(80), own, np.r_[np.full(79, np.inf), 0.9], 80)
    assert choose_threshold(scores, 0.9) == 0.9


def test_the_farthest_stranger_is_kept_out_where_that_is_better() -> None:
    """All own photos are at 0.3; the one impostor at 0.9 may be let in, and nobody gains by it."""
    scores = SearchScores(np.arange(80), np.full(80, 0.3), np.r_[np.full(79, np.inf), 0.9], 80)
    assert choose_threshold(scores, 0.9) == np.nextafter(0.9, 0)


def test_an_item_counts_once_however_many_photos_it_has() -> None:
    """70 items; one of them asks a hundred times and is answered wrongly a third of the time.

    By searches the FPIR is 0.2, by items 0.005.
    """
    labels = np.repeat(np.arange(70), np.r_[np.full(69, 1), 100])
    wrong = (labels == 69) & (np.arange(len(labels)) % 3 == 0)
    source = draws(np.where(wrong, 0.4, np.linspace(1.2, 1.5, len(labels))), labels, own=np.full(len(labels), 0.5))
    point = calibrate(source, 0.3)
    assert point.rates.fpir == pytest.approx(wrong[labels == 69].mean() / 70)
    assert point.basis.clusters == 70


def test_the_rates_are_what_the_searches_show() -> None:
    source = searches(120, photos=4, seed=3)
    point, scores = calibrate(source, 0.1), scores_of(source)
    within = scores.impostor <= point.threshold
    found = (scores.own <= point.threshold) & (scores.own < scores.impostor)
    rates, basis = point.rates, point.basis
    assert point.target_fpir == 0.1
    assert rates.fpir == pytest.approx(within.mean())
    assert within.any()
    assert rates.tpir == found.mean()
    assert rates.tpir_of == "calibration photos"
    assert rates.fnir_any_rank == pytest.approx((scores.own > point.threshold).mean())
    assert rates.misidentification == (within & (scores.impostor <= scores.own)).mean()
    assert rates.consistency == vars(consistency(scores, point.threshold))
    assert (rates.queries, rates.items) == (480, 120)
    assert (basis.clusters, basis.items_needed, basis.gallery_items, basis.confidence) == (120, 29, 120, 0.95)
