"""The losses that only the papers' tables compare with, against slow versions and numbers by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses

from research.losses import (
    ArcFace,
    ClassAveragedContrastive,
    ContextualAblated,
    ContextualCorrected,
    ContextualDetached,
    CosFace,
    EuclideanNCA,
    FastAP,
    Margin,
    NormalizedSoftmax,
    NTXent,
    ProxyNCA,
    Triplet,
    contextual,
)
from retrieval.errors import InvalidParameter
from training.losses import Contextual, make_loss

from ...training.losses.golden import F64, batch, cosines_of, gradient_of, small_batch
from ...training.losses.slow_contextual import slow_contextual, squared_distances


def test_corrected_cuts_the_gradient_of_loops_by_the_labels() -> None:
    embeddings, labels = batch(n=9)
    value, slope = gradient_of(ContextualCorrected(), embeddings, labels)
    leaf = embeddings.clone().requires_grad_()
    squared = squared_distances(leaf)
    want = slow_contextual(squared, labels, neighbours=4, margin=0.05, slope=10.0)
    (whole,) = torch.autograd.grad(want, squared, retain_graph=True)
    against = (whole < 0) == (labels[:, None] == labels[None])
    assert 0 < against.sum() < against.numel()
    (cut,) = torch.autograd.grad(squared, leaf, grad_outputs=whole.masked_fill(against, 0))
    assert value == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(slope, cut, atol=1e-11)
    assert not torch.allclose(slope, gradient_of(Contextual(), embeddings, labels)[1])


def test_detached_is_the_loops_with_a_constant_count() -> None:
    embeddings, labels = batch(n=9)
    value, slope = gradient_of(ContextualDetached(), embeddings, labels)
    leaf = embeddings.clone().requires_grad_()
    want = slow_contextual(squared_distances(leaf), labels, neighbours=4, margin=0.05, slope=10.0, detached=True)
    assert value == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(slope, torch.autograd.grad(want, leaf)[0], atol=1e-11)
    plain, other = gradient_of(Contextual(), embeddings, labels)
    assert plain == pytest.approx(value)
    assert not torch.allclose(slope, other)


def test_euclidean_nca_is_the_cross_entropy_of_squared_distances() -> None:
    embeddings, labels = batch()
    loss = EuclideanNCA(5, 6).double()
    squared = (embeddings[:, None] - loss.proxies[None]).square().sum(dim=2)
    assert squared.shape == (12, 5)
    assert loss.proxies.norm(dim=1).tolist() == pytest.approx([10.0] * 5)
    want = -torch.log_softmax(-squared / 32, dim=1)[torch.arange(12), labels].mean()
    assert loss(embeddings, labels).item() == pytest.approx(want.item(), rel=1e-12)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_nt_xent_is_that_of_lists_of_pairs(temperature: float) -> None:
    embeddings, _ = batch()
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4])
    s, y = cosines_of(embeddings) / temperature, labels.numpy()
    terms = []
    for i in range(12):
        for j in range(12):
            if i != j and y[i] == y[j]:
                others = np.exp(s[i][y != y[i]]).sum()
                terms.append(-np.log(np.exp(s[i, j]) / (np.exp(s[i, j]) + others)))
    value, slope = gradient_of(NTXent(temperature=temperature), embeddings, labels)
    assert value == pytest.approx(np.mean(terms), rel=1e-12)
    released, their_slope = gradient_of(losses.NTXentLoss(temperature=temperature), embeddings, labels)
    assert value == pytest.approx(released, rel=1e-9)
    assert torch.allclose(slope, their_slope, atol=1e-9)


def test_fast_ap_by_hand() -> None:
    """Squared distances 0 to the positive and 4 to the negatives lie in bins 0 and 1; exchanged, 1/3 is precise."""
    two = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert float(FastAP(bins=1)(two, torch.tensor([0, 0, 1, 1]))) == pytest.approx(0)
    assert float(FastAP(bins=1)(two, torch.tensor([0, 1, 0, 1]))) == pytest.approx(1 - 1 / 3)


def test_margin_by_hand() -> None:
    """One positive and one negative to draw: both anchors pay d_ap - 1.2 + 0.2, and 1.2 - d_an + 0.2 where near."""
    angle = torch.deg2rad(torch.tensor([0.0, 70.0, -40.0], dtype=torch.float64))
    embeddings = torch.stack([angle.cos(), angle.sin()], dim=1)

    def chord(degrees: float) -> float:
        return float(2 * np.sin(np.deg2rad(degrees) / 2))

    value = float(Margin()(embeddings, torch.tensor([0, 0, 1])))
    pull, near = chord(70) - 1.0, 1.4 - chord(40)
    assert chord(110) > 1.4  # photo 1 has no negative to push away
    assert value == pytest.approx((2 * pull + near) / 3)  # over the terms above zero
    wide = float(Margin(beta=2.0, margin=0.0)(embeddings, torch.tensor([0, 0, 1])))
    assert wide == pytest.approx((4 - chord(40) - chord(110)) / 2)


def test_ablations_of_the_contextual_loss_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(16, 6, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.arange(4).repeat_interleave(4)
    assert ContextualAblated()(vectors, labels).item() == Contextual()(vectors, labels).item()
    plain = torch.autograd.grad(Contextual()(vectors, labels), vectors)[0]
    ablations: list[dict[str, Any]] = [{"intersect": False}, {"expand": False}, {"intersect": False, "expand": False}]
    ablations += [{"complement": False}, {"stop_gradient": False}, {"conjunction": "min"}, {"step": "sigmoid"}]
    for arguments in ablations:
        ablated = torch.autograd.grad(ContextualAblated(**arguments)(vectors, labels), vectors)[0]
        assert ablated.isfinite().all(), arguments
        assert ablated.abs().max() > 0, arguments
        assert not torch.allclose(plain, ablated), arguments
    # on 0 and 1 min and product agree, but W̃ itself is a share: min(share, 1) = share · 1 where inside
    by_min, by_product = (
        ContextualAblated(conjunction=name, expand=False)(vectors, labels) for name in ("min", "product")
    )
    assert by_min.item() == pytest.approx(by_product.item())
    whole = ContextualAblated(conjunction="min")(vectors, labels).item()
    monkeypatch.setattr(contextual, "ROWS", 300)
    assert ContextualAblated(conjunction="min")(vectors, labels).item() == pytest.approx(whole, rel=1e-12)


def test_triplet_cosface_and_normalized_softmax_are_their_formulas() -> None:
    """Anchor and positive at cosine 0.6, a negative at cosine 0.8 to the anchor and 0 to the positive."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]], dtype=F64)
    value = Triplet(margin=0.2, mining="all")(vectors, torch.tensor([0, 0, 1]))
    violation = (2 - 2 * 0.6) ** 0.5 - (2 - 2 * 0.8) ** 0.5 + 0.2  # the other triplet keeps its margin
    assert value.item() == pytest.approx(violation, abs=1e-12)
    vectors, labels = small_batch()
    unit = F.normalize(vectors, dim=1)
    cosface, softmax = CosFace(4, 6, scale=8.0, margin=0.3).double(), NormalizedSoftmax(4, 6).double()
    shifted = 8 * (unit @ F.normalize(cosface.inner.W, dim=0) - 0.3 * F.one_hot(labels, 4))
    assert cosface(vectors, labels).item() == pytest.approx(F.cross_entropy(shifted, labels).item(), rel=1e-6)
    cosines = unit @ F.normalize(softmax.inner.W, dim=0)
    assert softmax(vectors, labels).item() == pytest.approx(F.cross_entropy(cosines / 0.05, labels).item(), rel=1e-6)


