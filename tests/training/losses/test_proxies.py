from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.errors import InvalidParameter
from training.losses import ArcFace, CosFace, MultiSimilarity, NormalizedSoftmax, ProxyAnchor, ProxyNCA, Triplet

from .golden import F32, F64, agrees, golden, gradient_agrees, measure, set_rows, small_batch


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_proxy_anchor_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "proxyanchor").values():
        loss = ProxyAnchor(*case["proxies"].shape, alpha=float(case["alpha"]), margin=float(case["margin"]))
        set_rows(loss.proxies, case["proxies"])
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)
        assert loss.proxies.grad is not None
        gradient_agrees(loss.proxies.grad, case["grad_proxies"], dtype, 1e-8 if dtype == F64 else 5e-5)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("classic", [False, True])
def test_proxy_nca_golden(test_data: Path, dtype: torch.dtype, classic: bool) -> None:
    suffix = "_classic" if classic else ""
    for name, case in golden(test_data, "proxynca").items():
        scale = float(case["softmax_scale"])
        loss = ProxyNCA(*case["proxies"].shape, scale=scale, classic=classic)
        set_rows(loss.proxies, case["proxies"])
        got = measure(loss, case, dtype)
        if not np.isfinite(case[f"loss{suffix}"]):  # the released code takes the log of an underflow
            assert name == "underflow"
            assert np.isfinite(got[0])
            assert got[1].isfinite().all()
            continue
        size = 1.0 if dtype == F64 else 2 * scale  # a cosine's rounding is multiplied by the scale
        agrees(got, float(case[f"loss{suffix}"]), case[f"grad_emb{suffix}"], dtype, size=size)
        assert loss.proxies.grad is not None
        gradient_agrees(loss.proxies.grad, case[f"grad_proxies{suffix}"], dtype, 1e-8 if dtype == F64 else 5e-5)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_arcface_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "arcface").values():
        loss = ArcFace(*case["proxies"].shape, scale=float(case["scale"]), margin=float(case["margin_rad"]))
        set_rows(loss.proxies, case["proxies"])
        got = measure(loss, case, dtype)
        if np.isnan(case["grad_emb"]).any():  # the released gradient is NaN at a cosine of one, ours is not
            assert got[0] == pytest.approx(float(case["loss"]), rel=1e-5, abs=1e-5)
            assert got[1].isfinite().all()
            continue
        size = 1.0 if dtype == F64 else float(case["scale"])
        agrees(got, float(case["loss"]), case["grad_emb"], dtype, size=size)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("mined", [False, True])
def test_multi_similarity_golden(test_data: Path, dtype: torch.dtype, mined: bool) -> None:
    suffix = "_mined" if mined else ""
    for case in golden(test_data, "multisimilarity").values():
        epsilon = float(case["epsilon"]) if mined else -1.0
        loss = MultiSimilarity(
            alpha=float(case["alpha"]), beta=float(case["beta"]), base=float(case["base"]), epsilon=epsilon
        )
        agrees(measure(loss, case, dtype), float(case[f"loss{suffix}"]), case[f"grad_emb{suffix}"], dtype)


def test_triplet_by_hand() -> None:
    """Anchor and positive at cosine 0.6, a negative at cosine 0.8 to the anchor and 0 to the positive."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]], dtype=F64)
    value = Triplet(margin=0.2, mining="all")(vectors, torch.tensor([0, 0, 1]))
    violation = (2 - 2 * 0.6) ** 0.5 - (2 - 2 * 0.8) ** 0.5 + 0.2  # the other triplet keeps its margin
    assert value.item() == pytest.approx(violation, abs=1e-12)


def test_cosface_and_normalized_softmax_are_cross_entropies() -> None:
    vectors, labels = small_batch()
    unit = torch.nn.functional.normalize(vectors, dim=1)
    cosface, softmax = CosFace(4, 6, scale=8.0, margin=0.3).double(), NormalizedSoftmax(4, 6).double()
    cosines = unit @ torch.nn.functional.normalize(cosface.inner.W, dim=0)
    shifted = 8 * (cosines - 0.3 * torch.nn.functional.one_hot(labels, 4))
    want = torch.nn.functional.cross_entropy(shifted, labels)
    assert cosface(vectors, labels).item() == pytest.approx(want.item(), rel=1e-6)
    cosines = unit @ torch.nn.functional.normalize(softmax.inner.W, dim=0)
    want = torch.nn.functional.cross_entropy(cosines / 0.05, labels)
    assert softmax(vectors, labels).item() == pytest.approx(want.item(), rel=1e-6)


@pytest.mark.parametrize("loss", [ProxyAnchor, ProxyNCA, ArcFace, CosFace, NormalizedSoftmax])
def test_a_label_without_a_proxy_is_refused(loss: type[torch.nn.Module]) -> None:
    with pytest.raises(InvalidParameter, match="between 0 and 3"):
        loss(4, 6)(torch.randn(2, 6), torch.tensor([0, 4]))
