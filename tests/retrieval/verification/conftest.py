"""A verifier fitted to drawn pictures."""

from __future__ import annotations

import pytest

from retrieval.verification.detector import DetectorSettings, detect
from retrieval.verification.fusion import Fusion
from retrieval.verification.verifier import GeometricVerifier

from .pictures import picture


@pytest.fixture(scope="session")
def verifier() -> GeometricVerifier:
    photos = [detect(picture(seed), DetectorSettings()) for seed in range(100, 106)]
    return GeometricVerifier.fit(photos, words=64, fusion=Fusion(strength=1.0))
