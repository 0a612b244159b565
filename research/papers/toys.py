"""Two toy experiments of arXiv 2210.01908: one point between two classes (Figure 4), five circles (Figure 11)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.losses import ContextualAblated
from training.losses import Contextual, Contrastive

POINTS, ANGLES = 64, 91
NOISES, CIRCLES, STEPS, PER_LABEL = (0.0, 0.05, 0.1), 5, 300, 4


def contextual_gradient() -> dict[str, dict[str, float]]:
    """Move a point from the centre of another class to its own; compare two losses and their slopes along the path."""
    generator = torch.Generator().manual_seed(0)
    half = POINTS // 2
    spread = 0.15 * torch.randn(POINTS, generator=generator, dtype=torch.float64)
    angles = spread + torch.tensor([np.pi / 2] * half + [0.0] * half, dtype=torch.float64)
    labels = torch.tensor([0] * half + [1] * half)
    losses = {"contextual": Contextual(neighbours=half, margin=0.05), "contrastive": Contrastive()}
    rows = {}
    for name, loss in losses.items():
        values, slopes = [], []
        for moved in torch.linspace(np.pi / 2, 0, ANGLES, dtype=torch.float64):
            angle = moved.clone().requires_grad_()
            turned = torch.cat([angles[:-1], angle[None]])
            value = loss(torch.stack([turned.cos(), turned.sin()], dim=1), labels)
            (slope,) = torch.autograd.grad(value, angle)
            values.append(float(value.detach()))
            slopes.append(float(slope))
        rows[name] = {"loss at the other centre": values[0], "loss at the own centre": values[-1],
                      "share of the way with a slope home": float(np.mean(np.array(slopes) > 0))}  # fmt: skip
    return rows


def concentric_circles() -> dict[str, dict[str, float]]:
    """Train a small network on noisy circles with step 1 of the contextual loss alone, and measure noise-free ones."""
    rows = {}
    clean, labels = _circles(0.0, 40, np.random.default_rng(1))
    for noise in NOISES:
        unit = _train(noise)(clean).detach()
        unit = F.normalize(unit, dim=1)
        rows[f"noise {noise}"] = {"R@1 of the input": _nearest(clean, labels), "R@1": _nearest(unit, labels)}
    return rows


def _circles(noise: float, each: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return points (5 each, 2) on circles of radius 1 to 5, and the number of their circle."""
    labels = np.repeat(np.arange(CIRCLES), each)
    angles = generator.uniform(0, 2 * np.pi, len(labels))
    radii = 1 + labels + noise * CIRCLES * generator.standard_normal(len(labels))
    points = np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1) / CIRCLES
    return torch.from_numpy(points).float(), torch.from_numpy(labels)


def _train(noise: float) -> nn.Module:
    generator = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    loss = ContextualAblated(neighbours=PER_LABEL, intersect=False, expand=False)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(STEPS):
        points, labels = _circles(noise, PER_LABEL, generator)
        optimizer.zero_grad()
        loss(network(points), labels).backward()
        optimizer.step()
    return network


def _nearest(points: Tensor, labels: Tensor) -> float:
    """Return the share of points whose nearest neighbour is on the same circle."""
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    return float((labels[distances.argmin(dim=1)] == labels).float().mean())
