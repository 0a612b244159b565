from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses import ThresholdConsistentMargin, tcm
from training.losses.base import pair_masks

from .golden import F32, F64, agrees, golden, measure


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_tcm_golden(test_data: Path, dtype: torch.dtype) -> None:
    for name, case in golden(test_data, "tcm").items():
        if dtype == F32 and name == "boundary":
            continue  # pairs exactly on a margin are not exactly on it in float32
        loss = ThresholdConsistentMargin(
            positive_margin=float(case["margin_plus"]),
            negative_margin=float(case["margin_minus"]),
            positive_weight=float(case["lambda_plus"]),
            negative_weight=float(case["lambda_minus"]),
        )
        agrees(measure(loss, case, dtype), float(case["loss_eq5"]), case["grad_emb"], dtype)


@pytest.mark.data
def test_tcm_ablations_are_its_golden_terms(test_data: Path) -> None:
    for case in golden(test_data, "tcm").values():
        margins = {"positive_margin": float(case["margin_plus"]), "negative_margin": float(case["margin_minus"])}
        positive = ThresholdConsistentMargin(**margins, negative_weight=0.0)  # Eq. 16
        negative = ThresholdConsistentMargin(**margins, positive_weight=0.0)  # Eq. 15
        assert measure(positive, case, F64)[0] == pytest.approx(float(case["pos_term"]), abs=1e-12)
        assert measure(negative, case, F64)[0] == pytest.approx(float(case["neg_term"]), abs=1e-12)


def slow_tcm(vectors: Tensor, labels: Tensor, hard_only: bool) -> Tensor:
    """Return Eq. 5, or Eq. 17, from the whole matrix with masks, through autograd."""
    unit = F.normalize(vectors, dim=1)
    s = unit @ unit.T
    positive, negative = pair_masks(labels)
    total = s.sum() * 0
    for violation, allowed in ((0.9 - s, positive), (s - 0.5, negative)):
        hard = allowed & (violation >= 0)
        chosen = hard if hard_only else allowed
        total = total + (violation * chosen).sum() / hard.sum().clamp(min=1)
    return total


@pytest.mark.parametrize("hard_only", [True, False])
@pytest.mark.parametrize("block", [1, 100, 2**19])
@pytest.mark.parametrize("classes", [1, 4, 40])
def test_tcm_equals_the_mask_version(
    hard_only: bool, block: int, classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tcm.BLOCK, "cpu", block)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(40, 3, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.randint(classes, (40,), generator=generator)
    got = ThresholdConsistentMargin(hard_only=hard_only)(vectors, labels)
    want = slow_tcm(vectors, labels, hard_only)
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(torch.autograd.grad(got, vectors)[0], torch.autograd.grad(want, vectors)[0], atol=1e-13)


def test_tcm_by_hand() -> None:
    """Two photos of one class at cosine 0.6, and one of another at 0.8 to the first and 0 to the second."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]], dtype=F64)
    labels = torch.tensor([0, 0, 1])
    assert ThresholdConsistentMargin()(vectors, labels).item() == pytest.approx((0.9 - 0.6) + (0.8 - 0.5), abs=1e-12)
    everything = ThresholdConsistentMargin(hard_only=False)(vectors, labels).item()
    assert everything == pytest.approx((0.9 - 0.6) + (0.8 - 0.5) + (0.0 - 0.5), abs=1e-12)  # one hard negative


def test_tcm_keeps_no_matrix_of_all_pairs() -> None:
    vectors, labels = torch.randn(3000, 8, requires_grad=True), torch.arange(3000) // 4
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        ThresholdConsistentMargin()(vectors, labels)
    assert max(kept) <= vectors.numel()


@pytest.mark.parametrize("arguments", [{"positive_margin": 0.2}, {"negative_weight": -1.0}, {"positive_margin": 1.5}])
def test_tcm_refuses_broken_rules(arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        ThresholdConsistentMargin(**arguments)
