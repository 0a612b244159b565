"""Fixtures that every package's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder with the real photos, weights and golden values, or skip with the reason."""
    folder = Path(os.environ.get("RETRIEVAL_TEST_DATA", ROOT.parent / "shared"))
    if not (folder / "golden").is_dir():
        pytest.skip(f"RETRIEVAL_TEST_DATA: no folder {folder} with golden/, data/ and weights/")
    return folder
