"""Cost of TCM and of the vMF samples within a training step.

    python -m research.benchmarks.step [--device cuda]

Figures are ratios of medians of interleaved runs; load from other processes affects all sides alike. The cost of a loss
alone is measured by `research.benchmarks.losses`.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from training.backbones import load_backbone
from training.evaluation.embedding import keep_freed_memory
from training.losses import Regularized, make_loss
from training.model import EmbeddingModel

from .devices import CPU, add_device, device_of, interleaved
from .tables import Recorder, parser_of

ITEMS = 37  # items of the grocery recipe


def medians(works: list[Callable[[], object]], device: torch.device, *, rounds: int) -> list[float]:
    """Return the median seconds of each function, run in turn."""
    return [statistics.median(seconds) for seconds in interleaved(works, device, rounds=rounds)]


def made(name: str, **arguments: object) -> nn.Module:
    return make_loss(name, classes=ITEMS, dim=128, arguments=arguments)


def main() -> None:
    parser = parser_of(__doc__)
    add_device(parser)
    arguments = parser.parse_args()
    device = device_of(arguments)
    if device.type == CPU:
        keep_freed_memory()  # as in training
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    backbone, _ = load_backbone(str(data / "weights/mobilenet_v1_0.75_224"))
    model = EmbeddingModel(backbone, dim=128, pooling="average")
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels = torch.randn(64, 160, 160, 3).permute(0, 3, 1, 2).to(device)
    labels = torch.arange(16).repeat_interleave(4).to(device)
    embeddings = model(pixels).detach().requires_grad_()
    parts = [
        ("Smooth-AP", made("smooth_ap")),
        ("Smooth-AP + TCM", Regularized(made("smooth_ap"), made("tcm"), weight=1.0)),
        ("ProxyNCA", made("proxy_nca")),
        ("EL-nivMF, 5 samples", made("vmf_nca", samples=5)),
    ]
    parts = [(name, loss.to(device)) for name, loss in parts]

    def step(loss: nn.Module) -> Callable[[], object]:
        return lambda: loss(model(pixels), labels).backward()

    def alone(loss: nn.Module) -> Callable[[], object]:
        return lambda: loss(embeddings, labels).backward()

    whole = medians([step(loss) for _, loss in parts], device, rounds=15)
    bare = medians([alone(loss) for _, loss in parts], device, rounds=50)
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
