"""The rewritten graph: only what the vector needs, with the names and the opset of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from retrieval.encoders.adapt import Projection
from retrieval.encoders.export import Encoder, Fit, export_encoder

from .models import SIDE, options, write


def encoder(path: Path, **given: object) -> Encoder:
    return Encoder.read(options(path, **given), path.parent)


def test_nodes_and_weights_that_the_vector_does_not_need_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "e.onnx", outputs={"map": ("n", 8, 8, 8), "output": ("n", 8)})
    model = onnx.load_from_string(encoder(path, output="map").graph(8, runs=None)[0])
    assert [tensor.name for tensor in model.graph.initializer if not tensor.name.startswith("retrieval.")] == ["kernel"]
    assert "MatMul" not in {node.op_type for node in model.graph.node}
    onnx.checker.check_model(model)


def test_values_used_within_a_branch_are_kept_and_renamed(tmp_path: Path) -> None:
    outer = helper.make_graph(
        [helper.make_node("Add", ["certainty", "matrix_row"], ["then"])],
        "then",
        [],
        [helper.make_tensor_value_info("then", onnx.TensorProto.FLOAT, ["n", 8])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["certainty"], ["else"])],
        "else",
        [],
        [helper.make_tensor_value_info("else", onnx.TensorProto.FLOAT, ["n", 8])],
    )
    tail = [
        helper.make_node("Constant", [], ["row"], value=helper.make_tensor("r", onnx.TensorProto.INT64, [1], [0])),
        helper.make_node("Gather", ["matrix", "row"], ["matrix_row"]),
        helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("y", onnx.TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["yes"], ["embedding"], then_branch=outer, else_branch=other),
    ]
    path = write(tmp_path / "e.onnx", names=("pixels", "certainty"), tail=tail, outputs={"embedding": ("n", 8)})
    bundle = export_encoder(encoder(path), tmp_path / "bundle")
    pixels = np.zeros((1, 3, SIDE, SIDE), np.float32)
    expected = onnxruntime.InferenceSession(path).run(["embedding"], {"pixels": pixels})[0]
    embedding, certainty = onnxruntime.InferenceSession(bundle.path / "model.onnx").run(
        ["embedding", "certainty"], {"pixels": pixels}
    )
    assert np.allclose(embedding * certainty[:, None], expected, atol=1e-5)


@pytest.mark.parametrize("opset", [9, 17, 18, 21])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_projection_is_part_of_the_graph(tmp_path: Path, opset: int, power: float) -> None:
    random = np.random.default_rng(0)
    projection = Projection(power, random.normal(size=8), random.normal(size=(8, 8)))
    plain = encoder(write(tmp_path / "e.onnx", opset=opset))
    bundle = export_encoder(plain.with_fit(Fit(projection, evidence={"fit": {"gain": 1}})), tmp_path / "bundle")
    pixels = random.integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8)
    expected = projection(plain.features(pixels))
    made = bundle.embedder().embed_pixels(pixels)
    assert np.abs(made.vectors * made.certainties[:, None] - expected).max() < 1e-4
    assert bundle.manifest["evidence"]["fit"] == {"gain": 1}
