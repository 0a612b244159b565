"""Drawn symbols: they depend on the seed only; drawings of one symbol differ but resemble each other."""

from __future__ import annotations

import numpy as np
import pytest

from research.claims.symbols import POINTS, SIDE, draw_symbols, make_symbol
from retrieval.errors import InvalidParameter


def test_drawings_follow_from_the_seed_and_have_ink() -> None:
    drawn = draw_symbols(3, 2, seed=4)
    assert drawn.pixels.shape == (6, SIDE, SIDE)
    assert drawn.pixels.dtype == np.float32
    assert drawn.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert 0 <= drawn.pixels.min() < drawn.pixels.max() <= 1
    assert (drawn.pixels.sum(axis=(1, 2)) > 5).all()
    assert np.array_equal(drawn.pixels, draw_symbols(3, 2, seed=4).pixels)
    assert not np.array_equal(drawn.pixels, draw_symbols(3, 2, seed=5).pixels)


def test_more_symbols_leave_the_first_as_they_are() -> None:
    assert np.array_equal(draw_symbols(2, 2).pixels, draw_symbols(4, 2).pixels[:4])


def test_drawings_of_a_symbol_differ_and_are_nearer_to_each_other_than_to_another_symbol() -> None:
    drawn = draw_symbols(12, 6, seed=1)
    flat = drawn.pixels.reshape(len(drawn.labels), -1)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosines, same = unit @ unit.T, drawn.labels[:, None] == drawn.labels
    np.fill_diagonal(same, False)
    assert cosines[same].max() < 0.999
    assert cosines[same].mean() > cosines[drawn.labels[:, None] != drawn.labels].mean() + 0.1


def test_symbols_of_an_alphabet_share_strokes() -> None:
    shapes = [_shapes(number) for number in range(6)]
    shared = [len(shapes[0] & other) for other in shapes[1:]]
    assert max(shared) > 0
    assert not shapes[0] & _shapes(25)  # of the next alphabet


def _shapes(number: int) -> set[tuple[float, ...]]:
    """Return each stroke of a symbol by the ratios of its sides: no place, size or angle changes them."""
    found = set()
    for stroke in make_symbol(number).strokes:
        assert stroke.shape == (POINTS, 2)
        sides = np.linalg.norm(np.diff(stroke, axis=0), axis=1)
        found.add(tuple((sides / sides.sum()).round(6).tolist()))
    return found


@pytest.mark.parametrize("name", ["symbols", "drawings", "per_alphabet"])
def test_a_number_below_one_is_refused(name: str) -> None:
    numbers = {"symbols": 2, "drawings": 2, "per_alphabet": 2, name: 0}
    with pytest.raises(InvalidParameter, match=name):
        draw_symbols(numbers["symbols"], numbers["drawings"], per_alphabet=numbers["per_alphabet"])
