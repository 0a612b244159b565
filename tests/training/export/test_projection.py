"""Projections fitted to the features of a pretrained backbone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from training.export import projection as fitting
from training.export.projection import LEAST_ITEMS, choose_projection
from training.model import ProjectionLayer

WIDTH = 24


def world(items: int, *, nuisance: float, photos: int = 4, seed: int = 0) -> tuple[list[Photo], np.ndarray]:
    """Return photos and features: items differ in all directions, their photos most in the first six."""
    generator = np.random.default_rng(seed)
    spread = np.where(np.arange(WIDTH) < 6, nuisance, 0.4)
    centres = generator.normal(size=(items, WIDTH))
    codes = np.repeat(np.arange(items), photos)
    features = centres[codes] + generator.normal(size=(len(codes), WIDTH)) * spread
    return [_photo(number, f"item-{code}") for number, code in enumerate(codes)], 3 + features


def _photo(number: int, item: str, group: str = "") -> Photo:
    return Photo(f"photo-{number}", Path(f"{number}.jpg"), item, group=group)


def recall_at_1(vectors: np.ndarray, photos: list[Photo]) -> float:
    items = np.array([photo.item_id for photo in photos])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -2)
    return float((items[similar.argmax(axis=1)] == items).mean())


def test_a_projection_finds_more_of_the_items_that_it_was_not_fitted_on() -> None:
    photos, features = world(60, nuisance=3.0)
    choice = choose_projection(photos, features)
    assert choice.projection is not None
    others, unseen = world(60, nuisance=3.0, seed=1)
    before, after = recall_at_1(unseen - features.mean(axis=0), others), recall_at_1(choice.projection(unseen), others)
    assert after > before + 0.1


def test_nothing_is_fitted_where_it_gains_nothing() -> None:
    choice = choose_projection(*world(60, nuisance=0.4))
    assert choice.projection is None
    assert "which may be chance" in choice.reason


def test_nothing_is_fitted_on_few_items_or_single_photos() -> None:
    few = choose_projection(*world(LEAST_ITEMS - 1, nuisance=3.0))
    single = choose_projection(*world(200, nuisance=3.0, photos=1))
    assert few.projection is None
    assert single.projection is None
    assert f"{LEAST_ITEMS - 1} items" in few.reason
    assert "0 items with several photos" in single.reason


def test_folds_keep_groups_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    photos, features = world(40, nuisance=3.0)
    grouped = [_photo(n, p.item_id, f"family-{int(p.item_id[5:]) // 4}") for n, p in enumerate(photos)]
    folds: list[Sequence[str]] = []
    measure = fitting._cross_validated

    def spied(features: np.ndarray, items: np.ndarray, held: Sequence[Sequence[str]]) -> object:
        folds.extend(held)
        return measure(features, items, held)

    monkeypatch.setattr(fitting, "_cross_validated", spied)
    choose_projection(grouped, features)
    families = [{int(item[5:]) // 4 for item in fold} for fold in folds]
    assert sum(map(len, families)) == 10
    assert len(set.union(*families)) == 10


def test_too_few_groups_are_a_reason_and_no_error() -> None:
    photos, features = world(40, nuisance=3.0)
    grouped = [_photo(n, p.item_id, "one family") for n, p in enumerate(photos)]
    choice = choose_projection(grouped, features)
    assert choice.projection is None
    assert "group" in choice.reason


def test_the_layer_computes_what_the_projection_computes() -> None:
    photos, features = world(60, nuisance=3.0)
    features = np.sign(features) * features**2  # so that a power of 0.5 helps
    projection = choose_projection(photos, features).projection
    assert projection is not None
    signed = np.concatenate([features[:20], -features[20:40]])
    layer = ProjectionLayer(projection)(torch.from_numpy(signed.astype(np.float32))).numpy()
    np.testing.assert_allclose(layer, projection(signed), rtol=1e-3, atol=1e-3)


def test_features_must_belong_to_the_photos() -> None:
    photos, features = world(30, nuisance=1.0)
    with pytest.raises(InvalidParameter, match="features"):
        choose_projection(photos, features[1:])
