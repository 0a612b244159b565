"""A few rounds of the benchmark: a killed synchronization, run again, ends in the same gallery."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from research.benchmarks.sync_catalogue import KINDS, NEW
from research.benchmarks.sync_kills import prepare

KILLS = 3


@pytest.mark.slow
def test_a_killed_synchronization_run_again_ends_in_the_same_gallery(tmp_path: Path) -> None:
    rounds = prepare(tmp_path / "work", 400)
    assert set(KINDS) < set(rounds.changes)
    expected = {"add": rounds.changes[NEW] + 20, "replace": 40, "update": 80, "remove": 40}
    assert rounds.whole.changes == expected  # 20 photos of each kind; a new photo_id is an addition and a removal
    found = rounds.run(KILLS, np.random.default_rng(1))
    assert found.kills == KILLS
    assert len(rounds.whole.draws) == len(rounds.whole.rows)
    assert rounds.whole.point is not None
    assert not found.different
    assert (found.problems, found.again, found.unnamed) == (0, 0, 0)
