"""Models without weights: one that reads a vector from a picture of it, and five fold models of mean colours."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ..world import DIM as COLOURS
from ..world import write_model

DIM = 512  # of the vectors in pictures
SIDE = 19  # of a picture: its values hold two bytes for each number of a vector
STEPS = 32767
FOLDS = 5


def picture(vector: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return RGB pixels (SIDE, SIDE, 3) that hold a vector (DIM,): the upper bytes of its numbers, then the lower."""
    numbers = np.round(vector.astype(np.float64) / np.abs(vector).max() * STEPS).astype(np.int64) + STEPS
    pixels = np.zeros(3 * SIDE * SIDE, np.uint8)
    pixels[:DIM], pixels[DIM : 2 * DIM] = numbers >> 8, numbers & 255
    return np.ascontiguousarray(pixels.reshape(3, SIDE, SIDE).transpose(1, 2, 0))


def picture_reader() -> bytes:
    """Return the ONNX model that reads the vector of a picture, of length one."""
    weights = np.zeros((3 * SIDE * SIDE, DIM), np.float32)
    numbers = np.arange(DIM)
    weights[numbers, numbers], weights[DIM + numbers, numbers] = 127.5 * 256, 127.5
    zero = np.array([127.5 * 257 - STEPS], np.float32)  # pixels are scaled to -1 ... 1
    arrays = {"weights": weights, "zero": zero, "axes": np.array([1])}
    nodes = [
        helper.make_node("Flatten", ["pixels"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["numbers"]),
        helper.make_node("Add", ["numbers", "zero"], ["raw"]),
        helper.make_node("ReduceL2", ["raw", "axes"], ["certainty"], keepdims=0),
        helper.make_node("Unsqueeze", ["certainty", "axes"], ["length"]),
        helper.make_node("Div", ["raw", "length"], ["embedding"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pictures",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [
            helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", DIM]),
            helper.make_tensor_value_info("certainty", TensorProto.FLOAT, ["n"]),
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(made.SerializeToString())


def fold_models(folder: Path) -> bytes:
    """Return an ONNX model of five fold models: each mixes the mean colours in its own way."""
    model = onnx.load(write_model(folder / "single.onnx"))
    graph = model.graph
    parts = list[str]()
    (last,) = [node for node in graph.node if "embedding" in node.output]
    last.output[0] = "plain"
    for fold in range(FOLDS):
        mixing = np.eye(COLOURS) + np.random.default_rng(fold).normal(0, 0.06, (COLOURS, COLOURS))
        graph.initializer.append(numpy_helper.from_array(mixing.astype(np.float32), f"mixing{fold}"))
        mixed, length, parts = f"mixed{fold}", f"length{fold}", [*parts, f"part{fold}"]
        graph.node.append(helper.make_node("MatMul", ["plain", f"mixing{fold}"], [mixed]))
        graph.node.append(helper.make_node("ReduceL2", [mixed, "axes"], [length], keepdims=1))
        graph.node.append(helper.make_node("Div", [mixed, length], [parts[-1]]))
    graph.initializer.append(numpy_helper.from_array(np.array([math.sqrt(1 / FOLDS)], np.float32), "scale"))
    graph.node.append(helper.make_node("Concat", parts, ["every"], axis=1))
    graph.node.append(helper.make_node("Mul", ["every", "scale"], ["embedding"]))
    graph.output[0].CopyFrom(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["n", FOLDS * COLOURS]))
    return bytes(model.SerializeToString())
