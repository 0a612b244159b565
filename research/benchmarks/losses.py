"""Time and memory of every loss, compared with a bare cosine matrix, pytorch-metric-learning and naive versions.

    python -m research.benchmarks.losses

Batches are 128, 512 and 4,000 embeddings with d = 512, on the CPU and on a GPU if there is one. The floor is the cosine
matrix, forward and backward. A figure is the median of runs that alternate with those of the floor, divided by the
median of the floor; load from other processes affects both. Memory is the increase of the peak: of a separate process
on a CPU, of the allocator on a GPU. As in training on a CPU, memory that was freed is kept (`keep_freed_memory`).
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from research.losses.library import library
from training.evaluation.embedding import keep_freed_memory
from training.losses import LOSSES, make_loss

from .devices import seconds_of
from .tables import NONE, Recorder, parser_of

SIZES, DIM, PHOTOS = (128, 512, 4000), 512, 4
ROUNDS = {128: 101, 512: 15, 4000: 5}  # a small step is noisy
CLASSES = (4000, 16_000, 64_000, 256_000)
LARGEST = {  # larger batches take minutes or tens of GB
    "literal smooth_ap": 512,
    "literal recall_at_k": 512,
    "pml tcm": 512,
    "triplet": 512,
    "contextual, min": 128,
}

Step = Callable[[Tensor, Tensor], Tensor]


def floor(embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
    """Return the sum of all cosines."""
    unit = F.normalize(embeddings, dim=1)
    return (unit @ unit.T).sum()


def literal_tcm(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return Eq. 5 computed with masks and autograd."""
    unit = F.normalize(embeddings, dim=1)
    s = unit @ unit.T
    same = labels[:, None] == labels[None]
    other, same = ~same, same.clone().fill_diagonal_(False)
    pull, push = same & (s <= 0.9), other & (s >= 0.5)
    total = ((0.9 - s) * pull).sum() / pull.sum().clamp(min=1)
    return total + ((s - 0.5) * push).sum() / push.sum().clamp(min=1)


def _ranks(embeddings: Tensor) -> Tensor:
    unit = F.normalize(embeddings, dim=1)
    s = unit @ unit.T
    above = torch.sigmoid((s[:, None, :] - s[:, :, None]) / 0.01)  # (n, n, n)
    return above * (1 - torch.eye(len(s), device=s.device))


