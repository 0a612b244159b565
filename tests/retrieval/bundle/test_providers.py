from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest

from retrieval.bundle import providers
from retrieval.bundle.bundle import Bundle, write_bundle
from retrieval.bundle.embedder import Embedder, check_golden, golden_pixels, pack_golden
from retrieval.bundle.providers import BATCH, PROVIDERS, Provider, engines_of, failure, find_provider
from retrieval.errors import BundleError, InvalidParameter, MissingDependency
from retrieval.images import Preprocessing
from retrieval.inspect.doctor import DRIVER, examine

from ...world import DIM, SIZE, make_bundle, write_model

pytestmark = pytest.mark.usefixtures("empty_pictures")

ABSENT = [name for name, p in PROVIDERS.items() if p.engine not in onnxruntime.get_available_providers()]


def remade(bundle: Bundle, path: Path, **changes: Any) -> Bundle:
    """Return the same bundle in another precision or by another provider."""
    values = {
        "model": bundle.path / "model.onnx",
        "preprocessing": bundle.preprocessing,
        "dim": bundle.dim,
        "operating_point": bundle.operating_point,
    }
    return write_bundle(path, **(values | changes))


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path)


def test_precision_and_provider_make_another_embedding(bundle: Bundle, tmp_path: Path) -> None:
    one = remade(bundle, tmp_path / "one", precision="int8")
    other = remade(bundle, tmp_path / "other", provider="openvino")
    assert len({made.embedding_id for made in (bundle, one, other)}) == 3
    assert (one.precision, one.provider) == ("int8", "cpu")
    assert (other.precision, other.provider) == ("fp32", "openvino")


@pytest.mark.skipif(not ABSENT, reason="every provider is installed")
def test_a_provider_that_is_not_installed_is_refused_with_the_way_out(bundle: Bundle, tmp_path: Path) -> None:
    absent = remade(bundle, tmp_path / "absent", provider=ABSENT[0])
    with pytest.raises(MissingDependency, match=f"runs by {ABSENT[0]}") as caught:
        absent.embedder()
    assert "--provider cpu" in caught.value.remedy
    assert PROVIDERS[ABSENT[0]].install in caught.value.remedy
    told = [finding for finding in examine(absent.path, None) if "absent" in finding.text]
    assert [finding.good for finding in told] == [False]
    assert "--provider cpu" in told[0].remedy


def test_an_unknown_provider_is_refused(bundle: Bundle) -> None:
    with pytest.raises(InvalidParameter, match="cpu, openvino, tensorrt, cuda"):
        find_provider("abacus")


def test_a_provider_that_gives_way_without_a_word_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class GaveWay:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def get_providers(self) -> list[str]:
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [p.engine for p in PROVIDERS.values()])
    monkeypatch.setattr(onnxruntime, "InferenceSession", GaveWay)
    with pytest.raises(MissingDependency, match="runs by cuda"):
        Embedder(write_model(tmp_path / "m.onnx"), Preprocessing(size=SIZE), provider="cuda")


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_tensorrt_is_told_precision_and_shapes(precision: str) -> None:
    engines = engines_of(PROVIDERS["tensorrt"], precision=precision, size=96, threads=2)
    assert [name for name, _ in engines] == [PROVIDERS[name].engine for name in ("tensorrt", "cuda", "cpu")]
    options = engines[0][1]
    assert options["trt_fp16_enable"] == str(precision == "fp16")
    assert options["trt_int8_enable"] == str(precision == "int8")
    assert options["trt_profile_max_shapes"] == options["trt_profile_opt_shapes"] == f"pixels:{BATCH}x3x96x96"
    assert options["trt_profile_min_shapes"] == "pixels:1x3x96x96"  # models whose photos run alone


