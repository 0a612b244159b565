from __future__ import annotations

import math

import numpy as np
import pytest

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.measuring.bounds import bound_p_value, items_needed, upper_bound
from retrieval.measuring.point import Point
from retrieval.measuring.rule import best_threshold, calibrate, choose_threshold
from retrieval.metrics.consistency import UtilityCurves, search_curves, search_opis
from retrieval.metrics.identification import SearchScores, identification_rates


def searches(items: int, *, photos: int = 6, seed: int = 0, hard: float = 0.1) -> SearchScores:
    """Return searches of items that differ in how near their best impostor is."""
    generator = np.random.default_rng(seed)
    centre = 0.9 + hard * generator.normal(size=items)
    impostor = np.repeat(centre, photos) + 0.05 * generator.normal(size=items * photos)
    own = np.abs(0.4 + 0.15 * generator.normal(size=items * photos))
    return SearchScores(np.repeat(np.arange(items), photos), own, np.clip(impostor, 0.01, 2), items)


def test_items_needed_are_those_of_the_rule_of_three() -> None:
    assert items_needed(0.05) == 59
    assert items_needed(0.01) == 299


def test_without_errors_exactly_so_many_items_certify() -> None:
    assert bound_p_value(np.zeros(59), 0.05) <= 0.05 < bound_p_value(np.zeros(58), 0.05)


def test_the_bound_lies_above_the_mean_and_falls_with_more_items() -> None:
    bounds = [upper_bound(np.repeat([0.0, 0.1], count)) for count in (10, 100, 1000)]
    assert bounds[0] > bounds[1] > bounds[2] > 0.05


def test_the_p_value_is_valid_for_coins() -> None:
    generator = np.random.default_rng(0)
    flips = generator.random((2000, 80)) < 0.05
    rejected = np.mean([bound_p_value(row.astype(float), 0.05) <= 0.05 for row in flips])
    assert rejected <= 0.05


def test_many_easy_items_are_certified_and_the_promise_holds() -> None:
    point = calibrate(searches(300), target_fpir=0.05)
    assert point.status == "certified"
    assert point.rates.fpir < point.rates.fpir_upper <= 0.05
    assert point.rates.items == 300
    assert identification_rates(searches(300), point.threshold).tpir == point.rates.tpir > 0.5


def test_a_large_group_with_many_errors_is_not_hidden_by_many_small_ones_without() -> None:
    """Of 99 groups of two items and one of 130, the large one has all the errors: 10 % of all items at distance 1."""
    groups = np.repeat(np.arange(100), np.r_[130, np.full(99, 2)])
    impostor = np.r_[np.linspace(0.8, 1.6, 130), np.full(198, 1.9)]
    scores = SearchScores(np.arange(len(groups)), np.linspace(0.7, 1.0, len(groups)), impostor, len(groups))
    point = calibrate(scores, target_fpir=0.05, groups=groups)
    assert point.status == "certified"
    assert 0.03 < point.rates.fpir <= point.rates.fpir_upper <= 0.05


@pytest.mark.end_to_end
def test_coverage_on_fresh_items() -> None:
    broken, ratios = 0, []
    for seed in range(200):
        point = calibrate(searches(300, seed=seed), target_fpir=0.05)
        fresh = searches(4000, seed=10_000 + seed)
        broken += identification_rates(fresh, point.threshold).fpir > 0.05
        ratios.append(point.rates.tpir)
    assert broken <= 16
    assert np.mean(ratios) > 0.5


def test_fifteen_items_are_refused_unless_an_estimate_is_allowed() -> None:
    with pytest.raises(CalibrationError, match=r"15 independent items cannot certify .* 59"):
        calibrate(searches(15))
    point = calibrate(searches(15), allow_estimate=True)
    assert point.status == "estimated"
    assert point.rates.fpir <= 0.05 < point.rates.fpir_upper
    assert point.basis.items_needed == 59


def test_groups_are_the_clusters() -> None:
    scores = searches(300)
    groups = scores.labels // 20  # 15 families
    with pytest.raises(CalibrationError, match="15 independent"):
        calibrate(scores, groups=groups)


