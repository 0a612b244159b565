"""The energy of a photo: where the feature maps of a convolutional model respond, as a further output of its graph.

It is the square root of the product of two maps: the last one, which the model pools, summed over its channels, and the
norm of the last map with twice its resolution. Selective convolutional descriptors (Wei et al., TIP 2017) take the
last map alone, which finds half as many small things in clutter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrieval.images.region import GRID

from .reading import import_onnx

ENERGY = "energy"
POOLING = ("GlobalAveragePool", "ReduceMean")
AXES_ARE_INPUTS = {"ReduceSum": 13, "ReduceL2": 18}  # opsets
LARGEST = 2**31  # bytes of a model whose shapes onnx can infer
NUDGE = 1e-4  # of a cell, so that rounding does not cost one


def add_energy(model: Any) -> bool:
    """Add the output `energy` (n, GRID, GRID) to an ONNX model, in place.

    Return False if it pools no feature map of a size that is known, in fp32, with the channels before height and width.
    """
    onnx, graph, sides = import_onnx(), model.graph, _sides(model)
    opset = max(each.version for each in model.opset_import if each.domain in {"", "ai.onnx"})
    nodes = list(graph.node)
    pooled = [place for place, node in enumerate(nodes) if node.op_type in POOLING and node.input[0] in sides]
    if not pooled or opset < AXES_ARE_INPUTS["ReduceSum"]:
        return False
    last = nodes[pooled[-1]].input[0]
    height, width = sides[last]
    earlier = [name for node in nodes[: pooled[-1]] for name in node.output if name in sides]
    fine = [name for name in earlier if sides[name] in {(2 * height - k, 2 * width - k) for k in (0, 1)}]
    if not fine:
        return False

    def added(kind: str, inputs: Sequence[str | np.ndarray], output: str, **attributes: Any) -> str:
        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else f"{output}.constant")
            if not isinstance(value, str):
                graph.initializer.append(onnx.numpy_helper.from_array(value, names[-1]))
        graph.node.append(onnx.helper.make_node(kind, names, [output], name=output, **attributes))
        return output

    def resized(value: str, kind: str) -> str:
        """Add the sum or the norm of a map over its channels, resized to GRID × GRID."""
        is_input = opset >= AXES_ARE_INPUTS[kind]
        axes = {} if is_input else {"axes": [1]}
        reduced = added(kind, [value, np.array([1])] if is_input else [value], f"{ENERGY}.{kind}", keepdims=1, **axes)
        scales = np.array([1, 1, *((GRID + NUDGE) / side for side in sides[value])], dtype=np.float32)
        return added("Resize", [reduced, "", scales], f"{ENERGY}.{kind}.resized", mode="linear")

    coarse = resized(last, "ReduceSum")
    product = added("Mul", [coarse, resized(fine[-1], "ReduceL2")], f"{ENERGY}.Mul")
    root = added("Sqrt", [added("Relu", [product], f"{ENERGY}.Relu")], f"{ENERGY}.Sqrt")
    added("Squeeze", [root, np.array([1])], ENERGY)
    graph.output.append(onnx.helper.make_tensor_value_info(ENERGY, onnx.TensorProto.FLOAT, ["n", GRID, GRID]))
    return True


def _sides(model: Any) -> dict[str, tuple[int, int]]:
    """Return the height and width of the square feature maps (n, c, h, w) of a model, by name."""
    onnx, sides = import_onnx(), dict[str, tuple[int, int]]()
    try:
        inferred = onnx.shape_inference.infer_shapes(model if model.ByteSize() < LARGEST else onnx.ModelProto())
    except onnx.shape_inference.InferenceError:
        return sides
    for value in inferred.graph.value_info:
        tensor = value.type.tensor_type
        height_and_width = [side.dim_value for side in tensor.shape.dim[2:]]
        is_square = len(height_and_width) == 2 and height_and_width[0] == height_and_width[1] > 1
        if is_square and tensor.elem_type == onnx.TensorProto.FLOAT:
            sides[value.name] = height_and_width[0], height_and_width[1]
    return sides
