"""Models of timm, by a stand-in: the package is no dependency."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from retrieval.errors import InvalidParameter, MissingDependency
from retrieval.images import Preprocessing
from training.backbones import backbone_preprocessing, load_backbone, published_preprocessing, rebuild_backbone

VALUES = {"input_size": (3, 64, 64), "crop_pct": 0.9, "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}


class Network(nn.Module):
    """A network as timm makes it without a classifier."""

    num_features = 7

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 7, 4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self.layer(pixels).mean(dim=(2, 3))
        return vectors


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a stand-in for timm in place; return what it says of every model."""
    values: dict[str, Any] = dict(VALUES)
    timm, data = ModuleType("timm"), ModuleType("timm.data")

    def create_model(name: str, *, pretrained: bool, num_classes: int) -> Network:
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        assert num_classes == 0
        torch.manual_seed(0 if pretrained else 1)
        return Network()

    def get_pretrained_cfg(name: str, allow_unregistered: bool = True) -> SimpleNamespace:
        if name != "tiny":
            raise RuntimeError(f"Model architecture ({name}) has no pretrained cfg registered.")
        return SimpleNamespace(to_dict=lambda: values)

    data.resolve_data_config = lambda args, pretrained_cfg: dict(pretrained_cfg)  # type: ignore[attr-defined]
    timm.data, timm.create_model = data, create_model  # type: ignore[attr-defined]
    timm.get_pretrained_cfg = get_pretrained_cfg  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return values


def test_a_model_gives_its_pooled_vector_and_a_record(values: dict[str, Any]) -> None:
    backbone, record = load_backbone("timm/tiny")
    assert (backbone.width, backbone.pooled) == (7, True)
    pixels = torch.randn(2, 3, 16, 16)
    assert backbone(pixels).shape == (2, 7, 1, 1)
    again = rebuild_backbone(json.loads(json.dumps(record)))
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(pixels), backbone(pixels))


def test_its_preprocessing_is_the_published_one(values: dict[str, Any]) -> None:
    own = published_preprocessing("timm/tiny")
    assert own == Preprocessing(size=64, view=0.9, mean=VALUES["mean"], std=VALUES["std"])  # type: ignore[arg-type]
    assert backbone_preprocessing("timm/tiny", size=32, crop_ratio=0.8).mean == VALUES["mean"]
    values["crop_mode"] = "squash"
    assert published_preprocessing("timm/tiny").squash
    values["input_size"] = (3, 64, 32)
    with pytest.raises(InvalidParameter, match="square"):
        published_preprocessing("timm/tiny")


@pytest.mark.usefixtures("values")
def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="Unknown model"):
        load_backbone("timm/none")
    with pytest.raises(InvalidParameter, match="no pretrained cfg"):
        published_preprocessing("timm/none")


def test_without_timm_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependency, match="timm"):
        load_backbone("timm/tiny")
