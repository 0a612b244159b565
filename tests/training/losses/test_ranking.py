from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses import RecallAtK, SmoothAP
from training.losses import ranking as smooth_ranks
from training.losses.ranking import simix, simix_pairs, smooth_recall

from .golden import F32, F64, agrees, golden, measure


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("count_query", [True, False])
def test_smooth_ap_golden(test_data: Path, dtype: torch.dtype, count_query: bool) -> None:
    suffix = "" if count_query else "_self_excluded"
    for name, case in golden(test_data, "smooth_ap").items():
        loss = SmoothAP(temperature=float(case["tau"]), count_query=count_query)
        got = measure(loss, case, dtype)
        if np.isnan(case[f"loss{suffix}"]):  # only singletons: a mean over no query
            assert name == "singletons"
            assert got[0] == 0
            assert got[1].eq(0).all()
            continue
        agrees(got, float(case[f"loss{suffix}"]), case[f"grad_emb{suffix}"], dtype)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("count_query", [True, False])
def test_recall_at_k_golden(test_data: Path, dtype: torch.dtype, count_query: bool) -> None:
    for name, case in golden(test_data, "recall_at_k_surrogate").items():
        if name == "simix_m4":
            continue
        loss = RecallAtK(
            ks=tuple(case["k_vals"].tolist()),
            similarity_temperature=float(case["tau_sim"]),
            rank_temperature=float(case["tau_rank"][0]),
            count_query=count_query,
        )
        got = measure(loss, case, dtype)
        suffix = "_query_excluded"
        if count_query:
            suffix = "_query_included" if name == "unequal_generalised" else ""
        if np.isnan(case[f"loss{suffix}"]):  # the released code divides by no positives
            assert name == "singletons"
            assert got[0] == 0
            assert got[1].eq(0).all()
            continue
        agrees(got, float(case[f"loss{suffix}"]), case[f"grad_emb{suffix}"], dtype)


@pytest.mark.data
def test_recall_of_each_query_golden(test_data: Path) -> None:
    case = golden(test_data, "recall_at_k_surrogate")["regular"]
    unit = F.normalize(torch.tensor(case["emb"]), dim=1)
    for place, k in enumerate(case["k_vals"].tolist()):
        recall, asked = smooth_recall(
            unit @ unit.T,
            torch.tensor(case["labels"]),
            ks=[k],
            rank_temperature=1.0,
            similarity_temperature=0.01,
            count_query=True,
        )
        assert asked.all()
        assert np.abs(recall.numpy() - case["recall_per_query_k"][:, place]).max() < 1e-12


@pytest.mark.data
def test_simix_golden(test_data: Path) -> None:
    case = golden(test_data, "recall_at_k_surrogate")["simix_m4"]
    vectors = torch.tensor(case["emb"], requires_grad=True)
    first = torch.cat([torch.tensor(case["pairs"][:, 0]) + 4 * c for c in range(4)])
    second = torch.cat([torch.tensor(case["pairs"][:, 1]) + 4 * c for c in range(4)])
    labels = torch.tensor(case["labels"])
    mixed, mixed_labels = simix(F.normalize(vectors, dim=1), labels, (first, second), torch.tensor(case["alphas"]))
    order = torch.argsort(mixed_labels, stable=True)
    assert torch.equal(mixed_labels[order], torch.tensor(case["mixed_labels"]))
    assert np.abs(mixed[order].detach().numpy() - case["mixed"]).max() < 1e-15
    recall, _ = smooth_recall(
        mixed @ mixed.T,
        mixed_labels,
        ks=case["k_vals"].tolist(),
        rank_temperature=1.0,
        similarity_temperature=0.01,
        count_query=True,
    )
    loss = (1 - recall).mean()
    loss.backward()
    assert vectors.grad is not None
    agrees((loss.item(), vectors.grad), float(case["loss"]), case["grad_emb"], F64)


def test_simix_mixes_every_pair_of_a_class_once() -> None:
    first, second = simix_pairs(torch.tensor([0, 1, 0, 1, 0, 2]))
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == [(0, 2), (0, 4), (1, 3), (2, 4)]


