"""Cost of training steps with thousands of photos in little memory, using a gradient cache.

    python -m research.benchmarks.large_batch --batch 4000 --micro-batch-size 64

For each loss, the benchmark runs a step of a pretrained MobileNet at 160 px, one micro-batch at a time, and prints the
peak memory of the whole process, seconds and photos per second, with steps of one small batch for comparison. Each
measurement is a process of its own, because the peak of a process never decreases.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
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

from .devices import CPU, add_device, device_of, seconds_of
from .tables import Recorder, parser_of

RECIPES = {
    "Recall@k + TCM": {"loss": "recall_at_k", "regularizer": "tcm"},
    "Smooth-AP": {"loss": "smooth_ap"},
    "ProxyAnchor": {"loss": "proxy_anchor"},
}
GIB = 2**30
EACH = 4


def measure(recipe: str, batch: int, micro_batch_size: int, device: torch.device) -> None:
    """Warm up on one micro-batch, then run one step of the batch; print its seconds and the peak in GiB.

    The peak is that of the process, or of the memory allocated on a GPU.
    """
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    settings = Settings.from_dict(
        {
            "catalogue": "none",
            "backbone": str(data / "weights/mobilenet_v1_0.75_224"),
            "micro_batch_size": micro_batch_size,
            "device": device.type,
        }
        | RECIPES[recipe]
    )
    if device.type == CPU:
        keep_freed_memory()  # as in training
    model, _ = initial_model(settings)
    sight = Preprocessing(size=settings.input_size)
    loss = build_loss(settings, classes=batch // EACH)
    learner = Learner(
        model,
        loss,
        settings,
        process_group=ProcessGroup(device),
        steps=10,
        prepare=lambda pixels: to_device(pixels, sight, device),
    )
    learner.begin(0)
    generator = np.random.default_rng(0)
    labels = torch.arange(batch // EACH).repeat_interleave(EACH)
    pixels = generator.integers(0, 256, size=(batch, settings.input_size, settings.input_size, 3), dtype=np.uint8)
    learner.take(pixels[:micro_batch_size], labels[:micro_batch_size])
    seconds = seconds_of(lambda: learner.take(pixels, labels), device)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(seconds, (resident if device.type == CPU else torch.cuda.max_memory_allocated(device)) / GIB)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--batch", type=int, default=4000)
    parser.add_argument("--micro-batch-size", type=int, default=64)
    parser.add_argument("--measure", choices=RECIPES, help="Measure one recipe in this process.")
    add_device(parser)
    arguments = parser.parse_args()
    device = device_of(arguments)
    if arguments.measure:
        measure(arguments.measure, arguments.batch, arguments.micro_batch_size, device)
        return
    rows = []
    for recipe in RECIPES:
        found = {}
        for batch in (arguments.micro_batch_size, arguments.batch):
            words = [sys.executable, "-m", "research.benchmarks.large_batch", "--measure", recipe]
            words += ["--batch", str(batch), "--micro-batch-size", str(arguments.micro_batch_size)]
            words += ["--device", device.type]
            told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
            found[batch] = float(told[0]), float(told[1])
        (small, base), (seconds, peak) = found[arguments.micro_batch_size], found[arguments.batch]
        rate, plain = arguments.batch / seconds, arguments.micro_batch_size / small
        memory, rates = [f"{value:.2f} GiB" for value in (peak, base)], [f"{value:.0f}" for value in (rate, plain)]
        rows.append((recipe, memory[0], rates[0], memory[1], rates[1]))
    one = f"one batch of {arguments.micro_batch_size}"
    columns = ("loss", "peak memory", "photos per second", f"peak memory, {one}", f"photos per second, {one}")
    with Recorder("large_batch", arguments) as record:
        record.table("large batches", columns, rows)


if __name__ == "__main__":
    main()