def test_the_rule_prefers_utility_then_evenness() -> None:
    scores = searches(20)
    point = calibrate(scores, allow_estimate=True, target_fpir=0.3)
    everywhere = np.unique(np.concatenate([scores.own, scores.impostor]))
    allowed = everywhere[[identification_rates(scores, d).fpir <= 0.3 for d in everywhere]]
    utility = search_curves(scores, np.append(allowed, point.threshold)).utility
    means, variances = utility.mean(axis=0), utility.var(axis=0)
    best = means[:-1].argmax()
    error = utility[:, best].std(ddof=1) / math.sqrt(len(utility))
    equivalent = means[:-1] >= means[best] - error
    assert means[-1] >= means[best] - error - 1e-12
    assert variances[-1] <= variances[:-1][equivalent].min() + 1e-12


def test_a_threshold_that_finds_nothing_is_an_error() -> None:
    scores = searches(100)
    hopeless = SearchScores(scores.labels, scores.own + 2, scores.impostor, 100)
    with pytest.raises(CalibrationError, match="TPIR 0"):
        calibrate(hopeless, allow_estimate=True)


def test_items_seen_in_training_are_refused() -> None:
    with pytest.raises(CalibrationError, match="seen in training"):
        calibrate(searches(100), seen_labels=[7])


def test_bad_targets_are_refused() -> None:
    for target in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidParameter, match="target_fpir"):
            calibrate(searches(100), target_fpir=target)


def test_a_point_survives_json() -> None:
    point = calibrate(searches(15), allow_estimate=True)
    assert Point.from_dict(point.to_dict()) == point


def rising(items: int, allowed: int, *, seed: int = 0) -> SearchScores:
    """Return one search an item; `allowed` of them come nearer to another item than half of the own photos do.

    The other half of the own photos lies behind the next impostor: one step further finds twice as much.
    """
    generator = np.random.default_rng(seed)
    impostor = np.sort(generator.uniform(0.4, 1.9, items))
    first, second = (impostor[allowed + step : allowed + step + 2].mean() for step in (-1, 0))
    order = generator.permutation(items)
    own = np.where(np.arange(items) % 2, first, second)
    return SearchScores(np.arange(items), own[order], impostor[order], items)


@pytest.mark.parametrize("seed", range(12))
def test_the_limit_is_the_last_threshold_that_is_certified(seed: int) -> None:
    """Twelve catalogues where more is found up to the limit, and twice as much one impostor behind it."""
    count = 100 + 10 * seed
    errors = [np.r_[np.ones(wrong), np.zeros(count - wrong)] for wrong in range(20)]
    allowed = max(wrong for wrong in range(20) if bound_p_value(errors[wrong], 0.1) <= 0.05)
    scores = rising(count, allowed, seed=seed)
    point = calibrate(scores, target_fpir=0.1)
    assert point.threshold == np.nextafter(np.sort(scores.impostor)[allowed], 0)
    assert point.rates.fpir == pytest.approx(allowed / count)
    assert point.rates.fpir_upper <= 0.1 < upper_bound(errors[allowed + 1])


@pytest.mark.parametrize(("count", "target", "allowed"), [(20, 0.05, 1), (40, 0.05, 2), (20, 0.2, 4), (50, 0.04, 2)])
def test_an_observed_rate_of_exactly_the_target_is_kept(count: int, target: float, allowed: int) -> None:
    """Of 20 searches one may be answered at 5 %: the threshold lies just below the second impostor."""
    scores = rising(count, allowed)
    point = calibrate(scores, target_fpir=target, allow_estimate=True)
    assert point.status == "estimated"
    assert point.rates.fpir == pytest.approx(target)
    assert point.threshold == np.nextafter(np.sort(scores.impostor)[allowed], 0)


def curves(distances: list[float], utility: list[list[float]]) -> UtilityCurves:
    values = np.array(utility)
    return UtilityCurves(np.array(distances), np.arange(len(values)), values, values, values)


def test_of_equal_thresholds_the_largest_serves() -> None:
    """Nothing tells the first three apart; the fourth finds less."""
    even = curves([0.1, 0.2, 0.3, 0.4], [[0.8, 0.8, 0.8, 0.2], [0.8, 0.8, 0.8, 0.2]])
    assert best_threshold(even) == 0.3


