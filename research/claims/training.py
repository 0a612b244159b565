"""Training of a head or a small network with one loss, and its unit vectors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from training.data.samplers import ItemSampler
from training.loop.optimizer import learned_by, learning_rate_factor
from training.losses.registry import Regularized, make_loss

from .sets import Held, LabelledSet

ITEMS, EACH = 16, 4  # of a batch
RATE, PROXY_RATE, WARMUP, DECAY = 3e-3, 1e-2, 0.05, 1e-4
CHECKPOINTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)  # shares of the steps


@dataclass(frozen=True)
class Task:
    """One training.

    `arguments` are those of the loss, and of its training: `norm`, the initial norm of the embeddings; `proxy_rate`,
    the learning rate of what the loss learns; `items`, the classes of a batch.
    """

    loss: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    tcm: tuple[float, float, float] | None = None  # margins (positive, negative) and weight
    label_noise: float = 0.0  # share of the training photos that get the label of another class
    classes: float = 1.0  # share of the training classes in use
    curve: bool = False  # constant learning rate, and a checkpoint at each of CHECKPOINTS


Watch = Callable[[nn.Module], None]
OWN_ARGUMENTS = ("norm", "proxy_rate", "items")


def train(data: LabelledSet, task: Task, *, watch: Watch | None = None) -> nn.Module:
    """Return the trained model; `watch` is called with it at each checkpoint of a curve."""
    torch.manual_seed(task.seed)
    generator = np.random.default_rng(task.seed)
    rows, labels = training_labels(data.labels, task, generator)
    norm = float(task.arguments.get("norm", 0.0))
    model = data.make_model()  # before the loss, so that all losses start from the same model
    loss = _loss(data, task, classes=int(labels.max()) + 1)
    if norm:
        _scale(model, data, rows, norm)
    groups = [{"params": list(model.parameters()), "lr": RATE * max(1.0, norm / 5), "weight_decay": DECAY}]
    proxy_rate = float(task.arguments.get("proxy_rate", PROXY_RATE))
    groups += [{"params": p, "lr": proxy_rate * rate, "weight_decay": 0.0} for rate, p in learned_by(loss).items()]
    optimizer = torch.optim.AdamW(groups)
    rates = [group["lr"] for group in optimizer.param_groups]
    items = int(task.arguments.get("items", ITEMS))
    sampler = ItemSampler(labels.tolist(), items_per_batch=items, photos_per_item=EACH, seed=task.seed)
    batches = itertools.chain.from_iterable(sampler.epoch(epoch) for epoch in itertools.count())
    steps = round(data.steps * ITEMS / items)  # as many photos, whatever the batch
    stops = {max(1, round(share * steps)) for share in CHECKPOINTS if share} if task.curve else set()
    if watch is not None and task.curve:
        watch(model)
        model.train()
    for step, batch in enumerate(itertools.islice(batches, steps)):
        view = torch.from_numpy(generator.integers(len(data.views), size=len(batch)))
        embeddings = model(data.views[view, torch.from_numpy(rows[batch])])
        value = loss(embeddings, torch.from_numpy(labels[batch]))
        optimizer.zero_grad()
        value.backward()
        factor = min(1.0, (step + 1) / (WARMUP * steps)) if task.curve else learning_rate_factor(step, steps)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optimizer.step()
        if watch is not None and step + 1 in stops:
            watch(model)
            model.train()
    return model.eval()


def training_labels(labels: np.ndarray, task: Task, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the photos in use, and their labels 0 … C-1 with the noise of the task."""
    classes = int(labels.max()) + 1
    kept = generator.permutation(classes)[: round(task.classes * classes)]
    rows = np.flatnonzero(np.isin(labels, kept))
    own = np.unique(labels[rows], return_inverse=True)[1].astype(np.int64)
    wrong = generator.random(len(own)) < task.label_noise
    return rows, np.where(wrong, (own + generator.integers(1, len(kept), len(own))) % len(kept), own)


@torch.no_grad()
def vectors_of(model: nn.Module, held: Held) -> np.ndarray:
    """Return the unit vectors (n, d) of held photos."""
    model.eval()
    raw = torch.cat([model(block) for block in torch.split(held.inputs, 512)])
    return F.normalize(raw, dim=1).numpy()


def _loss(data: LabelledSet, task: Task, *, classes: int) -> nn.Module:
    arguments = {name: value for name, value in task.arguments.items() if name not in OWN_ARGUMENTS}
    loss: nn.Module = make_loss(task.loss, classes=classes, dim=data.dim, arguments=arguments)
    if task.tcm is None:
        return loss
    positive, negative, weight = task.tcm
    margins = {"positive_margin": positive, "negative_margin": negative}
    return Regularized(loss, make_loss("tcm", classes=classes, dim=data.dim, arguments=margins), weight)


@torch.no_grad()
def _scale(model: nn.Module, data: LabelledSet, rows: np.ndarray, norm: float) -> None:
    """Scale the last layer so that the mean norm of embeddings is `norm`."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    factor = norm / model(data.views[0][torch.from_numpy(rows[:256])]).norm(dim=1).mean()
    last.weight.mul_(factor)
    last.bias.mul_(factor)
