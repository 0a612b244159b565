"""A verifier fitted to drawn pictures."""

from __future__ import annotations

import pytest

from retrieval.verification.detector import detect
from retrieval.verification.settings import VerifierSettings
from retrieval.verification.verifier import GeometricVerifier

from .pictures import picture


@pytest.fixture(scope="session")
def verifier() -> GeometricVerifier:
    photos = [detect(picture(seed), VerifierSettings()) for seed in range(100, 106)]
    return GeometricVerifier.fit(photos, VerifierSettings(), words=64)
