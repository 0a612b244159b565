"""The gain of a head, on made features."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.catalogue.read import Photo
from training.export import head_gain
from training.export.head_gain import HeadGain, measure_head
from training.export.projection import ProjectionChoice, choose_projection

WIDTH = 128
PLAIN = ProjectionChoice(None, "")


def world(*, nuisance: float, items: int = 40, photos: int = 12) -> tuple[list[Photo], np.ndarray]:
    """Return photos and features: items differ in 16 directions, and their photos most in three others."""
    generator = np.random.default_rng(0)
    codes = np.repeat(np.arange(items), photos)
    centres = generator.normal(size=(items, WIDTH)) * (np.arange(WIDTH) < 16)
    spread = np.where(np.arange(WIDTH) < WIDTH - 3, 0.05, nuisance)
    features = 5 * (centres[codes] + generator.normal(size=(len(codes), WIDTH)) * spread)
    listed = [Photo(f"{number}", Path(f"{number}.jpg"), f"item-{code}") for number, code in enumerate(codes)]
    return listed, features.astype(np.float32)


@cache
def gain_where_photos_differ() -> HeadGain | None:
    return measure_head(*world(nuisance=6.0), PLAIN)


@pytest.mark.slow
def test_a_head_helps_where_photos_differ_more_than_items() -> None:
    gain = gain_where_photos_differ()
    assert gain is not None
    assert gain.items == 40
    assert gain.helps
    assert gain.trained > gain.without + 0.1
    assert str(gain.to_dict()["told"]).startswith("Training a head on this model may help: in a cross-validation on 40")


@pytest.mark.slow
def test_a_head_cannot_help_where_the_features_find_everything() -> None:
    gain = measure_head(*world(nuisance=0.0), PLAIN)
    assert gain is not None
    assert gain.without == 1
    assert not gain.helps
    assert "is not expected to help" in str(gain.to_dict()["told"])


@pytest.mark.slow
def test_a_head_is_compared_with_the_projection_that_was_chosen() -> None:
    photos, features = world(nuisance=6.0)
    choice = choose_projection(photos, features)
    assert choice.projection is not None
    plain, projected = gain_where_photos_differ(), measure_head(photos, features, choice)
    assert plain is not None
    assert projected is not None
    assert projected.without > plain.without + 0.1
    assert projected.trained == plain.trained


def test_a_gain_within_its_error_is_none() -> None:
    gain = HeadGain(items=40, without=0.45, trained=0.52, error=0.03)
    assert gain.helps
    assert not replace(gain, error=0.08).helps
    assert gain.to_dict()["told"] == (
        "Training a head on this model may help: in a cross-validation on 40 items, 52% of the photos of items that it "
        "was not trained on find their item first, 45% without it (standard error of the difference 3.0 points)."
    )


def test_nothing_is_measured_on_single_photos_or_few_groups() -> None:
    photos, features = world(nuisance=6.0)
    assert measure_head(photos[::12], features[::12], PLAIN) is None
    assert measure_head([replace(photo, group="one") for photo in photos], features, PLAIN) is None


def test_a_measurement_repeats_and_leaves_the_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_gain, "FOLDS", 2)  # each trains a head
    plan = head_gain.schedule
    monkeypatch.setattr(head_gain, "schedule", lambda *some, **counts: replace(plan(*some, **counts), epochs=2))
    photos, features = world(nuisance=6.0, items=20, photos=4)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = measure_head(photos, features, PLAIN)
    assert torch.equal(torch.rand(1), expected)
    assert first == measure_head(photos, features, PLAIN)
