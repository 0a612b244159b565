from __future__ import annotations

import pytest

from index.ann import recall


@pytest.fixture
def few_own_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rebuild measure what its index loses with few photos: for tests that are not about that."""
    monkeypatch.setattr(recall, "OWN_QUERIES", 20)
