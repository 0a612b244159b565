"""Levels: as many draws as targets need, and p-values that follow from them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from index.search.item_distance import ItemDistance
from retrieval.measuring.fpir import DrawnDistances
from retrieval.promise import levels as levels_module
from retrieval.promise.levels import TARGETS, DrawnVectors, PValues, assumptions
from retrieval.promise.metric import METRICS

from .shops import promise_of, shop


def test_draws_grow_with_the_smallest_target_that_the_items_support(monkeypatch: pytest.MonkeyPatch) -> None:
    here = shop(71, items=120, largest=4)
    monkeypatch.setattr(levels_module, "MOST_DRAWS", 30)
    counts = [
        len(DrawnVectors.of(here.photos, ItemDistance.default(), targets=targets).own.ids)
        for targets in ((0.5,), (0.2,), (0.05,), (0.05, 0.001))
    ]
    assert counts == [40, 100, 120, 120]  # 20 / target, but at most one of each item beyond MOST_DRAWS
    monkeypatch.setattr(levels_module, "MOST_DRAWS", 200)
    assert len(DrawnVectors.of(here.photos, ItemDistance.default(), targets=TARGETS).own.ids) == 200


def test_p_values_keep_near_draws_one_by_one_and_are_never_below_one_in_the_items() -> None:
    generator = np.random.default_rng(0)
    distances, items = generator.uniform(0.4, 1.2, 5000), generator.integers(0, 900, 5000)
    drawn = DrawnDistances.of_items(distances, items)
    kept = PValues.of(drawn)
    assert len(kept.distances) < 2100
    assert (np.diff(kept.distances) >= 0).all()
    assert kept.shares[-1] == 1.0
    near = np.sort(distances)[:900]
    for distance in [0.0, 0.39, *near[::97].tolist(), 0.7, 0.9, 1.3]:
        exact = float(drawn.p_values(np.array([distance]))[0])
        assert kept.at(distance) == pytest.approx(exact, abs=1e-12 if distance <= near[-1] else 2e-3)
    assert kept.at(0.0) == 1 / (1 + drawn.items)
    assert kept.at(9.0) == 1.0


def test_limits_are_scores_of_the_metric_and_nest_by_target() -> None:
    here = shop(72, items=150, largest=3)
    for metric in METRICS.values():
        promise = promise_of(here, metric=metric.name, target_fpir=0.1)
        limits = [level.score for level in promise.levels if level.score is not None]
        assert [level.target_fpir for level in promise.levels] == [0.1, *TARGETS]
        assert len(limits) >= 2
        for laxer, stricter in pairwise(limits):
            assert metric.accepts([stricter.threshold], laxer.threshold).all()
            assert stricter.fpir <= laxer.fpir
        for limit in limits:
            assert limit.fpir <= limit.fpir_upper
            assert limit.perhaps is None or metric.accepts([limit.threshold], limit.perhaps).all()


def test_items_with_one_vector_have_thresholds_without_a_rate_of_known_items() -> None:
    promise = promise_of(shop(73, largest=1))
    assert promise.level.score is not None
    assert promise.level.score.tpir is None
    assert "-" in str(promise).splitlines()[-4].split()


def test_assumptions_say_what_was_not_measured() -> None:
    assert any("not measured" in sentence for sentence in assumptions(None))
    assert all(sentence.endswith(".") for sentence in assumptions(None))
