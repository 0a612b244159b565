"""Fusion: inliers only lower a distance, and more inliers lower it more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InvalidParameter
from retrieval.verification.fusion import Fusion, lowered

fusions = st.builds(Fusion, strength=st.floats(0, 100), scale=st.floats(1e-3, 1e6), least=st.integers(1, 1000))


@given(fusions, st.floats(0, 10), st.integers(0, 4096))
def test_a_distance_never_grows(fusion: Fusion, distance: float, inliers: int) -> None:
    fused, more = fusion.fused([distance, distance], [inliers, inliers + 1])
    assert 0 <= more <= fused <= distance
    assert inliers >= fusion.least or fused == distance


@given(fusions, st.integers(0, 300))
def test_the_order_of_distances_stays_for_equal_inliers(fusion: Fusion, inliers: int) -> None:
    distances = np.linspace(0, 2, 50)
    assert (np.diff(fusion.fused(distances, np.full(50, inliers))) >= 0).all()


def test_by_hand() -> None:
    fusion = Fusion(strength=2, scale=10, least=6)
    fused = fusion.fused(np.full(4, 1.2), np.array([0, 5, 6, 15]))
    assert fused == pytest.approx([1.2, 1.2, 1.2 / 1.1**2, 1.2 / 4])
    assert fusion.fused(0.0, 300) == 0
    assert Fusion(strength=0).fused(1.3, 300) == 1.3


def test_evidence_serves_every_strength() -> None:
    inliers, distances = np.arange(0, 300, 7).reshape(1, -1), np.linspace(0.1, 1.5, 5)[:, None]
    for strength in (0, 0.5, 4):
        fusion = Fusion(strength=strength)
        expected = fusion.fused(distances, inliers)
        assert np.array_equal(lowered(distances, fusion.evidence(inliers), strength), expected)
        assert expected.shape == (5, 43)


def test_settings_survive_as_plain_values_and_are_checked() -> None:
    fusion = Fusion(0.7, 20.0, 8)
    assert Fusion.from_dict(fusion.to_dict()) == fusion
    for wrong in ({"strength": -1.0}, {"strength": float("nan")}, {"scale": 0.0}, {"least": 0}):
        with pytest.raises(InvalidParameter, match=next(iter(wrong))):
            Fusion.from_dict(fusion.to_dict() | wrong)
