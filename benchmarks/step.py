"""What TCM adds to a training step, and what it costs beside the bare cosine matrix.

    python benchmarks/step.py

Both figures are ratios of medians of interleaved runs, so that a shared machine disturbs both sides alike.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from training.losses import SmoothAP, ThresholdConsistentMargin
from training.model import EmbeddingModel, load_backbone


def interleaved(works: list[Callable[[], object]], *, rounds: int) -> list[float]:
    """Return the median seconds of each work, taken in turn."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 2):
        for work, seconds in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            if number >= 2:
                seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds) for seconds in times]


def main() -> None:
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    backbone, _ = load_backbone(str(data / "weights/mobilenet_v1_0.75_224"))
    model = EmbeddingModel(backbone, dim=128, pooling="average").to(memory_format=torch.channels_last)
    pixels = torch.randn(64, 160, 160, 3).permute(0, 3, 1, 2)
    labels = torch.arange(16).repeat_interleave(4)
    base, tcm = SmoothAP(), ThresholdConsistentMargin()

    def step() -> torch.Tensor:
        embeddings = model(pixels)
        base(embeddings, labels).backward()
        return embeddings.detach()

    embeddings = step().requires_grad_()
    whole, alone = interleaved([step, lambda: tcm(embeddings, labels).backward()], rounds=10)
    print("| what | figure |\n| --- | --- |")
    print(f"| training step, Smooth-AP, 64 photos of 160 px | {1e3 * whole:.0f} ms |")
    print(f"| TCM forward and backward | {1e3 * alone:.2f} ms |")
    print(f"| share that TCM adds to the step | {100 * alone / whole:.2f} % |")
    for n in (512, 4000):
        vectors = torch.randn(n, 512, requires_grad=True)
        many = torch.arange(n) // 4

        def floor(vectors: torch.Tensor = vectors) -> None:
            unit = F.normalize(vectors, dim=1)
            (unit @ unit.T).sum().backward()

        def with_tcm(vectors: torch.Tensor = vectors, many: torch.Tensor = many) -> None:
            tcm(vectors, many).backward()

        bare, full = interleaved([floor, with_tcm], rounds=5)
        print(f"| TCM beside the bare cosine matrix, n = {n}, d = 512 | {full / bare:.2f} × |")


if __name__ == "__main__":
    main()
