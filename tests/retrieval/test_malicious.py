"""Artefacts that somebody made or damaged: found when they are loaded, and nothing else is run, read or written."""

from __future__ import annotations

import json
import os
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from index.checks import MAX_DEPTH, encode_metadata
from index.errors import GalleryError, InvalidParameter
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle, write_bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import BundleError, RetrievalError
from retrieval.images import Preprocessing
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.point import Point, Rates
from retrieval.retriever import Retriever

from ..world import DIM, SIZE, draw, encode, make_bundle, write_model

FLIPS = int(os.environ.get("RETRIEVAL_FLIPS", "30"))  # of each artefact; 1,000 in `make reliability`


def damage(data: bytes, generator: np.random.Generator) -> bytes:
    """Return other bytes: one bit flipped, or cut off somewhere."""
    place = int(generator.integers(len(data)))
    if generator.random() < 0.2:
        return data[:place]
    changed = bytearray(data)
    changed[place] ^= 1 << int(generator.integers(8))
    return bytes(changed)


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "notes.txt"])
def test_no_damage_of_a_bundle_is_served(tmp_path: Path, name: str) -> None:
    bundle = make_bundle(tmp_path)
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


@pytest.mark.parametrize("pattern", ["segments/*.npy", "segments/*.rows", "indexes/*.faiss", "indexes/*.npy"])
def test_no_damage_of_a_gallery_passes_verify(tmp_path: Path, pattern: str) -> None:
    vectors = np.random.default_rng(1).normal(size=(200, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(200)], [f"i{i % 50}" for i in range(200)], vectors)
        gallery.rebuild(kind="ivf")
    (file,) = (tmp_path / "g").glob(pattern)
    whole, generator = file.read_bytes(), np.random.default_rng(2)
    for number in range(FLIPS):
        file.write_bytes(damage(whole, generator))
        try:
            with Gallery.open(tmp_path / "g", read_only=True) as gallery:
                assert gallery.verify(), f"damage {number} was not found"
        except GalleryError:
            pass  # it does not even open
    file.write_bytes(whole)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert gallery.verify() == []


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


def test_lying_headers_are_refused_and_cost_no_memory(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        gallery.add(["p"], ["i"], np.eye(16, dtype=np.float32)[:1])
    (file,) = (tmp_path / "g" / "segments").glob("*.npy")
    header = file.read_bytes()
    file.write_bytes(header.replace(b"(1, 16)", b"(9999999999, 16)").ljust(len(header)))
    with pytest.raises(GalleryError), Gallery.open(tmp_path / "g") as gallery:
        len(gallery)


def test_objects_in_arrays_are_refused(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "owned"),)

    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        gallery.add(["p"], ["i"], np.eye(16, dtype=np.float32)[:1])
    (file,) = (tmp_path / "g" / "segments").glob("*.npy")
    with file.open("wb") as out:
        np.save(out, np.array([Payload()], dtype=object))
    with pytest.raises(GalleryError), Gallery.open(tmp_path / "g") as gallery:
        len(gallery)
    assert not (tmp_path / "owned").exists()


def test_names_never_become_paths(tmp_path: Path) -> None:
    outside = {path.name for path in tmp_path.iterdir()}
    with Gallery.create(tmp_path / "in" / "g", dim=16, embedding_id="e") as gallery:
        for number, name in enumerate(("../../evil", "/etc/evil", "a\\b", "nul\0l", "a" * 500)):
            gallery.add([name], [name], np.eye(16, dtype=np.float32)[number : number + 1], thumbnails=[b"x"])
        assert {photo[0] for photo in gallery.photos()} >= {"../../evil", "/etc/evil"}
    assert {path.name for path in tmp_path.iterdir()} == outside | {"in"}
    assert {path.name for path in (tmp_path / "in").iterdir()} == {"g"}


def test_rows_that_name_pipes_devices_and_sockets_are_refused_at_once(tmp_path: Path) -> None:
    """A pipe hung, and /dev/zero was read on. Nothing is waited for: the pipe has no writer."""
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "good.png").write_bytes(encode(draw(3, 0), "PNG"))
    os.mkfifo(photos / "pipe.png")
    (photos / "linked.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(photos / "socket.png"))
        names = ["good.png", "pipe.png", "linked.png", "/dev/zero", "socket.png"]
        (photos / "photos.csv").write_text("\n".join(["path,item_id", *(f"{name},x" for name in names)]))
        catalogue = read_catalogue(photos / "photos.csv")
        with ThreadPoolExecutor(1) as pool:
            indexing = pool.submit(index_catalogue, make_bundle(tmp_path), catalogue, tmp_path / "g", progress=False)
            try:
                report = indexing.result(timeout=60)
            except TimeoutError:
                os.close(os.open(photos / "pipe.png", os.O_RDWR | os.O_NONBLOCK))  # lets the thread go on
                pytest.fail("the pipe was waited for")
    assert report.added == 1
    assert sorted(photo_id for photo_id, _ in report.refused) == sorted(names[1:])
    assert {message.rpartition(": ")[2] for _, message in report.refused} == {"it is not a regular file"}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 250, 900, 100_000])
def test_metadata_nested_too_deeply_is_refused_by_add(tmp_path: Path, depth: int) -> None:
    """Deeper metadata was stored, and no answer over HTTP could hold it."""
    nested: list[object] = []
    for _ in range(depth - 2):
        nested = [nested]
    vector = np.eye(16, dtype=np.float32)[:1]
    with Gallery.create(tmp_path / "g", dim=16, embedding_id="e") as gallery:
        with pytest.raises(InvalidParameter, match=f"at most {MAX_DEPTH} levels"):
            gallery.add(["deep"], ["i"], vector, metadata=[{"x": nested}])
        assert len(gallery) == 0
        just = {"x": 0}
        for _ in range(MAX_DEPTH - 1):
            just = {"x": just}  # type: ignore[dict-item]
        gallery.add(["p"], ["i"], vector, metadata=[just])
        assert gallery.photo("p") == ("p", "i", just)


def test_metadata_is_as_deep_as_its_deepest_value() -> None:
    flat: dict[str, object] = {"brand": "x", "price": 9.5, "tags": ["a", {"b": None}]}
    deep: object = "end"
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    for metadata in ({}, flat, {**flat, "deep": deep}, {"deep": deep, **flat}):
        assert json.loads(encode_metadata(metadata)) == metadata
    with pytest.raises(InvalidParameter, match=f"at most {MAX_DEPTH} levels"):
        encode_metadata({**flat, "deep": [deep]})


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
