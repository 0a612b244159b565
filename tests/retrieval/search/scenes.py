"""Photos of several items of the tiny world, and detectors that return fixed boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ...world import SIDE, draw

WIDTH = 100
PLACES = ((0, 0), (60, 0), (0, 60), (60, 60))  # where windows of scale 0.4 lie


def box_of(place: int) -> tuple[float, float, float, float]:
    left, upper = PLACES[place]
    return left, upper, left + SIDE, upper + SIDE


def scene(*items: int, number: int = 9) -> Image.Image:
    """Return a photo with up to four items."""
    picture = Image.new("RGB", (WIDTH, WIDTH), "white")
    for place, item in enumerate(items):
        picture.paste(draw(item, number), PLACES[place])
    return picture


def write_detector(
    path: Path,
    boxes: object,
    scores: object,
    *,
    shape: Sequence[object] = (1, 3, "height", "width"),
    names: Sequence[str] = ("boxes", "scores"),
) -> Path:
    """Write a detector that returns these boxes and scores for every photo."""
    values = [np.asarray(boxes), np.asarray(scores)]
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))
        for name, value in zip(names, values, strict=True)
    ]
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, values, strict=True)
    ]
    photo = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "detector", [photo], outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path
