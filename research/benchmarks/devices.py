"""The device that a benchmark measures, and timings that wait for it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

CPU, CUDA = "cpu", "cuda"


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option --device."""
    parser.add_argument("--device", choices=(CPU, CUDA), default=CPU, help="Device that computes.")


def device_of(arguments: argparse.Namespace) -> torch.device:
    """Return the device of the arguments; exit if it is missing."""
    if arguments.device == CUDA and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here")
    return torch.device(arguments.device)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == CUDA:
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that some work takes, until the device has finished it."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


def interleaved(works: list[Callable[[], object]], device: torch.device, *, rounds: int) -> list[list[float]]:
    """Return the seconds of each function in each round, run in turn after two rounds of warm-up."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(rounds + 2):
        for work, seconds in zip(works, times, strict=True):
            spent = seconds_of(work, device)
            if number >= 2:
                seconds.append(spent)
    return times
