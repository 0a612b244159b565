"""Whole runs of two processes, launched by accelerate: the same result, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.loop.run import Run
from training.loop.train import train

from ..conftest import tiny_settings
from .distributed_world import launched

pytestmark = pytest.mark.slow
STATIC = {"backbone": "efficientnet-lite0", "head_start": "random"}  # statistics of batch-norm do not change
QUICK = {"epochs": 3, "epoch_steps": 3, **STATIC}


def losses(run: Run) -> list[float]:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["epoch"]]


def train_command(catalogue: Path, output: Path, **changes: object) -> list[str]:
    settings = tiny_settings(catalogue, **QUICK | changes).to_dict()
    file = output.with_suffix(".toml")
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in plain.items()))
    return ["retrieval", "train", "--config", str(file), "-o", str(output)]


def test_a_run_of_two_processes_is_the_run_of_one(catalogue: Path, tmp_path: Path) -> None:
    """With a smooth loss and small steps: Adam and pairs on the edge of a margin enlarge the last bit of a float32."""
    slow = {"loss": "proxy_nca", "learning_rate": 1e-5, "head_learning_rate": 1e-5, "proxy_learning_rate": 1e-4}
    words = train_command(catalogue, tmp_path / "shared", **slow)
    done = launched(*words)
    assert done.returncode == 0, done.stderr
    shared = Run.open(tmp_path / "shared")
    alone = train(tiny_settings(catalogue, **QUICK | slow), tmp_path / "alone")
    assert losses(shared) == pytest.approx(losses(alone), rel=1e-4)
    assert losses(alone)[2] != pytest.approx(losses(alone)[0], rel=1e-3)  # it moves
    assert shared.progress["best_trained"]["metrics"].keys() == alone.progress["best_trained"]["metrics"].keys()
    again = launched(*words)
    assert again.returncode != 0
    assert "holds a run already" in again.stderr


def test_features_that_two_processes_compute_are_those_of_one(catalogue: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    changes = {"precompute": 2, "epochs": 1}
    done = launched(*train_command(catalogue, tmp_path / "shared", **changes))
    assert done.returncode == 0, done.stderr
    alone = train(tiny_settings(catalogue, **QUICK | changes), tmp_path / "alone")
    one, two = (load_file(path / "features.safetensors") for path in (alone.path, tmp_path / "shared"))
    assert one.keys() == two.keys() == {"fit", "searched", "before"}
    for name, value in one.items():
        assert value.allclose(two[name], atol=1e-5), name
    assert losses(Run.open(tmp_path / "shared")) == pytest.approx(losses(alone), rel=1e-3)
