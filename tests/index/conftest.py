from __future__ import annotations

import logging
from pathlib import Path

import pytest

from index.ann import recall


@pytest.fixture
def few_own_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rebuild measure what its index loses with few photos: for tests that are not about that."""
    monkeypatch.setattr(recall, "OWN_QUERIES", 20)


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return the address of a gallery on Milvus Lite that does not exist yet."""
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return f"milvus+{tmp_path}/lite.db/shop"
