"""Frozen blocks, stages and learning rates of the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from retrieval.errors import InvalidParameter
from training.backbones.small import SmallConvNet
from training.loop.optimizer import blocks_of, check_learning, make_optimizers, set_learning
from training.loop.recipe import build_loss
from training.losses import make_loss
from training.model import EmbeddingModel

from ..conftest import tiny_settings

NONE = Path("none.csv")


def model(pooling: str = "average") -> EmbeddingModel:
    return EmbeddingModel(SmallConvNet(), dim=16, pooling=pooling)


class Transformer(nn.Module):
    """Named as vision transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Linear(2, 2, bias=False)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(nn.Sequential(nn.Linear(2, 2, bias=False)) for _ in range(3))
        self.norm = nn.LayerNorm(2, bias=False)


def test_blocks_are_counted_from_the_input() -> None:
    assert blocks_of(Transformer()) == {
        "embeddings.weight": 0,
        "encoder.layer.0.0.weight": 1,
        "encoder.layer.1.0.weight": 2,
        "encoder.layer.2.0.weight": 3,
        "norm.weight": 3,
    }


@pytest.mark.parametrize(("share", "learning"), [(0.0, 5), (0.25, 4), (0.5, 3), (0.99, 2), (1.0, 0)])
def test_a_share_of_the_blocks_never_learns(share: float, learning: int) -> None:
    network = model()
    network.backbone = Transformer()  # type: ignore[assignment]
    set_learning(network, tiny_settings(NONE, frozen=share), 0)
    assert sum(p.requires_grad for p in network.backbone.parameters()) == learning
    assert all(p.requires_grad for p in network.head.parameters())


def test_first_the_proxies_then_the_head_then_all() -> None:
    settings = tiny_settings(NONE, proxy_warmup=1, frozen_epochs=2, epochs=5, pooling="gem")
    network, seen = model("gem"), []
    assert network.power is not None
    for epoch in range(4):
        set_learning(network, settings, epoch)
        parts = (next(network.backbone.parameters()), network.head.weight, network.power)
        seen.append(tuple(part.requires_grad for part in parts))
    assert seen == [(False, False, False), (False, True, True), (False, True, True), (True, True, True)]


def test_each_block_learns_slower_than_the_next() -> None:
    network = model()
    network.backbone = Transformer()  # type: ignore[assignment]
    settings = tiny_settings(NONE, layer_decay=0.5, learning_rate=0.8, head_learning_rate=3.0)
    groups = make_optimizers(network, nn.Module(), settings)[0].param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    names = {name: rates[id(p)] for name, p in network.backbone.named_parameters()}
    assert names == pytest.approx(
        {
            "embeddings.weight": 0.1,
            "encoder.layer.0.0.weight": 0.2,
            "encoder.layer.1.0.weight": 0.4,
            "encoder.layer.2.0.weight": 0.8,
            "norm.weight": 0.8,
        }
    )
    assert rates[id(network.head.weight)] == 3.0
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert id(network.head.weight) in decayed
    assert id(network.head.bias) not in decayed
    assert len(rates) == len(list(network.parameters()))  # each once


def test_sampled_proxies_have_an_optimizer_that_leaves_the_others_alone() -> None:
    settings = tiny_settings(NONE, loss="proxy_nca", proxy_sample=0.2, proxy_learning_rate=0.3)
    loss = build_loss(settings, classes=100)
    dense, sparse = make_optimizers(model(), loss, settings)
    assert isinstance(sparse, torch.optim.SparseAdam)
    assert sparse.param_groups[0]["lr"] == 0.3
    before = loss.loss.proxies.detach().clone()
    loss(torch.randn(4, 16), torch.tensor([3, 3, 50, 99])).backward()
    sparse.step()
    moved = (loss.loss.proxies != before).any(dim=1).nonzero()[:, 0].tolist()
    assert len(moved) == 20
    assert {3, 50, 99} <= set(moved)
    assert all(id(p) != id(loss.loss.proxies) for group in dense.param_groups for p in group["params"])


def test_a_warm_up_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="has no parameters of its own"):
        check_learning(tiny_settings(NONE, proxy_warmup=1), make_loss("tcm", classes=5, dim=16, arguments={}))
    settings = tiny_settings(NONE, proxy_warmup=2, loss="proxy_nca")
    with pytest.raises(InvalidParameter, match="below the epochs"):
        check_learning(settings, build_loss(settings, classes=5))
