import sys

import numpy as np
import pytest

from retrieval.errors import MissingDependency
from training.explain import embedding_map as module
from training.explain.embedding_map import PCA, TSNE, chosen_photos, embedding_map, principal_components

from .test_explain import clouds


def test_photos_of_an_item_lie_together_and_twice_the_same() -> None:
    vectors, labels = clouds(items=4, photos=12, spread=0.1)
    made = embedding_map(vectors, np.arange(48))
    assert made.method == TSNE
    assert np.array_equal(made.points, embedding_map(vectors, np.arange(48)).points)
    assert made.points.min() >= 0
    assert made.points.max() <= 1
    assert (made.points.max(axis=0) - made.points.min(axis=0)).max() == pytest.approx(1)
    distances = np.linalg.norm(made.points[:, None] - made.points[None], axis=2)
    distances[np.diag_indices(48)] = np.inf
    assert (labels[distances.argmin(axis=1)] == labels).all()


def test_many_photos_are_drawn_by_their_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 30)
    vectors, _ = clouds()
    made = embedding_map(vectors, np.arange(60), first=np.array([3, 59, 17]))
    assert (made.method, len(made.photos), made.left_out) == (PCA, 30, 30)
    assert {3, 17, 59} <= set(made.photos.tolist())
    assert 0 < made.variance < 1
    assert (np.diff(made.photos) > 0).all()


def test_the_components_are_those_of_the_covariance() -> None:
    vectors, _ = clouds()
    points, variance = principal_components(vectors.astype(np.float64))
    values = np.linalg.eigvalsh(np.cov(vectors.astype(np.float64).T, bias=True))[::-1]
    assert points.var(axis=0) == pytest.approx(values[:2])
    assert variance == pytest.approx(values[:2].sum() / values.sum())


def test_what_comes_first_stays_and_the_rest_is_drawn_by_the_seed() -> None:
    photos = np.arange(100)
    one, again, other = (chosen_photos(photos, np.arange(90, 100), most=20, seed=seed) for seed in (0, 0, 1))
    assert set(range(90, 100)) <= set(one.tolist())
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(chosen_photos(photos, photos, most=7, seed=0)) == 7


@pytest.mark.parametrize("vectors", [np.eye(1, 4), np.eye(2, 4), np.ones((20, 4)) / 2])
def test_one_photo_or_all_the_same_is_a_map(vectors: np.ndarray) -> None:
    made = embedding_map(vectors.astype(np.float32), np.arange(len(vectors)))
    assert made.method == PCA
    assert np.isfinite(made.points).all()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependency, match=r"scikit-learn is not installed.*\.\[train\]"):
        embedding_map(clouds()[0], np.arange(60))
