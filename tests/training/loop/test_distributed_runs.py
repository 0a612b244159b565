"""Whole runs of several processes: the same result, killed at any rank and resumed, launched by accelerate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from retrieval.errors import DataError, InvalidParameter, RunError
from training.loop.run import LAST, Run
from training.loop.train import train

from ..conftest import tiny_settings

pytestmark = pytest.mark.slow
QUICK = {"epochs": 3, "epoch_steps": 3, "freeze_batch_norm": True, "devices": 2}


def weights(run: Run) -> dict[str, torch.Tensor]:
    return run.load(LAST)[0]


def losses(run: Run) -> list[float]:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["epoch"]]


@pytest.fixture(scope="module")
def shared(catalogue: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tiny_settings(catalogue, **QUICK), tmp_path_factory.mktemp("team") / "run")


def test_a_run_of_two_processes_is_the_run_of_one(catalogue: Path, tmp_path: Path) -> None:
    """With a smooth loss and small steps: Adam and pairs on the edge of a margin enlarge the last bit of a float32."""
    slow = QUICK | {"loss": "proxy_nca", "learning_rate": 1e-5, "head_learning_rate": 1e-5, "proxy_learning_rate": 1e-4}
    shared = train(tiny_settings(catalogue, **slow), tmp_path / "shared")
    alone = train(tiny_settings(catalogue, **slow | {"devices": 1}), tmp_path / "alone")
    assert losses(shared) == pytest.approx(losses(alone), rel=1e-4)
    assert losses(alone)[2] != pytest.approx(losses(alone)[0], rel=1e-3)  # it moves
    assert shared.progress["best_trained"]["metrics"].keys() == alone.progress["best_trained"]["metrics"].keys()


def train_command(catalogue: Path, output: Path, *options: str) -> list[str]:
    settings = tiny_settings(catalogue, **QUICK).to_dict()
    file = output.with_suffix(".toml")
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in plain.items()))
    return ["-m", "retrieval", "train", "--config", str(file), "-o", str(output), *options]


def processes_of(parent: int) -> list[int]:
    """Return the ids of the training processes that a run started, by rank."""
    found = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        command = Path(f"/proc/{child}/cmdline").read_bytes()
        if b"spawn_main" in command and words:
            found[int(child)] = command
    return sorted(found)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for its children in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_on_any_rank_it_says_so_and_resumes_to_the_same_end(
    rank: int, catalogue: Path, tmp_path: Path, shared: Run
) -> None:
    output = tmp_path / "run"
    started = subprocess.Popen(
        [sys.executable, *train_command(catalogue, output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while not (output / "progress.json").exists() and time.monotonic() < until:
        assert started.poll() is None, started.communicate()
        time.sleep(0.005)
    os.kill(processes_of(started.pid)[rank], signal.SIGKILL)
    _, told = started.communicate(timeout=120)
    assert started.returncode == 1
    assert "SIGKILL" in told
    assert "--resume" in told
    resumed = train(tiny_settings(catalogue), output, resume=True)
    assert resumed.progress["epoch"] == 3
    for name, value in weights(shared).items():
        assert torch.equal(value, weights(resumed)[name]), name
    assert losses(resumed) == losses(shared)


def test_accelerate_launches_it_too(catalogue: Path, tmp_path: Path, shared: Run) -> None:
    output = tmp_path / "run"
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    words = train_command(catalogue, output, "--devices", "1")[1:]
    done = subprocess.run([*launcher, "-m", *words], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert losses(Run.open(output)) == losses(shared)
    again = subprocess.run([*launcher, "-m", *words], check=False, capture_output=True, text=True, timeout=300)
    assert again.returncode != 0
    assert "holds a run already" in again.stderr


def test_what_one_process_refuses_is_refused_as_ever(catalogue: Path, tmp_path: Path) -> None:
    broken = tmp_path / "photos.csv"
    lines = catalogue.read_text().splitlines()
    (tmp_path / "broken.png").write_bytes(b"no image")
    header, *rows = [line.replace(lines[1].split(",")[0], "broken.png") for line in lines]
    absolute = [row if row.startswith("broken") else f"{catalogue.parent}/{row}" for row in rows]
    broken.write_text("\n".join([header, *absolute]) + "\n")
    with pytest.raises(DataError, match=r"broken\.png"):
        train(tiny_settings(broken, **QUICK | {"split_seed": 0, "epoch_steps": 0}), tmp_path / "run")


def test_watched_epochs_and_too_many_devices_are_refused(catalogue: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="on_epoch"):
        train(tiny_settings(catalogue, **QUICK), tmp_path / "run", on_epoch=lambda *_: None)
    with pytest.raises(InvalidParameter, match="at most the number of photos per batch"):
        train(tiny_settings(catalogue, devices=64), tmp_path / "run")
    with pytest.raises(RunError, match="not a training run"):
        train(tiny_settings(catalogue, **QUICK), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


def test_features_that_two_processes_compute_are_those_of_one(catalogue: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    both = [
        train(tiny_settings(catalogue, devices=devices, precompute=2, epochs=1), tmp_path / str(devices)).path
        for devices in (1, 2)
    ]
    one, two = (load_file(path / "features.safetensors") for path in both)
    assert one.keys() == two.keys() == {"fit", "validation"}
    for name, value in one.items():
        assert torch.allclose(value, two[name], atol=1e-5), name
    assert losses(Run.open(both[1])) == pytest.approx(losses(Run.open(both[0])), rel=1e-3)
