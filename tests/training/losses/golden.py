"""Golden values: cases read from disk, and what counts as agreement; small batches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

F64, F32 = torch.float64, torch.float32
TOLERANCE = {F64: (1e-9, 1e-8), F32: (3e-7, 5e-5)}  # loss, and gradient as a share of its largest entry
VMF_TOLERANCE = {F64: (1e-9, 1e-8), F32: (5e-5, 1e-3)}

ONE_OF_EACH_KIND = {"multi_similarity", "proxy_anchor", "recall_at_k", "vmf_nca"}

Case = dict[str, np.ndarray]


def some_fast(names: Iterable[str]) -> list[Any]:
    """Return the names of losses as parameters of a test, which is slow for all but one of each kind."""
    slow = pytest.mark.slow
    return [name if name in ONE_OF_EACH_KIND else pytest.param(name, marks=slow) for name in sorted(names)]


def golden(folder: Path, name: str) -> dict[str, Case]:
    """Return the cases of a golden file."""
    cases: dict[str, Case] = {}
    with np.load(folder / "golden" / f"{name}.npz", allow_pickle=False) as file:
        for key in file.files:
            case, array = key.split("__")
            cases.setdefault(case, {})[array] = file[key]
    return cases


def measure(loss: nn.Module, case: Case, dtype: torch.dtype) -> tuple[float, Tensor]:
    """Return the loss of a golden case, and its gradient with respect to the raw embeddings."""
    embeddings = torch.tensor(case["emb"], dtype=dtype, requires_grad=True)
    value = loss.to(dtype)(embeddings, torch.tensor(case["labels"]))
    value.backward()
    assert embeddings.grad is not None
    return value.item(), embeddings.grad


def agrees(
    got: tuple[float, Tensor],
    loss: float,
    gradient: np.ndarray,
    dtype: torch.dtype,
    *,
    size: float = 1.0,
    tolerance: dict[torch.dtype, tuple[float, float]] = TOLERANCE,
) -> None:
    """Compare with golden values; `size` is that of the terms whose rounding the loss inherits."""
    close, share = tolerance[dtype]
    assert got[0] == pytest.approx(loss, abs=close * max(size, abs(loss)))
    gradient_agrees(got[1], gradient, dtype, share)


def gradient_agrees(got: Tensor, gradient: np.ndarray, dtype: torch.dtype, share: float) -> None:
    """Compare a gradient with a golden one, relative to its largest entry."""
    floor = 1e-15 if dtype == F64 else 1e-7  # a gradient of 1e-16 is nothing in float32
    assert np.abs(got.numpy() - gradient).max() <= share * np.abs(gradient).max() + floor


def set_rows(parameter: nn.Parameter, rows: np.ndarray) -> None:
    """Give a parameter golden values."""
    parameter.data = torch.tensor(rows)


def small_batch(seed: int = 3) -> tuple[Tensor, Tensor]:
    """Return 8 embeddings of 4 classes of unequal size."""
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return vectors, torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])


def batch(seed: int = 0, *, n: int = 12, d: int = 6) -> tuple[Tensor, Tensor]:
    """Return n embeddings, four of each class."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64), torch.arange(n) // 4


def cosines_of(embeddings: Tensor) -> np.ndarray:
    """Return the cosines (n, n) of raw embeddings (n, d)."""
    unit = nn.functional.normalize(embeddings, dim=1).numpy()
    return np.asarray(unit @ unit.T)


def gradient_of(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> tuple[float, Tensor]:
    """Return the loss, and its gradient with respect to the raw embeddings."""
    leaf = embeddings.clone().requires_grad_()
    value = loss(leaf, labels)
    return value.item(), torch.autograd.grad(value, leaf)[0]
