from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from training.losses import ClassAveragedContrastive, Contrastive, ThresholdConsistentMargin

from .golden import F32, F64, agrees, golden, measure, small_batch


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_contrastive_golden(test_data: Path, dtype: torch.dtype) -> None:
    for name, case in golden(test_data, "contrastive").items():
        if dtype == F32 and name == "boundary":
            continue
        loss = Contrastive(positive_margin=float(case["pos_margin"]), negative_margin=float(case["neg_margin"]))
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)


@pytest.mark.data
def test_a_pair_on_a_margin_counts_for_tcm_and_not_for_contrastive(test_data: Path) -> None:
    case = golden(test_data, "contrastive")["boundary"]
    margins = {"positive_margin": 0.6, "negative_margin": 0.6}
    assert measure(ThresholdConsistentMargin(**margins), case, F64)[0] == pytest.approx(0.4)
    assert measure(Contrastive(**margins), case, F64)[0] == pytest.approx(0.8)


def test_class_averaged_contrastive_equals_loops() -> None:
    vectors, labels = small_batch()
    unit = F.normalize(vectors, dim=1)
    total, classes = 0.0, sorted(set(labels.tolist()))
    for first in classes:
        for second in classes:
            d = (1 - unit[labels == first] @ unit[labels == second].T).numpy()
            total += np.maximum(d - 0.02, 0).mean() / 2 if first == second else np.maximum(0.3 - d, 0).mean() / 2
    loss = ClassAveragedContrastive()
    assert loss(vectors, labels).item() == pytest.approx(total / len(classes), rel=1e-12)
