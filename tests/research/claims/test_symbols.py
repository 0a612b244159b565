"""Drawn symbols: they depend on the seed only; drawings of one symbol differ but resemble each other."""

from __future__ import annotations

import numpy as np

from research.claims.symbols import SIDE, draw_symbols


def test_drawings_follow_from_the_seed_and_have_ink() -> None:
    drawn = draw_symbols(3, 2, seed=4)
    assert drawn.pixels.shape == (6, SIDE, SIDE)
    assert drawn.pixels.dtype == np.float32
    assert drawn.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert 0 <= drawn.pixels.min() < drawn.pixels.max() <= 1
    assert (drawn.pixels.sum(axis=(1, 2)) > 5).all()
    assert np.array_equal(drawn.pixels, draw_symbols(3, 2, seed=4).pixels)
    assert not np.array_equal(drawn.pixels, draw_symbols(3, 2, seed=5).pixels)


def test_drawings_of_a_symbol_differ_and_are_nearer_to_each_other_than_to_another_symbol() -> None:
    drawn = draw_symbols(12, 6, seed=1)
    flat = drawn.pixels.reshape(len(drawn.labels), -1)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    cosines, same = unit @ unit.T, drawn.labels[:, None] == drawn.labels
    np.fill_diagonal(same, False)
    assert cosines[same].max() < 0.999
    assert cosines[same].mean() > cosines[drawn.labels[:, None] != drawn.labels].mean() + 0.1
