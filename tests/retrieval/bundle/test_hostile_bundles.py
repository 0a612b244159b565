"""Bundles that somebody made to do harm or damaged: one typed error, and no file of others is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from index.files import load_arrays
from retrieval.bundle import bundle as bundles
from retrieval.bundle.bundle import CALIBRATION, FITTED, GOLDEN, MANIFEST, MODEL, VERIFICATION, Bundle, write_bundle
from retrieval.bundle.embedder import Embedder, golden_pixels
from retrieval.errors import BundleCorrupt, BundleError, RetrievalError
from retrieval.images import Preprocessing
from retrieval.measuring.point import Point, Rates
from retrieval.retriever import Retriever

from ...hostile import ARRAYS, FLIPS, claimed_npy, damage, npz, npz_of
from ...world import DIM, SIZE, make_bundle, write_model

NAN, INFINITY = float("nan"), float("inf")


def reseal(bundle: Bundle, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the manifest of a bundle as its author could: with the hashes that belong to it."""
    manifest = json.loads((bundle.path / MANIFEST).read_text())
    change(manifest)
    del manifest[bundles.SEAL]
    manifest[bundles.SEAL] = bundles._hash(bundles._canonical(manifest))
    (bundle.path / MANIFEST).write_text(json.dumps(manifest))
    return bundle.path


def put(bundle: Bundle, name: str, content: bytes) -> Path:
    """Replace or add a file of a bundle, with its hash."""
    (bundle.path / name).write_bytes(content)
    return reseal(bundle, lambda manifest: manifest["files"].update({name: bundles._hash(content)}))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path)


def used(path: Path) -> None:
    """Open a bundle and touch all that it holds."""
    opened = Bundle.open(path)
    opened.embedder()
    assert (opened.calibration, opened.fitted, opened.calibration_features) is not None


def test_a_bundle_whose_manifest_was_sealed_again_opens(bundle: Bundle) -> None:
    """Otherwise the tests below would fail for the seal."""
    used(reseal(bundle, lambda manifest: manifest["evidence"].update(note="x")))


