"""Fixtures and settings that every package's tests share."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from training.model import EmbeddingModel, PretrainedModel

# no test depends on the speed of the machine
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", parent=settings.get_profile("full"), max_examples=20)

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Let Hypothesis draw fewer examples where the slow tests are left out, and no test ask the Hugging Face hub."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # tests of the hub go to a server of their own
    settings.load_profile("fast" if without_slow(config) else "full")


def without_slow(config: pytest.Config) -> bool:
    """Return whether the slow tests are left out, as in `make test`."""
    return "not slow" in config.getoption("markexpr")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the imported modules out of garbage collections, which take most of a second each to walk them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 100)  # a collection of all objects takes a fifth of a second
        gc.enable()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder with the real photos, weights and golden values, or skip with the reason."""
    folder = Path(os.environ.get("RETRIEVAL_TEST_DATA", ROOT.parent / "shared"))
    if not (folder / "golden").is_dir():
        pytest.skip(f"RETRIEVAL_TEST_DATA: no folder {folder} with golden/, data/ and weights/")
    return folder


@pytest.fixture
def empty_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures of pages empty: to render one takes most of a second."""

    def savefig(figure: object, file: IO[str] | Path, **_: object) -> None:
        (file.write_text if isinstance(file, Path) else file.write)("<svg></svg>")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)


def write_onnx_fast(model: EmbeddingModel | PretrainedModel, path: Path, *, size: int) -> None:
    """Write a model as `training.export.onnx_writer` does, with the TorchScript exporter."""
    import torch

    from training.export.onnx_writer import INPUTS, OPSET, OUTPUTS, quiet
    from training.model import ExportModel

    with quiet("torch.onnx"):
        torch.onnx.export(
            ExportModel(model.cpu().float()).eval(),
            (torch.zeros(2, 3, size, size),),
            str(path),
            input_names=INPUTS,
            output_names=OUTPUTS,
            opset_version=OPSET,
            dynamo=False,
            dynamic_axes={name: {0: "n"} for name in (*INPUTS, *OUTPUTS)},
        )


@pytest.fixture(scope="session")
def onnx_written_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write each model as ONNX once per process: it takes seconds, and many tests export the same tiny models.

    Where the slow tests are left out, PyTorch's older exporter writes them, which is many times faster.
    """
    from training.export import variants
    from training.export.onnx_writer import write_onnx

    fast = without_slow(request.config)
    written: dict[tuple[object, ...], bytes] = {}

    def write(
        model: EmbeddingModel | PretrainedModel,
        path: Path,
        *,
        size: int,
    ) -> None:
        arrays = [tensor.detach().numpy() for tensor in model.state_dict().values()]
        key = (size, str(model), *(array.tobytes() for array in arrays))
        if key not in written:
            (write_onnx_fast if fast else write_onnx)(model, path, size=size)
            written[key] = path.read_bytes()
        path.write_bytes(written[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "write_onnx", write)
        yield


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `photos` (10 items, 1 to 5 photos each), `bundle` and `gallery` of the tiny model.

    The gallery got the photos in an order of their own, so that neither ids nor items ascend in it.
    """
    from retrieval.catalogue.read import read_catalogue
    from retrieval.indexing.pipeline import index_catalogue

    from .world import WORLD, make_bundle, shuffled, write_folder

    folder = tmp_path_factory.mktemp("world")
    for item, count in enumerate(WORLD):
        write_folder(folder / "photos", items=range(item, item + 1), photos=range(count))
    photos = shuffled(read_catalogue(folder / "photos"))
    index_catalogue(make_bundle(folder), photos, folder / "gallery", progress=False)
    return folder


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a `gallery` of 40 items that has a threshold of its own, and its `bundle`, to be copied.

    The bundle was fitted on none of the items and promises an FPIR of 0.2. Ids are numbers in no order, items have 1 to
    5 photos, and the first three of every ten items are one group: 32 of the items are independent. The column `half`
    holds 0 or 1.
    """
    from index.gallery import Gallery
    from retrieval.bundle.bundle import FITTED
    from retrieval.bundle.fitted import Fitted
    from retrieval.catalogue.photos import Photo
    from retrieval.indexing.pipeline import index_catalogue
    from retrieval.measuring.point import Point, Rates

    from .world import FILLED, WORLD, draw, make_bundle, shuffled

    folder, photos = tmp_path_factory.mktemp("filled"), []
    point = Point(0.5, "estimated", 0.2, rates=Rates(fpir=0.05))
    bundle = make_bundle(folder, point=point, files={FITTED: Fitted.of([], []).pack()})
    (folder / "photos").mkdir()
    shots = [(item, number) for item in range(FILLED) for number in range(WORLD[item % 10])]
    for photo_id, (item, number) in enumerate(shuffled(shots)):
        path = folder / "photos" / f"{photo_id}.png"
        draw(item, number).save(path)
        kind = f"{item // 10}" if item % 10 < 3 else ""
        photos.append(Photo(str(photo_id), path, str(item), group=kind, metadata={"half": item % 2}))
    report = index_catalogue(bundle, shuffled(photos), folder / "gallery", progress=False)
    assert report.point is not None
    with Gallery.open(folder / "gallery") as gallery:
        gallery.declare({"half": "number"})
    return folder


@pytest.fixture
def filled_copy(filled: Path, tmp_path: Path) -> Path:
    """Return `tmp_path` with a copy of the filled gallery and its bundle."""
    for name in ("bundle", "gallery"):
        shutil.copytree(filled / name, tmp_path / name)
    return tmp_path
