"""The files of an encoder in folders of Optimum and Transformers.js, and on the hub."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.encoders.layout import find_encoder, hub_is_reachable
from retrieval.errors import EncoderRefused, InvalidParameter

from .models import SIDE, bundle_of, write

VALUES = {"size": {"height": 8, "width": 8}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def lay(folder: Path, *names: str) -> Path:
    """Write empty files, and the values of an image processor."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    (folder / "preprocessor_config.json").write_text(json.dumps(VALUES))
    return folder


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (["model.onnx", "model_quantized.onnx"], "model.onnx"),
        (["onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_quantized.onnx"], "onnx/model.onnx"),
        (["onnx/model.onnx", "onnx/text_model.onnx", "onnx/vision_model.onnx"], "onnx/vision_model.onnx"),
        (["inference.onnx"], "inference.onnx"),
    ],
)
def test_the_plain_model_of_a_folder_is_taken_with_its_processor(tmp_path: Path, names: list[str], taken: str) -> None:
    folder = lay(tmp_path / "model", *names)
    file, processor = find_encoder(str(folder), tmp_path, preprocessor=None)
    assert file == folder / taken
    assert processor == {**VALUES, "do_normalize": True, "do_center_crop": False}


def test_a_variant_is_named_as_a_file_and_has_the_processor_of_its_folder(tmp_path: Path) -> None:
    folder = lay(tmp_path / "model", "onnx/model.onnx", "onnx/model_quantized.onnx")
    file, processor = find_encoder(str(folder / "onnx" / "model_quantized.onnx"), tmp_path, preprocessor=None)
    assert file.name == "model_quantized.onnx"
    assert processor is not None


def test_a_named_processor_goes_before_that_of_the_folder(tmp_path: Path) -> None:
    folder = lay(tmp_path / "model", "model.onnx")
    inner = {"image_processor": {"size": 9}, "processor_class": "CLIPProcessor"}
    (tmp_path / "other.json").write_text(json.dumps(inner))
    _, processor = find_encoder(str(folder), tmp_path, preprocessor=tmp_path / "other.json")
    assert processor is not None
    assert processor["size"] == 9
    assert find_encoder(str(write(tmp_path / "alone.onnx")), tmp_path, preprocessor=None)[1] is None


@pytest.mark.parametrize("text", ["{", "[1]", '"text"'])
def test_a_damaged_processor_is_refused(tmp_path: Path, text: str) -> None:
    folder = lay(tmp_path / "model", "model.onnx")
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(InvalidParameter, match="values of an image processor"):
        find_encoder(str(folder), tmp_path, preprocessor=None)


def test_folders_without_one_model_are_refused(tmp_path: Path) -> None:
    several = lay(tmp_path / "several", "b.onnx", "a.onnx")
    with pytest.raises(EncoderRefused, match=r"holds a\.onnx, b\.onnx\. Name one file, such as .*several/a\.onnx"):
        find_encoder(str(several), tmp_path, preprocessor=None)
    with pytest.raises(EncoderRefused, match="holds no ONNX file"):
        find_encoder(str(lay(tmp_path / "none", "config.json")), tmp_path, preprocessor=None)
    with pytest.raises(InvalidParameter, match="be an ONNX file"):
        find_encoder(str(tmp_path / "missing.onnx"), tmp_path, preprocessor=None)


