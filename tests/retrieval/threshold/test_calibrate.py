import math

import numpy as np
import pytest

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.metrics.consistency import search_curves
from retrieval.metrics.identification import SearchScores, identification_rates
from retrieval.threshold.bounds import bound_p_value, products_needed, upper_bound
from retrieval.threshold.calibrate import OperatingPoint, calibrate


def searches(products: int, *, photos: int = 6, seed: int = 0, hard: float = 0.1) -> SearchScores:
    """Return searches of products that differ in how near their best impostor is."""
    generator = np.random.default_rng(seed)
    centre = 0.9 + hard * generator.normal(size=products)
    impostor = np.repeat(centre, photos) + 0.05 * generator.normal(size=products * photos)
    own = np.abs(0.4 + 0.15 * generator.normal(size=products * photos))
    return SearchScores(np.repeat(np.arange(products), photos), own, np.clip(impostor, 0.01, 2), products)


def test_products_needed_are_those_of_the_rule_of_three() -> None:
    assert products_needed(0.05) == 59
    assert products_needed(0.01) == 299


def test_without_errors_exactly_so_many_products_certify() -> None:
    assert bound_p_value(np.zeros(59), 0.05) <= 0.05 < bound_p_value(np.zeros(58), 0.05)


def test_the_bound_lies_above_the_mean_and_falls_with_more_products() -> None:
    bounds = [upper_bound(np.repeat([0.0, 0.1], count)) for count in (10, 100, 1000)]
    assert bounds[0] > bounds[1] > bounds[2] > 0.05


def test_the_p_value_is_valid_for_coins() -> None:
    generator = np.random.default_rng(0)
    flips = generator.random((2000, 80)) < 0.05
    rejected = np.mean([bound_p_value(row.astype(float), 0.05) <= 0.05 for row in flips])
    assert rejected <= 0.05


def test_many_easy_products_are_certified_and_the_promise_holds() -> None:
    point = calibrate(searches(300), target_fpir=0.05)
    assert point.status == "certified"
    assert point.evidence["fpir"] < point.evidence["fpir_upper"] <= 0.05
    assert point.evidence["products"] == 300
    assert identification_rates(searches(300), point.threshold).tpir == point.evidence["tpir"] > 0.5


@pytest.mark.slow
def test_coverage_on_fresh_products() -> None:
    broken, ratios = 0, []
    for seed in range(200):
        point = calibrate(searches(300, seed=seed), target_fpir=0.05)
        fresh = searches(4000, seed=10_000 + seed)
        broken += identification_rates(fresh, point.threshold).fpir > 0.05
        ratios.append(point.evidence["tpir"])
    assert broken <= 16
    assert np.mean(ratios) > 0.5


def test_fifteen_products_are_refused_unless_an_estimate_is_allowed() -> None:
    with pytest.raises(CalibrationError, match=r"15 independent products cannot certify .* 59"):
        calibrate(searches(15))
    point = calibrate(searches(15), allow_estimate=True)
    assert point.status == "estimated"
    assert point.evidence["fpir"] <= 0.05 < point.evidence["fpir_upper"]
    assert point.evidence["products_needed"] == 59


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


def test_products_seen_in_training_are_refused() -> None:
    with pytest.raises(CalibrationError, match="seen in training"):
        calibrate(searches(100), seen_labels=[7])


def test_bad_targets_are_refused() -> None:
    for target in (0.0, 1.0, float("nan")):
        with pytest.raises(InvalidParameter, match="target_fpir"):
            calibrate(searches(100), target_fpir=target)


def test_a_point_survives_json() -> None:
    point = calibrate(searches(15), allow_estimate=True)
    assert OperatingPoint.from_dict(point.to_dict()) == point


def test_the_scatter_between_products_is_told() -> None:
    alike, unlike = (calibrate(searches(200, hard=hard), allow_estimate=True) for hard in (0.0, 0.2))
    (low, high), (lowest, highest) = (point.evidence["fpir_on_other_half"] for point in (alike, unlike))
    assert lowest < low < 0.05 < high < highest
    assert f"between {lowest:.3f} and {highest:.3f}" in unlike.caveats()[0]


def test_few_answers_are_told() -> None:
    scores = searches(100)
    missing = SearchScores(scores.labels, scores.own + 0.4, scores.impostor, scores.gallery_items)
    found, lost = calibrate(scores, allow_estimate=True), calibrate(missing, allow_estimate=True)
    assert len(found.caveats()) == 1
    assert f"Only {lost.evidence['tpir']:.0%}" in lost.caveats()[1]


def test_a_cap_holds_and_biased_data_certify_nothing() -> None:
    scores = searches(300)
    free = calibrate(scores)
    capped = calibrate(scores, cap=free.threshold - 0.01)
    loose = calibrate(scores, biased=free.threshold + 0.01)
    assert capped.threshold <= free.threshold - 0.01
    assert capped.status == free.status == "certified"
    assert loose.status == "estimated"