def test_of_thresholds_within_a_standard_error_the_most_even_serves() -> None:
    """At 0.2 the mean is 0.8 and its standard error 0.1: 0.71 is as good, and the same for every item."""
    utility = [[0.69, 0.9, 0.71, 0.69], [0.69, 0.7, 0.71, 0.69]]
    assert best_threshold(curves([0.1, 0.2, 0.3, 0.4], utility)) == 0.3
    assert best_threshold(curves([0.1, 0.2], [[0.699, 0.9], [0.699, 0.7]])) == 0.2  # just too far from 0.8
    assert best_threshold(curves([0.1, 0.2], [[0.701, 0.9], [0.701, 0.7]])) == 0.1  # just within


def test_one_item_has_no_standard_error() -> None:
    assert best_threshold(curves([0.1, 0.2, 0.3], [[0.8, 0.9, 0.7]])) == 0.2


def test_thresholds_that_find_nothing_are_no_candidates() -> None:
    assert best_threshold(curves([0.1, 0.2], [[0.0, 0.0]])) is None
    assert best_threshold(curves([0.1, 0.2], [[0.0, 0.3], [0.0, 0.0]])) == 0.2


def test_the_searches_of_a_large_item_are_one_cluster() -> None:
    """70 items; one of them asks a hundred times and is answered wrongly a third of the time.

    By searches the FPIR is 0.2, by items 0.005: an item counts once in the certificate.
    """
    photos = np.r_[np.full(69, 1), 100]
    labels = np.repeat(np.arange(70), photos)
    wrong = (labels == 69) & (np.arange(len(labels)) % 3 == 0)
    scores = SearchScores(labels, np.full(len(labels), 0.5), np.where(wrong, 0.4, 1.5), 70)
    evidence = calibrate(scores, target_fpir=0.3).evidence
    assert evidence["fpir_upper"] == upper_bound(np.r_[np.zeros(69), wrong[labels == 69].mean()])
    assert evidence["clusters"] == 70


def test_half_an_error_certifies_no_more_than_a_whole_one() -> None:
    """80 items of two searches, one of which is wrong whatever the threshold: 0.079, not 0.045, is the p-value."""
    own, impostor = np.full(160, 0.5), np.full(160, 1.5)
    impostor[0] = own[0] = 0.0
    scores = SearchScores(np.repeat(np.arange(80), 2), own, impostor, 80)
    point = calibrate(scores, allow_estimate=True)
    assert point.status == "estimated"
    assert point.rates.fpir == 1 / 160
    assert point.rates.fpir_upper > 0.05


def test_the_evidence_is_what_the_searches_show() -> None:
    scores = searches(120, photos=4, seed=3)
    point = calibrate(scores, target_fpir=0.1)
    told, within = point.evidence, scores.impostor <= point.threshold
    found = (scores.own <= point.threshold) & (scores.own < scores.impostor)
    assert point.target_fpir == 0.1
    assert told["fpir"] == within.mean() > 0
    assert told["tpir"] == found.mean()
    assert told["fnir_any_rank"] == pytest.approx((scores.own > point.threshold).mean())
    assert told["misidentification"] == (within & (scores.impostor <= scores.own)).mean()
    assert told["fpir_upper"] == upper_bound(within.reshape(120, 4).mean(axis=1))
    assert told["search_opis"] == search_opis(scores, 0.1).value
    assert (told["queries"], told["items"], told["clusters"], told["items_needed"]) == (480, 120, 120, 29)
    assert (told["gallery_items"], told["confidence"]) == (120, 0.95)


