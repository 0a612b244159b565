"""Losses that see a sample of the classes."""

from __future__ import annotations

import pytest
import torch

from retrieval.errors import InvalidParameter
from training.losses import make_loss
from training.losses.sampled import SampledClasses

CLASSES, DIM = 40, 6
LABELS = torch.tensor([0, 0, 7, 7, 39, 39])
WITH_ROWS = ("arcface", "mean_field_class_wise_multi_similarity", "mean_field_contrastive", "proxy_anchor", "proxy_nca")


def make(name: str, share: float, **arguments: object) -> SampledClasses:
    torch.manual_seed(0)
    loss = make_loss(name, classes=CLASSES, dim=DIM, arguments=arguments)
    return SampledClasses(loss, CLASSES, share=share)


@pytest.mark.parametrize("name", WITH_ROWS)
def test_it_is_the_loss_of_the_chosen_rows(name: str) -> None:
    sampled = make(name, 0.25)
    embeddings = torch.randn(6, DIM)
    torch.manual_seed(5)
    value = sampled(embeddings, LABELS)
    torch.manual_seed(5)
    chosen = sampled._choose(LABELS)
    assert len(chosen) == 10
    assert {0, 7, 39} <= set(chosen.tolist())
    small = make_loss(name, classes=10, dim=DIM, arguments={})
    with torch.no_grad():
        next(small.parameters()).copy_(sampled.of_classes()[0][chosen])
    local = torch.tensor([chosen.tolist().index(label) for label in LABELS.tolist()])
    assert value.item() == pytest.approx(small(embeddings, local).item(), rel=1e-5)


@pytest.mark.parametrize("distance", ["el_nivmf", "nivmf", "el_vmf"])
def test_gradients_are_sparse_and_those_of_the_rows(distance: str) -> None:
    sampled = make("vmf_nca", 0.25, distance=distance, concentration=5.0)
    sampled(torch.randn(6, DIM), LABELS).backward()
    for parameter in sampled.of_classes():
        assert parameter.grad is not None
        assert parameter.grad.is_sparse
        assert parameter.grad.coalesce().indices().numel() == 10
        assert parameter.grad.to_dense()[LABELS].abs().sum() > 0


def test_all_classes_come_round_and_a_batch_may_hold_more_than_the_share() -> None:
    sampled = make("proxy_nca", 0.1)
    seen = {int(label) for _ in range(600) for label in sampled._choose(LABELS)}
    assert seen == set(range(CLASSES))
    assert sampled._choose(torch.arange(CLASSES)).tolist() == list(range(CLASSES))
    counts = torch.bincount(torch.cat([sampled._choose(torch.tensor([0])) for _ in range(3000)]), minlength=CLASSES)
    expected = 3000 * 3 / 39  # three others of 39
    assert counts[0] == 3000
    assert (counts[1:] - expected).abs().max() < 6 * expected**0.5


def test_what_it_cannot_sample_is_refused() -> None:
    for name in ("smooth_ap", "cosface"):
        with pytest.raises(InvalidParameter, match="not one row per class"):
            make(name, 0.5)
    with pytest.raises(InvalidParameter, match="between 0 and 1"):
        make("proxy_nca", 1.0)
    with pytest.raises(InvalidParameter, match="labels"):
        make("proxy_nca", 0.5)(torch.randn(1, DIM), torch.tensor([40]))
