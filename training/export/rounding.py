"""Joint rounding of a convolution's weights, to minimise the change of its outputs on photos.

The rounding error of a weight is compensated by the weights that are not yet rounded, as far as their inputs are
correlated (GPTQ: Frantar et al., ICLR 2023). For the weights W of one output, the error is (W − Q) C (W − Q)ᵀ with the
covariance C of the inputs; the bias corrects for their mean.

Shapes: g groups of a convolution, p inputs of an output (channels of a group times pixels of the kernel), o outputs of
a group, N patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from retrieval.bundle.providers import import_onnxruntime

DAMPING = 0.01  # share of the mean variance that is added to each variance, for numerical stability
LARGEST = 127
PATCHES = 2048  # patches sampled per batch
MAX_INPUTS = 2304  # inputs per output up to which a covariance fits into memory; else weights are rounded separately

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Moments of a convolution's inputs: mean (g, p) and covariance (g, p, p), None if that is too large."""

    mean: Floats
    covariance: Floats | None


def input_moments(model: Any, nodes: Sequence[Any], batches: Sequence[NDArray[np.float32]]) -> dict[str, Moments]:
    """Return the input moments of some convolutions of an ONNX model, by name, for batches of scaled pixels."""
    import onnx

    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    names = sorted({node.input[0] for node in nodes} - {"pixels"})
    for name in names:
        probed.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = import_onnxruntime().InferenceSession(probed.SerializeToString(), providers=["CPUExecutionProvider"])
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    sums = {node.name: _Sums() for node in nodes}
    for batch in batches:
        outputs = session.run(names, {"pixels": batch}) if names else []  # an empty list means all outputs
        values = dict(zip(names, outputs, strict=True)) | {"pixels": batch}
        for node in nodes:
            sums[node.name].add(_patches(values[node.input[0]], node, shapes[node.input[1]]))
    return {name: node_sums.moments() for name, node_sums in sums.items()}


class _Sums:
    """Accumulates the first and second moments of patches (g, p, N)."""

    def __init__(self) -> None:
        self._count, self._first, self._second = 0, np.zeros(()), np.zeros(())

    def add(self, patches: NDArray[np.float32]) -> None:
        self._count += patches.shape[2]
        self._first = self._first + patches.sum(axis=2, dtype=np.float64)
        if patches.shape[1] <= MAX_INPUTS:
            self._second = self._second + patches @ patches.transpose(0, 2, 1)

    def moments(self) -> Moments:
        mean = self._first / self._count
        if not self._second.ndim:
            return Moments(mean, None)
        return Moments(mean, self._second / self._count - mean[:, :, None] * mean[:, None, :])


def _patches(values: NDArray[np.float32], node: Any, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return input patches of a convolution (g, p, N), evenly spread over photos and positions.

    Parameters
    ----------
    values:
        Inputs (n, c, h, w).
    node, shape:
        The convolution, and the shape of its weights: (g·o, c / g, height, width).
    """
    attributes = {attribute.name: attribute for attribute in node.attribute}
    top, left, bottom, right = attributes["pads"].ints if "pads" in attributes else (0, 0, 0, 0)
    down, across = attributes["strides"].ints if "strides" in attributes else (1, 1)
    tall, wide = attributes["dilations"].ints if "dilations" in attributes else (1, 1)
    groups = attributes["group"].i if "group" in attributes else 1
    padded = np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)))
    window = (tall * (shape[2] - 1) + 1, wide * (shape[3] - 1) + 1)
    views = sliding_window_view(padded, window, axis=(2, 3))[:, :, ::down, ::across, ::tall, ::wide]
    n, _, h, w = views.shape[:4]
    chosen = np.unique(np.linspace(0, n * h * w - 1, PATCHES).astype(int))
    photo, row, column = np.unravel_index(chosen, (n, h, w))
    patches = views[photo, :, row, column]  # (N, c, height, width)
    return np.ascontiguousarray(patches.reshape(len(chosen), groups, -1).transpose(1, 2, 0))


def round_weights(weights: Floats, scale: Floats, covariance: Floats | None) -> Floats:
    """Return whole numbers (g, o, p) for weights (g, o, p), in steps of `scale` (g, o, 1), from −127 to 127."""
    if covariance is None:
        return np.clip(np.rint(weights / scale), -LARGEST, LARGEST)
    variances = np.diagonal(covariance, axis1=1, axis2=2)  # (g, p)
    damped = covariance + np.eye(covariance.shape[1]) * np.maximum(DAMPING * variances.mean(), 1e-12)
    order = np.argsort(-variances, axis=1)  # inputs of the greatest variance are rounded first
    damped = np.take_along_axis(np.take_along_axis(damped, order[:, :, None], 1), order[:, None, :], 2)
    left = np.take_along_axis(weights, order[:, None, :], 2)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).transpose(0, 2, 1)
    whole = np.zeros_like(left)
    for i in range(left.shape[2]):
        column = slice(i, i + 1)
        whole[:, :, column] = np.clip(np.rint(left[:, :, column] / scale), -LARGEST, LARGEST)
        error = (left[:, :, column] - whole[:, :, column] * scale) / upper[:, column, column]
        left[:, :, i + 1 :] -= error @ upper[:, column, i + 1 :]
    back = np.argsort(order, axis=1)
    return np.take_along_axis(whole, back[:, None, :], 2)
