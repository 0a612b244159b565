"""The image input and the vector of an ONNX file, and the files that are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retrieval.encoders.export import Encoder
from retrieval.errors import EncoderRefused, InvalidParameter

from .models import SIDE, options, save, weights, write


def read(path: Path, **given: Any) -> Encoder:
    return Encoder.read(options(path, **given), path.parent)


def outputs_of(path: Path, shapes: dict[str, tuple[int | str, ...]]) -> Path:
    """Write an encoder with outputs of some names and shapes, each computed from the image."""
    nodes = [helper.make_node("ReduceMean", ["output"], ["mean"], axes=[1], keepdims=1)]
    constants = []
    for name, shape in shapes.items():
        sides = [int(side) for side in shape[1:]]
        constants += [weights(f"{name} factors", 1, int(np.prod(sides)))]
        constants += [onnx.numpy_helper.from_array(np.array([-1, *sides]), f"{name} shape")]
        nodes.append(helper.make_node("MatMul", ["mean", f"{name} factors"], [f"{name} flat"]))
        nodes.append(helper.make_node("Reshape", [f"{name} flat", f"{name} shape"], [name]))
    write(path, tail=nodes, outputs=shapes)
    model = onnx.load(path)
    model.graph.initializer.extend(constants)
    save(model, path)
    return path


@pytest.mark.parametrize(
    ("shapes", "vector"),
    [
        ({"logits": ("n", 1000), "image_embeds": ("n", 16)}, "the output image_embeds (n, 16)"),
        ({"pooler_output": ("n", 8), "image_embeds": ("n", 16)}, "the output image_embeds (n, 16)"),
        ({"last_hidden_state": ("n", 5, 8), "pooler_output": ("n", 8)}, "the output pooler_output (n, 8)"),
        ({"last_hidden_state": ("n", 8, 2, 2), "pooler_output": ("n", 8, 1, 1)}, "the mean of the map pooler_output"),
        ({"features": ("n", 8), "683": ("n", 16)}, "the output features (n, 8)"),
        ({"683": ("n", 16)}, "the output 683 (n, 16)"),
        ({"683": ("n", 16), "684": ("n", 5, 8)}, "the output 683 (n, 16)"),
        ({"output_0": ("n", 1000), "output_1": ("n", 16)}, "the output output_1 (n, 16)"),
        ({"class_probs": ("n", 20), "output_1": ("n", 16)}, "the output output_1 (n, 16)"),
        ({"last_hidden_state": ("n", 5, 8), "attentions": ("n", 5, 5)}, "the first token of last_hidden_state"),
        ({"hidden": ("n", 5, 8), "map": ("n", 8, 4, 4)}, "the first token of hidden (n, 5, 8)"),
    ],
)
def test_the_vector_is_chosen_by_name_and_then_by_shape(
    tmp_path: Path, shapes: dict[str, tuple[int | str, ...]], vector: str
) -> None:
    if "map" in shapes:
        shapes = {**{name: shape for name, shape in shapes.items() if name != "map"}, "stages": shapes["map"]}
    assert str(read(outputs_of(tmp_path / "e.onnx", shapes)).output).startswith(vector)


def test_a_named_output_is_taken_whatever_it_is(tmp_path: Path) -> None:
    shapes: dict[str, tuple[int | str, ...]] = {"logits": ("n", 1000), "image_embeds": ("n", 16)}
    path = outputs_of(tmp_path / "e.onnx", shapes)
    assert str(read(path, output="logits").output) == "the output logits (n, 1000)"
    with pytest.raises(InvalidParameter, match="--output must be one of logits, image_embeds, got 'vector'"):
        read(path, output="vector")


@pytest.mark.parametrize(
    ("shapes", "why"),
    [
        ({"a": ("n", 8), "b": ("n", 16)}, r"several outputs that may be the vector: a \(1, 8\), b \(1, 16\)"),
        ({"hidden.1": ("n", 5, 8), "hidden.2": ("n", 5, 8)}, "several outputs"),
        ({"logits": ("n", 20)}, r"gives no vector .*logits \(1, 20\).*take the scores with --output NAME"),
        ({"fc": ("n", 1000)}, "Scores of classes"),
        ({"pictures": ("n", 2, 2, 2, 2)}, "gives no vector"),
    ],
)
def test_outputs_that_leave_a_doubt_are_refused_with_their_shapes(
    tmp_path: Path, shapes: dict[str, tuple[int | str, ...]], why: str
) -> None:
    path = outputs_of(tmp_path / "e.onnx", shapes)
    with pytest.raises(EncoderRefused, match=why) as refused:
        read(path)
    assert "--output NAME" in refused.value.remedy


def test_an_output_that_is_no_vector_is_refused_even_if_named(tmp_path: Path) -> None:
    path = outputs_of(tmp_path / "e.onnx", {"pictures": ("n", 2, 2, 2, 2)})
    with pytest.raises(EncoderRefused, match=r"has the shape \(1, 2, 2, 2, 2\)"):
        read(path, output="pictures")


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (("n", 1, SIDE, SIDE), "no image input"),
        (("n", 3), "no image input"),
        (("n", 3, 4, SIDE, SIDE), "no image input"),
        (("n", 3, SIDE, 2 * SIDE), "not square"),
        (("n", SIDE, 2 * SIDE, 3), "not square"),
    ],
)
def test_inputs_that_are_no_photo_are_refused_with_their_shapes(
    tmp_path: Path, shape: tuple[int | str, ...], why: str
) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["input"], ["output"])],
        "identity",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "e.onnx")
    with pytest.raises(EncoderRefused, match=rf"{why}.*input \['n'") as refused:
        read(tmp_path / "e.onnx")
    assert refused.value.remedy


def test_a_fixed_batch_of_a_million_photos_is_refused_before_it_is_run(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["input"], ["output"])],
        "identity",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, (1_000_000, 3, SIDE, SIDE))],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, (1_000_000, 3, SIDE, SIDE))],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "e.onnx")
    with pytest.raises(EncoderRefused, match="takes 1,000,000 photos at a time"):
        read(tmp_path / "e.onnx")


def test_two_images_are_refused_and_one_with_another_input_is_not_of_the_image_alone(tmp_path: Path) -> None:
    tails = {
        "several image inputs": (["n", 3, SIDE, SIDE], helper.make_node("Identity", ["linear"], ["output"])),
        "need other": (["n", 8], helper.make_node("Add", ["linear", "other"], ["output"])),
    }
    for why, (shape, tail) in tails.items():
        path = write(tmp_path / "e.onnx", names=("input", "linear"), tail=[tail], outputs={"output": ("n", 8)})
        model = onnx.load(path)
        model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, shape))
        save(model, path)
        with pytest.raises(EncoderRefused, match=why):
            read(path)


def test_another_input_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "e.onnx")
    model = onnx.load(path)
    for values in (model.graph.input, model.graph.output):
        values.append(helper.make_tensor_value_info("mask", TensorProto.INT64, [10**7, 10**7]))
    save(model, path)
    with pytest.raises(EncoderRefused, match="does not run: Unable to allocate"):
        read(path)


def test_files_that_onnxruntime_does_not_load_are_refused_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "e.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(EncoderRefused, match=r"cannot be loaded.*Check that the file is whole"):
        read(path)
    with pytest.raises(EncoderRefused, match=r"cannot be loaded.*opset.*older opset, or upgrade onnxruntime"):
        read(write(path, opset=99))
    model = onnx.load(write(path))
    model.ir_version = 99
    save(model, path)
    with pytest.raises(EncoderRefused, match=r"IR version: 99.*upgrade onnxruntime"):
        read(path)
    cut = write(path).read_bytes()
    path.write_bytes(cut[: len(cut) // 2])
    with pytest.raises(EncoderRefused, match="cannot be loaded"):
        read(path)


def test_operators_of_others_are_refused_by_name(tmp_path: Path) -> None:
    own = helper.make_node("FastPool", ["linear"], ["output"], domain="vendor.ops")
    path = write(tmp_path / "e.onnx", names=("input", "linear"), tail=[own], outputs={"output": ("n", 8)})
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("vendor.ops", 1))
    save(model, path)
    with pytest.raises(EncoderRefused, match=r"vendor\.ops[.:]FastPool.*standard operators"):
        read(path)


@pytest.mark.parametrize("location", ["../e.onnx_data", "/etc/hostname", "missing_data"])
def test_weights_are_read_from_the_folder_of_the_file_only(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    path = write(folder / "e.onnx", external=True)
    (folder / "e.onnx_data").rename(tmp_path / "e.onnx_data")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    onnx.save(model, path)
    with pytest.raises(EncoderRefused, match="cannot be loaded"):
        read(path)


def test_a_size_that_the_network_cannot_take_is_refused_with_the_words_of_onnxruntime(tmp_path: Path) -> None:
    flat = [helper.make_node("Flatten", ["map"], ["all"]), helper.make_node("MatMul", ["all", "wide"], ["output"])]
    path = write(
        tmp_path / "e.onnx",
        shape=("n", 3, "h", "w"),
        names=("input", "linear"),
        tail=flat,
        outputs={"output": ("n", 4)},
    )
    model = onnx.load(path)
    model.graph.initializer.append(weights("wide", 512, 4))
    save(model, path)
    assert read(path, size=SIDE).output.shape == (1, 4)
    with pytest.raises(EncoderRefused, match=r"does not run: .*Check --size"):
        read(path, size=64)