def test_families_are_fewer_clusters_than_items() -> None:
    scores = searches(300)
    point = calibrate(scores, groups=scores.labels // 3)
    assert (point.rates.items, point.basis.clusters) == (300, 100)
    within = (scores.impostor <= point.threshold).reshape(100, 18)
    assert point.rates.fpir_upper == upper_bound(within.mean(axis=1))


def test_the_spread_over_halves_by_hand() -> None:
    """One cluster of four lets everything in. Seen, it forbids every answer; unseen, it is half of the other half."""
    impostor = np.r_[np.full(10, 0.1), np.tile(np.linspace(1.0, 1.5, 10), 3)]
    scores = SearchScores(np.repeat(np.arange(4), 10), np.full(40, 0.05), impostor, 4)
    assert calibrate(scores, target_fpir=0.05, allow_estimate=True).basis.fpir_on_other_half == (0.0, 0.5)
    alike = SearchScores(scores.labels, scores.own, np.tile(np.linspace(1.0, 1.5, 10), 4), 4)
    assert calibrate(alike, target_fpir=0.3, allow_estimate=True).basis.fpir_on_other_half == (0.3, 0.3)
    three = alike.where(alike.labels < 3)
    assert calibrate(three, target_fpir=0.3, allow_estimate=True).basis.fpir_on_other_half == ()


def test_few_candidates_hold_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is among them however many there are."""
    scores = rising(150, 7)
    whole = choose_threshold(scores, 1.5)
    monkeypatch.setattr("retrieval.measuring.rule.CANDIDATES", 2)
    assert choose_threshold(scores, 1.5) == 1.5
    monkeypatch.setattr("retrieval.measuring.rule.CANDIDATES", 151)
    assert choose_threshold(scores, 1.5) == whole
    early = SearchScores(np.arange(150), np.full(150, 0.01), scores.impostor, 150)
    monkeypatch.setattr("retrieval.measuring.rule.CANDIDATES", 2)
    assert choose_threshold(early, 1.9) == float(np.nextafter(scores.impostor.min(), 0))


def test_items_of_one_group_that_find_no_other_item_set_no_threshold() -> None:
    """Nothing would be too far: every search would be a match."""
    scores = SearchScores(np.arange(80), np.linspace(0.1, 1.9, 80), np.full(80, np.inf), 80)
    with pytest.raises(CalibrationError, match="all of one group"):
        calibrate(scores, allow_estimate=True)


def test_where_every_stranger_may_be_answered_the_farthest_is() -> None:
    """Every second photo is behind the last impostor, at 0.9; so is the limit."""
    own = np.where(np.arange(80) % 2, 0.89, 0.95)
    scores = SearchScores(np.arange(80), own, np.r_[np.full(79, np.inf), 0.9], 80)
    assert calibrate(scores, target_fpir=0.3).threshold == 0.9


def test_the_farthest_stranger_is_kept_out_where_that_is_better() -> None:
    """All own photos are at 0.3; the one impostor at 0.9 may be let in, and nobody gains by it."""
    scores = SearchScores(np.arange(80), np.full(80, 0.3), np.r_[np.full(79, np.inf), 0.9], 80)
    assert calibrate(scores, target_fpir=0.3).threshold == np.nextafter(0.9, 0)


def test_searches_that_cannot_calibrate_are_refused() -> None:
    unknown = SearchScores(np.arange(80), np.full(80, np.inf), np.full(80, 0.9), 80)
    lonely = SearchScores(np.arange(80), np.full(80, 0.1), np.full(80, 0.9), 1)
    for scores in (unknown, lonely):
        with pytest.raises(CalibrationError, match="needs queries with a mate, and two items"):
            calibrate(scores)
    two = SearchScores(np.arange(80), np.full(80, 0.1), np.full(80, 0.9), 2)
    assert calibrate(two).status == "certified"
    mixed = SearchScores(np.arange(80), np.where(np.arange(80) < 5, 0.1, np.inf), np.full(80, 0.9), 5)
    assert calibrate(mixed).rates.tpir == 1


def test_items_seen_in_training_are_counted_whatever_their_type() -> None:
    with pytest.raises(CalibrationError, match=r"^3 calibration items were seen in training, 11 for one"):
        calibrate(searches(100), seen_labels=["11", 7, 99, 100, "no item"])
    assert calibrate(searches(100), seen_labels=[100, "no item"], allow_estimate=True).threshold > 0


def test_without_groups_families_found_by_vectors_are_the_clusters() -> None:
    """Three items of a kind are one cluster, by a group or by their vectors: a third as many items certify nothing."""
    generator = np.random.default_rng(0)
    scores = searches(120, photos=2)
    families = scores.labels // 3
    vectors = generator.normal(size=(40, 16))[families] + 0.05 * generator.normal(size=(240, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    assert calibrate(scores).basis.clusters == 120
    for clusters in ({"vectors": vectors}, {"groups": families}, {"groups": families, "vectors": vectors}):
        point = calibrate(scores, allow_estimate=True, **clusters)
        assert (point.status, point.basis.clusters) == ("estimated", 40)
        assert point.basis.clusters_are == ("groups of items" if "groups" in clusters else "families of similar items")
    with pytest.raises(CalibrationError, match=r"40 independent families of similar items cannot certify"):
        calibrate(scores, vectors=vectors)
