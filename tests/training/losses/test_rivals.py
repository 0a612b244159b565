"""The losses that only the papers' tables compare with, against slow versions and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from training.losses import Contextual, ThresholdConsistentMargin
from training.losses.registry import LOSSES, make_loss
from training.papers.rival_rankings import BlackboxAP, Roadmap, RoadmapAP, RoadmapCalibration, SoftbinAP
from training.papers.rivals import (
    RIVALS,
    ContextualCorrected,
    ContextualDetached,
    Corrected,
    EuclideanNCA,
    rivals_known,
)


def batch(seed: int = 0, *, n: int = 12, d: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64), torch.arange(n) // 4


def ordered(n: int = 12) -> tuple[Tensor, Tensor]:
    """Return a batch in which every photo has its own class first."""
    labels = torch.arange(n) // 4
    return torch.nn.functional.one_hot(labels).double() + 0.01 * batch(n=n, d=int(labels.max()) + 1)[0], labels


def cosines_of(embeddings: Tensor) -> np.ndarray:
    unit = torch.nn.functional.normalize(embeddings, dim=1).numpy()
    return np.asarray(unit @ unit.T)


def test_the_names_are_settings_inside_the_block_alone() -> None:
    assert not set(RIVALS) & set(LOSSES)
    with rivals_known():
        for name in RIVALS:
            loss = make_loss(name, classes=3, dim=6, arguments={})
            embeddings, labels = batch()
            embeddings.requires_grad_()
            value = loss.double()(embeddings, labels)
            (gradient,) = torch.autograd.grad(value, embeddings)
            assert torch.isfinite(value), name
            assert torch.isfinite(gradient).all(), name
    assert not set(RIVALS) & set(LOSSES)


def test_a_batch_without_positives_gives_a_finite_number() -> None:
    embeddings, _ = batch()
    for loss in (RoadmapCalibration(), RoadmapAP(), Roadmap(), SoftbinAP(), BlackboxAP()):
        value = loss(embeddings.requires_grad_(), torch.arange(len(embeddings)))
        value.backward()
        assert torch.isfinite(value)


def test_calibration_divides_by_all_pairs() -> None:
    embeddings, labels = batch()
    s, y = cosines_of(embeddings), labels.numpy()
    pull = np.mean([max(0, 0.9 - s[i, j]) for i in range(12) for j in range(12) if i != j and y[i] == y[j]])
    push = np.mean([max(0, s[i, j] - 0.6) for i in range(12) for j in range(12) if y[i] != y[j]])
    assert float(RoadmapCalibration()(embeddings, labels)) == pytest.approx(pull + push)
    hard = ThresholdConsistentMargin(positive_margin=0.9, negative_margin=0.6)
    assert float(hard(embeddings, labels)) > pull + push


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


def test_softbin_by_hand() -> None:
    two = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert float(SoftbinAP(bins=2)(two, torch.tensor([0, 0, 1, 1]))) == pytest.approx(0)
    assert float(SoftbinAP(bins=2)(two, torch.tensor([0, 1, 0, 1]))) == pytest.approx(1 - 1 / 3)


def test_roadmap_bounds_the_exact_one_from_above() -> None:
    for seed in range(5):
        embeddings, labels = batch(seed)
        exact = 1 - slow_ap(cosines_of(embeddings), labels.numpy())
        assert float(RoadmapAP()(embeddings, labels)) >= exact - 1e-9
    assert float(RoadmapAP()(*ordered())) == pytest.approx(0, abs=1e-9)
    embeddings, labels = batch()
    halves = (float(RoadmapAP()(embeddings, labels)) + float(RoadmapCalibration()(embeddings, labels))) / 2
    assert float(Roadmap()(embeddings, labels)) == pytest.approx(halves)


def test_roadmaps_step_by_hand() -> None:
    """Three photos, one positive at 0.6 and one negative t before it: 1 - AP = 1 - 1 / (1 + H(t))."""
    angle = torch.tensor([0.0, np.arccos(0.6), -np.arccos(0.62)], dtype=torch.float64)
    embeddings = torch.stack([angle.cos(), angle.sin()], dim=1)
    labels = torch.tensor([0, 0, 1])
    s = cosines_of(embeddings)
    scores = []
    for q, p in ((0, 1), (1, 0)):
        t = s[q, 2] - s[q, p]
        step = 1 / (1 + np.exp(-t / 0.01))
        scores.append(1 / (1 + (step + 0.5 if 0 < t <= 0.05 else step)))
    assert float(RoadmapAP()(embeddings, labels)) == pytest.approx(1 - np.mean(scores))


def test_corrected_has_the_contextual_value_and_no_gradient_against_the_labels() -> None:
    embeddings, labels = batch()
    plain, corrected = Contextual(), ContextualCorrected()
    values, slopes = [], []
    for loss in (plain, corrected):
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, labels)
        (slope,) = torch.autograd.grad(value, leaf)
        values.append(float(value.detach()))
        slopes.append(slope)
    assert values[0] == pytest.approx(values[1])
    assert not torch.allclose(slopes[0], slopes[1])


def test_the_correction_cuts_distances_by_their_labels() -> None:
    """Eq. 10: a positive pair's distance never gets a negative gradient, a negative pair's never a positive one."""
    squared = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    alike = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[-1.0, -2.0], [3.0, 4.0]], dtype=torch.float64)
    (Corrected.apply(squared, alike) * weights).sum().backward()
    assert squared.grad is not None
    assert squared.grad.tolist() == [[0.0, -2.0], [3.0, 0.0]]


def test_detached_has_the_contextual_value_and_another_gradient() -> None:
    embeddings, labels = batch()
    slopes = []
    for loss in (Contextual(), ContextualDetached()):
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, labels)
        (slope,) = torch.autograd.grad(value, leaf)
        slopes.append((float(value.detach()), slope))
    assert slopes[0][0] == pytest.approx(slopes[1][0])
    assert not torch.allclose(slopes[0][1], slopes[1][1])


def test_euclidean_nca_by_hand() -> None:
    loss = EuclideanNCA(2, 2, temperature=2.0, norm=3.0).double()
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor([[3.0, 0.0], [0.0, 3.0]]))
    value = float(loss(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])).detach())
    assert value == pytest.approx(np.log(1 + np.exp(-(10 - 4) / 2)))
