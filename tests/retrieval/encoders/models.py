"""Tiny ONNX encoders of random weights, in the layouts of different makers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from retrieval.encoders.export import Encoder, export_encoder
from retrieval.encoders.processor import EncoderOptions

SIDE, WIDTH = 32, 8
HALF = (0.5, 0.5, 0.5)
NUMPY = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def weights(name: str, *shape: int, kind: int = TensorProto.FLOAT) -> Any:
    values = np.random.default_rng(len(shape)).normal(size=shape)
    return numpy_helper.from_array(values.astype(NUMPY[kind]), name)


def write(
    path: Path,
    *,
    shape: Sequence[int | str | None] = ("n", 3, SIDE, SIDE),
    kind: int = TensorProto.FLOAT,
    opset: int = 17,
    names: Sequence[str] = ("input", "output"),
    tail: Sequence[Any] = (),
    outputs: Mapping[str, Sequence[int | str]] | None = None,
    external: bool = False,
) -> Path:
    """Write a convolution, its map "map" (n, 8, 8, 8), their mean and a linear layer, the vector (n, 8).

    `tail` are more nodes, and `outputs` the outputs with their shapes in place of the vector.
    """
    image, vector = names
    inner = kind if kind in NUMPY else TensorProto.FLOAT
    nodes, value = [], image
    if kind not in NUMPY:
        nodes, value = [helper.make_node("Cast", [value], ["numbers"], to=inner)], "numbers"
    if shape[-1] == 3:
        nodes.append(helper.make_node("Transpose", [value], ["first"], perm=[0, 3, 1, 2]))
        value = "first"
    nodes += [
        helper.make_node("Conv", [value, "kernel"], ["map"], strides=[4, 4]),
        helper.make_node("GlobalAveragePool", ["map"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], [vector]),
        *tail,
    ]
    given = outputs or {vector: (shape[0] or "n", WIDTH)}
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(image, kind, list(shape))],
        [helper.make_tensor_value_info(name, inner, list(sides)) for name, sides in given.items()],
        [weights("kernel", WIDTH, 3, 4, 4, kind=inner), weights("matrix", WIDTH, WIDTH, kind=inner)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    save(model, path, external=external)
    return path


def save(model: Any, path: Path, *, external: bool = False) -> None:
    """Write a model, with its weights in another file if they are `external`."""
    more = {"save_as_external_data": True, "location": f"{path.name}_data", "size_threshold": 0} if external else {}
    onnx.save(model, path, **more)


def write_torch(
    path: Path, module: Any, values: Mapping[str, Any], outputs: Sequence[str], *, fixed: bool = False
) -> Path:
    """Write a torch module as ONNX, for any number of photos unless it is `fixed`."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            tuple(values.values()),
            str(path),
            input_names=list(values),
            output_names=list(outputs),
            opset_version=17,
            dynamo=False,
            dynamic_axes={} if fixed else {name: {0: f"n of {name}"} for name in (*values, *outputs)},
        )
    return path


def options(place: Path | str, **given: Any) -> EncoderOptions:
    return EncoderOptions(onnx=str(place), **{"mean": HALF, "std": HALF, **given})


def bundle_of(place: Path | str, output: Path, **given: Any) -> Any:
    """Export an encoder, and return the bundle."""
    folder = output.parent / f"{output.name}-files"
    folder.mkdir(parents=True)
    return export_encoder(Encoder.read(options(place, **given), folder), output)
