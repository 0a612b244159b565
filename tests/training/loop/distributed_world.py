"""Training steps that `test_distributed` runs in one process and, launched by accelerate, in two."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.backbones.load import SmallConvNet
from training.config import Settings
from training.loop.distributed import ProcessGroup
from training.loop.learner import Learner
from training.loop.recipe import build_loss
from training.losses import LOSSES
from training.model import EmbeddingModel

CLASSES, EACH, DIM, SIDE, STEPS = 6, 3, 8, 16, 20
LABELS = torch.arange(CLASSES).repeat_interleave(EACH)
PROCESSES = 2
CASES: dict[str, Mapping[str, Any]] = {name: {"loss": name} for name in LOSSES}
CASES |= {
    "micro-batches": {"loss": "smooth_ap", "micro_batch_size": 2},
    "regularized": {"loss": "proxy_anchor", "regularizer": "tcm"},
    "projected": {"loss": "proxy_nca", "projector": 4},
}
PLAIN: Mapping[str, Any] = {
    "catalogue": "none",
    "dim": DIM,
    "learning_rate": 1e-3,
    "head_learning_rate": 1e-3,
    "proxy_learning_rate": 1e-2,
    "backbone": "efficientnet-lite0",  # whose statistics do not change
    "size": SIDE,
    "precision": "fp32",
}


def batches() -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        yield generator.integers(0, 256, size=(len(LABELS), SIDE, SIDE, 3)).astype(np.uint8)


def steps(process_group: ProcessGroup, changes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Take STEPS steps from the same start; return losses, and the last gradients and parameters.

    In float64: a pair on the edge of a margin goes one way or the other by the last bit of a float32, and twenty
    steps of Adam make that visible, in two runs of one process on another number of threads as well.
    """
    settings = Settings.from_dict(PLAIN | changes)
    torch.manual_seed(1)
    model = EmbeddingModel(SmallConvNet(), dim=DIM, pooling="average")
    for module in model.modules():  # statistics as a trained network has them
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_var.fill_(0.5)
    torch.manual_seed(2)
    loss = build_loss(settings, classes=CLASSES)
    kind = torch.float64 if settings.precision == "fp32" else torch.float32
    model, loss = model.to(kind), loss.to(kind)

    def prepare(pixels: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(kind) / 128 - 1

    learner = Learner(model, loss, settings, process_group=process_group, steps=STEPS, prepare=prepare)
    learner.begin(0)
    losses = [learner.take(process_group.share(pixels), LABELS) for pixels in batches()]
    found = {"losses": np.array(losses)}
    for part, module in (("model", model), ("loss", loss)):
        for name, parameter in module.named_parameters():
            found[f"parameter {part}.{name}"] = parameter.detach().numpy()
            if parameter.grad is not None:
                found[f"gradient {part}.{name}"] = parameter.grad.numpy()
    return found


def main(folder: Path) -> None:
    """Do every case in a process group, and leave what every process ended with."""
    process_group = ProcessGroup.join()
    for name, changes in CASES.items():
        np.savez(folder / f"{name}-{process_group.rank}.npz", **steps(process_group, changes))


def launched(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m WORDS` in two processes, by accelerate."""
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(PROCESSES)]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    return subprocess.run([*launcher, "-m", *words], check=False, capture_output=True, text=True, timeout=600)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
