"""Blocks of distances to photos and items, against a loop and numbers that a reader can check."""

from __future__ import annotations

import numpy as np
import pytest

from index.search.distance import Floats
from retrieval.metrics import item_distances
from retrieval.metrics.item_distances import ItemDistances

PHOTOS = np.array([[1, 0], [0, 1], [-1, 0], [0.6, 0.8], [0.8, 0.6]], np.float32)
ITEMS = ["b", "a", "c", "a", "b"]
IDS = ["p0", "p1", "p2", "p3", "p4"]
DENSITIES = np.array([0.0, 10.0, 20.0, 30.0, 40.0])


class Sum:
    """A distance form that adds up all that it is given."""

    key = "sum"

    def densities(self, vectors: np.ndarray) -> Floats:
        return np.zeros(len(vectors))

    def transform(self, squared: Floats, query: Floats, photo: Floats) -> Floats:
        return squared + 100 * query + photo


def gallery(*, ids: list[str] | None = None) -> ItemDistances:
    return ItemDistances(PHOTOS, ITEMS, densities=DENSITIES, ids=ids, distance_form=Sum())


def test_photos_are_sorted_by_item_and_keep_their_order_within_it() -> None:
    side = gallery(ids=IDS)
    assert side.items.tolist() == ["a", "b", "c"]
    assert side.order.tolist() == [1, 3, 0, 4, 2]
    assert side.ids.tolist() == ["p1", "p3", "p0", "p4", "p2"]
    assert side.densities.tolist() == [10, 30, 0, 40, 20]
    assert [side.order[side.photos(item)].tolist() for item in range(3)] == [[1, 3], [0, 4], [2]]


def test_distances_by_hand() -> None:
    (block,) = gallery().blocks(PHOTOS[:1], ["b"], densities=np.array([2.0]))
    assert block.squared[0].tolist() == pytest.approx([2, 0.8, 0, 0.4, 4], abs=1e-6)  # 2 - 2 cos
    assert block.own.tolist() == [[False, False, True, True, False]]
    distances = gallery().distances(block.squared, block.densities)
    assert distances[0].tolist() == pytest.approx([212, 230.8, 200, 240.4, 224], abs=1e-5)


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (9, 1), (10, 2), (10**6, 4)])
def test_blocks_hold_as_many_queries_as_fit_into_memory(size: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_distances, "BLOCK", size)
    queries, labels, densities = PHOTOS[:4], ["b", "a", "c", "none"], np.arange(4.0)
    blocks = list(gallery().blocks(queries, labels, densities=densities))
    assert [len(block.squared) for block in blocks] == [rows] * (4 // rows)
    assert [number for block in blocks for number in np.arange(4)[block.rows]] == [0, 1, 2, 3]
    for block in blocks:
        np.testing.assert_array_equal(block.queries, queries[block.rows])
        np.testing.assert_array_equal(block.densities, densities[block.rows])
    cosines = queries.astype(float) @ PHOTOS[[1, 3, 0, 4, 2]].T
    np.testing.assert_allclose(np.concatenate([block.squared for block in blocks]), 2 - 2 * cosines, atol=1e-6)
    own = [[label == item for item in "aabbc"] for label in labels]
    np.testing.assert_array_equal(np.concatenate([block.own for block in blocks]), own)


def test_a_photo_is_not_compared_with_itself_and_no_distance_is_negative() -> None:
    lengthened = PHOTOS * np.float32(1.0001)  # rounding may do as much
    (block,) = gallery(ids=IDS).blocks(lengthened, ITEMS, densities=DENSITIES, ids=IDS)
    assert np.argwhere(np.isinf(block.squared)).tolist() == [[0, 2], [1, 0], [2, 4], [3, 1], [4, 3]]
    for side, ids in ((gallery(), IDS), (gallery(ids=IDS), None)):  # without the ids of both, nothing is left out
        (block,) = side.blocks(lengthened, ITEMS, densities=DENSITIES, ids=ids)
        assert (block.squared.min(axis=1) == 0).all()
        assert np.isfinite(block.squared).all()
