"""Export of ONNX encoders of other makers: what is taken as it is, with the file's own vectors, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import ALONE, WEIGHTS, golden_pixels
from retrieval.catalogue.read import read_catalogue
from retrieval.encoders.export import Encoder, export_encoder
from retrieval.errors import BundleCorrupt, EncoderRefused
from retrieval.images import center_crop_resize, open_image, to_tensor
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever

from ...conftest import ROOT
from ...world import write_folder
from .models import SIDE, bundle_of, options, save, write, write_torch

CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": 8,
}


def drawn(count: int, size: int = SIDE) -> np.ndarray:
    return np.concatenate([golden_pixels(size, seed=seed + 100) for seed in range(count)])


def by_the_file(path: Path, values: np.ndarray, output: str, *, name: str | None = None, batch: int = 1) -> np.ndarray:
    """Return the unit vectors that ONNX Runtime computes with the file for values in the form of its input."""
    session = onnxruntime.InferenceSession(path)
    image = name or session.get_inputs()[0].name
    parts = [session.run([output], {image: values[i : i + batch]})[0] for i in range(0, len(values), batch)]
    vectors = np.concatenate(parts).astype(np.float64)
    vectors = vectors.reshape(len(vectors), -1)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def scaled(pixels: np.ndarray) -> np.ndarray:
    return np.moveaxis(pixels.astype(np.float32) / 127.5 - 1, -1, 1)


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = {
    "numbers, channels first": ({}, {}, scaled),
    "numbers, channels last": ({"shape": ("n", SIDE, SIDE, 3)}, {}, lambda p: np.moveaxis(scaled(p), 1, -1)),
    "bytes, channels last": (
        {"shape": ("n", SIDE, SIDE, 3), "kind": TensorProto.UINT8},
        {"mean": None, "std": None},
        lambda p: p,
    ),
    "bytes, channels first": (
        {"kind": TensorProto.UINT8},
        {"mean": None, "std": None},
        lambda p: np.moveaxis(p, -1, 1),
    ),
    "blue, green, red": ({}, {"bgr": True}, lambda p: scaled(p[..., ::-1])),
    "any number of channels and any size": ({"shape": ("n", "c", "h", "w")}, {"size": SIDE}, scaled),
    "weights in another file": ({"external": True}, {}, scaled),
    "names of a bundle's model": ({"names": ("pixels", "embedding")}, {}, scaled),
    "an old opset": ({"opset": 9}, {}, scaled),
    "a new opset": ({"opset": 21}, {}, scaled),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_the_input_is_taken_with_the_vectors_of_the_file(tmp_path: Path, form: str) -> None:
    made, given, fed = FORMS[form]
    path, pixels = write(tmp_path / "encoder.onnx", **made), drawn(5)
    bundle = bundle_of(path, tmp_path / "bundle", **given)
    expected = by_the_file(path, fed(pixels), made.get("names", ("", "output"))[1])
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-5
    assert bundle.manifest["evidence"]["parity"]["largest_difference"] < 1e-5
    assert bundle.manifest["evidence"]["parity"]["photos_per_run"] is None
    assert not bundle.operating_point.decides
    assert bundle.fitted is not None
    assert len(bundle.fitted) == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_a_fixed_batch_is_freed_if_that_changes_no_vector(tmp_path: Path, batch: int) -> None:
    path, pixels = write(tmp_path / "encoder.onnx", shape=(batch, 3, SIDE, SIDE)), drawn(6)
    bundle = bundle_of(path, tmp_path / "bundle")
    assert bundle.manifest["evidence"]["parity"]["photos_per_run"] is None
    expected = by_the_file(path, scaled(pixels), "output", batch=batch)
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-5


@pytest.mark.parametrize("batch", [1, 4])
def test_a_batch_that_the_graph_needs_is_kept_and_filled_up(tmp_path: Path, batch: int) -> None:
    baked = helper.make_node("Reshape", ["linear", "shape"], ["output"])
    path = write(
        tmp_path / "encoder.onnx",
        shape=(batch, 3, SIDE, SIDE),
        names=("input", "linear"),
        tail=[baked],
        outputs={"output": (batch, 8)},
    )
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([batch, 8]), "shape"))
    save(model, path)
    bundle, pixels = bundle_of(path, tmp_path / "bundle"), drawn(5)
    assert bundle.manifest["evidence"]["parity"]["photos_per_run"] == batch
    padded = np.concatenate([pixels, drawn(3)])
    expected = by_the_file(path, scaled(padded)[: len(padded) // batch * batch], "output", batch=batch)[:5]
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-5


def test_a_model_that_quantizes_at_run_time_runs_photos_alone(tmp_path: Path, clip_tower: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    path, pixels = tmp_path / "int8.onnx", drawn(3)
    quantize_dynamic(clip_tower, path)
    bundle = bundle_of(path, tmp_path / "bundle")
    assert bundle.precision == "int8"
    assert onnx.load(bundle.path / "model.onnx").metadata_props[0].key == ALONE
    expected = by_the_file(path, to_tensor(pixels, bundle.preprocessing), "image_embeds")
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-5


def test_a_model_in_fp16_gives_the_vectors_of_the_file(tmp_path: Path, clip_tower: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    path, pixels = tmp_path / "fp16.onnx", drawn(3)
    onnx.save(convert_float_to_float16(onnx.load(clip_tower)), path)
    bundle = bundle_of(path, tmp_path / "bundle")
    assert bundle.precision == "fp16"
    expected = by_the_file(path, scaled(pixels).astype(np.float16), "image_embeds")
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-3


@pytest.fixture(scope="module")
def clip_tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the vision tower of a tiny CLIP, with its embedding and its tokens as outputs."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch.manual_seed(0)
    tower = CLIPVisionModelWithProjection(CLIPVisionConfig(**CLIP, projection_dim=16))
    path = tmp_path_factory.mktemp("clip") / "vision_model.onnx"
    return write_outputs(path, tower, ["last_hidden_state", "image_embeds"])


def write_outputs(path: Path, model: Any, outputs: list[str]) -> Path:
    """Write some outputs of a model of transformers."""
    import torch

    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer = self.model(pixel_values=pixel_values)
            return tuple(getattr(answer, name) for name in outputs)

    return write_torch(path, Chosen(), {"pixel_values": torch.zeros(2, 3, SIDE, SIDE)}, outputs)


def test_the_tower_of_a_clip_gives_its_embedding(tmp_path: Path, clip_tower: Path) -> None:
    bundle, pixels = bundle_of(clip_tower, tmp_path / "bundle"), drawn(3)
    assert bundle.manifest["evidence"]["onnx"]["vector"] == "the output image_embeds (n, 16)"
    expected = by_the_file(clip_tower, scaled(pixels), "image_embeds")
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("outputs", "vector"),
    [
        (["last_hidden_state", "pooler_output"], "the output pooler_output (n, 32)"),
        (["last_hidden_state"], "the first token of last_hidden_state (n, 17, 32)"),
    ],
)
def test_a_vit_gives_its_pooled_output_or_its_first_token(tmp_path: Path, outputs: list[str], vector: str) -> None:
    import torch
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    path = write_outputs(tmp_path / "model.onnx", ViTModel(ViTConfig(**CLIP)), outputs)
    assert bundle_of(path, tmp_path / "bundle").manifest["evidence"]["onnx"]["vector"] == vector


def test_a_model_of_texts_and_images_loses_what_is_for_texts(tmp_path: Path) -> None:
    import torch
    from transformers import CLIPConfig, CLIPModel

    words = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    words |= {"num_attention_heads": 4, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    both = CLIPModel(CLIPConfig(text_config=words, vision_config=CLIP, projection_dim=16))
    outputs = ["logits_per_image", "text_embeds", "image_embeds"]

    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = both

        def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            answer = self.both(input_ids=input_ids, pixel_values=pixel_values)
            return tuple(getattr(answer, name) for name in outputs)

    values = {"input_ids": torch.full((2, 7), 2), "pixel_values": torch.zeros(2, 3, SIDE, SIDE)}
    path = write_torch(tmp_path / "model.onnx", Chosen(), values, outputs)
    bundle = bundle_of(path, tmp_path / "bundle")
    assert bundle.manifest["evidence"]["onnx"]["vector"] == "the output image_embeds (n, 16)"
    assert (bundle.path / "model.onnx").stat().st_size < 0.8 * path.stat().st_size
    with pytest.raises(EncoderRefused, match="need input_ids"):
        Encoder.read(options(path, output="text_embeds"), tmp_path)


def test_a_head_that_scales_to_length_one_is_taken_as_it_is(tmp_path: Path) -> None:
    unit = helper.make_node("LpNormalization", ["linear"], ["output"], axis=1)
    path = write(tmp_path / "e.onnx", names=("input", "linear"), tail=[unit], outputs={"output": ("n", 8)})
    embeddings = bundle_of(path, tmp_path / "bundle").embedder().embed_pixels(drawn(3))
    assert np.allclose(embeddings.certainties, 1, atol=1e-6)
    assert np.abs(embeddings.vectors - by_the_file(path, scaled(drawn(3)), "output")).max() < 1e-5


@pytest.mark.parametrize("layout", ["first", "last"])
def test_a_map_becomes_its_mean(tmp_path: Path, layout: str) -> None:
    shape = ("n", 8, 4, 4)
    slices = [helper.make_node("AveragePool", ["map"], ["halved"], kernel_shape=[2, 2], strides=[2, 2])]
    perm = [0, 1, 2, 3] if layout == "first" else [0, 2, 3, 1]
    slices.append(helper.make_node("Transpose", ["halved"], ["features"], perm=perm))
    path = write(tmp_path / "e.onnx", tail=slices, outputs={"features": [shape[place] for place in perm]})
    bundle, pixels = bundle_of(path, tmp_path / "bundle"), drawn(3)
    raw = onnxruntime.InferenceSession(path).run(["features"], {"input": scaled(pixels)})[0]
    means = raw.mean(axis=(2, 3) if layout == "first" else (1, 2))
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    assert bundle.dim == 8
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < 1e-5


def test_weights_in_another_file_stay_there_and_are_hashed(tmp_path: Path) -> None:
    path = write(tmp_path / "encoder.onnx", external=True)
    bundle = bundle_of(path, tmp_path / "bundle")
    assert WEIGHTS in bundle.manifest["files"]
    locations = [entry.value for t in onnx.load(bundle.path / "model.onnx", load_external_data=False).graph.initializer
                 for entry in t.external_data if entry.key == "location"]  # fmt: skip
    assert set(locations) == {WEIGHTS}
    plain = bundle_of(write(tmp_path / "plain.onnx"), tmp_path / "plain")
    assert np.array_equal(*(b.embedder().embed_pixels(drawn(2)).vectors for b in (bundle, plain)))
    data = bytearray((bundle.path / WEIGHTS).read_bytes())
    data[5] ^= 1
    (bundle.path / WEIGHTS).write_bytes(data)
    with pytest.raises(BundleCorrupt, match=WEIGHTS):
        Bundle.open(bundle.path)
    with pytest.raises(BundleCorrupt, match=WEIGHTS):
        bundle.embedder()


def test_the_weights_decide_the_id_of_the_vectors(tmp_path: Path) -> None:
    path = write(tmp_path / "encoder.onnx", external=True)
    first = bundle_of(path, tmp_path / "first")
    again = bundle_of(path, tmp_path / "again")
    data = path.with_name("encoder.onnx_data")
    data.write_bytes(np.frombuffer(data.read_bytes(), np.float32)[::-1].tobytes())
    changed = bundle_of(path, tmp_path / "changed")
    assert first.embedding_id == again.embedding_id != changed.embedding_id


def constant(value: float) -> list[Any]:
    """Return nodes that make the output a constant for all photos."""
    return [
        helper.make_node("Sub", ["linear", "linear"], ["zero"]),
        helper.make_node("Constant", [], ["value"], value_float=value),
        helper.make_node("Add", ["zero", "value"], ["output"]),
    ]


@pytest.mark.parametrize(
    ("value", "why"), [(float("nan"), "is not finite"), (0.0, "is zero"), (1.0, "is the same for 10 different photos")]
)
def test_vectors_that_tell_nothing_are_refused(tmp_path: Path, value: float, why: str) -> None:
    path = write(
        tmp_path / "e.onnx", names=("input", "linear"), tail=constant(value), outputs={"output": ("n", 8)}, opset=17
    )
    with pytest.raises(EncoderRefused, match=why) as refused:
        bundle_of(path, tmp_path / "bundle")
    assert refused.value.remedy
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_that_differs_from_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.read(options(write(tmp_path / "e.onnx")), tmp_path)
    real = Encoder.features
    monkeypatch.setattr(Encoder, "features", lambda self, pixels: real(self, pixels) + 0.01)
    with pytest.raises(EncoderRefused, match=r"differ from those of .*e\.onnx by .*e-0"):
        export_encoder(encoder, tmp_path / "bundle")


def test_given_photos_are_compared_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(3), photos=range(1)))
    encoder = Encoder.read(options(write(tmp_path / "e.onnx")), tmp_path)
    seen: list[np.ndarray] = []
    real = Encoder.features
    monkeypatch.setattr(Encoder, "features", lambda self, pixels: seen.append(pixels) or real(self, pixels))
    export_encoder(encoder, tmp_path / "bundle", photos=photos)
    assert len(seen[0]) == 10
    first = center_crop_resize(open_image(photos[0].read()), encoder.preprocessing)
    assert np.array_equal(seen[0][0], first)
    assert np.array_equal(seen[0][3], golden_pixels(SIDE)[0])


def test_photos_are_indexed_and_found_and_the_gallery_decides(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(30), photos=range(3))
    bundle = bundle_of(write(tmp_path / "e.onnx", external=True), tmp_path / "bundle")
    index_catalogue(bundle, read_catalogue(photos), tmp_path / "gallery", progress=False)
    with Gallery.open(tmp_path / "gallery", read_only=True) as gallery:
        assert gallery.embedding_id == bundle.embedding_id
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        assert retriever.point.decides
        assert retriever.search(next((photos / "item-03").iterdir())).matches[0].item_id == "item-03"


WITHOUT_TORCH = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "sklearn", "scipy", "albumentations", "cv2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from retrieval.cli.main import main
main()
"""


