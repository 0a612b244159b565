"""What learns, and with which learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.backbones.load import SmallConvNet
from training.loop.optimizer import make_optimizer, set_learning
from training.loop.recipe import build_loss
from training.model import EmbeddingModel

from ..conftest import tiny_settings

NONE = Path("none.csv")


@pytest.mark.parametrize(
    ("changes", "learning"),
    [
        ({}, (True, True, True)),
        ({"learning_rate": 0.0}, (False, True, True)),
        ({"precompute": 1}, (False, True, False)),
    ],
)
def test_a_backbone_without_a_learning_rate_is_frozen(
    changes: dict[str, float], learning: tuple[bool, bool, bool]
) -> None:
    model = EmbeddingModel(SmallConvNet(), dim=16, pooling="gem")
    assert model.power is not None
    set_learning(model, tiny_settings(NONE, pooling="gem", **changes))
    parts = (next(model.backbone.parameters()), model.head.weight, model.power)
    assert tuple(part.requires_grad for part in parts) == learning


def test_backbone_head_and_loss_have_rates_of_their_own() -> None:
    model = EmbeddingModel(SmallConvNet(), dim=16, pooling="average")
    rates = {"learning_rate": 0.8, "head_learning_rate": 3.0, "proxy_learning_rate": 0.3}
    settings = tiny_settings(NONE, loss="proxy_nca", **rates)
    loss = build_loss(settings, classes=5)
    groups = make_optimizer(model, loss, settings).param_groups
    rate_of = {id(p): group["lr"] for group in groups for p in group["params"]}
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert {rate_of[id(p)] for p in model.backbone.parameters()} == {0.8}
    assert {rate_of[id(p)] for p in model.head.parameters()} == {3.0}
    assert {rate_of[id(p)] for p in loss.parameters()} == {0.3}
    assert id(model.head.weight) in decayed
    assert not decayed & {id(p) for p in [model.head.bias, *loss.parameters()]}
    assert len(rate_of) == len([*model.parameters(), *loss.parameters()])  # each once
