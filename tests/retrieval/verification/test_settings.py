"""Settings are checked; in the fusion, inliers only lower a distance, and more inliers lower it more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InvalidParameter
from retrieval.verification.settings import LIMITS, VerifierSettings

fusions = st.builds(
    VerifierSettings, strength=st.floats(0, 100), scale=st.floats(1e-3, 1e6), least=st.integers(1, 1000)
)


@given(fusions, st.floats(0, 10), st.integers(0, 4096))
def test_a_distance_never_grows(fusion: VerifierSettings, distance: float, inliers: int) -> None:
    fused, more = fusion.fused([distance, distance], [inliers, inliers + 1])
    assert 0 <= more <= fused <= distance
    assert inliers >= fusion.least or fused == distance


@given(fusions, st.integers(0, 300))
def test_the_order_of_distances_stays_for_equal_inliers(fusion: VerifierSettings, inliers: int) -> None:
    distances = np.linspace(0, 2, 50)
    assert (np.diff(fusion.fused(distances, np.full(50, inliers))) >= 0).all()


def test_by_hand() -> None:
    fusion = VerifierSettings(strength=2, scale=10, least=6)
    fused = fusion.fused(np.full(4, 1.2), np.array([0, 5, 6, 15]))
    assert fused == pytest.approx([1.2, 1.2, 1.2 / 1.1**2, 1.2 / 4])
    assert fusion.fused(0.0, 300) == 0
    assert VerifierSettings(strength=0).fused(1.3, 300) == 1.3


def test_settings_survive_as_plain_values_and_are_checked() -> None:
    settings = VerifierSettings(points=10, enlargement=1.5, ratio=0.7, bits=12, voted=7, strength=0.7, least=8)
    assert VerifierSettings.from_dict(settings.to_dict()) == settings
    assert set(LIMITS) == set(settings.to_dict())
    for name, (least, most) in LIMITS.items():
        for wrong in (least - 1, most + 1):
            with pytest.raises(InvalidParameter, match=name):
                settings.changed(**{name: wrong})