@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_a_gpu_always_runs_as_many_photos(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's library plans its work anew for every other number of photos, which takes longer than a hundred runs."""
    monkeypatch.setitem(PROVIDERS, name, Provider(name, PROVIDERS["cpu"].engine, ""))
    monkeypatch.setattr("retrieval.bundle.embedder.engines_of", lambda *_, **__: [(PROVIDERS["cpu"].engine, {})])
    model, preprocessing = write_model(tmp_path / "m.onnx"), Preprocessing(size=SIZE)
    pixels = np.random.default_rng(0).integers(0, 255, (BATCH + 3, SIZE, SIZE, 3), dtype=np.uint8)
    expected = Embedder(model, preprocessing).embed_pixels(pixels)
    embedder, sizes = Embedder(model, preprocessing, provider=name), []
    run = embedder._session.run
    session = SimpleNamespace(run=lambda names, fed: sizes.append(len(fed["pixels"])) or run(names, fed))
    monkeypatch.setattr(embedder, "_session", session)
    for count in (1, BATCH, BATCH + 3):
        made = embedder.embed_pixels(pixels[:count])
        np.testing.assert_allclose(made.vectors, expected.vectors[:count], atol=1e-6)
        np.testing.assert_allclose(made.certainties, expected.certainties[:count], rtol=1e-5)
    assert sizes == [BATCH] * 4


def test_a_provider_whose_libraries_are_missing_is_no_damage_of_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: Any, **__: Any) -> None:
        raise RuntimeError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [p.engine for p in PROVIDERS.values()])
    monkeypatch.setattr(onnxruntime, "InferenceSession", raises)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    model = write_model(tmp_path / "m.onnx")
    with pytest.raises(MissingDependency, match="runs by tensorrt") as caught:
        Embedder(model, Preprocessing(size=SIZE), provider="tensorrt")
    assert "tensorrt" in caught.value.remedy


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_that_is_here_gives_the_cpu_s_vectors(name: str, tmp_path: Path) -> None:
    if name in ABSENT or failure(PROVIDERS[name]):
        pytest.skip(f"this ONNX Runtime has no {name}, or cannot start it")
    model, preprocessing = write_model(tmp_path / "m.onnx"), Preprocessing(size=SIZE)
    pixels = np.random.default_rng(0).integers(0, 255, (5, SIZE, SIZE, 3), dtype=np.uint8)
    made = Embedder(model, preprocessing, provider=name, threads=2)
    assert made.providers[0] == PROVIDERS[name].engine
    expected = Embedder(model, preprocessing).embed_pixels(pixels).vectors
    for batch in (1, 5):
        assert np.abs(made.embed_pixels(pixels[:batch]).vectors - expected[:batch]).max() < 1e-4


def test_a_machine_that_computes_otherwise_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    packed = pack_golden(bundle.embedder())
    assert check_golden(bundle.embedder(), packed) == pytest.approx(1)
    good = remade(bundle, tmp_path / "good", files={"golden.npz": packed})
    assert good.embedder().dim == DIM
    moved = golden_pixels(SIZE)[:, ::-1]
    elsewhere = bundle.embedder().embed_pixels(moved).vectors[0]
    np.savez_compressed(tmp_path / "golden.npz", vector=elsewhere)
    bad = remade(bundle, tmp_path / "bad", files={"golden.npz": (tmp_path / "golden.npz").read_bytes()})
    with pytest.raises(BundleError, match="vectors differ from those of the machine"):
        bad.embedder()


def test_doctor_opens_a_session_by_each_provider_and_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [p.engine for p in PROVIDERS.values()])
    lacking = {"cuda": "libcuda.so.1: cannot open", "tensorrt": "libnvinfer.so.10: cannot open", "openvino": "broken"}
    monkeypatch.setattr(providers, "_missing_library", lambda provider: lacking.get(provider.name, ""))
    told = {finding.text: finding for finding in examine(None, None) if "execution provider" in finding.text}
    assert [(finding.good, finding.text.split(": ")[1]) for finding in told.values()] == [
        (True, "runs"),
        (False, "cannot start (broken)"),
        (True, "cannot start, which only bundles for it need (libnvinfer.so.10"),
        (False, "cannot start (libcuda.so.1"),
    ]
    remedies = [finding.remedy for finding in told.values() if not finding.good]
    assert remedies == [PROVIDERS["openvino"].install, DRIVER]
    assert "-c constraints-gpu.txt" in PROVIDERS["cuda"].install


def test_a_provider_that_falls_back_or_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(PROVIDERS["cpu"]) == ""
    monkeypatch.setattr(onnxruntime, "InferenceSession", Mock(side_effect=RuntimeError("no device")))
    assert failure(PROVIDERS["cpu"]) == "no device"
    session = Mock(get_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: session)
    assert "fell back" in failure(PROVIDERS["openvino"])


def test_a_refused_provider_says_which_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_missing_library", lambda _: "libcudnn.so.9: cannot open")
    assert "cannot start (libcudnn.so.9: cannot open)" in str(providers.missing(PROVIDERS["cuda"]))