def literal_smooth_ap(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return one minus the smooth AP from the (n, n, n) tensor of comparisons."""
    above = _ranks(embeddings)
    same = (labels[:, None] == labels[None]).to(above.dtype)
    precision = (1 + (above * same[:, None]).sum(dim=2)) / (1 + above.sum(dim=2))
    return 1 - ((precision * same).sum(dim=1) / same.sum(dim=1)).mean()


def literal_recall_at_k(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return one minus the recall surrogate from the (n, n, n) tensor of comparisons."""
    ranks = 1 + _ranks(embeddings).sum(dim=2)
    same = (labels[:, None] == labels[None]).to(ranks.dtype) * (1 - torch.eye(len(ranks), device=ranks.device))
    total = ranks.new_zeros(())
    for k in (1, 2, 4, 8, 16):
        found = (torch.sigmoid(k - ranks) * same).sum(dim=1).clamp(max=k)
        total = total + (found / same.sum(dim=1).clamp(max=k)).mean()
    return 1 - total / 5


def steps(device: torch.device) -> dict[str, Callable[[int], Step]]:
    """Return the measured steps: factories of a step for n photos of n / 4 items."""

    def ours(name: str, **arguments: object) -> Callable[[int], Step]:
        return lambda n: make_loss(name, classes=n // PHOTOS, dim=DIM, arguments=arguments).to(device)

    def theirs(make: Callable[..., torch.nn.Module], proxies: bool) -> Callable[[int], Step]:
        return lambda n: (make(n // PHOTOS, DIM) if proxies else make()).to(device)

    found: dict[str, Callable[[int], Step]] = {}
    for name in LOSSES:
        found[name] = ours(name, **({"samples": 5} if name == "vmf_nca" else {}))
    found["contextual, min"] = ours("contextual_ablated", conjunction="min")
    found["literal tcm"] = lambda _: literal_tcm
    found["literal smooth_ap"] = lambda _: literal_smooth_ap
    found["literal recall_at_k"] = lambda _: literal_recall_at_k
    pml = library("losses")
    found["pml tcm"] = theirs(pml.ThresholdConsistentMarginLoss, False)
    found["pml proxy_anchor"] = theirs(pml.ProxyAnchorLoss, True)
    found["pml arcface"] = theirs(pml.ArcFaceLoss, True)
    found["pml proxy_nca"] = theirs(pml.ProxyNCALoss, True)
    return found


def batch(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return embeddings like those of a trained model: similar within an item, and some items near others."""
    generator = torch.Generator().manual_seed(0)
    items = torch.randn(n // PHOTOS, DIM, generator=generator)
    families = torch.randn(max(1, n // 40), DIM, generator=generator)
    centres = items + 1.2 * families[torch.arange(len(items)) % len(families)]
    labels = torch.arange(n) // PHOTOS
    embeddings = centres[labels] + 0.8 * torch.randn(n, DIM, generator=generator)
    return embeddings.to(device).requires_grad_(), labels.to(device)


def run_once(step: Step, embeddings: Tensor, labels: Tensor) -> float:
    """Return the seconds of a forward and a backward pass."""
    return seconds_of(lambda: step(embeddings, labels).backward(), embeddings.device)  # type: ignore[no-untyped-call]


def ratio(step: Step, n: int, device: torch.device, *, rounds: int) -> tuple[float, float]:
    """Return the median seconds, and their ratio to the floor's, measured in turn."""
    embeddings, labels = batch(n, device)
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for kept, work in zip(times, (floor, step), strict=True):
            embeddings.grad = None
            seconds = run_once(work, embeddings, labels)
            if number:
                kept.append(seconds)
    bare, full = (statistics.median(kept) for kept in times)
    return full, full / bare


def peak(name: str, n: int, device: torch.device) -> float:
    """Return the peak memory of a step in MB, without its inputs."""
    if device.type == "cuda":
        embeddings, labels = batch(n, device)
        step = steps(device)[name](n)
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run_once(step, embeddings, labels)
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    command = [sys.executable, "-m", "research.benchmarks.losses", "--peak", name, str(n)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def peak_here(name: str, n: int) -> float:
    """Return the peak of this process in MB above that of a small step, which loads the libraries."""
    device = torch.device("cpu")
    made = steps(device)[name]
    run_once(made(64), *batch(64, device))
    embeddings, labels = batch(n, device)
    step = made(n)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current memory
    before = _resident("VmRSS")
    run_once(step, embeddings, labels)
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """Return a memory figure of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--peak", nargs=2, metavar=("LOSS", "N"), help="print the peak memory of one loss")
    parser.add_argument("--only", action="append", help="measure only these")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="measure on this device only")
    arguments = parser.parse_args()
    if arguments.peak:
        print(peak_here(arguments.peak[0], int(arguments.peak[1])))
        return
    keep_freed_memory()  # as training on a CPU does
    everywhere = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    devices = [arguments.device] if arguments.device else everywhere
    with Recorder("losses", arguments) as record:
        for device in map(torch.device, devices):
            time_and_memory(device, arguments.only, record)
            mean_field_by_classes(device, record)


def time_and_memory(device: torch.device, only: Sequence[str] | None, record: Recorder) -> None:
    """Record the time of each loss by batch size, and its peak memory."""
    record.table(f"{device.type}", ("loss", *(f"n = {n}, ms (x floor)" for n in SIZES), "peak MB, n = 4000"))
    for name, make in ({"floor": lambda _: floor} | steps(device)).items():
        if only and name not in only:
            continue
        cells = []
        for n in SIZES:
            if n > LARGEST.get(name, n):
                cells.append(NONE)
                continue
            seconds, share = ratio(make(n), n, device, rounds=ROUNDS[n])
            cells.append(f"{1e3 * seconds:.1f} ({share:.2f})")
        fits = name != "floor" and LARGEST.get(name, SIZES[-1]) >= SIZES[-1]
        record.add(name, *cells, f"{peak(name, SIZES[-1], device):.0f}" if fits else NONE)


def mean_field_by_classes(device: torch.device, record: Recorder) -> None:
    """Record the time of the mean-field losses by number of items."""
    record.table(f"mean field, {device.type}", ("items C, 128 photos", *map(str, CLASSES)))
    for name in ("mean_field_contrastive", "mean_field_class_wise_multi_similarity"):
        cells = []
        for classes in CLASSES:
            embeddings, labels = batch(128, device)
            loss = make_loss(name, classes=classes, dim=DIM, arguments={}).to(device)
            seconds = statistics.median(run_once(loss, embeddings, labels) for _ in range(9))
            cells.append(f"{1e3 * seconds:.0f} ms, {1e6 * seconds / classes:.1f} µs per class")
        record.add(name, *cells)


if __name__ == "__main__":
    main()
