"""The preprocessing of pretrained models: every form of an image processor, translated into ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing, center_crop_resize, to_tensor
from training.backbones import backbone_preprocessing, hub, published_preprocessing
from training.backbones.preprocessing import read_processor

MEAN, STD = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
NORMALISED = {"do_normalize": True, "image_mean": MEAN, "image_std": STD}


def folder(
    path: Path, values: dict[str, Any] | None, *, file: str = "preprocessor_config.json", family: str = "vit"
) -> str:
    (path / "config.json").write_text(json.dumps({"model_type": family}))
    if values is not None:
        (path / file).write_text(json.dumps(values))
    return str(path)


def square(side: int, **more: Any) -> dict[str, Any]:
    return {"size": {"height": side, "width": side}, **more}


def shortest(edge: int, kind: str, **more: Any) -> dict[str, Any]:
    return {"size": {"shortest_edge": edge}, "image_processor_type": kind, **more}


CROPPED = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
OLD_CLIP = {"size": 256, "do_center_crop": True, "crop_size": 224, "feature_extractor_type": "CLIPFeatureExtractor"}
EFFICIENT = {"crop_size": {"height": 256, "width": 256}, "image_processor_type": "EfficientNetImageProcessor"}


@pytest.mark.parametrize(
    ("values", "size", "view", "squash"),
    [
        (square(224), 224, 1.0, True),
        ({"size": 224, "image_processor_type": "ViTImageProcessor"}, 224, 1.0, True),
        ({"size": 224, "feature_extractor_type": "ViTFeatureExtractor"}, 224, 1.0, True),
        (shortest(256, "BitImageProcessor", **CROPPED), 224, 0.875, False),
        (OLD_CLIP, 224, 0.875, False),
        (shortest(192, "BitImageProcessor", do_center_crop=False), 192, 1.0, False),
        (shortest(224, "ConvNextImageProcessor", crop_pct=0.875), 224, 0.875, False),
        (shortest(384, "ConvNextImageProcessorFast", crop_pct=1.0), 384, 1.0, True),
        (square(320, do_center_crop=True, **EFFICIENT), 256, 0.8, True),
    ],
)
def test_sizes_and_crops(tmp_path: Path, values: dict[str, Any], size: int, view: float, squash: bool) -> None:
    found = published_preprocessing(folder(tmp_path, values))
    assert (found.size, found.view, found.squash) == (size, view, squash)
    smaller = published_preprocessing(str(tmp_path), size=32)
    assert (smaller.size, smaller.view, smaller.squash) == (32, view, squash)
    trained = backbone_preprocessing(str(tmp_path), size=160, crop_ratio=0.8)
    assert (trained.size, trained.view, trained.squash, trained.mean) == (160, 0.8, False, found.mean)


def expected(pixels: np.ndarray, values: dict[str, Any]) -> np.ndarray:
    """Compute what `transformers` documents, step by step."""
    made = pixels.astype(np.float64)
    if values.get("do_rescale", True):
        made = made * values.get("rescale_factor", 1 / 255) - (1 if values.get("rescale_offset") else 0)
    if values.get("do_normalize", True):
        made = (made - np.array(values["image_mean"])) / np.array(values["image_std"])
    if values.get("include_top"):
        made = made / np.array(values["image_std"])
    return np.moveaxis(made, -1, -3)


@pytest.mark.parametrize(
    "values",
    [
        NORMALISED,
        {**NORMALISED, "do_normalize": False},
        {**NORMALISED, "rescale_factor": 1 / 127.5},
        {**NORMALISED, "do_rescale": False},
        {**NORMALISED, "rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False},
        {**NORMALISED, "rescale_offset": False, "include_top": True},
        {**NORMALISED, "do_normalize": False, "include_top": True},
    ],
)
def test_scaling(tmp_path: Path, values: dict[str, Any]) -> None:
    kind = "EfficientNetImageProcessor" if "include_top" in values else "ViTImageProcessor"
    written = {**values, "image_processor_type": kind, "size": {"height": 8, "width": 8}}
    found = published_preprocessing(folder(tmp_path, written))
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert np.allclose(to_tensor(pixels, found), expected(pixels, values), atol=1e-4)


def test_a_processor_within_a_processor_is_found(tmp_path: Path) -> None:
    inner = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 64, "width": 64}, **NORMALISED}
    values = {"processor_class": "SiglipProcessor", "image_processor": inner}
    found = published_preprocessing(folder(tmp_path, values, file="processor_config.json"))
    assert (found.size, found.mean, found.squash) == (64, pytest.approx(tuple(MEAN)), True)


def test_without_a_file_the_family_decides(tmp_path: Path) -> None:
    folder(tmp_path, None, family="mobilevit")
    assert read_processor(str(tmp_path))["do_flip_channel_order"] is True
    assert published_preprocessing(str(tmp_path)).std == pytest.approx((1, 1, 1))
    folder(tmp_path, None, family="clip_vision_model")
    assert published_preprocessing(str(tmp_path)).mean[0] == pytest.approx(0.48145466)
    folder(tmp_path, None, family="somebodys")
    with pytest.raises(InvalidParameter, match=r"preprocessor_config\.json"):
        published_preprocessing(str(tmp_path))


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"size": {"height": 224, "width": 112}}, "square input"),
        ({"size": {"height": 32, "width": 32}, "image_mean": [0.5], "image_std": [0.5]}, "three values of image_mean"),
    ],
)
def test_what_cannot_be_translated_is_refused(tmp_path: Path, values: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidParameter, match=rule):
        published_preprocessing(folder(tmp_path, values))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    name = folder(tmp_path, {})
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(InvalidParameter, match=r"readable preprocessor_config\.json"):
        published_preprocessing(name)


def test_offline_and_not_cached_is_an_error_that_names_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: False)
    with pytest.raises(InvalidParameter, match="nobody/nothing") as error:
        published_preprocessing("nobody/nothing")
    assert "efficientnet-lite0" in str(error.value.remedy)


def test_squashing_keeps_the_whole_photo_and_a_crop_its_middle() -> None:
    photo = Image.new("RGB", (80, 40), "white")
    photo.paste((0, 0, 0), (0, 0, 10, 40))  # a black bar at the left
    squashed = center_crop_resize(photo, Preprocessing(size=8, squash=True))
    assert squashed[:, 0].max() < 40
    assert squashed[:, 2:].min() > 215
    assert center_crop_resize(photo, Preprocessing(size=8)).min() == 255
    assert center_crop_resize(photo, Preprocessing(size=8, squash=True, view=0.5)).min() == 255
    both = [Preprocessing(size=8, squash=squash) for squash in (False, True)]
    assert ["squash" in preprocessing.to_dict() for preprocessing in both] == [False, True]
    assert [Preprocessing.from_dict(preprocessing.to_dict()) for preprocessing in both] == both
