"""Post-training quantization of an fp32 ONNX model to int8.

Convolutions are quantized statically (QDQ format): weights per output channel, activations unsigned with the range that
they have on training photos. Rounding the weights of a depthwise convolution moves the mean of its channel, and later
layers amplify that. Each bias is therefore corrected for the change of the mean (Nagel et al., ICCV 2019, with measured
means), and weights are rounded jointly (see `rounding`). The first convolutions have few channels with wide ranges and
stay in fp32, as does everything after the last one. Transformers are quantized dynamically: only matrix products, whose
ranges are computed at run time, so that photos run one at a time.

Shapes: n photos, g groups of a convolution, p inputs of an output, o outputs of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import ALONE

from .onnx_graph import after_head, constants, load_onnx
from .onnx_writer import quiet
from .rounding import Moments, input_moments, round_weights

STATIC, DYNAMIC = "static", "dynamic"
STATIC_OPERATORS = ("Conv", "Relu", "Clip", "Add", "MaxPool")
DYNAMIC_OPERATORS = ("MatMul", "Gemm")
FIRST = 2  # first convolutions, which stay in fp32
PIXELS = "pixels"

Batches = Sequence[NDArray[np.float32]]


def to_int8(source: Path, target: Path, batches: Batches) -> str:
    """Write `source` in int8; return "static" if most weights are those of convolutions, else "dynamic".

    Parameters
    ----------
    batches:
        Scaled pixels (n, 3, size, size) of training photos, which decide the ranges.
    """
    model = load_onnx(source)
    weights = {kind: _weights(model, kinds) for kind, kinds in ((STATIC, ("Conv",)), (DYNAMIC, DYNAMIC_OPERATORS))}
    if weights[STATIC] >= weights[DYNAMIC]:
        _static(source, target, batches)
        return STATIC
    _dynamic(source, target)
    return DYNAMIC


def _static(source: Path, target: Path, batches: Batches) -> None:
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    model = load_onnx(source)
    _give_biases(model)
    with _prepared(model, target) as prepared:
        quantize_static(
            prepared,
            target,
            _Reader(batches),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(STATIC_OPERATORS),
            nodes_to_exclude=[*[node.name for node in _convolutions(model)][:FIRST], *after_head(model)],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
    quantized = load_onnx(target)
    round_again(model, quantized, input_moments(model, _convolutions(model)[FIRST:], batches))
    onnx.save(quantized, target)


def _dynamic(source: Path, target: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = load_onnx(source)
    with _prepared(model, target) as prepared:
        quantize_dynamic(
            prepared,
            target,
            op_types_to_quantize=list(DYNAMIC_OPERATORS),
            nodes_to_exclude=after_head(model),
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    quantized = load_onnx(target)
    onnx.helper.set_model_props(quantized, {ALONE: "1"})
    onnx.save(quantized, target)


@contextmanager
def _prepared(model: Any, target: Path) -> Iterator[Path]:
    """Yield a file of the model without its inferred shapes, which quantization would contradict."""
    import onnx

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    bare.graph.ClearField("value_info")
    path = target.with_suffix(".prepared")
    onnx.save(bare, path)
    try:
        with quiet(""):
            yield path
    finally:
        path.unlink()


class _Reader:
    """Implements the data reader of ONNX Runtime's calibration."""

    def __init__(self, batches: Batches) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {PIXELS: batch}


def round_again(model: Any, quantized: Any, moments: Mapping[str, Moments]) -> None:
    """Round the weights of `quantized` again, and correct its biases so that the mean outputs stay the same.

    Parameters
    ----------
    model, quantized:
        ONNX model in fp32, and the same in QDQ format.
    moments:
        Input moments of the convolutions in int8, by name.
    """
    from onnx import numpy_helper

    exact, rounded = constants(model), constants(quantized)
    producers = {output: node for node in quantized.graph.node for output in node.output}
    original = {node.name: node for node in _convolutions(model)}
    for node in _convolutions(quantized):
        if node.name not in moments:  # it stayed in fp32
            continue
        node_moments = moments[node.name]
        groups, inputs = node_moments.mean.shape
        weight = numpy_helper.to_array(exact[original[node.name].input[1]]).astype(np.float64)
        weight = weight.reshape(groups, -1, inputs)  # (g, o, p)
        held, scale_name = (rounded[name] for name in producers[node.input[1]].input[:2])
        scale = numpy_helper.to_array(scale_name).astype(np.float64).reshape(groups, -1, 1)
        whole = round_weights(weight, scale, node_moments.covariance)
        held.CopyFrom(numpy_helper.from_array(whole.reshape(held.dims).astype(np.int8), held.name))
        moved = ((weight - whole * scale) @ node_moments.mean[:, :, None]).ravel()
        held, step = (rounded[name] for name in producers[node.input[2]].input[:2])
        bias = numpy_helper.to_array(held) + np.rint(moved / numpy_helper.to_array(step))
        held.CopyFrom(numpy_helper.from_array(bias.astype(np.int32), held.name))


def _give_biases(model: Any) -> None:
    """Add a zero bias to convolutions without one, for the correction."""
    from onnx import numpy_helper

    known = constants(model)
    for node in _convolutions(model):
        if len(node.input) == 2:
            zeros = np.zeros(known[node.input[1]].dims[0], np.float32)
            model.graph.initializer.append(numpy_helper.from_array(zeros, f"{node.input[1]}.bias"))
            node.input.append(f"{node.input[1]}.bias")


def _convolutions(model: Any) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "Conv"]


def _weights(model: Any, kinds: Sequence[str]) -> int:
    """Return the number of weights in nodes of some operators."""
    known = constants(model)
    held = {name for node in model.graph.node if node.op_type in kinds for name in node.input if name in known}
    return sum(int(np.prod(known[name].dims)) for name in held)
