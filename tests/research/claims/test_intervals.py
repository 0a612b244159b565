"""Intervals resample classes and seeds together for both sides, and decide the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from research.claims.intervals import NO, OPEN, YES, Draws, Effect, effect, first_reached, relative_effect, verdict
from research.claims.measures import opis_of


def test_the_first_replicate_is_the_estimate() -> None:
    values = np.random.default_rng(0).random((3, 7))
    draws = Draws.make(classes=7, seeds=3, replicates=50)
    assert draws.classes.sum(axis=1) == pytest.approx(1)
    assert draws.seeds.sum(axis=1) == pytest.approx(1)
    assert effect(draws.mean(values)).value == pytest.approx(values.mean())


def test_a_constant_difference_has_no_width_although_classes_differ() -> None:
    values = np.random.default_rng(1).random((5, 20))
    draws = Draws.make(classes=20, seeds=5)
    alone, paired = effect(draws.mean(values)), effect(draws.mean(values + 0.1) - draws.mean(values))
    assert alone.high - alone.low > 0.1
    assert (paired.low, paired.high) == (pytest.approx(0.1), pytest.approx(0.1))


def test_log_opis_is_that_of_the_measure() -> None:
    utility = np.random.default_rng(3).random((2, 9, 5))
    draws = Draws.make(classes=9, seeds=2, replicates=10)
    expected = np.mean([np.log(opis_of(one)) for one in utility])
    assert draws.log_opis(utility)[0] == pytest.approx(expected)
    halved = draws.log_opis(utility / 2) - draws.log_opis(utility)
    change = relative_effect(halved)
    assert (change.low, change.high) == (pytest.approx(-0.75), pytest.approx(-0.75))


def test_a_goal_is_reached_between_checkpoints_or_at_the_end() -> None:
    curves = np.array([[0.0, 0.2, 0.6, 0.5], [0.0, 0.2, 0.3, 0.3], [0.0, 0.8, 0.9, 1.0], [0.5, 0.5, 0.6, 0.6]])
    reached = first_reached(curves, np.full(4, 0.4), (0.0, 0.1, 0.5, 1.0))
    assert reached == pytest.approx([0.3, 1.0, 0.05, 0.0])


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([(0.1, 0.3)], YES),
        ([(-0.3, -0.1)], NO),
        ([(-0.1, 0.3)], OPEN),
        ([(0.0, 0.3)], OPEN),  # the bound itself decides nothing
        ([(0.1, 0.3), (0.1, 0.2)], YES),
        ([(0.1, 0.3), (-0.1, 0.2)], OPEN),
        ([(0.1, 0.3), (-0.2, -0.1)], NO),  # one part that fails is enough
        ([(-0.1, 0.3), (-0.2, -0.1)], NO),
    ],
)
def test_the_verdict_follows_the_whole_intervals(intervals: list[tuple[float, float]], expected: str) -> None:
    assert verdict(*((Effect((low + high) / 2, low, high), 0.0) for low, high in intervals)) == expected
