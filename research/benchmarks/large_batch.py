"""A step of thousands of photos on little memory: cached gradients, and what they cost.

    python research/benchmarks/large_batch.py --batch 4000 --chunk 64

takes a step of a pretrained MobileNet at 160 px for each loss, chunk by chunk, and prints a table of the peak memory of
the whole process, seconds and photos a second, beside steps of one small batch. A process each, since a peak never
falls again.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tables import Row, at_most, show

from retrieval.images import Preprocessing
from training.config import Settings
from training.evaluation.embedding import to_device
from training.loop.distributed import ProcessGroup
from training.loop.learner import Learner
from training.loop.memory import keep_freed_memory
from training.loop.recipe import build_loss, initial_model

RECIPES = {
    "Recall@k + TCM": {"loss": "recall_at_k", "regularizer": "tcm"},
    "Smooth-AP": {"loss": "smooth_ap"},
    "ProxyAnchor": {"loss": "proxy_anchor"},
}
GIB = 2**30
EACH = 4


def measure(recipe: str, batch: int, chunk: int) -> None:
    """Take one step to warm up on a chunk, then one of the batch; print its seconds and the peak in GiB."""
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    settings = Settings.from_dict(
        {
            "catalogue": "none",
            "backbone": str(data / "weights/mobilenet_v1_0.75_224"),
            "micro_batch_size": chunk,
            "device": "cpu",
        }
        | RECIPES[recipe]
    )
    keep_freed_memory()  # as training does
    model, _ = initial_model(settings)
    sight = Preprocessing(size=settings.size)
    device = torch.device("cpu")
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
    pixels = generator.integers(0, 256, size=(batch, settings.size, settings.size, 3), dtype=np.uint8)
    learner.take(pixels[:chunk], labels[:chunk])
    started = time.perf_counter()
    learner.take(pixels, labels)
    seconds = time.perf_counter() - started
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4000)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--measure", choices=RECIPES, help="Measure one recipe in this process.")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.batch, arguments.chunk)
        return
    rows = []
    for recipe in RECIPES:
        found = {}
        for batch in (arguments.chunk, arguments.batch):
            words = [
                sys.executable,
                __file__,
                "--measure",
                recipe,
                "--batch",
                str(batch),
                "--chunk",
                str(arguments.chunk),
            ]
            told = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
            found[batch] = float(told[0]), float(told[1])
        (small, base), (seconds, peak) = found[arguments.chunk], found[arguments.batch]
        rate, plain = arguments.batch / seconds, arguments.chunk / small
        rows.append(
            Row(
                f"{recipe}, {arguments.batch} photos by {arguments.chunk}",
                f"{peak:.2f} GiB, {rate:.0f} photos/s",
                f"{base:.2f} GiB, {plain:.0f} photos/s with {arguments.chunk}",
                f"{rate / plain:.2f} of the rate",
                at_most(peak, 4, "4 GiB"),
            )
        )
    show("Large batches: cached gradients", rows)


if __name__ == "__main__":
    main()
