"""Properties of every loss of the table, on every batch."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.losses import LOSSES, Regularized, make_loss

from .golden import F32, F64, small_batch, some_fast

SMOOTH = {"smooth_ap": {"temperature": 0.1}, "recall_at_k": {"similarity_temperature": 0.1}}  # for finite differences
# a constant slope for a step, a gradient that is cut and a difference of ranks are no derivatives: test_losses_by_hand
# and test_comparison compare them with loops; the vMF samples are fixed in test_vmf
SURROGATE = {"blackbox_ap", *(name for name in LOSSES if name.startswith("contextual"))}
DRAWN = {"margin", "open_set"}  # which photos it takes for what is drawn, or depends on the order of the batch
WITH_NORMS = {"vmf_nca", "nca_l2"}  # a norm is a certainty to the one, part of a distance to the other
ALONE = {name for name, entry in LOSSES.items() if not entry.has_proxies}
QUICKLY = [True, pytest.param(False, marks=pytest.mark.slow)]  # along random directions, or in each coordinate


def make(name: str, classes: int = 4, dim: int = 6, dtype: torch.dtype = F64) -> nn.Module:
    """Return a loss with parameters from one seed; vMF without samples, whose noise has an order."""
    torch.manual_seed(0)
    arguments = SMOOTH.get(name, {"distance": "nivmf"} if name == "vmf_nca" else {})
    return make_loss(name, classes=classes, dim=dim, arguments=arguments).to(dtype)


def seeded(loss: nn.Module, vectors: Tensor, labels: Tensor) -> Tensor:
    """Return the loss with the random numbers of one step, as a training step seeds them."""
    torch.manual_seed(4)
    value: Tensor = loss(vectors, labels)
    return value


@pytest.mark.parametrize("fast", QUICKLY)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_are_those_of_finite_differences(name: str, fast: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    vectors = torch.randn(10, 6, generator=generator, dtype=F64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])
    loss = make(name)
    assert (
        torch.autograd.grad(seeded(loss, vectors, labels), vectors)[0].abs().max() > 0
    )  # the batch exercises the loss
    if name not in SURROGATE:
        assert torch.autograd.gradcheck(lambda v: seeded(loss, v, labels), (vectors,), fast_mode=fast)
    parameters = dict(loss.named_parameters())

    def value(*tensors: Tensor) -> Tensor:
        return torch.func.functional_call(loss, dict(zip(parameters, tensors, strict=True)), (vectors.detach(), labels))

    assert not parameters or torch.autograd.gradcheck(value, tuple(parameters.values()), fast_mode=fast)


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
    "nothing": lambda: (torch.zeros(4, 6), torch.tensor([0, 0, 1, 1])),
    "huge norms": lambda: (1e4 * torch.randn(6, 6), torch.tensor([0, 0, 1, 1, 2, 2])),
}


def aligned(name: str, loss: nn.Module, vectors: Tensor) -> None:
    """Give a loss proxies at cosines of exactly one with the batch."""
    for parameter in loss.parameters():
        rows = min(len(vectors), len(parameter)) if parameter.shape[-1:] == vectors.shape[1:] else 0
        if rows and name != "vmf_nca":
            parameter.data[:rows] = vectors.detach()[:rows]


WITH_SAMPLES = "vmf_nca with samples"


@pytest.mark.parametrize(
    "kind", ["float32", *(pytest.param(k, marks=pytest.mark.slow) for k in ("bfloat16", "float16"))]
)
@pytest.mark.parametrize("name", [*LOSSES, WITH_SAMPLES])
def test_every_batch_gives_a_finite_loss_and_gradient(name: str, kind: str) -> None:
    for batch, make_batch in BATCHES.items():
        torch.manual_seed(2)
        vectors, labels = make_batch()
        vectors.requires_grad_()
        if name == WITH_SAMPLES:
            loss: nn.Module = make_loss("vmf_nca", classes=4, dim=6, arguments={"distance": "el_nivmf"})
        else:
            loss = make(name, dtype=F32)
        if batch in ("easy", "identical embeddings", "opposite embeddings") and name != WITH_SAMPLES:
            aligned(name, loss, vectors)
        with torch.autocast("cpu", dtype=getattr(torch, kind), enabled=kind != "float32"):
            value = loss(vectors, labels)
        assert value.isfinite(), batch
        value.backward()
        assert vectors.grad is not None, batch
        assert vectors.grad.isfinite().all(), batch
        assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters()), batch


@pytest.mark.parametrize("kind", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_embeddings_get_the_gradient_of_float32(name: str, kind: str) -> None:
    """A backbone under autocast hands over half-precision numbers; from there on the loss is the same."""
    vectors, labels = small_batch()
    halves = vectors.to(getattr(torch, kind)).requires_grad_()
    exact = halves.detach().float().requires_grad_()
    loss = make(name, dtype=F32)
    with torch.autocast("cpu", dtype=getattr(torch, kind)):
        seeded(loss, halves, labels).backward()
    seeded(loss, exact, labels).backward()
    scale = exact.grad.abs().max()
    assert scale > 0
    assert (halves.grad.float() - exact.grad).abs().max() < 0.01 * scale


@given(
    st.permutations(range(8)),
    st.permutations(range(4)),
    st.integers(-5, 5),
    st.sampled_from(sorted(set(LOSSES) - DRAWN)),
)
def test_the_order_of_a_batch_the_names_of_classes_and_lengths_do_not_matter(
    order: list[int], names: list[int], shift: int, name: str
) -> None:
    vectors, labels = small_batch()
    loss = make(name)
    plain, moved = vectors.clone().requires_grad_(), vectors[order].clone().requires_grad_()
    value, again = loss(plain, labels), loss(moved, labels[order])
    assert again.item() == pytest.approx(value.item(), rel=1e-10, abs=1e-14)
    gradient, after = torch.autograd.grad(value, plain)[0], torch.autograd.grad(again, moved)[0]
    assert torch.allclose(gradient[order], after, atol=1e-10)
    if name in ALONE:
        assert loss(vectors, torch.tensor(names)[labels] * 3 + shift).item() == pytest.approx(value.item(), rel=1e-12)
    if name not in WITH_NORMS:
        lengths = torch.linspace(0.1, 9, len(vectors), dtype=F64)[:, None]
        assert loss(lengths * vectors, labels).item() == pytest.approx(value.item(), rel=1e-9)


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_what_is_drawn_is_torchs_to_draw(name: str) -> None:
    """The random numbers of torch, which a training step seeds alike in every process, and no others."""
    vectors, labels = small_batch()
    loss = make(name)
    value = seeded(loss, vectors, labels).item()
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator is what the loss must not read
    assert seeded(loss, vectors, labels).item() == value
    assert len({loss(vectors, labels).item() for _ in range(8)}) > 1


@given(
    st.sampled_from(sorted(LOSSES)),
    st.lists(st.integers(0, 3), min_size=1, max_size=9),
    st.integers(0, 2**16),
    st.sampled_from([1e-4, 1.0, 30.0]),
)
def test_any_labels_give_a_finite_loss_and_gradient(name: str, labels: list[int], seed: int, size: float) -> None:
    vectors = size * torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed))
    vectors.requires_grad_()
    value = make(name, dtype=F32)(vectors, torch.tensor(labels))
    value.backward()
    assert value.isfinite()
    assert vectors.grad.isfinite().all()


@pytest.mark.parametrize("name", some_fast(set(LOSSES) - {"similarity_regularizer"}))
def test_descending_the_gradient_separates_the_classes(name: str) -> None:
    """Every loss, minimised on free embeddings, ends with positives closer than negatives."""
    torch.manual_seed(1)
    vectors, labels = torch.randn(16, 8), torch.arange(4).repeat_interleave(4)
    vectors.requires_grad_()
    loss = make_loss(name, classes=4, dim=8, arguments={})
    optimizer = torch.optim.Adam([{"params": [vectors]}, {"params": loss.parameters()}], lr=0.1)

    def gap() -> float:
        unit = nn.functional.normalize(vectors.detach(), dim=1)
        s = unit @ unit.T
        same = labels[:, None] == labels[None]
        return (s[same].mean() - s[~same].mean()).item()

    before = gap()
    for _ in range(60):
        optimizer.zero_grad()
        loss(vectors, labels).backward()
        optimizer.step()
    assert gap() > before + 0.2


@pytest.mark.parametrize("name", [*LOSSES, "regularized"])
def test_a_batch_of_another_shape_or_kind_is_refused(name: str) -> None:
    loss = Regularized(make("smooth_ap"), make("tcm"), 1.0) if name == "regularized" else make(name)
    for told, vectors, labels in (
        (r"labels must be integers of shape \(12,\), one for each embedding, got 'int64 \(5,\)'", (12, 6), (5,)),
        (r"labels must .* got 'int64 \(12, 1\)'", (12, 6), (12, 1)),
        (r"labels must .* got 'int64 \(\)'", (12, 6), ()),
        (r"embeddings must be floats .* got 'float64 \(0, 6\)'", (0, 6), (0,)),
        (r"embeddings must .* got 'float64 \(12, 0\)'", (12, 0), (12,)),
        (r"embeddings must .* got 'float64 \(12,\)'", (12,), (12,)),
    ):
        with pytest.raises(InvalidParameter, match=told):
            loss(torch.ones(vectors, dtype=F64), torch.zeros(labels, dtype=torch.int64))
    with pytest.raises(InvalidParameter, match=r"embeddings must .* got 'int64 \(12, 6\)'"):
        loss(torch.ones(12, 6, dtype=torch.int64), torch.zeros(12, dtype=torch.int64))
    with pytest.raises(InvalidParameter, match=r"labels must .* got 'float32 \(12,\)'"):
        loss(torch.ones(12, 6), torch.zeros(12))


@pytest.mark.parametrize("name", LOSSES)
def test_labels_may_be_integers_of_any_size(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    vectors, labels = torch.randn(12, 6, generator=generator, dtype=F64), torch.arange(4).repeat(3)
    loss, values = make(name), []
    for kind in (torch.int64, torch.int32, torch.uint8):
        torch.manual_seed(1)
        values.append(float(loss(vectors, labels.to(kind)).detach()))
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_arguments_that_are_not_finite_are_refused(value: float) -> None:
    for name, argument in (("smooth_ap", "temperature"), ("proxy_anchor", "alpha"), ("tcm", "positive_weight")):
        with pytest.raises(InvalidParameter, match=f"{argument} must be .*got {value}"):
            make_loss(name, classes=4, dim=6, arguments={argument: value})
