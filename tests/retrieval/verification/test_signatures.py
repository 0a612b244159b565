"""Signatures of key points, computed by hand; more bits differ for descriptors that differ more."""

from __future__ import annotations

import numpy as np
import pytest

from index.search.details import BITS
from retrieval.verification.settings import VerifierSettings
from retrieval.verification.vocabulary import projected, signatures_of

generator = np.random.default_rng(0)


def test_projections_by_hand() -> None:
    descriptors = np.zeros((2, 128), np.uint8)
    descriptors[0, 1], descriptors[1, 3] = 7, 9
    found = projected(descriptors)
    assert found[0, :4].tolist() == [-7, 7, -7, 7]  # the functions 1, 2, 3 and 4 at 1
    assert found[1, :4].tolist() == [-9, -9, 9, 9]
    gram = projected(np.eye(128, dtype=np.uint8))
    assert np.array_equal(gram.T @ gram, 128 * np.eye(BITS))


def test_a_bit_says_whether_a_number_is_greater_than_that_of_the_centre() -> None:
    centres = np.zeros((1, 2, BITS), np.float32)
    centres[0, 1, 8:] = 5
    projections = np.full((1, BITS), 3, np.float32)
    assert signatures_of(projections, centres).tolist() == [[2**BITS - 1, 2**8 - 1]]
    assert signatures_of(projections[:0], centres[:0]).shape == (0, 2)


def test_near_descriptors_have_similar_signatures() -> None:
    centre = generator.integers(20, 100, (1, 128), dtype=np.uint8)
    some = (centre + generator.integers(-20, 21, (200, 128))).astype(np.uint8)
    near = (some + generator.integers(-4, 5, (200, 128))).astype(np.uint8)
    centres = np.repeat(projected(centre)[None], 200, axis=0)
    first, second = (signatures_of(projected(each), centres)[:, 0] for each in (some, near))
    assert np.bitwise_count(first ^ second).mean() < 8
    assert 28 < np.bitwise_count(first ^ np.roll(second, 1)).mean() < 36


def test_agreement_falls_to_zero() -> None:
    factors = VerifierSettings(bits=12, bit_scale=6.0).agreement()
    assert factors.shape == (BITS + 1,)
    assert factors[[0, 6, 12]] == pytest.approx([1, np.exp(-1), np.exp(-4)])
    assert not factors[13:].any()
