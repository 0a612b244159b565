from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.losses import (
    LOSSES,
    ArcFace,
    ProxyAnchor,
    Regularized,
    SmoothAP,
    ThresholdConsistentMargin,
    make_loss,
    ranking,
)

F64, F32 = torch.float64, torch.float32
TOLERANCE = {F64: (1e-9, 1e-8), F32: (3e-7, 5e-5)}  # loss, and gradient as a share of its largest entry


def golden(folder: Path, name: str) -> dict[str, dict[str, np.ndarray]]:
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "golden" / f"{name}.npz", allow_pickle=False) as file:
        for key in file.files:
            case, array = key.split("__")
            cases.setdefault(case, {})[array] = file[key]
    return cases


def measure(loss: nn.Module, case: dict[str, np.ndarray], dtype: torch.dtype) -> tuple[float, Tensor]:
    """Return the loss of a golden case, and its gradient with respect to the raw embeddings."""
    embeddings = torch.tensor(case["emb"], dtype=dtype, requires_grad=True)
    value = loss.to(dtype)(embeddings, torch.tensor(case["labels"]))
    value.backward()
    assert embeddings.grad is not None
    return value.item(), embeddings.grad


def agrees(
    got: tuple[float, Tensor], loss: float, gradient: np.ndarray, dtype: torch.dtype, *, size: float = 1.0
) -> None:
    """Compare with golden values; `size` is that of the terms whose rounding the loss inherits."""
    close, share = TOLERANCE[dtype]
    assert got[0] == pytest.approx(loss, abs=close * max(size, abs(loss)))
    floor = 1e-15 if dtype == F64 else 1e-7  # a gradient of 1e-16 is nothing in float32
    assert np.abs(got[1].numpy() - gradient).max() <= share * np.abs(gradient).max() + floor


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
@pytest.mark.parametrize("dtype", [F64, F32])
def test_smooth_ap_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "smooth_ap").values():
        if "grad_emb" not in case:
            continue
        loss = SmoothAP(temperature=float(case.get("temperature", case.get("tau", 0.01))))
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_proxy_anchor_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "proxyanchor").values():
        loss = ProxyAnchor(*case["proxies"].shape, alpha=float(case["alpha"]), margin=float(case["margin"]))
        loss.proxies.data = torch.tensor(case["proxies"])
        agrees(measure(loss, case, dtype), float(case["loss"]), case["grad_emb"], dtype)
        assert loss.proxies.grad is not None
        agrees((float(case["loss"]), loss.proxies.grad), float(case["loss"]), case["grad_proxies"], dtype)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
def test_arcface_golden(test_data: Path, dtype: torch.dtype) -> None:
    for case in golden(test_data, "arcface").values():
        loss = ArcFace(*case["proxies"].shape, scale=float(case["scale"]), margin=float(case["margin_rad"]))
        loss.proxies.data = torch.tensor(case["proxies"])
        got = measure(loss, case, dtype)
        if np.isnan(case["grad_emb"]).any():  # the released gradient is NaN at a cosine of one, ours is not
            assert got[0] == pytest.approx(float(case["loss"]), rel=1e-5, abs=1e-5)
            assert got[1].isfinite().all()
            continue
        size = 1.0 if dtype == F64 else float(case["scale"])  # a cosine's rounding is multiplied by the scale
        agrees(got, float(case["loss"]), case["grad_emb"], dtype, size=size)


def slow_smooth_ap(vectors: Tensor, labels: Tensor, temperature: float, count_query: bool) -> Tensor:
    """Return one minus the mean over queries of the formula, by loops."""
    unit = nn.functional.normalize(vectors, dim=1)
    s, n = unit @ unit.T, len(labels)
    values = []
    for q in range(n):
        database = [z for z in range(n) if count_query or z != q]
        positives = [z for z in database if labels[z] == labels[q]]
        if not positives:
            continue
        total = torch.zeros((), dtype=vectors.dtype)
        for x in positives:
            g = {z: torch.sigmoid((s[q, z] - s[q, x]) / temperature) for z in database if z != x}
            top = 1 + sum((g[z] for z in positives if z != x), start=torch.zeros((), dtype=vectors.dtype))
            total = total + top / (1 + sum(g.values(), start=torch.zeros((), dtype=vectors.dtype)))
        values.append(1 - total / len(positives))
    return torch.stack(values).mean()


@pytest.mark.parametrize("count_query", [True, False])
@pytest.mark.parametrize("block", [40, 2**24])
def test_smooth_ap_equals_loops_with_unequal_classes(
    count_query: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(11, 5, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 1])
    got = SmoothAP(temperature=0.1, count_query=count_query)(vectors, labels)
    want = slow_smooth_ap(vectors, labels, 0.1, count_query)
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(torch.autograd.grad(got, vectors)[0], torch.autograd.grad(want, vectors)[0], atol=1e-12)


