"""Families of pretrained models from end to end, with small random weights: export, parity, index and search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from torch import nn

from retrieval.catalogue.read import read_catalogue
from retrieval.errors import InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever
from training.backbones import load_backbone, rebuild_backbone
from training.backbones.transformers_backbone import MAP, VECTOR, TransformersBackbone
from training.export.pretrained import Pretrained, export_pretrained
from training.model import EmbeddingModel

from ...world import write_folder

SIDE = 32
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PATCHES = {"image_size": SIDE, "patch_size": 8}
TEXT = {**SIZES, "vocab_size": 99, "num_hidden_layers": 1}
PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE},
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}

VIT = SIZES | PATCHES
DINO_2 = {name: value for name, value in VIT.items() if name != "intermediate_size"}
TWO_TOWERS = {"text_config": TEXT, "vision_config": VIT}
SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": SIDE, "patch_size": 4}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
CONVNEXT = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}
EFFICIENTNET = {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320, "initializer_range": 0.3}
NECKS = [8, 8, 12, 12, 16, 16, 32]
MOBILEVIT = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": NECKS, "num_attention_heads": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any], str, int]] = {  # model, settings, readout, length of the embedding
    "vit": ("ViTModel", "ViTConfig", VIT, MAP, 32),
    "vit, classifier": ("ViTForImageClassification", "ViTConfig", VIT, MAP, 32),
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO_2, VECTOR, 32),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", VIT, VECTOR, 32),
    "clip": ("CLIPModel", "CLIPConfig", TWO_TOWERS | {"projection_dim": 16}, VECTOR, 16),
    "clip, vision": ("CLIPVisionModel", "CLIPVisionConfig", VIT, VECTOR, 32),
    "clip, projected": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", VIT | {"projection_dim": 16}, VECTOR, 16),
    "siglip": ("SiglipModel", "SiglipConfig", TWO_TOWERS, VECTOR, 32),
    "siglip, vision": ("SiglipVisionModel", "SiglipVisionConfig", VIT, VECTOR, 32),
    "swin": ("SwinModel", "SwinConfig", SWIN, MAP, 32),
    "convnext": ("ConvNextModel", "ConvNextConfig", CONVNEXT, MAP, 32),
    "resnet": ("ResNetModel", "ResNetConfig", RESNET, MAP, 32),
    "mobilenet v1": ("MobileNetV1Model", "MobileNetV1Config", {"depth_multiplier": 0.25}, MAP, 256),
    "mobilenet v2": ("MobileNetV2Model", "MobileNetV2Config", {"depth_multiplier": 0.35}, MAP, 1280),
    "efficientnet": ("EfficientNetModel", "EfficientNetConfig", EFFICIENTNET, MAP, 320),
    "mobilevit": ("MobileViTModel", "MobileViTConfig", MOBILEVIT, MAP, 32),
}


def settled(model: nn.Module) -> nn.Module:
    """Give batch norms the statistics of their inputs, so that random weights give features of a usual size."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = None  # the mean of all batches
        with torch.no_grad():
            model.train()(torch.randn(8, 3, 64, 64))
    return model.eval()


def saved(folder: Path, family: str, **processor: Any) -> str:
    torch.manual_seed(0)
    kind, config, values, *_ = FAMILIES[family]
    without_pooler = {"add_pooling_layer": False} if kind == "ViTModel" else {}
    model = settled(getattr(t, kind)(getattr(t, config)(**values), **without_pooler))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | processor))
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_from_end_to_end(family: str, tmp_path: Path) -> None:
    name = saved(tmp_path / "model", family)
    pretrained = Pretrained.load(name, size=48 if family != "siglip, vision" else None)  # another size than its own
    backbone = pretrained.model.backbone
    assert isinstance(backbone, TransformersBackbone)
    assert (backbone.readout, pretrained.model.dim) == FAMILIES[family][3:]
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(20), photos=range(1)))
    bundle = export_pretrained(pretrained, tmp_path / "bundle", photos=photos, target_fpir=0.1)
    assert bundle.manifest["evidence"]["parity"]["largest_difference"] < 1e-4
    index_catalogue(bundle, photos, tmp_path / "gallery", progress=False)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        result = retriever.search(photos[7].path)
    assert result.nearest.distance == pytest.approx(0, abs=1e-3)
    assert result.decision in ("match", "perhaps", "ranked")  # vectors of random weights may be too close to tell apart


@pytest.mark.parametrize(
    "family", ["vit, classifier", "clip", "siglip", pytest.param("mobilevit", marks=pytest.mark.slow)]
)
def test_a_record_rebuilds_the_network(family: str, tmp_path: Path) -> None:
    processor = {"do_flip_channel_order": True, "image_processor_type": "MobileViTImageProcessor"}
    name = saved(tmp_path, family, **(processor if family == "mobilevit" else {}))
    backbone, record = load_backbone(name)
    again = rebuild_backbone(json.loads(json.dumps(record)))
    again.load_state_dict(backbone.state_dict())
    pixels = torch.randn(2, 3, SIDE, SIDE)
    with torch.no_grad():
        assert torch.equal(again.eval()(pixels), backbone.eval()(pixels))


@torch.no_grad()
def test_the_vision_tower_is_that_of_the_two_tower_model(tmp_path: Path) -> None:
    pixels = torch.randn(2, 3, SIDE, SIDE)
    for family, folder in (("clip", tmp_path / "clip"), ("siglip", tmp_path / "siglip")):
        name = saved(folder, family)
        whole = t.AutoModel.from_pretrained(name).eval()
        expected = whole.get_image_features(pixel_values=pixels)
        expected = getattr(expected, "pooler_output", expected)
        found = load_backbone(name)[0].eval()(pixels)
        assert torch.allclose(found[:, :, 0, 0], expected, atol=1e-5)


@torch.no_grad()
def test_channels_are_turned_where_the_processor_says_so(tmp_path: Path) -> None:
    processor: dict[str, Any] = {"do_flip_channel_order": True, "image_processor_type": "MobileViTImageProcessor"}
    turned = load_backbone(saved(tmp_path / "turned", "mobilevit", **processor))[0].eval()
    processor["do_flip_channel_order"] = False
    plain = load_backbone(saved(tmp_path / "plain", "mobilevit", **processor))[0].eval()
    pixels = torch.randn(1, 3, 64, 64)
    assert torch.equal(turned(pixels), plain(pixels.flip(1)))
    assert not torch.allclose(turned(pixels), plain(pixels))


def test_gem_needs_a_feature_map(tmp_path: Path) -> None:
    backbone = load_backbone(saved(tmp_path, "clip"))[0]
    with pytest.raises(InvalidParameter, match="pooling"):
        EmbeddingModel(backbone, dim=8, pooling="gem")


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    name = saved(tmp_path, "vit")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["layernorm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidParameter, match=r"missing, such as layernorm\.weight"):
        load_backbone(name)


def test_a_text_model_is_refused(tmp_path: Path) -> None:
    config = t.BertConfig(**SIZES, vocab_size=99)
    t.BertModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    with pytest.raises(InvalidParameter, match="a model of one image"):
        load_backbone(str(tmp_path))


def test_a_size_that_the_network_cannot_read_is_refused_before_training(tmp_path: Path) -> None:
    t.ViTModel(t.ViTConfig(**SIZES, image_size=64, patch_size=16)).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    with pytest.raises(InvalidParameter, match="size must suit the backbone"):
        Pretrained.load(str(tmp_path), size=8)
    assert Pretrained.load(str(tmp_path), size=48).model.dim == 32
