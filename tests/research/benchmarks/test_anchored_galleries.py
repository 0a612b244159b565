"""The galleries of the anchoring benchmark: who is known, who is unknown, and what sets the threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research.benchmarks import anchored_galleries as galleries
from research.benchmarks.anchored_models import Model, quarter_of_families
from research.benchmarks.anchoring import Data
from research.benchmarks.rotations import rotated
from retrieval.catalogue.read import Photo
from training.data.splits import Splits

FAMILIES, SIBLINGS, PHOTOS = 32, 4, 4


def model_of() -> Model:
    """Return a model of 128 items in 32 families, with half of each item's photos for the gallery."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(FAMILIES, 1, 1, 16))
    items = centres + 0.6 * generator.normal(size=(FAMILIES, SIBLINGS, 1, 16))
    vectors = items + 0.3 * generator.normal(size=(FAMILIES, SIBLINGS, PHOTOS, 16))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    names = [f"{family:02}-{item}" for family in range(FAMILIES) for item in range(SIBLINGS)]
    data = Data(
        "model",
        vectors.reshape(-1, 16).astype(np.float32),
        np.repeat(names, PHOTOS),
        np.tile(np.arange(PHOTOS) < PHOTOS // 2, len(names)),
    )
    kept_out = names[: FAMILIES * SIBLINGS // 2 : SIBLINGS]
    fit, rest = [name for name in names[:64] if name not in kept_out], names[64:]
    splits = Splits(tuple(fit[8:]), tuple(fit[:8]), tuple(rest[:32]), tuple(rest[32:]))
    return Model(data, {name: name[:2] for name in names}, splits, kept_out)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the arguments of every search."""
    calls: list[dict[str, Any]] = []
    search = galleries.searches

    def recorded(model: Model, gallery: Any, unknown: Any, draws: Any, **options: Any) -> Any:
        calls.append({"gallery": set(gallery), "unknown": {*unknown, *options.get("others", ())}, "draws": draws})
        return search(model, gallery, unknown, draws, **options)

    monkeypatch.setattr(galleries, "searches", recorded)
    return calls


def test_no_unknown_item_is_known_fitted_validated_or_drawn(asked: list[dict[str, Any]]) -> None:
    model = model_of()
    for searches in (
        galleries.untrained(model, 2),
        galleries.trained(model),
        galleries.mixed(model, 2),
        galleries.untrained_sources(model, 2),
        galleries.trained_sources(model, 2),
        galleries.against_true_items(model, 1),
    ):
        assert list(searches)
    assert len(asked) == 2 + 1 + 2 + 2 * 3 + 2 * 3 + 3
    for call in asked:
        drawn = {item for source in call["draws"].sources.values() for item in source.items.tolist()}
        assert not call["unknown"] & {*call["gallery"], *model.trained, *drawn}


def test_fitted_items_are_not_drawn_but_for_comparison(asked: list[dict[str, Any]]) -> None:
    model = model_of()
    assert list(galleries.mixed(model, 1))
    assert list(galleries.trained_sources(model, 1))
    own = [call["draws"].sources["own"].items.tolist() for call in asked if "own" in call["draws"].sources]
    assert [set(items) & set(model.splits.fit) for items in own] == [set(), set(), set(model.splits.fit)]


def test_siblings_are_reported_apart() -> None:
    model = model_of()
    (at_5, at_10), *more = galleries.trained(model)
    assert not more
    assert set(at_5.siblings) == set(at_5.rates) == set(model.kept_out)
    assert set(at_5.strangers) == set(model.splits.test)
    assert at_5.fpir == pytest.approx(np.mean(list(at_5.siblings.values())))
    assert at_5.fpir <= at_10.fpir
    assert np.mean(list(at_10.siblings.values())) > np.mean(list(at_10.strangers.values()))


def test_a_quarter_of_each_training_family_is_kept_out() -> None:
    sizes = {"a": 1, "b": 4, "c": 10, "d": 5, "e": 2}  # b and d train in rotation 0; a, c and e do not
    photos = [
        Photo(f"{family}{item}-{n}", Path(), f"{family}{item}", group=family)
        for family, size in sizes.items()
        for item in range(size)
        for n in range(2)
    ]
    chosen = quarter_of_families(rotated(photos, 0), seed=[0])
    assert [item[0] for item in chosen] == ["b", "d"]
    other = quarter_of_families(rotated(photos, 1), seed=[0])
    assert [item[0] for item in other] == ["c"] * 3 + ["e"]
