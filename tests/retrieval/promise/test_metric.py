"""Metrics: scores and plain distances are inverses, and thresholds accept what is nearer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InvalidParameter
from retrieval.promise.metric import METRICS, metric_named

from .shops import unit

VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "cosine": lambda x, y: x @ y / np.linalg.norm(x) / np.linalg.norm(y),
    "cosine_distance": lambda x, y: 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y),
    "ip": lambda x, y: x @ y,
    "negative_ip": lambda x, y: -(x @ y),
    "l2": lambda x, y: np.linalg.norm(x - y),
    "squared_l2": lambda x, y: np.linalg.norm(x - y) ** 2,
}


@pytest.mark.parametrize("name", METRICS)
def test_scores_of_a_plain_distance_are_those_that_databases_compute(name: str) -> None:
    x, y = unit(np.random.default_rng(0).normal(size=(2, 16))).astype(np.float64)
    plain = np.linalg.norm(x - y)
    assert METRICS[name].scores([plain])[0] == pytest.approx(VALUES[name](x, y), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
@given(distance=st.floats(0, 2), farther=st.floats(0, 2))
def test_distances_and_scores_are_inverses_and_keep_the_order(name: str, distance: float, farther: float) -> None:
    metric = METRICS[name]
    assert metric.distances(metric.scores([distance]))[0] == pytest.approx(distance, abs=1e-7)
    near, far = sorted((distance, farther))
    threshold = float(metric.scores(near))
    assert metric.accepts([threshold], threshold).all()
    assert metric.accepts(metric.scores([far]), threshold)[0] == (float(metric.scores(far)) == threshold)
    assert metric.accepts([threshold], float(metric.scores(far))).all()


@pytest.mark.parametrize("name", METRICS)
def test_scores_beyond_the_range_are_impossible_but_for_rounding(name: str) -> None:
    metric = METRICS[name]
    assert set(metric.range) == {float(metric.scores(0)), float(metric.scores(2))}
    least, most = metric.range
    size = most - least
    values = np.array([least - 0.009 * size, most + 0.009 * size, least - 0.02 * size, most + 0.02 * size])
    assert metric.are_possible(values).tolist() == [True, True, False, False]
    assert not metric.are_possible([np.nan, np.inf, -np.inf]).any()
    assert np.isin(metric.distances(values[:2]), [0, 2]).all() or name == "l2"  # whose distances are their own squares'


def test_signs_and_nouns_follow_from_the_direction() -> None:
    assert {name: (each.sign, each.noun) for name, each in METRICS.items()} == {
        "cosine": (">=", "score"),
        "cosine_distance": ("<=", "distance"),
        "ip": (">=", "score"),
        "negative_ip": ("<=", "distance"),
        "l2": ("<=", "distance"),
        "squared_l2": ("<=", "distance"),
    }


@pytest.mark.parametrize("name", ["Cosine", "dot", ""])
def test_another_metric_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(InvalidParameter, match=r"metric must be one of cosine, .*squared_l2, got"):
        metric_named(name)