@pytest.mark.parametrize("name", ["../secret", "{outside}", "sub/file", "..", ".", "", "link", "pipe", "folder", "\0"])
def test_files_of_a_manifest_lie_in_it_and_are_regular(bundle: Bundle, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(b"secret")
    (bundle.path / "sub").mkdir()
    (bundle.path / "sub" / "file").write_bytes(b"secret")
    (bundle.path / "link").symlink_to(outside)
    (bundle.path / "folder").mkdir()
    os.mkfifo(bundle.path / "pipe")
    named = name.format(outside=outside)
    path = reseal(bundle, lambda manifest: manifest["files"].update({named: bundles._hash(b"secret")}))
    with pytest.raises(BundleCorrupt, match=r"cannot be read: (?!None|\[)"):  # the reason in words
        Bundle.open(path)


def test_half_a_character_in_a_manifest_is_a_change_of_it(bundle: Bundle) -> None:
    file = bundle.path / "manifest.json"
    file.write_text(file.read_text().replace('"evidence": {', '"evidence": {"note": "\\ud800", ', 1))
    with pytest.raises(BundleCorrupt, match="was changed after it was written"):
        Bundle.open(bundle.path)


def _set(*keys: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(manifest: dict[str, Any]) -> None:
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(_set("operating_point", "threshold", value=value) for value in (NAN, INFINITY, -1, "x", [], None)),
        *(_set("operating_point", "target_fpir", value=value) for value in (NAN, 0, 1, None)),
        *(_set("operating_point", "status", value=value) for value in ("great", "uncalibrated", 3)),
        *(_set("operating_point", "evidence", value=value) for value in (None, 1, "x")),
        *(_set("operating_point", "evidence", "least_items", value=value) for value in (NAN, INFINITY, "x", [3])),
        *(_set("item_distance", "rival", value=value) for value in (NAN, -1, INFINITY, "x", None, {})),
        *(_set("preprocessing", "size", value=value) for value in (NAN, 10**9, -1, None, [1])),
        *(_set("preprocessing", "mean", value=value) for value in (None, [1], "abc", [None] * 3)),
        *(_set("dim", value=value) for value in (47, 0, "x", None, NAN)),
        *(_set("files", value=value) for value in (None, [], {}, "x")),
        *(_set(key, value=[]) for key in ("operating_point", "item_distance", "preprocessing", "files")),
        lambda manifest: manifest.pop("bundle_id"),
        lambda manifest: manifest["item_distance"].update(other=1),
    ],
)
def test_a_manifest_of_any_other_shape_is_one_typed_error(bundle: Bundle, change: Callable[..., object]) -> None:
    with pytest.raises(BundleError):
        used(reseal(bundle, change))


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{}", "[" * 100_000, "\xff", '{"format_version": []}'])
def test_a_manifest_that_is_no_object_is_one_typed_error(bundle: Bundle, text: str) -> None:
    (bundle.path / MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(BundleError):
        Bundle.open(bundle.path)


def test_an_npz_that_unpacks_to_far_more_is_refused_and_costs_no_memory() -> None:
    content = npz_of("own", claimed_npy(2**25, bytes(2**28)))
    assert len(content) < 2**22
    with pytest.raises(ValueError, match="would unpack"):
        load_arrays(content)
    assert load_arrays(npz(x=np.zeros(3)))["x"].tolist() == [0, 0, 0]


CONTENTS = {
    "no file": b"",
    "no zip": b"PK\x03\x04" + bytes(50),
    "other arrays": npz(x=np.zeros(3)),
    **{name: npz_of("own", content) for name, content in ARRAYS.items()},
}


@pytest.mark.parametrize("name", [CALIBRATION, FITTED, GOLDEN, VERIFICATION, "calibration_features.npz", MODEL])
@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_file_that_holds_something_else_is_one_typed_error(bundle: Bundle, name: str, content: bytes) -> None:
    if name == VERIFICATION:
        pytest.importorskip("cv2")
    with pytest.raises(BundleError):
        used(put(bundle, name, content))


def test_calibrations_whose_arrays_differ_in_length_or_hold_no_numbers_are_one_typed_error(bundle: Bundle) -> None:
    names = ("own", "impostor", "wrong", "certainty")
    arrays: dict[str, Any] = {name: np.zeros(3) for name in names} | {"item_id": np.array(["a", "b", "c"])}
    arrays |= {"photo_id": np.array(["1", "2", "3"]), "vector": np.zeros((3, 48)), "appearance": np.zeros((3, 3))}
    arrays |= {"gallery_items": np.array(3), "gallery_vector": np.zeros((2, 48))}
    arrays |= {"gallery_item": np.array(["a", "b"]), "gallery_photo": np.array(["4", "5"])}
    used(put(bundle, CALIBRATION, npz(**arrays)))
    for name in ("own", "vector", "appearance", "gallery_item"):
        with pytest.raises(BundleCorrupt, match="differ in length"):
            used(put(bundle, CALIBRATION, npz(**{**arrays, name: arrays[name][:1]})))
    for name in ("own", "certainty", "vector", "gallery_vector"):
        for odd in (np.full(arrays[name].shape, np.nan), np.full(arrays[name].shape, "text")):
            with pytest.raises(BundleCorrupt):
                used(put(bundle, CALIBRATION, npz(**{**arrays, name: odd})))


@pytest.mark.parametrize("shape", [["n"], [], ["n", 48, 1]])
def test_a_model_of_another_shape_is_one_typed_error(bundle: Bundle, tmp_path: Path, shape: list[object]) -> None:
    model = onnx.load(write_model(tmp_path / "m.onnx"))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("embedding", onnx.TensorProto.FLOAT, shape))
    with pytest.raises(BundleError):
        used(put(bundle, MODEL, model.SerializeToString()))


def test_a_model_that_fails_when_it_runs_is_one_typed_error(bundle: Bundle, tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path / "m.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3  # photos, neither more nor fewer
    opened = Bundle.open(put(bundle, MODEL, model.SerializeToString()))
    pixels = golden_pixels(opened.preprocessing.size)
    with pytest.raises(RetrievalError, match="the model failed: ") as refused:
        opened.embedder().embed_pixels(pixels)
    assert "retrieval doctor BUNDLE" in str(refused.value)


@pytest.mark.parametrize(
    "changed", [{"items": np.uint64(3)}, {"photos": np.zeros((2, 2), np.uint64)}, {"folds": np.zeros(3, np.uint8)}]
)
def test_a_list_of_fitted_items_of_another_shape_is_one_typed_error(bundle: Bundle, changed: dict[str, Any]) -> None:
    arrays = {name: np.arange(2, dtype=np.uint64) for name in ("items", "photos", "folds")}
    used(put(bundle, FITTED, npz(**arrays)))
    with pytest.raises(BundleCorrupt, match=r"other shapes"):
        used(put(bundle, FITTED, npz(**(arrays | changed))))


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "notes.txt"])
def test_no_damage_of_a_bundle_is_served(bundle: Bundle, name: str) -> None:
    file, generator = bundle.path / name, np.random.default_rng(0)
    whole = file.read_bytes()
    for number in range(FLIPS):
        file.write_bytes(damage(whole, generator))
        try:
            opened = Bundle.open(bundle.path)
        except BundleError:
            continue
        assert opened.manifest == bundle.manifest, f"damage {number} was not found"  # the last line's end is missing
        assert name == "manifest.json"
    file.write_bytes(whole)
    Bundle.open(bundle.path)


def with_outside_weights(path: Path, location: str) -> bytes:
    """Return a model whose weights are said to lie in another file."""
    model = onnx.load(write_model(path))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(64, np.float32), "secret"))
    tensor = model.graph.initializer[-1]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "256")):
        tensor.external_data.add(key=key, value=value)
    added = onnx.helper.make_node("ReduceSum", ["secret"], ["leak"], keepdims=0)
    model.graph.node.append(added)
    model.graph.output.append(onnx.helper.make_tensor_value_info("leak", onnx.TensorProto.FLOAT, []))
    return model.SerializeToString()


def test_weights_outside_of_a_model_are_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.ones(64, np.float32).tobytes())
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "linked.bin").symlink_to(secret)
    os.link(secret, inside / "hard.bin")
    monkeypatch.chdir(inside)
    for location in ("../secret.bin", str(secret), "linked.bin", "hard.bin"):
        with pytest.raises(RetrievalError):
            Embedder(with_outside_weights(tmp_path / "m.onnx", location), Preprocessing(size=SIZE))


def test_builds_that_do_not_belong_together_are_refused(tmp_path: Path, world: Path) -> None:
    point = Point(0.5, "estimated", 0.05, rates=Rates(fpir=0.05))
    seen = Preprocessing(size=SIZE, view=0.9)
    model = write_model(tmp_path / "m.onnx")
    other = write_bundle(tmp_path / "b", model=model, preprocessing=seen, dim=DIM, operating_point=point)
    with pytest.raises(BundleError, match="another model"):
        Retriever.open(other.path, world / "gallery")
    shutil.copy(world / "bundle" / "manifest.json", other.path / "manifest.json")
    with pytest.raises(BundleError):
        Retriever.open(other.path, world / "gallery")