def make(name: str, classes: int = 4, dim: int = 6, dtype: torch.dtype = F64) -> nn.Module:
    torch.manual_seed(0)
    arguments = {"temperature": 0.1} if name == "smooth_ap" else {}
    return make_loss(name, classes=classes, dim=dim, arguments=arguments).to(dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_gradcheck(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(10, 6, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
    assert torch.autograd.gradcheck(lambda v: make(name)(v, labels), (vectors,))


BATCHES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "no positives": lambda: (torch.randn(4, 6), torch.arange(4)),
    "one class": lambda: (torch.randn(5, 6), torch.zeros(5, dtype=torch.int64)),
    "a single photo": lambda: (torch.randn(1, 6), torch.zeros(1, dtype=torch.int64)),
    "identical embeddings": lambda: (torch.ones(6, 6), torch.tensor([0, 0, 1, 1, 2, 2])),
    "opposite embeddings": lambda: (
        torch.ones(4, 6) * torch.tensor([[1.0], [-1], [1], [-1]]),
        torch.tensor([0, 0, 1, 1]),
    ),
    "easy": lambda: (torch.eye(6)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])),
}


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", LOSSES)
def test_no_batch_gives_nan(name: str, batch: str, kind: str) -> None:
    torch.manual_seed(2)
    vectors, labels = BATCHES[batch]()
    vectors.requires_grad_()
    loss = make(name, dtype=F32)
    if name in ("arcface", "proxy_anchor") and batch in ("easy", "identical embeddings"):
        loss.proxies.data[: len(vectors)] = vectors.detach()[: len(loss.proxies)]  # cosines of exactly one
    with torch.autocast("cpu", dtype=getattr(torch, kind), enabled=kind != "float32"):
        value = loss(vectors, labels)
    assert value.isfinite()
    value.backward()
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(8)), st.sampled_from(sorted(LOSSES)))
def test_the_order_of_a_batch_does_not_matter(order: list[int], name: str) -> None:
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(3), dtype=F64)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    loss = make(name)
    assert loss(vectors[order], labels[order]).item() == pytest.approx(loss(vectors, labels).item(), rel=1e-12)


@pytest.mark.parametrize("name", [name for name, entry in LOSSES.items() if not entry.has_proxies])
def test_the_names_of_classes_do_not_matter(name: str) -> None:
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(3), dtype=F64)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3])
    assert make(name)(vectors, 7 - 2 * labels).item() == pytest.approx(make(name)(vectors, labels).item(), rel=1e-12)


def test_tcm_by_hand() -> None:
    """Two photos of one class at cosine 0.6, and one of another at 0.8 to the first and 0 to the second."""
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]], dtype=F64)
    value = ThresholdConsistentMargin()(vectors, torch.tensor([0, 0, 1]))
    assert value.item() == pytest.approx((0.9 - 0.6) + (0.8 - 0.5), abs=1e-12)


def test_a_regularizer_is_added_with_its_weight() -> None:
    vectors, labels = torch.randn(6, 6, dtype=F64), torch.tensor([0, 0, 1, 1, 2, 2])
    base, extra = make("smooth_ap"), make("tcm")
    total = Regularized(base, extra, 0.5)(vectors, labels)
    assert total.item() == pytest.approx(base(vectors, labels).item() + 0.5 * extra(vectors, labels).item())


def test_unknown_names_and_arguments_list_the_valid_ones() -> None:
    with pytest.raises(InvalidParameter, match="arcface, proxy_anchor, smooth_ap, tcm"):
        make_loss("triplett", classes=3, dim=4, arguments={})
    with pytest.raises(InvalidParameter, match="temperature, count_query"):
        make_loss("smooth_ap", classes=3, dim=4, arguments={"tau": 1})


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("smooth_ap", {"temperature": 0.0}),
        ("tcm", {"positive_margin": 0.2}),
        ("tcm", {"negative_weight": -1.0}),
        ("arcface", {"margin": 4.0}),
        ("proxy_anchor", {"alpha": -1.0}),
    ],
)
def test_broken_rules_are_refused(name: str, arguments: dict) -> None:
    with pytest.raises(InvalidParameter):
        make_loss(name, classes=3, dim=4, arguments=arguments)


def test_a_label_without_a_proxy_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="between 0 and 3"):
        make("proxy_anchor")(torch.randn(2, 6, dtype=F64), torch.tensor([0, 4]))
