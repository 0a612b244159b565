"""The graph of an encoder, rewritten to the input and the outputs of a bundle's model.

A bundle's model maps `pixels` (n, 3, size, size) to `embedding` (n, d) of length one and `certainty` (n,), the norm
before scaling. The operators added are those of every opset since 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import ENERGY

from .reading import ImageInput, VectorOutput, ancestors, import_onnx

PIXELS, EMBEDDING, CERTAINTY = "pixels", "embedding", "certainty"
OURS = "retrieval."  # before the names of the values that are added
AXES_ARE_INPUTS = {"ReduceSum": 13, "": 18}  # the opsets from which on reductions take them so


@dataclass(frozen=True)
class Projection:
    """A projection that was fitted to features (n, c): `((sign(x) |x| ** power) - mean) @ matrix`."""

    power: float
    mean: NDArray[np.float64]  # (c,)
    matrix: NDArray[np.float64]  # (c, c)

    def __call__(self, features: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return the projected features (n, c), not normalised."""
        return np.asarray((powered(features, self.power) - self.mean) @ self.matrix)


def powered(features: NDArray[np.floating[Any]], power: float) -> NDArray[np.float64]:
    """Return the signed power of features."""
    exact = np.asarray(features, dtype=np.float64)
    return exact if power == 1 else np.asarray(np.sign(exact) * np.abs(exact) ** power)


def adapted(
    model: Any,
    image: ImageInput,
    output: VectorOutput,
    *,
    size: int,
    dim: int,
    bgr: bool = False,
    projection: Projection | None = None,
) -> Any:
    """Return an encoder's model with the input and the outputs of a bundle's model, for any number of photos.

    Nodes and weights that the vector does not need are left out.

    Parameters
    ----------
    size, dim:
        Side of the input in pixels, and length of the vector.
    bgr:
        Whether the encoder takes blue, green and red.
    projection:
        Applied to the vector before it is scaled to length one.
    """
    onnx = import_onnx()
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph, kept = copy.graph, ancestors(model.graph, output.name)
    copy.ir_version = max(copy.ir_version, 4)  # before, weights were inputs
    _replace(graph.node, [node for node in graph.node if kept & set(node.output)])
    _replace(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in kept])
    _rename(graph)
    added = Nodes(copy)
    first = added.feed(image, bgr=bgr)
    added.scale(_renamed(output.name), output, projection)
    _replace(graph.node, [*added.nodes[:first], *graph.node, *added.nodes[first:]])
    graph.initializer.extend(added.constants)
    values = {PIXELS: ["n", 3, size, size], EMBEDDING: ["n", dim], CERTAINTY: ["n"]}
    made = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in values.items()]
    _replace(graph.input, made[:1])
    _replace(graph.output, made[1:])
    graph.ClearField("value_info")  # inferred shapes, which another number of photos would contradict
    copy.ClearField("metadata_props")
    return copy


class Nodes:
    """New nodes of a model and their constants; `prefix` begins the names of their values."""

    def __init__(self, model: Any, *, prefix: str = OURS) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.opset = max(entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"})
        self._prefix, self._onnx = prefix, import_onnx()

    def feed(self, image: ImageInput, *, bgr: bool) -> int:
        """Turn `pixels` into the input of an encoder; return the number of nodes."""
        value = PIXELS
        if bgr:
            value = self.add("Gather", value, np.array([2, 1, 0]), axis=1)
        if image.last:
            value = self.add("Transpose", value, perm=[0, 2, 3, 1])
        if image.kind == "uint8":
            value = self.add("Add", value, np.float32(0.5))  # the cast rounds down
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(image.kind))
        self.add("Cast", value, to=kind, output=_renamed(image.name))
        return len(self.nodes)

    def scale(self, value: str, output: VectorOutput, projection: Projection | None) -> None:
        """Turn an output of an encoder into `embedding` and `certainty`."""
        value = self.add("Cast", value, to=self._onnx.TensorProto.FLOAT)
        if output.axes:
            value = self.reduce("ReduceMean", value, output.axes)
        elif len(output.shape) == 3:
            value = self.add("Gather", value, np.array(0), axis=1)
        if projection is not None:
            if projection.power != 1:
                power = self.add("Pow", self.add("Abs", value), np.float32(projection.power))
                value = self.add("Mul", self.add("Sign", value), power)
            value = self.add("Sub", value, projection.mean.astype(np.float32))
            value = self.add("MatMul", value, projection.matrix.astype(np.float32))
        self.reduce("ReduceL2", value, (1,), output=CERTAINTY)
        self.add("Div", value, self.reduce("ReduceL2", value, (1,), keepdims=1), output=EMBEDDING)

    def reduce(self, kind: str, value: str, axes: Sequence[int], *, keepdims: int = 0, output: str = "") -> str:
        """Add a reduction over axes; return the name of its output."""
        if self.opset < AXES_ARE_INPUTS.get(kind, AXES_ARE_INPUTS[""]):
            return self.add(kind, value, axes=list(axes), keepdims=keepdims, output=output)
        return self.add(kind, value, np.array(axes), keepdims=keepdims, output=output)

    def add(
        self, kind: str, *inputs: str | NDArray[Any] | np.floating[Any], output: str = "", **attributes: Any
    ) -> str:
        """Add a node; return the name of its output. Arrays become constants."""
        names = []
        for value in inputs:
            names.append(value if isinstance(value, str) else f"{self._prefix}constant.{len(self.constants)}")
            if not isinstance(value, str):
                self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), names[-1]))
        output = output or f"{self._prefix}{len(self.nodes)}"
        name = f"{self._prefix}{kind}.{output}"
        self.nodes.append(self._onnx.helper.make_node(kind, names, [output], name=name, **attributes))
        return output


def _replace(field: Any, values: Sequence[Any]) -> None:
    """Replace the values of a repeated field."""
    kept = list(values)
    del field[:]
    field.extend(kept)


def _renamed(name: str) -> str:
    """Return the name of a value of the file in the new graph, which keeps the names of a bundle's model for itself."""
    return f"{OURS}file.{name}" if name in {PIXELS, EMBEDDING, CERTAINTY, ENERGY} else name


def _rename(graph: Any) -> None:
    """Rename the values of a graph, and of the graphs within it."""
    for node in graph.node:
        node.input[:], node.output[:] = map(_renamed, node.input), map(_renamed, node.output)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    _rename(inner)
    for value in (*graph.initializer, *graph.input, *graph.output):
        value.name = _renamed(value.name)