def without_torch(*words: object) -> str:
    """Run a command where torch cannot be imported, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_is_not_needed(tmp_path: Path) -> None:
    path, photos = write(tmp_path / "e.onnx"), write_folder(tmp_path / "photos", items=range(64), photos=range(2))
    scale = ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"]
    told = without_torch("export", "--onnx", path, *scale, "--fit", photos, "-o", tmp_path / "bundle")
    assert "e.onnx: input (n, 3, 32, 32) float32, red, green, blue; the vector is the output output (n, 8)." in told
    assert "On 10 photos, the bundle's vectors differ from the file's by at most" in told
    assert "it has no threshold; a gallery sets one for FPIR 0.05" in told
    without_torch("quickstart", photos, "--model", tmp_path / "bundle", "-o", tmp_path / "q", "--no-serve")
    assert Bundle.open(tmp_path / "q" / "bundle").bundle_id == Bundle.open(tmp_path / "bundle").bundle_id


@pytest.mark.data
@pytest.mark.parametrize("name", ["lite0", "mobilenet"])
@pytest.mark.parametrize("form", ["first", "last", "fixed", "fp16", "int8", "external"])
def test_real_networks_are_taken_in_each_form(tmp_path: Path, test_data: Path, name: str, form: str) -> None:
    path = write_network(tmp_path / "model.onnx", name, test_data, form)
    bundle = bundle_of(path, tmp_path / "bundle", **({"mean": None, "std": None} if form == "last" else {}))
    pixels = drawn(3, 224)
    values = pixels if form == "last" else to_tensor(pixels, bundle.preprocessing)
    values = values.astype(np.float16) if form == "fp16" else values
    session = onnxruntime.InferenceSession(path)
    batches = [values[i : i + 1] for i in range(3)]
    raw = np.concatenate([session.run(None, {session.get_inputs()[0].name: batch})[0] for batch in batches])
    means = raw.astype(np.float64).mean(axis=(2, 3))
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    limit = 1e-3 if form == "fp16" else 1e-5
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - expected).max() < limit
    assert (WEIGHTS in bundle.manifest["files"]) is (form == "external")


def write_network(path: Path, name: str, test_data: Path, form: str) -> Path:
    """Write a network with its real weights as ONNX, whose output is its feature map."""
    import torch

    from training.backbones import load_backbone

    network: Any = load_backbone("efficientnet-lite0" if name == "lite0" else f"{mobilenet(test_data)}")[0].eval()

    class Bytes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return self.network(image.permute(0, 3, 1, 2).float() / 127.5 - 1)

    if form == "last":
        return write_torch(path, Bytes(), {"image": torch.zeros(1, 224, 224, 3, dtype=torch.uint8)}, ["map"])
    write_torch(path, network, {"input": torch.zeros(1, 3, 224, 224)}, ["map"], fixed=form == "fixed")
    if form == "fp16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(path)), path)
    if form == "int8":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(path, path)
    if form == "external":
        save(onnx.load(path), path, external=True)
    return path


def mobilenet(test_data: Path) -> Path:
    return test_data / "weights" / "mobilenet_v1_0.75_224"
