"""Cached gradients: the step of a large batch, a micro_batch at a time."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from training.loop.learner import embed_in_micro_batches
from training.loop.train import train
from training.losses import LOSSES, make_loss

from ..conftest import tiny_settings

LABELS = torch.arange(6).repeat_interleave(4)


def network(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), *extra, nn.ReLU(), nn.Linear(16, 8))


def gradients(*modules: nn.Module) -> list[Tensor]:
    return [p.grad for module in modules for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", LOSSES)
def test_cached_gradients_are_those_of_the_plain_step(name: str) -> None:
    for micro_batch in (1, 5, 24):
        check_gradients(name, micro_batch)


def check_gradients(name: str, micro_batch: int) -> None:
    """Compare the step of a batch with the step of its micro-batches."""
    inputs = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    plain, cached = network(), network()
    torch.manual_seed(2)
    loss = make_loss(name, classes=6, dim=8, arguments={})
    other = copy.deepcopy(loss)

    torch.manual_seed(3)  # the noise of a sampling loss
    value = loss(plain(inputs), LABELS)
    value.backward()
    torch.manual_seed(3)
    again = other(embed_in_micro_batches(cached, inputs.split(micro_batch), cached), LABELS)
    again.backward()

    assert again.item() == pytest.approx(value.item(), rel=1e-5, abs=1e-6)
    expected, got = gradients(plain, loss), gradients(cached, other)
    assert len(expected) == len(got) >= 4
    scale = max(g.abs().max() for g in expected)
    for one, two in zip(expected, got, strict=True):
        assert (one - two).abs().max() <= 1e-5 * scale


def test_micro_batches_keep_no_activations() -> None:
    """Activations are kept for a whole batch only, not for micro-batches."""
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    model = network()
    inputs = torch.randn(24, 10)

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        embed_in_micro_batches(model, inputs.split(3), model)
        assert set(kept) == {inputs.split(3)[0].numel()}  # no more than the inputs
        embed_in_micro_batches(model, inputs.split(24), model)
        assert max(kept) == 24 * 16


def test_dropout_has_the_same_mask_in_both_passes() -> None:
    model = network(nn.Dropout(0.5))
    inputs = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    seen: list[Tensor] = []

    def embed(micro_batch: Tensor) -> Tensor:
        result: Tensor = model(micro_batch)
        seen.append(result.detach().clone())
        return result

    loss = make_loss("smooth_ap", classes=6, dim=8, arguments={})
    torch.manual_seed(5)
    with set_checkpoint_early_stop(False):
        loss(embed_in_micro_batches(embed, inputs.split(8), model), LABELS).backward()
    seen[3:] = reversed(seen[3:])  # the backward pass begins with the last one
    assert all(torch.equal(first, second) for first, second in zip(seen[:3], seen[3:], strict=True))
    after = torch.rand(1)
    torch.manual_seed(5)
    with torch.no_grad():
        for micro_batch in inputs.split(8):
            model(micro_batch)
    assert torch.equal(after, torch.rand(1))  # the random stream goes on as if each micro_batch had run once


def test_frozen_batch_norm_gives_the_plain_step_and_training_batch_norm_moves_once() -> None:
    inputs = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    loss = make_loss("tcm", classes=6, dim=8, arguments={})
    plain, cached = network(nn.BatchNorm1d(16)).eval(), network(nn.BatchNorm1d(16)).eval()
    loss(plain(inputs), LABELS).backward()
    loss(embed_in_micro_batches(cached, inputs.split(5), cached), LABELS).backward()
    for one, two in zip(gradients(plain), gradients(cached), strict=True):
        assert torch.allclose(one, two, atol=1e-6)

    live, cached = network(nn.BatchNorm1d(16)).train(), network(nn.BatchNorm1d(16)).train()
    loss(embed_in_micro_batches(live, inputs.split(8), live), LABELS).backward()
    with torch.no_grad():
        for micro_batch in inputs.split(8):
            cached(micro_batch)
    for one, two in zip(live.buffers(), cached.buffers(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.slow
def test_a_run_in_micro_batches_equals_the_run_without(catalogue: Path, tmp_path: Path) -> None:
    """A later step would differ by more: Adam makes a step of the rounding of gradients that are nearly 0."""
    frozen = {"backbone": "efficientnet-lite0", "head_start": "random", "epochs": 1, "learning_rate": 1e-4}
    frozen["epoch_steps"] = 2
    whole = train(tiny_settings(catalogue, **frozen), tmp_path / "whole")
    micro_batches = train(tiny_settings(catalogue, **frozen, micro_batch_size=5), tmp_path / "micro_batches")
    one, two = (run.progress["best_trained"]["metrics"] for run in (whole, micro_batches))
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
