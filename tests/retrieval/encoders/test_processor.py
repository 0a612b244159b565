"""The preprocessing of an ONNX encoder, from its image processor and from options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retrieval.encoders.processor import EncoderOptions
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing, to_tensor

MEAN, STD = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
PROCESSOR = {
    "size": {"shortest_edge": 256},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_normalize": True,
    "image_mean": MEAN,
    "image_std": STD,
}


def made(processor: dict[str, Any] | None = None, *, side: int | None = 224, raw: bool = False, **given: Any) -> Any:
    return EncoderOptions(onnx="e.onnx", **given).preprocessing(processor, side=side, raw=raw)


def test_the_processor_decides() -> None:
    assert made(PROCESSOR) == Preprocessing(224, 0.875, MEAN, STD)
    assert made(PROCESSOR, side=None) == Preprocessing(224, 0.875, MEAN, STD)


def test_options_go_before_the_processor() -> None:
    assert made(PROCESSOR, resize=224, mean=STD) == Preprocessing(224, 1.0, STD, STD)
    assert made(PROCESSOR, side=None, size=384, resize=384) == Preprocessing(384, 1.0, MEAN, STD)


def test_options_alone_decide() -> None:
    scale = {"mean": MEAN, "std": STD}
    assert made(**scale) == Preprocessing(224, 1.0, MEAN, STD)
    assert made(side=None, size=64, **scale).size == 64
    assert made(side=None, resize=256, crop=224, **scale) == Preprocessing(224, 0.875, MEAN, STD)


def test_bytes_are_not_scaled() -> None:
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    for processor in (None, PROCESSOR):
        values = to_tensor(pixels, made(processor, raw=True))
        assert np.abs(values - np.moveaxis(pixels, -1, 0)).max() < 1e-4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "--mean and --std, must be given where the file has no preprocessor_config"),
        ({"mean": MEAN}, "--mean and --std, must be given"),
        ({"side": None, "mean": MEAN, "std": STD}, "--size must be given where the input takes any size"),
        ({"size": 256, "mean": MEAN, "std": STD}, "the input has 224 pixels, the preprocessing 256"),
        ({"crop": 192, "size": 224, "mean": MEAN, "std": STD}, "the input has 224 pixels, the preprocessing 224|size"),
        ({"processor": {**PROCESSOR, "do_center_crop": False}}, "the input has 224 pixels, the preprocessing 256"),
        ({"mean": (123.7, 116.3, 103.5), "std": (58.4, 57.1, 57.4)}, "Divide --mean and --std by 255"),
        ({"crop": 224, "mean": MEAN, "std": STD}, "--crop must be given with --resize"),
        ({"raw": True, "mean": MEAN}, "belong to an input of numbers"),
        ({"processor": {"do_center_crop": False}}, "the image processor must have a size"),
        ({"processor": {"size": {"height": 2, "width": 4}}}, "have a square input"),
        ({"processor": {**PROCESSOR, "image_std": [1]}}, "have three values of image_std"),
    ],
)
def test_what_is_missing_or_contradicts_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        made(**values)
