"""Benchmark of recipes: an objective selects on one half of the items and is measured on the other."""

from __future__ import annotations

import pytest

from research.benchmarks.recipe_selection import FIGURES, agreement, gains, smoothed
from research.benchmarks.recipes import RECIPES, planned
from training.config import Settings


def curve(**values: list[float]) -> dict[str, list[float]]:
    return {
        metric: values.get(metric.replace("@", "").replace(" ", "_"), [0.0] * 4) for metric in (*FIGURES, "balanced")
    }


def test_smoothing_leaves_the_value_before_training_alone() -> None:
    assert smoothed([9.0, 1.0, 2.0, 6.0, 4.0], 3) == [9.0, 1.0, 1.5, 3.0, 4.0]
    assert smoothed([9.0, 1.0, 2.0], 1) == [9.0, 1.0, 2.0]


def test_a_gain_is_measured_on_the_half_that_did_not_select() -> None:
    one = curve(balanced=[0.0, 0.0, 1.0, 0.0], R1=[0.0, 0.0, 1.0, 0.0])
    other = curve(balanced=[0.0, 1.0, 0.0, 0.0], R1=[0.0, 0.8, 0.0, 0.0])
    found = gains("balanced", 1, [(one, other)])
    assert found["R@1"] == pytest.approx(((0.0 - 0.2) + (0.0 - 0.25)) / 2)


def test_halves_agree_if_they_rank_the_epochs_alike() -> None:
    rising, falling = curve(R1=[0.1, 0.2, 0.3, 0.4]), curve(R1=[0.4, 0.3, 0.2, 0.1])
    assert agreement("R@1", 1, [(rising, rising)]) == pytest.approx(1)
    assert agreement("R@1", 1, [(rising, falling)]) == pytest.approx(-1)


def test_every_cell_is_planned_once_with_a_recipe_that_can_be_trained() -> None:
    cells = list(planned())
    assert len(set(cells)) == len(cells)
    assert {cell.recipe for cell in cells} == set(RECIPES)
    for recipe in RECIPES.values():
        Settings.from_dict({"catalogue": "", **recipe})
