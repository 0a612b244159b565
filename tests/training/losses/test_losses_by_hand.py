"""Losses equal the printed formulas as loops, and numbers that a reader can check; their memory; broken rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses import (
    ClassWiseMultiSimilarity,
    Contextual,
    ContextualSum,
    Contrastive,
    MeanFieldContrastive,
    ProxyAnchor,
    RecallAtK,
    SmoothAP,
    ThresholdConsistentMargin,
    VonMisesFisherNCA,
    ranking,
)
from training.losses.ranking import simix, simix_pairs, smooth_recall

from .golden import F64, agrees, golden, measure, small_batch


def same_with_gradient(got: Tensor, want: Tensor, vectors: Tensor) -> None:
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(torch.autograd.grad(got, vectors)[0], torch.autograd.grad(want, vectors)[0], atol=1e-11)


def test_tcm_by_hand() -> None:
    """Two photos of one class at cosine 0.6, and one of another at 0.8 to the first and 0 to the second."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]], dtype=F64)
    labels = torch.tensor([0, 0, 1])
    assert ThresholdConsistentMargin()(vectors, labels).item() == pytest.approx((0.9 - 0.6) + (0.8 - 0.5), abs=1e-12)
    everything = ThresholdConsistentMargin(hard_only=False)(vectors, labels).item()
    assert everything == pytest.approx((0.9 - 0.6) + (0.8 - 0.5) + (0.0 - 0.5), abs=1e-12)  # one hard negative


@pytest.mark.data
def test_a_pair_on_a_margin_counts_for_tcm_and_not_for_contrastive(test_data: Path) -> None:
    case = golden(test_data, "contrastive")["boundary"]
    margins = {"positive_margin": 0.6, "negative_margin": 0.6}
    assert measure(ThresholdConsistentMargin(**margins), case, F64)[0] == pytest.approx(0.4)
    assert measure(Contrastive(**margins), case, F64)[0] == pytest.approx(0.8)


def test_labels_may_have_any_type() -> None:
    embeddings, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 1, 1, 0, 0])
    for kind in (torch.bool, torch.uint8, torch.int32):
        for loss in (SmoothAP(), RecallAtK()):
            assert loss(embeddings, labels.to(kind)) == loss(embeddings, labels) > 0


@pytest.mark.data
def test_recall_of_each_query_and_mixed_photos_equal_the_golden_ones(test_data: Path) -> None:
    released = {"rank_temperature": 1.0, "similarity_temperature": 0.01, "count_query": True}
    case = golden(test_data, "recall_at_k_surrogate")["regular"]
    unit = F.normalize(torch.tensor(case["emb"]), dim=1)
    for place, k in enumerate(case["k_vals"].tolist()):
        recall, asked = smooth_recall(unit @ unit.T, torch.tensor(case["labels"]), ks=[k], **released)  # type: ignore[arg-type]
        assert asked.all()
        assert np.abs(recall.numpy() - case["recall_per_query_k"][:, place]).max() < 1e-12
    case = golden(test_data, "recall_at_k_surrogate")["simix_m4"]
    vectors = torch.tensor(case["emb"], requires_grad=True)
    first, second = (torch.cat([torch.tensor(case["pairs"][:, side]) + 4 * c for c in range(4)]) for side in (0, 1))
    labels = torch.tensor(case["labels"])
    mixed, mixed_labels = simix(F.normalize(vectors, dim=1), labels, (first, second), torch.tensor(case["alphas"]))
    order = torch.argsort(mixed_labels, stable=True)
    assert torch.equal(mixed_labels[order], torch.tensor(case["mixed_labels"]))
    assert np.abs(mixed[order].detach().numpy() - case["mixed"]).max() < 1e-15
    recall, _ = smooth_recall(mixed @ mixed.T, mixed_labels, ks=case["k_vals"].tolist(), **released)  # type: ignore[arg-type]
    loss = (1 - recall).mean()
    loss.backward()
    assert vectors.grad is not None
    agrees((loss.item(), vectors.grad), float(case["loss"]), case["grad_emb"], F64)


