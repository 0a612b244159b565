"""Several processes train as one would: the same losses, gradients and parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.errors import InvalidParameter
from training.loop.distributed import ProcessGroup

from .distributed_world import CASES, PROCESSES, launched, steps


def test_a_number_of_processes_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(InvalidParameter, match="WORLD_SIZE must be a whole number, got 'two'"):
        ProcessGroup.join()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    done = launched("tests.training.loop.distributed_world", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.end_to_end
@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_steps_of_one(together: Path, case: str) -> None:
    alone = steps(ProcessGroup(torch.device("cpu")), CASES[case])
    for rank in range(PROCESSES):
        with np.load(together / f"{case}-{rank}.npz", allow_pickle=False) as shared:
            assert set(shared) == set(alone)
            assert any(name.startswith("gradient model") for name in alone)
            for name, value in alone.items():
                assert np.abs(shared[name] - value).max() <= 1e-5 * max(1.0, np.abs(value).max()), name
