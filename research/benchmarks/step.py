"""Cost of TCM and of the vMF samples within a training step.

    python -m research.benchmarks.step

Figures are ratios of medians of interleaved runs; load from other processes affects all sides alike. The cost of a loss
alone is measured by `research.benchmarks.losses`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from training.backbones import load_backbone
from training.loop.memory import keep_freed_memory
from training.losses import Regularized, make_loss
from training.model import EmbeddingModel

from .tables import Recorder, parser_of

ITEMS = 37  # items of the grocery recipe


def interleaved(works: list[Callable[[], object]], *, rounds: int) -> list[float]:
    """Return the median seconds of each function, run in turn."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 2):
        for work, seconds in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            if number >= 2:
                seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds) for seconds in times]


def made(name: str, **arguments: object) -> nn.Module:
    return make_loss(name, classes=ITEMS, dim=128, arguments=arguments)


def main() -> None:
    arguments = parser_of(__doc__).parse_args()
    keep_freed_memory()  # as in training
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    backbone, _ = load_backbone(str(data / "weights/mobilenet_v1_0.75_224"))
    model = EmbeddingModel(backbone, dim=128, pooling="average").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels = torch.randn(64, 160, 160, 3).permute(0, 3, 1, 2)
    labels = torch.arange(16).repeat_interleave(4)
    embeddings = model(pixels).detach().requires_grad_()
    parts: list[tuple[str, nn.Module]] = [
        ("Smooth-AP", made("smooth_ap")),
        ("Smooth-AP + TCM", Regularized(made("smooth_ap"), made("tcm"), weight=1.0)),
        ("ProxyNCA", made("proxy_nca")),
        ("EL-nivMF, 5 samples", made("vmf_nca", samples=5)),
    ]

    def step(loss: nn.Module) -> Callable[[], object]:
        return lambda: loss(model(pixels), labels).backward()

    def alone(loss: nn.Module) -> Callable[[], object]:
        return lambda: loss(embeddings, labels).backward()

    whole = interleaved([step(loss) for _, loss in parts], rounds=15)
    bare = interleaved([alone(loss) for _, loss in parts], rounds=50)
    with Recorder("step", arguments) as record:
        record.table("step", ("loss", "step, ms", "loss alone, ms"))
        for (name, _), all_of_it, part in zip(parts, whole, bare, strict=True):
            record.add(name, f"{1e3 * all_of_it:.0f}", f"{1e3 * part:.2f}")
        record.table("added", ("what is added", "of a step, by the losses alone", "of a step, by whole steps"))
        for title, base, more in (("TCM over Smooth-AP", 0, 1), ("EL-nivMF over ProxyNCA", 2, 3)):
            share, difference = (bare[more] - bare[base]) / whole[base], whole[more] / whole[base] - 1
            record.add(title, f"{100 * share:.2f} %", f"{100 * difference:+.1f} %")


if __name__ == "__main__":
    main()
