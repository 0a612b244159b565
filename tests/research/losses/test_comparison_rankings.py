"""Average precision as a loss in four ways, against exact ones, loops and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from research.losses import BlackboxAP, Roadmap, RoadmapAP, RoadmapCalibration, SoftbinAP

from ...training.losses.golden import batch, cosines_of


def ordered(n: int = 12) -> tuple[Tensor, Tensor]:
    """Return a batch in which every photo has its own class first."""
    labels = torch.arange(n) // 4
    return torch.nn.functional.one_hot(labels).double() + 0.01 * batch(n=n, d=int(labels.max()) + 1)[0], labels


def slow_ap(s: np.ndarray, y: np.ndarray) -> float:
    scores = []
    for q in range(len(y)):
        others = [j for j in np.argsort(-s[q]) if j != q]
        hits = np.array([y[j] == y[q] for j in others])
        scores.append((hits.cumsum() / np.arange(1, len(hits) + 1))[hits].mean())
    return float(np.mean(scores))


def test_blackbox_is_the_exact_average_precision() -> None:
    embeddings, labels = batch()
    value = float(BlackboxAP(margin=0.0)(embeddings, labels))
    assert value == pytest.approx(1 - slow_ap(cosines_of(embeddings), labels.numpy()))
    assert float(BlackboxAP(margin=0.0)(*ordered())) == pytest.approx(0)


def rank_of(scores: np.ndarray) -> np.ndarray:
    return np.array([1 + np.sum(scores > score) for score in scores], dtype=float)


@pytest.mark.parametrize("strength", [4.0, 500.0])
@pytest.mark.parametrize("n", [3, 12])
def test_blackbox_gradient_is_a_difference_of_ranks(n: int, strength: float) -> None:
    """Of each query's ranking of all photos, and of that of its positives, both moved against the gradient."""
    embeddings, labels = batch(5, n=n)
    labels = labels if n == 12 else torch.tensor([0, 0, 1])
    s, y = cosines_of(embeddings), labels.numpy()
    queries = [q for q in range(n) if (y == y[q]).sum() > 1]
    moved = np.zeros((n, n))
    for q in queries:
        others = np.array([j for j in range(n) if j != q])
        mates = np.flatnonzero(y[others] == y[q])
        scores = s[q, others] + 0.1 * np.where(y[others] == y[q], -1, 1)
        ranks, within = rank_of(scores), rank_of(scores[mates])
        weight = 1 / (len(mates) * len(queries))
        slope = np.zeros(len(others))  # of 1 - AP with the ranks among all
        slope[mates] = weight * within / ranks[mates] ** 2
        moved[q, others] = (rank_of(scores + strength * slope) - ranks) / strength
        slope = -weight / ranks[mates]
        moved[q, others[mates]] += (rank_of(scores[mates] + strength * slope) - within) / strength
    leaf = embeddings.clone().requires_grad_()
    unit = torch.nn.functional.normalize(leaf, dim=1)
    (want,) = torch.autograd.grad(unit @ unit.T, leaf, grad_outputs=torch.from_numpy(moved))
    leaf = embeddings.clone().requires_grad_()
    (got,) = torch.autograd.grad(BlackboxAP(strength=strength, margin=0.2)(leaf, labels), leaf)
    assert want.abs().max() > 0
    assert torch.allclose(got, want, atol=1e-12)


def test_softbin_is_its_sum_over_bins() -> None:
    embeddings, labels = batch()
    s, y, bins = cosines_of(embeddings), labels.numpy(), 5
    scores = []
    for q in range(12):
        near = total = score = 0.0
        for centre in (1.0, 0.5, 0.0, -0.5, -1.0):
            shares = {j: max(0.0, 1 - abs(s[q, j] - centre) / 0.5) for j in range(12) if j != q}
            here = sum(share for j, share in shares.items() if y[j] == y[q])
            near, total = near + here, total + sum(shares.values())
            score += here * near / max(total, 1e-12) / 3
        scores.append(score)
    assert float(SoftbinAP(bins=bins)(embeddings, labels)) == pytest.approx(1 - np.mean(scores))


def test_roadmap_bounds_the_exact_one_from_above() -> None:
    for seed in range(5):
        embeddings, labels = batch(seed)
        exact = 1 - slow_ap(cosines_of(embeddings), labels.numpy())
        assert float(RoadmapAP()(embeddings, labels)) >= exact - 1e-9
    assert float(RoadmapAP()(*ordered())) == pytest.approx(0, abs=1e-9)
    embeddings, labels = batch()
    halves = (float(RoadmapAP()(embeddings, labels)) + float(RoadmapCalibration()(embeddings, labels))) / 2
    assert float(Roadmap()(embeddings, labels)) == pytest.approx(halves)
