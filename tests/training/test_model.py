"""Backbones: ours, and any image model of transformers, from a local folder without a download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers  # loads its models where they are named

from retrieval.images import Preprocessing, to_tensor
from training.backbones import load_backbone, rebuild_backbone
from training.evaluation.embedding import to_device
from training.model import EmbeddingModel, freeze_batch_norm


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(9)
    folder = tmp_path_factory.mktemp("resnet")
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    transformers.ResNetModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}')
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vit")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8
    )
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
    return folder


@pytest.mark.parametrize("kind", ["small", "resnet", "vit"])
@pytest.mark.parametrize("pooling", ["average", "gem"])
def test_any_backbone_gives_raw_embeddings(kind: str, pooling: str, request: pytest.FixtureRequest) -> None:
    name = kind if kind == "small" else str(request.getfixturevalue(kind))
    backbone, config = load_backbone(name)
    model = EmbeddingModel(backbone, dim=5, pooling=pooling).eval()
    made = model(torch.randn(3, 3, 32, 32))
    assert made.shape == (3, 5)
    made.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    again = EmbeddingModel(rebuild_backbone(config), dim=5, pooling=pooling).eval()
    again.load_state_dict(model.state_dict())
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(again(pixels), model(pixels))


def test_gem_lies_between_the_mean_and_the_maximum() -> None:
    features = torch.rand(2, 256, 4, 4)
    model = EmbeddingModel(load_backbone("small")[0], dim=5, pooling="gem")
    pooled = model.pool(features)
    assert (pooled >= features.mean(dim=(2, 3)) - 1e-6).all()
    assert (pooled <= features.amax(dim=(2, 3)) + 1e-6).all()


def test_frozen_batch_norm_keeps_its_statistics(resnet: Path) -> None:
    model = EmbeddingModel(load_backbone(str(resnet))[0], dim=5, pooling="average").train()
    freeze_batch_norm(model)
    before = {k: v.clone() for k, v in model.state_dict().items() if "running" in k}
    model(torch.randn(4, 3, 32, 32))
    assert before
    assert all(torch.equal(before[k], model.state_dict()[k]) for k in before)


def test_training_scales_pixels_as_serving_does() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    preprocessing = Preprocessing(size=8, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    on_device = to_device(pixels, preprocessing, torch.device("cpu"))
    assert np.array_equal(on_device.numpy(), to_tensor(pixels, preprocessing))
