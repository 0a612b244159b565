"""Query shift: its value, its error against a simple bootstrap, and where it applies."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.measuring.labelled import QUANTILES, RESAMPLES, measure_shift
from retrieval.measuring.point import GALLERY, Point, Shift
from retrieval.metrics.identification import SearchScores


def moved(by: float, *, items: int = 60, seed: int = 0) -> tuple[SearchScores, SearchScores]:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(items), 3)
    base = np.repeat(generator.normal(1, 0.1, items), 3)
    sides = [base + generator.normal(0, 0.02, 3 * items) for _ in range(2)]
    apart = np.full(3 * items, np.inf)
    return SearchScores(labels, apart, sides[0] + by, 0), SearchScores(labels, apart, sides[1], 0)


def test_a_shift_is_measured_and_applied_where_it_exceeds_its_error() -> None:
    shift = measure_shift(*moved(0.2))
    assert shift.value == pytest.approx(0.2, abs=0.02)
    assert (shift.applied, shift.items) == (shift.value, 60)
    assert measure_shift(*moved(-0.2)).applied == pytest.approx(-0.2, abs=0.02)
    assert Shift(0.01, 0.02, 60).applied == 0
    assert Shift(0.1, 0.02, 60).margin(0.5) == pytest.approx(0.01)
    assert Shift(-0.01, 0.02, 60).margin(0.5) == pytest.approx(0.02)  # not applied, though users' photos may be nearer
    assert Shift(0.015, 0.02, 60).margin(0.5) == Shift().margin(3) == 0
    assert measure_shift(*moved(0.2, items=19)).applied == 0  # too few items tell nothing


def test_a_shift_is_read_back_from_the_values_of_a_point() -> None:
    for shift in (Shift(0.2, 0.03, 61), Shift(-0.01, 0.02, 23), Shift()):
        point = Point(0.5, "estimated", 0.1, GALLERY, shift=shift)
        assert Point.from_dict(point.to_dict()).shift == shift


def test_only_items_on_both_sides_tell_of_a_shift() -> None:
    queries, gallery = moved(0.2)
    other = SearchScores(queries.labels + 1000, queries.own, queries.impostor - 5, 0)
    both = SearchScores(*(np.r_[getattr(queries, n), getattr(other, n)] for n in ("labels", "own", "impostor")), 0)
    assert measure_shift(both, gallery) == measure_shift(queries, gallery)


def test_each_item_counts_once_in_a_shift_however_many_photos_it_has() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(1, 0.1, 40)
    once = SearchScores(np.arange(40), np.full(40, np.inf), values, 0)
    counts = np.where(np.arange(40) < 5, 30, 1)  # five items have thirty equal photos each
    often = SearchScores(np.repeat(np.arange(40), counts), np.full(counts.sum(), np.inf), np.repeat(values, counts), 0)
    assert measure_shift(often, once).value == pytest.approx(0, abs=0.02)
    crowd = SearchScores(often.labels, often.own, often.impostor - np.where(often.labels < 5, 9, 0), 0)
    middles = (np.arange(40) + 0.5) / 40
    ordered = np.sort(values), np.sort(values - np.where(np.arange(40) < 5, 9, 0))
    low, lower = (np.interp(np.linspace(0.02, 0.25, 24), middles, side).mean() for side in ordered)
    assert measure_shift(crowd, once).value == pytest.approx(lower - low, abs=0.35)
    assert Shift() == Shift(0.0, 0.0, 0)


def simple_quantiles(groups: list[np.ndarray]) -> np.ndarray:
    values = np.concatenate(groups)
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in groups]) / len(groups)
    order = np.argsort(values)
    return np.interp(QUANTILES, np.cumsum(weights[order]) - weights[order] / 2, values[order])


def simple_shift(sides: list[list[np.ndarray]], chosen: list[int]) -> float:
    first, second = (simple_quantiles([side[item] for item in chosen]) for side in sides)
    return float((first - second).mean())


@pytest.mark.parametrize(("items", "photos"), [(20, 20), (25, 60), (40, 200)])
def test_value_and_error_equal_those_of_a_bootstrap_that_copies_items(items: int, photos: int) -> None:
    generator = np.random.default_rng(photos)
    scores = []
    for _ in range(2):
        labels = np.r_[np.arange(items), generator.integers(0, items, photos - items)]
        apart = np.full(photos, np.inf)
        scores.append(SearchScores(labels.astype(str), apart, generator.random(photos), 0))
    names = np.unique(scores[0].labels)
    sides = [[side.impostor[side.labels == name] for name in names] for side in scores]
    generator = np.random.default_rng(7)
    values = [simple_shift(sides, generator.integers(0, items, items).tolist()) for _ in range(RESAMPLES)]
    shift = measure_shift(*scores, seed=7)
    assert shift.value == pytest.approx(simple_shift(sides, list(range(items))), abs=1e-12)
    assert shift.error == pytest.approx(float(np.std(values)), abs=1e-12)
