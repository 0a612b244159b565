from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retrieval.errors import InvalidParameter
from training.losses import Contextual, ContextualSum, Contrastive, SimilarityRegularizer, contextual

from .golden import F32, F64, agrees, golden, measure
from .slow_contextual import slow_contextual, squared_distances

ALONE = ("regular", "unequal", "no_hard_pos", "no_hard_neg", "no_hard_both", "single_class", "singletons",
         "regular_eps0", "regular_eps02", "k8", "single_class_n_eq_k")  # fmt: skip


def loss_of(case: dict[str, np.ndarray]) -> Contextual:
    return Contextual(neighbours=int(case["k"]), margin=float(case["eps"]), slope=float(case["alpha_ste"]))


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", ALONE)
def test_contextual_golden(test_data: Path, name: str, dtype: torch.dtype) -> None:
    case = golden(test_data, "contextual")[name]
    got = measure(loss_of(case), case, dtype)
    agrees(got, float(case["loss_guarded"]), case["grad_emb_guarded"], dtype)
    if np.isnan(case["loss"]):  # the released code divides by an empty complement
        assert name in ("no_hard_neg", "no_hard_both", "single_class_n_eq_k")
    else:
        assert case["loss_guarded"] == pytest.approx(float(case["loss"]), abs=1e-12)


@pytest.mark.data
def test_contextual_similarities_golden(test_data: Path) -> None:
    case = golden(test_data, "contextual")["regular"]
    w = loss_of(case).similarity(F.normalize(torch.tensor(case["emb"]), dim=1))
    assert np.abs(w.numpy() - case["w_context"]).max() < 1e-12


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_the_weighted_sum_is_eq_6(test_data: Path, dtype: torch.dtype) -> None:
    case = golden(test_data, "contextual")["combined_regular"]
    loss = ContextualSum(
        contextual_weight=float(case["lam"]),
        similarity_weight=float(case["gamma"]),
        neighbours=int(case["k"]),
        margin=float(case["eps"]),
        positive_margin=float(case["pos_margin"]),
        negative_margin=float(case["neg_margin"]),
        target=float(case["s_tilde"]),
    )
    agrees(measure(loss, case, dtype), float(case["loss_eq6"]), case["grad_emb_eq6"], dtype)
    parts = (Contextual(), Contrastive(), SimilarityRegularizer())
    for part, name in zip(parts, ("loss_context", "loss_contrast", "loss_reg"), strict=True):
        assert measure(part, case, F64)[0] == pytest.approx(float(case[name]), abs=1e-12)


def test_a_concentrated_batch_is_finite() -> None:
    """Mean cosine 0.9: every neighbourhood is the whole batch, where the released loss is NaN."""
    generator = torch.Generator().manual_seed(0)
    vectors = 3 + torch.randn(128, 64, generator=generator)
    vectors.requires_grad_()
    value = Contextual()(vectors, torch.arange(32).repeat_interleave(4))
    value.backward()
    assert value.isfinite()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()
    assert vectors.grad.abs().max() > 0


def test_the_surrogate_gradient_equals_loops() -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(9, 4, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    want = slow_contextual(squared_distances(vectors), labels, neighbours=4, margin=0.05, slope=10.0)
    got = Contextual()(vectors, labels)
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(torch.autograd.grad(got, vectors)[0], torch.autograd.grad(want, vectors)[0], atol=1e-11)


ABLATIONS = ({"intersect": False}, {"expand": False}, {"intersect": False, "expand": False}, {"complement": False},
             {"stop_gradient": False}, {"conjunction": "min"}, {"step": "sigmoid"})  # fmt: skip


@pytest.mark.parametrize("arguments", ABLATIONS)
def test_every_ablation_differs_and_is_finite(arguments: dict[str, object]) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(16, 6, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.arange(4).repeat_interleave(4)
    plain = torch.autograd.grad(Contextual()(vectors, labels), vectors)[0]
    ablated = torch.autograd.grad(Contextual(**arguments)(vectors, labels), vectors)[0]  # type: ignore[arg-type]
    assert ablated.isfinite().all()
    assert ablated.abs().max() > 0
    assert not torch.allclose(plain, ablated)


def test_step_one_alone_is_the_share_of_wrong_neighbourhood_entries() -> None:
    """Eq. 32: photos at 0, 10, 90 and 100 degrees, classes alternating: with k = 2 each finds the wrong neighbour."""
    angles = torch.deg2rad(torch.tensor([0.0, 10.0, 90.0, 100.0], dtype=F64))
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    loss = Contextual(neighbours=2, margin=0.0, intersect=False, expand=False)
    assert loss(vectors, torch.tensor([0, 1, 0, 1])).item() == pytest.approx(8 / 16)  # a miss and a false one a row
    assert loss(vectors, torch.tensor([0, 0, 1, 1])).item() == 0


def test_min_equals_product_in_value_and_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    vectors = torch.randn(16, 6, generator=generator, dtype=F64)
    labels = torch.arange(4).repeat_interleave(4)
    with_min = Contextual(conjunction="min")(vectors, labels)
    # on 0 and 1 min and product agree, but W̃ itself is a share: min(share, 1) = share · 1 where inside
    assert Contextual(conjunction="min", expand=False)(vectors, labels).item() == pytest.approx(
        Contextual(expand=False)(vectors, labels).item()
    )
    monkeypatch.setattr(contextual, "ROWS", 300)
    assert Contextual(conjunction="min")(vectors, labels).item() == pytest.approx(with_min.item(), rel=1e-12)


@pytest.mark.parametrize(
    "arguments",
    [{"neighbours": 0}, {"margin": -0.1}, {"slope": 0.0}, {"conjunction": "or"}, {"step": "hard"}],
)
def test_broken_rules_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        Contextual(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        ContextualSum(contextual_weight=1.5)
