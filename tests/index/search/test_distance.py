from __future__ import annotations

import math

import numpy as np
import pytest

from index.search.distance import accepts, exact_unit, plain_distance, squared_from

from ..vectors import unit

HALF = np.array([[0.5, 0.5, 0.5, 0.5]])  # differs from the first axis by (-.5, .5, .5, .5): exactly 1 away
AXES = np.eye(4)


def test_distance_is_the_papers() -> None:
    a, b = unit(50, 1), unit(50, 2)
    cosines = (a.astype(np.float64) * b).sum(axis=1)
    assert np.allclose(plain_distance(a, b), np.sqrt(2 - 2 * cosines), atol=1e-6)


def test_numbers_a_reader_can_check() -> None:
    assert plain_distance(AXES[:1], HALF)[0] == 1.0
    assert plain_distance(AXES[:1], AXES[1:2])[0] == np.sqrt(2)
    assert plain_distance(AXES[:1], -AXES[:1])[0] == 2.0
    assert plain_distance(3 * AXES[:1], 5 * HALF)[0] == 1.0  # rows are scaled first


def test_identical_rows_are_exactly_zero_and_none_exceeds_two() -> None:
    a = unit(500, 1, dim=129)
    assert (plain_distance(a, a) == 0).all()
    assert (plain_distance(a, -a) <= 2).all()


@pytest.mark.parametrize("dim", [1, 7, 128, 513])
def test_batch_size_cannot_matter(dim: int) -> None:
    a, b = unit(64, 1, dim), unit(64, 2, dim)
    whole = plain_distance(a, b)
    for size in (1, 8):
        parts = [plain_distance(a[i : i + size], b[i : i + size]) for i in range(0, 64, size)]
        assert (np.concatenate(parts) == whole).all()
    assert (plain_distance(a[:1], b) == [plain_distance(a[0], row) for row in b]).all()  # broadcast
    assert (plain_distance(np.asfortranarray(a), b) == whole).all()


def test_exactly_at_the_threshold_is_a_match() -> None:
    distance = plain_distance(AXES[:1], HALF)
    assert accepts(distance, 1.0).tolist() == [True]
    assert accepts(distance, np.nextafter(1.0, 0)).tolist() == [False]
    assert accepts([0.0, 1.0, 2.0], 1.0).tolist() == [True, True, False]


def test_nan_is_never_a_match() -> None:
    assert not accepts(np.nan, 2.0)
    assert not accepts(0.0, np.nan)


def test_rows_in_half_the_precision_are_measured_in_full() -> None:
    """A difference of one millionth between two float32 rows, to fifteen digits."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 64)).astype(np.float32)
    others = (rows + 1e-6 * generator.normal(size=rows.shape)).astype(np.float32)
    for row, other in zip(rows, others, strict=True):
        a, b = ([float(value) for value in values] for values in (row, other))
        length_a, length_b = (math.sqrt(math.fsum(value * value for value in values)) for values in (a, b))
        squares = ((x / length_a - y / length_b) ** 2 for x, y in zip(a, b, strict=True))
        assert plain_distance(row, other) == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-9)
    assert plain_distance([[3, 4]], [[4, 3]])[0] == pytest.approx(math.sqrt(2 - 2 * 24 / 25))  # whole numbers, too


def test_a_threshold_is_not_rounded_to_the_precision_of_a_distance() -> None:
    """0.1 as float32 is a little more than 0.1."""
    assert accepts(np.array([0.1], dtype=np.float32), 0.1).tolist() == [False]
    assert accepts(np.array([0.1], dtype=np.float32), float(np.float32(0.1))).tolist() == [True]


def test_opposite_rows_are_two_apart_and_never_more() -> None:
    rows = unit(2000, 3, dim=7)
    assert squared_from(exact_unit(rows), -rows).max() == 4.0
    assert squared_from(exact_unit(rows), -rows).min() > 4 - 1e-14
