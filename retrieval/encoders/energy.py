"""The energy of a photo: where the feature maps of a convolutional model respond, as a further output of its graph.

It is the square root of the product of two maps: the last one, which the model pools, summed over its channels, and the
norm of the last map with twice its resolution. Selective convolutional descriptors (Wei et al., TIP 2017) take the
last map alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from retrieval.bundle.embedder import ENERGY
from retrieval.images.region import GRID

from .adapt import Nodes
from .reading import import_onnx

POOLING = ("GlobalAveragePool", "ReduceMean")
LEAST_OPSET = 13  # whose Squeeze takes its axes as an input
LARGEST = 2**31  # bytes of a model whose shapes onnx can infer
NUDGE = 1e-4  # of a cell, so that rounding does not cost one


def add_energy(model: Any) -> bool:
    """Add the output `energy` (n, GRID, GRID) to an ONNX model, in place.

    Return False if it pools no feature map of a size that is known, in fp32, with the channels before height and width.
    """
    onnx, graph, sides = import_onnx(), model.graph, _sides(model)
    nodes = list(graph.node)
    pooled = [place for place, node in enumerate(nodes) if node.op_type in POOLING and node.input[0] in sides]
    added = Nodes(model, prefix=f"{ENERGY}.")
    if not pooled or added.opset < LEAST_OPSET:
        return False
    last = nodes[pooled[-1]].input[0]
    earlier = [name for node in nodes[: pooled[-1]] for name in node.output if name in sides]
    fine = [name for name in earlier if sides[name] in {2 * sides[last], 2 * sides[last] - 1}]
    if not fine:
        return False

    def resized(value: str, kind: str) -> str:
        """Add the sum or the norm of a map over its channels, resized to GRID × GRID."""
        scale = (GRID + NUDGE) / sides[value]
        scales = np.array([1, 1, scale, scale], dtype=np.float32)
        return added.add("Resize", added.reduce(kind, value, (1,), keepdims=1), "", scales, mode="linear")

    product = added.add("Mul", resized(last, "ReduceSum"), resized(fine[-1], "ReduceL2"))
    root = added.add("Sqrt", added.add("Relu", product))
    added.add("Squeeze", root, np.array([1]), output=ENERGY)
    graph.node.extend(added.nodes)
    graph.initializer.extend(added.constants)
    graph.output.append(onnx.helper.make_tensor_value_info(ENERGY, onnx.TensorProto.FLOAT, ["n", GRID, GRID]))
    return True


def _sides(model: Any) -> dict[str, int]:
    """Return the side of the square feature maps (n, c, h, w) of a model in fp32, by name."""
    onnx, sides = import_onnx(), dict[str, int]()
    try:
        inferred = onnx.shape_inference.infer_shapes(model if model.ByteSize() < LARGEST else onnx.ModelProto())
    except onnx.shape_inference.InferenceError:
        return sides
    for value in inferred.graph.value_info:
        tensor = value.type.tensor_type
        height_and_width = {side.dim_value for side in tensor.shape.dim[2:]}
        is_square = len(tensor.shape.dim) == 4 and len(height_and_width) == 1
        if is_square and max(height_and_width) > 1 and tensor.elem_type == onnx.TensorProto.FLOAT:
            sides[value.name] = max(height_and_width)
    return sides
