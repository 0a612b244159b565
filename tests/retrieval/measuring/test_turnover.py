"""When a point is tightened: beyond its error, to the limit of the new draws, and not by a turnover of its items."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import NEAREST_PHOTO
from retrieval.measuring.draws import OWN
from retrieval.measuring.measure import Measurement, Rule, measure
from retrieval.measuring.point import CERTIFIED, ESTIMATED, Point
from retrieval.measuring.rates import VersionRates
from retrieval.measuring.sentences import describe_rate, warning_of
from tests.index.vectors import unit
from tests.retrieval.measuring.samples import all_draws, drawn_from, draws, set_point

TARGET, PART = 0.05, 20  # a twentieth of the items is replaced in each turnover


def measured_anew(distances: np.ndarray, before: Point, *, scale: float = 1.0) -> Measurement:
    """Measure one draw of each item at some distances, times a scale, and tighten the point that was set before."""
    items = len(distances)
    source = draws(scale * distances, np.arange(items))
    kept = replace(all_draws({OWN: source}), version=7)
    photos = ArrayPhotos(unit(items), [f"i{item}" for item in range(items)])
    return measure(photos, NEAREST_PHOTO, draws=kept, before=before, rule="tighten")


def chain(items: int, turnovers: int, seed: int) -> tuple[int, int]:
    """Return how often a point of exchangeable items was tightened, and how often its FPIR was above the target."""
    generator, dim = np.random.default_rng(seed), 12
    crowds = generator.normal(size=(40, dim))

    def new(count: int) -> np.ndarray:
        shown = crowds[generator.integers(len(crowds), size=count)] + 0.7 * generator.normal(size=(count, dim))
        return shown / np.linalg.norm(shown, axis=1, keepdims=True)

    vectors, photos = new(items), ArrayPhotos(unit(items), [f"i{item}" for item in range(items)])
    point, tightened, above = None, 0, 0
    for _ in range(1 + turnovers):
        apart = np.sqrt(np.maximum(2 - 2 * vectors @ vectors.T, 0)) + 10 * np.eye(items)
        source = draws(apart.min(axis=1), np.arange(items), nearest=apart.argmin(axis=1))
        rule: Rule = "set" if point is None else "tighten"
        kept = all_draws({OWN: source})
        after = measure(photos, NEAREST_PHOTO, draws=kept, before=point, rule=rule, target_fpir=TARGET).required
        if point is not None:
            assert after.threshold <= point.threshold
            tightened += after.threshold < point.threshold
            above += drawn_from(source).expected(point.threshold) > TARGET
        point = after
        vectors[generator.choice(items, items // PART, replace=False)] = new(items // PART)
    return tightened, above


@pytest.mark.parametrize(("items", "worlds"), [(60, 10), pytest.param(400, 10, marks=pytest.mark.end_to_end)])
def test_exchangeable_items_seldom_tighten_a_point_however_often_its_rate_is_above_the_target(
    items: int, worlds: int
) -> None:
    """Of 200 turnovers, each of a twentieth of the items, at most 5 % tighten the point: it lies on its limit."""
    tightened, above = np.sum([chain(items, 200 // worlds, seed) for seed in range(worlds)], axis=0)
    assert tightened <= 10
    assert above > 40  # which is why a point that is merely above its target stays


def near_limit(items: int, share: float) -> tuple[np.ndarray, Point]:
    """Return distances of items in no order, and a point that accepts a share of them for a target of 5 %."""
    distances = np.random.default_rng(items).permutation(np.linspace(0.5, 1.0, items))
    point = set_point({OWN: draws(distances, np.arange(items))}, TARGET, items=items)
    return distances, replace(point, threshold=float(np.sort(distances)[int(share * items)]) - 1e-6)


@pytest.mark.parametrize(("items", "share"), [(60, 0.08), (400, 0.065)])
def test_a_point_that_is_merely_above_its_target_is_reported_and_stays(items: int, share: float) -> None:
    distances, before = near_limit(items, share)
    measured = measured_anew(distances, before)
    assert measured.point is not None
    assert measured.rates is not None
    assert (measured.point.threshold, measured.point.status) == (before.threshold, ESTIMATED)
    assert measured.point.rates.fpir_expected == pytest.approx(measured.rates.expected(before.threshold))
    assert measured.rates.expected(before.threshold) > TARGET
    assert not measured.rates.broken(measured.point)
    assert not measured.rates.to_dict(measured.point)["broken"]
    assert f"returns a match in {measured.rates.expected(before.threshold):.1%} of searches" in describe_rate(
        measured.rates, measured.point
    )
    assert warning_of(measured.point, measured.rates) == ""


@pytest.mark.parametrize("items", [60, 400])
def test_an_estimated_point_is_broken_beyond_its_one_sided_error(items: int) -> None:
    """If items are independent, the error is the error of a share of that many items."""
    distances, point = near_limit(items, 0.05)
    drawn = drawn_from(draws(distances, np.arange(items)))
    limit = TARGET + 1.645 * (TARGET * (1 - TARGET) / items) ** 0.5
    thresholds = np.linspace(0.5, 0.65, 60)
    expected = np.array([drawn.expected(threshold) for threshold in thresholds])
    broken = [VersionRates(drawn).broken(replace(point, threshold=threshold)) for threshold in thresholds.tolist()]
    assert broken == (expected > limit).tolist()
    assert {*broken} == {True, False}
    certified = [
        VersionRates(drawn).broken(replace(point, threshold=threshold, status=CERTIFIED))
        for threshold in thresholds.tolist()
    ]
    assert certified == [drawn.fpir_upper(threshold) > TARGET for threshold in thresholds]
    assert sum(certified) > sum(broken)


def test_items_that_decide_each_other_have_the_error_of_half_as_many() -> None:
    distances = np.repeat(np.random.default_rng(0).permutation(np.linspace(0.5, 1.0, 100)), 2)
    drawn = drawn_from(draws(distances, np.arange(200), nearest=np.arange(200) ^ 1))
    thresholds = np.linspace(0.5, 0.65, 100).tolist()
    expected = np.array([drawn.expected(threshold) for threshold in thresholds])
    of_100, of_200 = (expected > TARGET + 1.645 * (TARGET * (1 - TARGET) / count) ** 0.5 for count in (100, 200))
    assert [drawn.exceeds(threshold, TARGET) for threshold in thresholds] == of_100.tolist()
    assert 0 < of_100.sum() < of_200.sum()


@pytest.mark.parametrize("items", [60, 400])
def test_unknown_items_that_come_twice_as_close_tighten_to_the_limit_of_the_new_draws(items: int) -> None:
    distances, before = near_limit(items, 0.05)
    measured = measured_anew(distances, before, scale=0.5)
    assert measured.point is not None
    assert measured.rates is not None
    limit = drawn_from(draws(0.5 * distances, np.arange(items))).limit(TARGET, certified=False)
    assert measured.rates.broken(before)
    assert "above the target of 5.0%" in warning_of(before, measured.rates)
    assert measured.point.threshold == limit
    assert (measured.point.status, measured.point.target_fpir) == (ESTIMATED, TARGET)
    assert measured_anew(distances, measured.point, scale=0.5).required.threshold == limit
