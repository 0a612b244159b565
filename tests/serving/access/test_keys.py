"""API keys are compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from serving.access.keys import KeyRing, add_key


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return what is compared in constant time."""
    seen: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def noted(one: str, other: str) -> bool:
        seen.append((one, other))
        return compare(one, other)

    monkeypatch.setattr("serving.access.keys.hmac.compare_digest", noted)
    return seen


def test_a_secret_is_compared_with_every_key_in_constant_time(
    tmp_path: Path, compared: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    secrets = [add_key(file, name, "search") for name in ("a", "b", "c")]
    ring = KeyRing(file)
    hashes = [hashlib.sha256(secret.encode()).hexdigest() for secret in secrets]
    for secret, name in (*zip(secrets, "abc", strict=True), ("rk_wrong", None), ("", None)):
        compared.clear()
        found = ring.find(secret)
        assert (found.name if found else None) == name
        digest = hashlib.sha256(secret.encode()).hexdigest()
        assert compared == [(digest, known) for known in hashes]  # each, and none is left out after a hit
    monkeypatch.setattr("serving.access.keys.hmac.compare_digest", lambda *_: False)
    assert [ring.find(secret) for secret in secrets] == [None] * 3  # nothing else decides
