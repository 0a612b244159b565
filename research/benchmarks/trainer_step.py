"""Photos per second of fine-tuning steps, compared with a bare torch loop over the same batches.

    python -m research.benchmarks.trainer_step [--device cuda]

The bare loop normalises the pixels, runs the model and the loss forward and backward, and takes a step of AdamW. The
steps of the trainer do the same with its learning-rate schedule, its seeds and its bookkeeping. Both start from the
same weights and take turns; a ratio is the median over the pairs.
"""

from __future__ import annotations

import copy
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from retrieval.images import Preprocessing
from training.config import Settings
from training.evaluation.embedding import to_device
from training.loop.distributed import ProcessGroup
from training.loop.learner import Learner
from training.loop.memory import keep_freed_memory
from training.loop.recipe import build_loss, initial_model
from training.model import freeze_batch_norm

from .devices import CPU, add_device, device_of, interleaved
from .tables import Recorder, parser_of

RECIPES = {
    "Smooth-AP": {"loss": "smooth_ap"},
    "Smooth-AP + TCM": {"loss": "smooth_ap", "regularizer": "tcm"},
    "ProxyAnchor": {"loss": "proxy_anchor"},
}
ITEMS, EACH, BATCHES = 16, 4, 4


def steps_of(settings: Settings, device: torch.device) -> list[Callable[[], object]]:
    """Return a step of the bare loop and one of the trainer, which walk through the same batches."""
    sight, generator = Preprocessing(size=settings.input_size), np.random.default_rng(0)
    shape = (BATCHES, ITEMS * EACH, settings.input_size, settings.input_size, 3)
    batches = generator.integers(0, 256, size=shape, dtype=np.uint8)
    labels = torch.arange(ITEMS).repeat_interleave(EACH)
    model, _ = initial_model(settings)
    loss = build_loss(settings, classes=ITEMS)

    bare_model = copy.deepcopy(model).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    bare_model.train()
    if settings.freeze_batch_norm:
        freeze_batch_norm(bare_model)
    bare_loss, bare_labels = copy.deepcopy(loss).to(device), labels.to(device)
    optimizer = torch.optim.AdamW([*bare_model.parameters(), *bare_loss.parameters()], lr=settings.learning_rate)
    bare_turn, turn = iter(range(10**9)), iter(range(10**9))

    def bare() -> None:
        optimizer.zero_grad(set_to_none=True)
        embeddings = bare_model(to_device(batches[next(bare_turn) % BATCHES], sight, device))
        bare_loss(embeddings, bare_labels).backward()
        optimizer.step()

    learner = Learner(
        model,
        loss,
        settings,
        process_group=ProcessGroup(device),
        steps=10**6,
        prepare=lambda pixels: to_device(pixels, sight, device),
    )
    learner.begin(0)
    return [bare, lambda: learner.take(batches[next(turn) % BATCHES], labels)]


def main() -> None:
    parser = parser_of(__doc__)
    add_device(parser)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    device = device_of(arguments)
    if device.type == CPU:
        keep_freed_memory()  # as in training
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    backbone = str(data / "weights/mobilenet_v1_0.75_224")
    columns = ("loss", "bare torch, photos per second", "trainer, photos per second", "of bare torch")
    with Recorder("trainer_step", arguments) as record:
        record.table("fine-tuning", columns)
        for name, recipe in RECIPES.items():
            given = {"catalogue": "none", "backbone": backbone, "device": device.type, "precision": "fp32", **recipe}
            bare, ours = interleaved(steps_of(Settings.from_dict(given), device), device, rounds=arguments.rounds)
            rates = (f"{ITEMS * EACH / statistics.median(seconds):.1f}" for seconds in (bare, ours))
            ratio = statistics.median(one / other for one, other in zip(bare, ours, strict=True))
            record.add(name, *rates, f"{ratio:.3f}")


if __name__ == "__main__":
    main()