def test_files_that_are_links_are_copied_with_their_weights(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", external=True)
    links = tmp_path / "snapshot"
    links.mkdir()
    for number, name in enumerate(("model.onnx", "model.onnx_data")):
        blob = (tmp_path / name).rename(tmp_path / f"blob{number}")
        (links / name).symlink_to(blob)
    bundle = bundle_of(links / path.name, tmp_path / "bundle")
    assert bundle.dim == 8


# the hub


class Hub(http.server.SimpleHTTPRequestHandler):
    """Answers as the hub does for one model, whose files lie in the folder that is served."""

    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        return

    def _answer(self, *, body: bool) -> None:
        self.asked.append(self.path)
        root, path = Path(self.directory), self.path.partition("?")[0]
        files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
        if path.startswith("/api/models/maker/encoder/tree"):
            rows = [{"type": "file", "path": f, "size": (root / f).stat().st_size, "oid": f"{n:040d}"}
                    for n, f in enumerate(files)]  # fmt: skip
            self._send(json.dumps(rows).encode(), body=body)
        elif path.startswith("/api/models/maker/encoder"):
            info = {"id": "maker/encoder", "sha": "a" * 40, "siblings": [{"rfilename": file} for file in files]}
            self._send(json.dumps(info).encode(), body=body)
        elif path.startswith("/maker/encoder/resolve/") and (root / (name := path.split("/", 5)[5])).is_file():
            self._send((root / name).read_bytes(), body=body, etag=f'"{name}"')
        elif path == "/":
            self._send(b"", body=body)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, data: bytes, *, body: bool, etag: str = '""') -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", "a" * 40)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Path], list[str]]]:
    """Return a function that serves a folder as the model maker/encoder, and returns the list of requests."""
    servers: list[http.server.HTTPServer] = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def serve(folder: Path) -> list[str]:
        asked: list[str] = []
        handler = type("Serving", (Hub,), {"asked": asked})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            f"http://127.0.0.1:{server.server_port}" + "/{repo_id}/resolve/{revision}/{filename}",
        )
        hub_is_reachable.cache_clear()
        return asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
    hub_is_reachable.cache_clear()


def model_of_a_maker(folder: Path) -> Path:
    (folder / "onnx").mkdir(parents=True)
    for name in ("model", "model_fp16"):
        write(folder / "onnx" / f"{name}.onnx", external=True)
    (folder / "preprocessor_config.json").write_text(json.dumps({**VALUES, "size": {"height": SIDE, "width": SIDE}}))
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_model_of_the_hub_is_downloaded_once_and_only_what_it_needs(
    tmp_path: Path, hub: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hub(model_of_a_maker(tmp_path / "served"))
    bundle = bundle_of("hf://maker/encoder", tmp_path / "bundle", mean=None, std=None)
    assert bundle.preprocessing.size == SIDE
    assert "model.onnx.data" in bundle.manifest["files"]
    assert any(path.endswith("onnx/model.onnx_data") for path in asked)
    assert not any("safetensors" in path or "fp16" in path for path in asked)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub_is_reachable.cache_clear()
    again = bundle_of("hf://maker/encoder", tmp_path / "again", mean=None, std=None)
    assert again.bundle_id == bundle.bundle_id


def test_a_variant_of_the_hub_is_named_as_a_file(tmp_path: Path, hub: Callable[[Path], list[str]]) -> None:
    hub(model_of_a_maker(tmp_path / "served"))
    file, processor = find_encoder("hf://maker/encoder/onnx/model_fp16.onnx", tmp_path, preprocessor=None)
    assert file == tmp_path / "model_fp16.onnx"
    assert np.array_equal(processor and processor["image_mean"], [0.5] * 3)


def test_models_that_the_hub_has_not_are_refused_by_name(tmp_path: Path, hub: Callable[[Path], list[str]]) -> None:
    hub(model_of_a_maker(tmp_path / "served"))
    for name in ("hf://nobody/nothing", "hf://maker/encoder/nothing.onnx", "hf://not a name"):
        with pytest.raises(InvalidParameter, match=name):
            find_encoder(name, tmp_path, preprocessor=None)


def test_without_an_answer_and_a_cache_the_remedy_is_a_local_folder(
    tmp_path: Path, hub: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InvalidParameter, match="in the cache while the hub does not answer") as refused:
        find_encoder("hf://maker/encoder", tmp_path, preprocessor=None)
    assert "local folder" in refused.value.remedy
