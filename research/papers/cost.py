"""Time and memory of a loss on this machine, compared with the network that it trains."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.config import Settings
from training.loop.recipe import build_loss, initial_model
from training.model import choose_device

from .configuration import Configuration
from .runs import Options, settings_of

REPEATS = 3
SMALLEST = 1e-6
COSTS = ("loss ms", "network ms", "step ms", "kept MiB")


def cost(configuration: Configuration, options: Options) -> dict[str, dict[str, list[float]]]:
    """Return the values of each metric (`COSTS`) for each variant: the median of three runs after one warm-up run."""
    for name in configuration.metrics:
        if name not in COSTS:
            raise InvalidParameter("metric", f"be one of {', '.join(COSTS)}", name)
    rows = {}
    network: dict[tuple[str, int, int], float] = {}
    for name, variant in configuration.variants.items():
        settings = settings_of(configuration, variant, "", options)
        row = _loss_cost(settings)
        if {"network ms", "step ms"} & set(configuration.metrics):
            key = (settings.backbone, settings.input_size, _photos(settings))
            if key not in network:
                network[key] = _network_cost(settings)
            row |= {"network ms": network[key], "step ms": network[key] + row["loss ms"]}
        rows[name] = {metric: [row[metric]] for metric in configuration.metrics}
    return rows


def _photos(settings: Settings) -> int:
    return settings.items_per_batch * settings.photos_per_item


def _loss_cost(settings: Settings) -> dict[str, float]:
    """Return the time of a loss with its gradient, and the bytes that it keeps for the backward pass."""
    device = choose_device()
    torch.manual_seed(settings.seed)
    labels = torch.arange(settings.items_per_batch, device=device).repeat_interleave(settings.photos_per_item)
    embeddings = torch.randn(len(labels), settings.embedding_size, device=device, requires_grad=True)
    loss: nn.Module = build_loss(settings, classes=settings.items_per_batch).to(device)
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(embeddings, labels).backward()
    seconds = _median(lambda: loss(embeddings, labels).backward(), device)
    return {"loss ms": 1e3 * seconds, "kept MiB": sum(kept.values()) / 2**20}


def _network_cost(settings: Settings) -> float:
    """Return the duration of a network step on a batch in milliseconds, extrapolated from one micro-batch."""
    device = choose_device()
    photos = _photos(settings)
    micro_batch = min(photos, settings.micro_batch_size or photos)
    model = initial_model(settings)[0].to(device)
    pixels = torch.randn(micro_batch, 3, settings.input_size, settings.input_size, device=device)
    return 1e3 * _median(lambda: model(pixels).sum().backward(), device) * photos / micro_batch


def _median(step: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(max(SMALLEST, time.perf_counter() - started))
    return float(np.median(times[1:]))