def test_simix_trains_on_more_than_the_batch() -> None:
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))
    labels = torch.arange(4).repeat_interleave(2)
    torch.manual_seed(0)
    with_simix = RecallAtK(simix=True)(vectors, labels)
    assert with_simix.isfinite()
    assert with_simix.item() != pytest.approx(RecallAtK()(vectors, labels).item(), abs=1e-3)


def similarities(vectors: Tensor) -> Tensor:
    unit = F.normalize(vectors, dim=1)
    return unit @ unit.T


def slow_smooth_ap(vectors: Tensor, labels: Tensor, temperature: float, count_query: bool) -> Tensor:
    """Return one minus the mean over queries of the formula, by loops."""
    s, n = similarities(vectors), len(labels)
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


def slow_recall_at_k(vectors: Tensor, labels: Tensor, temperature: float, count_query: bool) -> Tensor:
    """Return one minus the surrogate for k = 1, 2 and 4, by loops."""
    s, n = similarities(vectors), len(labels)
    values = []
    for q in range(n):
        positives = [x for x in range(n) if labels[x] == labels[q] and x != q]
        if not positives:
            continue
        ranks = torch.stack(
            [
                1 + sum(torch.sigmoid((s[q, z] - s[q, x]) / temperature)
                        for z in range(n) if z != x and (count_query or z != q))
                for x in positives
            ]
        )  # fmt: skip
        recall = [torch.sigmoid(k - ranks).sum().clamp(max=k) / min(k, len(positives)) for k in (1, 2, 4)]
        values.append(1 - torch.stack(recall).mean())
    return torch.stack(values).mean()


@pytest.mark.parametrize("count_query", [True, False])
@pytest.mark.parametrize("block", [40, 2**22])
@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k"])
def test_ranks_equal_loops_with_unequal_classes(
    name: str, count_query: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smooth_ranks, "BLOCK", block)
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(11, 5, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 1])
    if name == "smooth_ap":
        got = SmoothAP(temperature=0.1, count_query=count_query)(vectors, labels)
        want = slow_smooth_ap(vectors, labels, 0.1, count_query)
    else:
        loss = RecallAtK(ks=(1, 2, 4), similarity_temperature=0.1, count_query=count_query)
        got = loss(vectors, labels)
        want = slow_recall_at_k(vectors, labels, 0.1, count_query)
    assert got.item() == pytest.approx(want.item(), rel=1e-12)
    assert torch.allclose(torch.autograd.grad(got, vectors)[0], torch.autograd.grad(want, vectors)[0], atol=1e-12)


@pytest.mark.parametrize("loss", [SmoothAP(), RecallAtK()])
def test_ranks_keep_no_cube(loss: torch.nn.Module) -> None:
    vectors, labels = torch.randn(480, 8, requires_grad=True), torch.arange(480) // 4
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(vectors, labels)
    assert max(kept) <= 480 * 480


def test_a_perfect_batch_has_recall_one_by_the_exact_rank() -> None:
    """Two classes, two photos each, on the poles of a circle: every positive has rank 1 without the query."""
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], dtype=F64)
    labels = torch.tensor([0, 0, 1, 1])
    exact = RecallAtK(ks=(1,), rank_temperature=0.01, count_query=False)(vectors, labels)
    assert exact.item() == pytest.approx(0.5)  # sigmoid((1 - 1) / t) = 1/2 at the cut itself
    assert RecallAtK(ks=(2,), rank_temperature=0.01, count_query=False)(vectors, labels).item() < 1e-9


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_labels_may_have_any_type(dtype: torch.dtype) -> None:
    embeddings, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 1, 1, 0, 0])
    for loss in (SmoothAP(), RecallAtK()):
        assert loss(embeddings, labels.to(dtype)) == loss(embeddings, labels) > 0


@pytest.mark.parametrize("arguments", [{"ks": ()}, {"ks": (0,)}, {"ks": (1.5,)}, {"rank_temperature": 0.0}])
def test_recall_at_k_refuses_broken_rules(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        RecallAtK(**arguments)  # type: ignore[arg-type]
