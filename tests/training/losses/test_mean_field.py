from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retrieval.errors import InvalidParameter
from training.losses import MeanFieldClassWiseMultiSimilarity, MeanFieldContrastive

from .golden import F32, F64, Case, agrees, golden, gradient_agrees, measure, set_rows, small_batch


def contrastive_of(case: Case, reduction: str) -> MeanFieldContrastive:
    loss = MeanFieldContrastive(
        *case["mean_fields"].shape,
        positive_margin=float(case["pos_margin"]),
        negative_margin=float(case["neg_margin"]),
        regularization=float(case["mf_reg"]),
        reduction=reduction,
    )
    set_rows(loss.fields, case["mean_fields"])
    return loss


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_mean_field_contrastive_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "meanfield_contrastive").values():
        loss = contrastive_of(case, "sample")
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)
        assert loss.fields.grad is not None
        gradient_agrees(loss.fields.grad, case["grad_mean_fields"], dtype, 1e-8 if dtype == F64 else 5e-5)
        by_class = measure(contrastive_of(case, "class"), case, F64)[0]
        assert by_class == pytest.approx(float(case["loss_eq8_class_balanced"]), abs=1e-9)


@pytest.mark.data
def test_the_regularizers_of_the_fields_golden(test_data: Path) -> None:
    case = golden(test_data, "meanfield_contrastive")["close_fields"]
    plain, kept_apart = contrastive_of(case, "sample"), contrastive_of(case, "sample")
    kept_apart.regularization = 1.0
    extra = measure(kept_apart, case, F64)[0] - measure(plain, case, F64)[0]
    assert extra == pytest.approx(float(case["reg_term"]), abs=1e-9)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_mean_field_multi_similarity_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "meanfield_cwms").values():
        loss = MeanFieldClassWiseMultiSimilarity(
            *case["mean_fields"].shape,
            alpha=float(case["alpha"]),
            beta=float(case["beta"]),
            delta=float(case["delta_distance"]),
            regularization=float(case["mf_reg"]) / float(case["beta"]) ** 2,  # the released code divides by beta
        )
        set_rows(loss.fields, case["mean_fields"])
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)
        assert loss.fields.grad is not None
        gradient_agrees(loss.fields.grad, case["grad_mean_fields"], dtype, 1e-8 if dtype == F64 else 5e-5)


def test_mean_field_multi_similarity_equals_loops_over_all_pairs_of_classes() -> None:
    vectors, labels = small_batch()
    torch.manual_seed(0)
    loss = MeanFieldClassWiseMultiSimilarity(6, 6, beta=3.0, delta=0.9, regularization=0.1).double()
    d = (1 - F.normalize(vectors, dim=1) @ F.normalize(loss.fields.detach(), dim=1).T).numpy()
    fields = F.normalize(loss.fields.detach(), dim=1)
    between = (1 - fields @ fields.T).numpy()
    rows = {c: np.flatnonzero(labels == c) for c in range(6)}
    q = np.array([[np.exp(-3 * (d[rows[c], e] - 0.9)).mean() if len(rows[c]) else 0 for e in range(6)]
                  for c in range(6)])  # fmt: skip
    total = sum(np.log(1 + np.exp(0.01 * (d[rows[c], c] - 0.9)).mean()) / 0.01 for c in range(4))
    total += sum(np.log(1 + q[c, e] + q[e, c]) / 6 for c in range(6) for e in range(6) if c != e)
    crowding = sum(np.log(1 + np.exp(-3 * (between[c, e] - 0.9))) ** 2 for c in range(6) for e in range(6) if c != e)
    assert loss(vectors, labels).item() == pytest.approx(total / 4 + 0.1 * crowding / 6, rel=1e-10)


@pytest.mark.parametrize("loss", [MeanFieldContrastive, MeanFieldClassWiseMultiSimilarity])
def test_the_cost_is_linear_in_the_classes(loss: type[torch.nn.Module]) -> None:
    """No tensor of a step has more than n · C elements, whatever C."""
    classes, vectors = 2000, torch.randn(16, 8, requires_grad=True)
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(classes, 8)(vectors, torch.arange(16) // 4)
    assert max(kept) <= 16 * classes


@pytest.mark.parametrize("arguments", [{"positive_margin": -0.1}, {"regularization": -1.0}, {"reduction": "median"}])
def test_broken_rules_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        MeanFieldContrastive(3, 4, **arguments)  # type: ignore[arg-type]
