"""By the nearest photo, items and distances are those of commit 3dbb358.

`RETRIEVAL_GOLDEN` names the folder with its bundles and tables. Thresholds follow another rule since then.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .asking import NAMES, ask_everything
from .carry import carry, tighten

ANSWERS = Path(__file__).parent / "answers"
PARTS = ("first", "synchronized", "tightened", "anew", "killed")


@pytest.fixture
def golden() -> Path:
    """Return the folder with the old bundles and tables, or skip."""
    folder = os.environ.get("RETRIEVAL_GOLDEN")
    if folder is None:
        pytest.skip("RETRIEVAL_GOLDEN names no folder with old bundles (record.py writes one)")
    return Path(folder)


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", NAMES)
def test_answers_equal_those_of_the_old_code(name: str, golden: Path, tmp_path: Path) -> None:
    expected = json.loads((ANSWERS / f"{name}.json").read_text())
    bundle = carry(golden / name / "bundle", tmp_path / "bundle").path
    told = ask_everything(bundle, golden / name, tmp_path / "work", tighten=tighten)
    differences = [] if told["bundle_threshold"] == expected["bundle_threshold"] else ["the bundle's threshold"]
    for part in PARTS:
        pairs = zip(told[part]["answers"], expected[part]["answers"], strict=True)
        differences += [f"{part}: {mine} instead of {theirs}" for mine, theirs in pairs if mine[:3] != theirs[:3]]
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:40])
