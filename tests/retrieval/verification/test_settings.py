"""Settings of the verification are checked, and survive as plain values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retrieval.errors import InvalidParameter
from retrieval.verification.settings import LIMITS, VerifierSettings


def test_settings_survive_as_plain_values_and_are_checked() -> None:
    settings = VerifierSettings(points=10, enlargement=1.5, ratio=0.7, bits=12, voted=7)
    assert VerifierSettings.from_dict(settings.to_dict()) == settings
    assert set(LIMITS) == set(settings.to_dict())
    for name, (least, most) in LIMITS.items():
        for wrong in (least - 1, most + 1):
            with pytest.raises(InvalidParameter, match=name):
                replace(settings, **{name: wrong})