def test_class_averaged_contrastive_equals_loops() -> None:
    vectors, labels = small_batch()
    unit = F.normalize(vectors, dim=1)
    classes = sorted(set(labels.tolist()))
    total = 0.0
    for first in classes:
        for second in classes:
            d = (1 - unit[labels == first] @ unit[labels == second].T).numpy()
            total += np.maximum(d - 0.02 if first == second else 0.3 - d, 0).mean() / 2
    assert ClassAveragedContrastive()(vectors, labels).item() == pytest.approx(total / len(classes), rel=1e-12)


def test_labels_without_a_proxy_are_refused() -> None:
    for kind in (ProxyNCA, ArcFace, CosFace, NormalizedSoftmax):
        with pytest.raises(InvalidParameter, match="between 0 and 3"):
            kind(4, 6)(torch.randn(2, 6), torch.tensor([0, 4]))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("blackbox_ap", {"strength": 0.0}),
        ("contextual_ablated", {"conjunction": "or"}),
        ("contextual_ablated", {"step": "hard"}),
        ("contextual_detached", {"neighbours": 0}),
        ("fast_ap", {"bins": 0}),
        ("margin", {"margin": -0.1}),
        ("margin", {"cutoff": 2.0}),
        ("margin", {"reach": 0.5}),
        ("nca_l2", {"norm": 0.0}),
        ("nca_l2", {"temperature": -1.0}),
        ("ntxent", {"temperature": 0.0}),
        ("roadmap", {"calibration_weight": 1.1}),
        ("roadmap_ap", {"edge": 0.0}),
        ("roadmap_calibration", {"negative_margin": 0.95}),
        ("softbin_ap", {"bins": 1}),
    ],
)
def test_broken_rules_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        make_loss(name, classes=3, dim=4, arguments=arguments)
