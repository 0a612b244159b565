"""The searches of the benchmark of several photos, by hand and against slow versions."""

from __future__ import annotations

import numpy as np
import pytest

from research.benchmarks.photo_searches import (
    TABLES,
    Searches,
    Side,
    best,
    contextual,
    groups_of,
    mean_of_two,
    of_items,
    single,
    together,
)
from research.benchmarks.photo_views import centre_crop, mirrored, unit_mean
from retrieval.metrics.reranking import contextual_scorer


def side(*, items: int = 12, photos: int = 4, queries: int = 6) -> Side:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(items, 16))

    def photos_of(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        numbers = np.repeat(np.arange(items), count)
        vectors = centres[numbers] + 0.8 * generator.normal(size=(len(numbers), 16))
        return {"photo": (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)}, numbers

    (asked, asked_items), (shown, shown_items) = photos_of(queries), photos_of(photos)
    return Side(asked, shown, asked_items, shown_items)


def test_tpir_at_the_target_by_hand() -> None:
    """Of 20 unknown searches one may match: the threshold lies just below the second smallest distance."""
    other = np.linspace(0.2, 1.15, 20)
    own = np.where(np.arange(20) < 5, 0.1, 0.9)
    assert Searches(np.arange(20), own, other).tpir() == 0.25
    own[0] = 0.22  # another item is nearer
    assert Searches(np.arange(20), own, other).tpir() == 0.2
    own[1] = 0.25  # exactly at the second smallest distance, which is not accepted
    assert Searches(np.arange(20), own, other).tpir() == pytest.approx(0.15)
    weights = np.zeros(20)
    weights[2:5] = 1
    assert Searches(np.arange(20), own, other).tpir(weights) == 1


def test_the_distances_to_items_by_hand() -> None:
    distances, items = np.array([[0.3, 0.5, 0.1, 0.9]]), np.array([1, 1, 0, 1])
    assert best(distances, items).tolist() == [[0.1, 0.3]]
    assert mean_of_two(distances, items).tolist() == [[0.1, 0.4]]
    searches = of_items(np.array([[0.1, 0.3, 0.2]]), np.array([0]))
    assert (searches.own.tolist(), searches.other.tolist()) == ([0.1], [0.2])


def test_groups_show_one_item_and_share_no_photo_within_a_division() -> None:
    items = np.repeat(np.arange(4), 7)
    groups = groups_of(items, 3)
    assert groups.shape == (5 * 4 * 2, 3)
    assert (items[groups] == items[groups[:, :1]]).all()
    assert len(np.unique(groups[:8])) == 24


def test_several_equal_photos_are_searched_as_one() -> None:
    data = side()
    rows = np.repeat(np.arange(0, 72, 6), 6)
    alike = Side({"photo": data.queries["photo"][rows]}, data.gallery, data.query_items, data.gallery_items)
    alone = single(alike)
    for rule in ("mean vector", "mean distance", "least distance"):
        searches = together(2, rule)(alike)
        assert searches.own == pytest.approx(alone.own[groups_of(alike.query_items, 2)[:, 0]], abs=1e-6)
        assert searches.tpir() == pytest.approx(alone.tpir())


def test_contextual_searches_for_unknown_items_lack_the_own_item() -> None:
    data = side()
    searches = contextual(4)(data)
    kept = data.gallery_items != 5
    scorer = contextual_scorer(data.queries["photo"], data.gallery["photo"][kept], neighbours=4)
    rows = np.flatnonzero(data.query_items == 5)
    expected = -np.asarray(scorer(slice(0, 72)))[rows].max(axis=1)
    assert searches.other[rows] == pytest.approx(expected)


def test_every_option_finds_most_of_well_separated_items() -> None:
    data = side(items=30)
    views = dict.fromkeys(("photo", "mirror", "crop 0.875", "crop 0.75"), data.queries["photo"])
    shown = dict.fromkeys(views, data.gallery["photo"])
    same = Side(views, shown, data.query_items, data.gallery_items)
    base = single(same).tpir()
    for option, score in TABLES["views"].items():
        assert score(same).tpir() == pytest.approx(base, abs=0.02), option  # all views are alike


def test_views_by_hand() -> None:
    pixels = np.random.default_rng(0).integers(256, size=(2, 8, 8, 3), dtype=np.uint8)
    np.testing.assert_array_equal(mirrored(pixels)[:, :, 0], pixels[:, :, 7])
    assert centre_crop(pixels, 0.75).shape == pixels.shape
    flat = np.full((1, 8, 8, 3), 7, np.uint8)
    np.testing.assert_array_equal(centre_crop(flat, 0.75), flat)
    np.testing.assert_allclose(unit_mean(np.array([[1.0, 0]]), np.array([[0, 1.0]])), [[0.5**0.5, 0.5**0.5]])
