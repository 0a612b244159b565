"""Several processes train as one would: the same losses, gradients and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.loop.distributed import ProcessGroup, launch
from training.losses import LOSSES

from . import distributed_world as team_world

PROCESSES = 2
CASES: dict[str, Mapping[str, Any]] = {name: {"loss": name} for name in LOSSES}
CASES |= {
    "micro-batches": {"loss": "smooth_ap", "micro_batch_size": 2},
    "regularized": {"loss": "proxy_anchor", "regularizer": "tcm"},
    "projected": {"loss": "proxy_nca", "projector": 4},
    "sampled": {"loss": "mean_field_contrastive", "proxy_sample": 0.5},
    "clipped": {"loss": "contrastive", "max_grad_norm": 0.1},
    "averaged": {"loss": "proxy_nca", "ema": 0.9},
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("team")
    launch(team_world.work, (CASES, folder), processes=PROCESSES)
    return folder


@pytest.mark.end_to_end
@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_steps_of_one(together: Path, case: str) -> None:
    alone = team_world.steps(ProcessGroup(torch.device("cpu")), CASES[case])
    for rank in range(PROCESSES):
        with np.load(together / f"{case}-{rank}.npz", allow_pickle=False) as shared:
            assert set(shared) == set(alone)
            assert any(name.startswith("gradient model") for name in alone)
            for name, value in alone.items():
                print(case, name, np.abs(shared[name] - value).max() / max(1.0, np.abs(value).max()))
                assert np.abs(shared[name] - value).max() <= 1e-5 * max(1.0, np.abs(value).max()), name
