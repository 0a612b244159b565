from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from training.losses import ClassWiseMultiSimilarity

from .golden import F32, F64, agrees, golden, measure, small_batch


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_class_wise_multi_similarity_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "cwms").values():
        loss = ClassWiseMultiSimilarity(
            alpha=float(case["alpha"]), beta=float(case["beta"]), delta=1 - float(case["base"])
        )
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)


def test_class_wise_multi_similarity_equals_loops() -> None:
    vectors, labels = small_batch()
    unit = F.normalize(vectors, dim=1)
    total, classes = 0.0, sorted(set(labels.tolist()))
    for first in classes:
        for second in classes:
            d = (1 - unit[labels == first] @ unit[labels == second].T).numpy()
            if first == second:
                total += np.log(1 + np.exp(0.01 * (d - 0.2)).mean() / 2) / 0.01
            else:
                total += np.log(1 + np.exp(-80 * (d - 0.2)).mean()) / 160
    loss = ClassWiseMultiSimilarity()
    assert loss(vectors, labels).item() == pytest.approx(total / len(classes), rel=1e-12)


def test_a_steep_scale_does_not_overflow() -> None:
    vectors = torch.ones(4, 3, requires_grad=True)
    loss = ClassWiseMultiSimilarity(beta=500.0, delta=2.0)  # e^1000
    value = loss(vectors, torch.tensor([0, 0, 1, 1]))
    value.backward()
    attraction = np.log(1 + np.exp(0.01 * -2.0) / 2) / 0.01
    assert value.item() == pytest.approx(attraction + 2 * 1000 / (2 * 500 * 2), rel=1e-6)
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()
