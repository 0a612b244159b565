"""Conversion of an fp32 ONNX model to fp16, which halves its size and is faster on some devices."""

from __future__ import annotations

from pathlib import Path

from .onnx_graph import after_head, ancestors, keep, load_onnx, rename_constants
from .onnx_writer import quiet


def to_fp16(source: Path, target: Path) -> None:
    """Convert `source` to fp16, except its inputs, the head and all nodes after it."""
    import onnx
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = load_onnx(source)
    rest = set(after_head(model))
    pooled = next(node for node in model.graph.node if node.name in rest).input[0]
    body = onnx.ModelProto()
    body.CopyFrom(model)
    keep(body, ancestors(model, pooled))
    body.graph.ClearField("output")
    body.graph.output.append(onnx.helper.make_tensor_value_info(pooled, onnx.TensorProto.FLOAT, None))
    taken = {node.name for node in body.graph.node}
    keep(model, {node.name for node in model.graph.node} - taken)
    rename_constants(model, "rest.")  # body and rest may have constants of the same name
    with quiet(""):
        half = convert_float_to_float16(body, keep_io_types=True)
    nodes = [*half.graph.node, *model.graph.node]
    model.graph.ClearField("node")
    model.graph.ClearField("value_info")
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(half.graph.initializer)
    ONNXModel(model).topological_sort()
    onnx.checker.check_model(model)
    onnx.save(model, target)
