"""Conversion of an fp32 ONNX model to fp16 or int8 by the tools of ONNX Runtime.

Convolutions are quantized statically: weights per output channel, activations with the range that they have on training
photos. Transformers are quantized dynamically: only matrix products, whose ranges are computed at run time, so that
photos run one at a time. The first convolutions, which have few channels with wide ranges, and everything from the
embedding layer on stay in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.files import working_folder
from retrieval.bundle.embedder import ALONE
from retrieval.encoders.reading import import_onnx

from .onnx_writer import quiet

STATIC, DYNAMIC = "static", "dynamic"
STATIC_OPERATORS = ("Conv", "Relu", "Clip", "Add", "MaxPool")
DYNAMIC_OPERATORS = ("MatMul", "Gemm")
FIRST = 2  # first convolutions, which stay in fp32
PIXELS = "pixels"

Batches = Sequence[NDArray[np.float32]]


def to_fp16(source: Path, target: Path) -> None:
    """Convert `source` to fp16, except its inputs and outputs, the embedding layer and all that follows it."""
    onnx = import_onnx()
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(source)
    with quiet(""):
        half = convert_float_to_float16(model, keep_io_types=True, node_block_list=_from_head(model))
    nodes = {node.output[0]: node for node in half.graph.node}  # the converter repeats a cast for each of its users
    casts = [node for node in nodes.values() if node.op_type == "Cast"]
    halved = {node.output[0]: node.input[0] for node in casts if node.attribute[0].i == onnx.TensorProto.FLOAT16}
    for node in casts:
        if node.input[0] in halved:  # between two nodes in fp32
            node.op_type, node.input[0] = "Identity", halved[node.input[0]]
            node.ClearField("attribute")
    half.graph.ClearField("node")
    half.graph.node.extend(nodes.values())
    onnx.save(half, target)


def to_int8(source: Path, target: Path, batches: Batches) -> str:
    """Write `source` in int8; return "static" if most weights are those of convolutions, else "dynamic".

    Parameters
    ----------
    batches:
        Scaled pixels (n, 3, size, size) of training photos, which decide the ranges.
    """
    onnx = import_onnx()
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    model = onnx.load(source)
    convolutions = [node.name for node in model.graph.node if node.op_type == "Conv"]
    kept = _from_head(model)
    static = _weights(model, ("Conv",)) >= _weights(model, DYNAMIC_OPERATORS)
    model.graph.ClearField("value_info")  # inferred shapes, which quantization would contradict
    with working_folder() as folder, quiet(""):
        bare = folder / "model.onnx"
        onnx.save(model, bare)
        if static:
            quantize_static(
                bare,
                target,
                _Reader(batches),
                op_types_to_quantize=list(STATIC_OPERATORS),
                nodes_to_exclude=[*convolutions[:FIRST], *kept],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
            return STATIC
        quantize_dynamic(
            bare,
            target,
            op_types_to_quantize=list(DYNAMIC_OPERATORS),
            nodes_to_exclude=kept,
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    quantized = onnx.load(target)
    onnx.helper.set_model_props(quantized, {ALONE: "1"})
    onnx.save(quantized, target)
    return DYNAMIC


class _Reader:
    """Implements the data reader of ONNX Runtime's calibration."""

    def __init__(self, batches: Batches) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {PIXELS: batch}


def _from_head(model: Any) -> list[str]:
    """Return the names of the node whose output the certainty is the norm of, and of all nodes that follow it."""
    nodes = list(model.graph.node)  # in topological order
    raw = next(node.input[0] for node in nodes if "certainty" in node.output)
    reached, names = {raw}, []
    for node in nodes:
        if raw in node.output or reached & set(node.input):
            reached |= set(node.output)
            names.append(node.name)
    return names


def _weights(model: Any, kinds: Sequence[str]) -> int:
    """Return the number of weights in nodes of some operators."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    held = {name for node in model.graph.node if node.op_type in kinds for name in node.input if name in sizes}
    return sum(sizes[name] for name in held)
