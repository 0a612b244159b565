"""An fp32 ONNX model to int8, without training it again.

int8 of convolutions is static: weights per output channel, activations unsigned with the range that they have on
photos of training (QDQ form). Rounding the weights of a depthwise convolution moves the mean of its channel, and all
that follows multiplies it; so each bias takes back what the rounding of its weights adds to the mean (the bias
correction of Nagel et al., ICCV 2019, with measured means), and weights are rounded together (`rounding`). The first
convolutions see few channels of the widest ranges: they stay in fp32, as everything after the last one does. A
transformer's int8 is dynamic: its products of matrices alone, their ranges taken anew in each run, for which photos
run one at a time.

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
from .rounding import Moments, measure, round_weights

STATIC, DYNAMIC = "static", "dynamic"
STATIC_OPERATORS = ("Conv", "Relu", "Clip", "Add", "MaxPool")
DYNAMIC_OPERATORS = ("MatMul", "Gemm")
FIRST = 2  # convolutions that stay in fp32
PIXELS = "pixels"

Batches = Sequence[NDArray[np.float32]]


def to_int8(source: Path, target: Path, batches: Batches) -> str:
    """Write `source` in int8 and return how: static where most weights are convolutions', else dynamic.

    Parameters
    ----------
    batches:
        Scaled pixels (n, 3, size, size) of photos of training, which give the ranges.
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
    round_again(model, quantized, measure(model, _convolutions(model)[FIRST:], batches))
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
    """Give a file of the model without the shapes that it came with, which quantization would contradict."""
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
    """Hands out batches as ONNX Runtime's calibration asks for them."""

    def __init__(self, batches: Batches) -> None:
        self._left = iter(batches)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        batch = next(self._left, None)
        return None if batch is None else {PIXELS: batch}


def round_again(model: Any, quantized: Any, moments: Mapping[str, Moments]) -> None:
    """Round the weights of `quantized` by what they see, and change its biases so that each mean stays as it was.

    Parameters
    ----------
    model, quantized:
        The ONNX model in fp32, and the same in QDQ form.
    moments:
        What goes into the convolutions that are in int8, by their names.
    """
    from onnx import numpy_helper

    exact, rounded = constants(model), constants(quantized)
    made_by = {output: node for node in quantized.graph.node for output in node.output}
    original = {node.name: node for node in _convolutions(model)}
    for node in _convolutions(quantized):
        if node.name not in moments:  # it stayed in fp32
            continue
        seen = moments[node.name]
        groups, inputs = seen.mean.shape
        weight = numpy_helper.to_array(exact[original[node.name].input[1]]).astype(np.float64)
        weight = weight.reshape(groups, -1, inputs)  # (g, o, p)
        held, scale_name = (rounded[name] for name in made_by[node.input[1]].input[:2])
        scale = numpy_helper.to_array(scale_name).astype(np.float64).reshape(groups, -1, 1)
        whole = round_weights(weight, scale, seen.covariance)
        held.CopyFrom(numpy_helper.from_array(whole.reshape(held.dims).astype(np.int8), held.name))
        moved = ((weight - whole * scale) @ seen.mean[:, :, None]).ravel()
        held, step = (rounded[name] for name in made_by[node.input[2]].input[:2])
        bias = numpy_helper.to_array(held) + np.rint(moved / numpy_helper.to_array(step))
        held.CopyFrom(numpy_helper.from_array(bias.astype(np.int32), held.name))


def _give_biases(model: Any) -> None:
    """Give every convolution a bias, so that there is something to correct."""
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
    """Return how many weights the nodes of some kinds hold."""
    known = constants(model)
    held = {name for node in model.graph.node if node.op_type in kinds for name in node.input if name in known}
    return sum(int(np.prod(known[name].dims)) for name in held)
