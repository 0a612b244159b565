from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.losses import SimilarityRegularizer

from .golden import F32, F64, agrees, golden, measure


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_similarity_regularizer_golden(test_data: Path, dtype: torch.dtype) -> None:
    cases = golden(test_data, "similarity_regularizer")
    for name, case in cases.items():
        batch = cases[name.rsplit("_", 1)[0] + "_s030"] | case
        loss = SimilarityRegularizer(target=float(case["s_tilde"]))
        agrees(measure(loss, batch, dtype), float(case["loss"]), case["grad_emb"], dtype)
