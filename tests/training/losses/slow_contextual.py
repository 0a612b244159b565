"""The contextual loss by sets, in loops, with its surrogate gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def squared_distances(vectors: Tensor) -> Tensor:
    """Return the squared distances (n, n) of normalised embeddings (n, d)."""
    unit = F.normalize(vectors, dim=1)
    return (2 - 2 * unit @ unit.T).relu()


def slow_contextual(
    squared: Tensor, labels: Tensor, *, neighbours: int, margin: float, slope: float, detached: bool = False
) -> Tensor:
    """Return the loss for squared distances (n, n); `detached` takes Eq. 27's count as a constant."""
    n = len(labels)
    wide = step(squared, neighbours, margin, slope)
    narrow = step(squared, neighbours // 2, margin, slope)
    similar = [[torch.zeros(())] * n for _ in range(n)]
    for i in range(n):
        inside = sum(wide[i][p].item() for p in range(n))
        for j in range(n):
            common = sum(wide[i][p] * wide[j][p] for p in range(n))
            apart = sum((1 - wide[i][p]) * (1 - wide[j][p]) for p in range(n))
            share = common / max(inside, 1) + apart / max(n - inside, 1)
            similar[i][j] = 0.5 * wide[i][j] * share
    total = torch.zeros((), dtype=squared.dtype)
    expanded = [[total] * n for _ in range(n)]
    for i in range(n):
        mutual = [narrow[i][p] * narrow[p][i] for p in range(n)]
        count = torch.stack(mutual).sum()  # at least one, itself
        for j in range(n):
            shares = torch.stack([mutual[p] * similar[p][j] for p in range(n)])
            expanded[i][j] = shares.sum() / (count.item() if detached else count)
    for i in range(n):
        for j in range(n):
            if i != j:
                w = 0.5 * (expanded[i][j] + expanded[j][i])
                total = total + (float(labels[i] == labels[j]) - w) ** 2
    return total / n**2


def step(squared: Tensor, k: int, margin: float, slope: float) -> list[list[Tensor]]:
    """1[x >= 0] with a constant slope, written as value + slope (x - its own value)."""
    n = len(squared)
    rows = []
    for i in range(n):
        kth = sorted(squared[i].tolist())[k - 1]
        x = [kth + margin - squared[i, j] for j in range(n)]
        rows.append([float(v.item() >= 0) + slope * (v - v.detach()) for v in x])
    return rows