def test_simix_mixes_every_pair_of_a_class_once() -> None:
    first, second = simix_pairs(torch.tensor([0, 1, 0, 1, 0, 2]))
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 2), (0, 4), (1, 3), (2, 4)]
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(4).repeat_interleave(2)
    torch.manual_seed(0)
    mixed = RecallAtK(simix=True)(vectors, labels)
    assert mixed.isfinite()
    assert mixed.item() != pytest.approx(RecallAtK()(vectors, labels).item(), abs=1e-3)


def test_class_wise_multi_similarity_equals_loops() -> None:
    vectors, labels = small_batch()
    unit = F.normalize(vectors, dim=1)
    classes = sorted(set(labels.tolist()))
    similar = 0.0
    for first in classes:
        for second in classes:
            d = (1 - unit[labels == first] @ unit[labels == second].T).numpy()
            if first == second:
                similar += np.log(1 + np.exp(0.01 * (d - 0.2)).mean() / 2) / 0.01
            else:
                similar += np.log(1 + np.exp(-80 * (d - 0.2)).mean()) / 160
    assert ClassWiseMultiSimilarity()(vectors, labels).item() == pytest.approx(similar / len(classes), rel=1e-12)


def test_a_steep_scale_does_not_overflow() -> None:
    vectors = torch.ones(4, 3, requires_grad=True)
    value = ClassWiseMultiSimilarity(beta=500.0, delta=2.0)(vectors, torch.tensor([0, 0, 1, 1]))  # e^1000
    value.backward()
    attraction = np.log(1 + np.exp(0.01 * -2.0) / 2) / 0.01
    assert value.item() == pytest.approx(attraction + 2 * 1000 / (2 * 500 * 2), rel=1e-6)
    assert vectors.grad.isfinite().all()


def test_the_contextual_loss_is_finite_in_a_concentrated_batch() -> None:
    """At a mean cosine of 0.9 every neighbourhood is the whole batch, where the released loss is NaN."""
    generator = torch.Generator().manual_seed(1)
    close = (3 + torch.randn(128, 64, generator=generator)).requires_grad_()
    value = Contextual()(close, torch.arange(32).repeat_interleave(4))
    value.backward()
    assert value.isfinite()
    assert close.grad.isfinite().all()
    assert close.grad.abs().max() > 0


def test_ranks_in_blocks_are_those_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = small_batch()
    for loss in (SmoothAP(), SmoothAP(count_query=False), RecallAtK(ks=(1, 2, 4))):
        whole = loss(vectors.requires_grad_(), labels)
        with monkeypatch.context() as patch:
            patch.setattr(ranking, "block_limit", lambda _: 40)
            same_with_gradient(loss(vectors, labels), whole, vectors)


def test_broken_rules_and_labels_without_a_proxy_are_refused() -> None:
    broken: dict[type, list[dict[str, Any]]] = {
        Contextual: [{"neighbours": 0}, {"margin": -0.1}, {"slope": 0.0}],
        ContextualSum: [{"contextual_weight": 1.5}],
        MeanFieldContrastive: [{"positive_margin": -0.1}, {"regularization": -1.0}, {"reduction": "median"}],
        RecallAtK: [{"ks": ()}, {"ks": (0,)}, {"ks": (1.5,)}, {"rank_temperature": 0.0}],
        ThresholdConsistentMargin: [{"positive_margin": 0.2}, {"negative_weight": -1.0}, {"positive_margin": 1.5}],
        VonMisesFisherNCA: [{"distance": "cosine"}, {"temperature": 0.0}, {"samples": 0}, {"concentration": -1.0},
                            {"anchor_weight": -1.0}, {"normalizer": "none"},
                            {"normalizer": "paper", "distance": "el_vmf"}],
    }  # fmt: skip
    for kind, cases in broken.items():
        shape = (3, 4) if kind in (MeanFieldContrastive, VonMisesFisherNCA) else ()
        for arguments in cases:
            with pytest.raises(InvalidParameter):
                kind(*shape, **arguments)
    with pytest.raises(InvalidParameter, match="between 0 and 3"):
        ProxyAnchor(4, 6)(torch.randn(2, 6), torch.tensor([0, 4]))
