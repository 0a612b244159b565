"""Queries of several photos: their vectors, the groups that draws search with, and how galleries keep these draws."""

from __future__ import annotations

import numpy as np

from index.photo_groups import mean_vectors

from .vectors import DIM, unit


def test_the_mean_of_two_axes_lies_between_them() -> None:
    axes = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(mean_vectors(axes[None, :2]), [[0.5**0.5, 0.5**0.5, 0]], atol=1e-7)


def test_the_mean_does_not_depend_on_the_order() -> None:
    vectors = unit(5 * 200).reshape(200, 5, DIM)
    shuffled = vectors[:, [3, 0, 4, 1, 2]]
    np.testing.assert_array_equal(mean_vectors(vectors), mean_vectors(shuffled))
    np.testing.assert_allclose(np.linalg.norm(mean_vectors(vectors), axis=1), 1, atol=1e-6)


def test_one_photo_keeps_its_vector_exactly() -> None:
    np.testing.assert_array_equal(mean_vectors(unit(20)[:, None]), unit(20))


def test_vectors_that_cancel_out_give_one_of_them() -> None:
    vector = unit(1)[0]
    (mean,) = mean_vectors(np.stack([vector, -vector])[None])
    assert np.array_equal(mean, vector) or np.array_equal(mean, -vector)
