"""Bundles of pretrained models: no run, no threshold until a gallery sets one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import BundleError, InvalidParameter, RunError
from retrieval.galleries.points import stored_point
from retrieval.images import Preprocessing
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.point import UNCALIBRATED
from retrieval.retriever import Retriever
from training.backbones.load import SmallConvNet
from training.export import pretrained as module
from training.export.pretrained import Pretrained, export_pretrained
from training.export.variants import Variant
from training.model import PretrainedModel

from ...world import draw, write_folder

pytestmark = pytest.mark.usefixtures("onnx_written_once")
TARGET = 0.1


@pytest.fixture(scope="module")
def tiny() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained("tiny", PretrainedModel(SmallConvNet()).eval(), Preprocessing(size=32))


@pytest.fixture(scope="module")
def bundle(tiny: Pretrained, onnx_written_once: None, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_pretrained(tiny, tmp_path_factory.mktemp("bundles") / "tiny", target_fpir=TARGET)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("photos") / "photos", items=range(30), photos=range(2))


@pytest.fixture
def command(tiny: Pretrained, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """Return a runner whose `--pretrained tiny` is the tiny model."""
    monkeypatch.setattr(Pretrained, "load", classmethod(lambda cls, name, size=None: tiny))
    return CliRunner()


def test_the_bundle_has_the_model_and_no_threshold(bundle: Bundle, tiny: Pretrained) -> None:
    point, manifest = bundle.operating_point, json.loads((bundle.path / "manifest.json").read_text())
    assert (point.status, point.decides, point.target_fpir) == (UNCALIBRATED, False, TARGET)
    assert manifest["operating_point"]["threshold"] is None
    assert manifest["evidence"]["pretrained"] == "tiny"
    assert manifest["evidence"]["parity"]["largest_difference"] < 1e-5
    assert bundle.fitted is not None
    assert not len(bundle.fitted.items)
    assert bundle.dim == tiny.model.dim == 256
    assert set(bundle.manifest["files"]) == {"model.onnx", "fitted.npz", "golden.npz"}
    pixels = bundle.embedder().read([draw(1, 1)])
    assert np.abs(bundle.embedder().embed_pixels(pixels).vectors - tiny.embed_pixels(pixels)).max() < 1e-5


def test_the_model_exported_again_has_the_same_ids(bundle: Bundle, tiny: Pretrained, tmp_path: Path) -> None:
    again = export_pretrained(tiny, tmp_path / "again", target_fpir=TARGET, photos=[])
    assert (again.bundle_id, again.embedding_id) == (bundle.bundle_id, bundle.embedding_id)
    assert export_pretrained(tiny, tmp_path / "other", target_fpir=2 * TARGET).bundle_id != bundle.bundle_id


def test_a_gallery_of_enough_items_sets_the_threshold_for_the_target_of_the_bundle(
    bundle: Bundle, photos: Path, tmp_path: Path
) -> None:
    catalogue = read_catalogue(photos)
    few = index_catalogue(bundle, catalogue[: 2 * 19], tmp_path / "gallery", progress=False)
    assert few.point is None
    assert "19 items" in few.unanchored
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        ranked = retriever.search(draw(3, 5), top_k=3)
    assert (ranked.decision, ranked.reason, ranked.matches, ranked.threshold) == ("ranked", "uncalibrated", (), None)
    assert len(ranked.ranked) == 3
    assert ranked.ranked[0] == ranked.nearest
    more = index_catalogue(bundle, catalogue, tmp_path / "gallery", progress=False)
    assert more.point is not None
    assert (more.point.target_fpir, more.point.evidence["sources"]["own"]) == (TARGET, 30)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        found = retriever.search(catalogue[0].path)
        assert (found.decision, found.threshold_status, found.ranked) == ("match", "estimated", ())
        assert found.matches[0].item_id == catalogue[0].item_id


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_lower_precisions_are_compared_with_torch(
    tiny: Pretrained, photos: Path, tmp_path: Path, precision: str
) -> None:
    catalogue = read_catalogue(photos)
    made = export_pretrained(tiny, tmp_path / "b", variant=Variant(precision), photos=catalogue)
    assert made.precision == precision
    assert made.manifest["evidence"]["form"]["made"] == {"fp16": "fp16", "int8": "int8, static"}[precision]
    assert made.manifest["evidence"]["parity"]["photos"] == 8 + 32
    assert 0.99 < made.manifest["evidence"]["parity"]["mean_cosine"] < 1


def test_int8_without_photos_is_refused(tiny: Pretrained, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="without photos"):
        export_pretrained(tiny, tmp_path / "b", variant=Variant("int8"))
    assert not (tmp_path / "b").exists()


def test_a_model_that_onnx_computes_otherwise_is_refused(
    tiny: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pretrained, "embed_pixels", lambda self, pixels: np.full((len(pixels), 256), 1 / 16, "f4"))
    with pytest.raises(RunError, match="differs from torch"):
        export_pretrained(tiny, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_an_existing_bundle_and_an_impossible_target_are_refused(
    tiny: Pretrained, bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match="immutable"):
        export_pretrained(tiny, bundle.path)
    with pytest.raises(InvalidParameter, match="target_fpir"):
        export_pretrained(tiny, tmp_path / "b", target_fpir=0)


@pytest.mark.slow
def test_photos_that_cannot_be_used_are_left_to_indexing(tiny: Pretrained, tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(2), photos=range(2))
    (photos / "item-00" / "0.png").write_bytes(b"no image")
    made = export_pretrained(tiny, tmp_path / "b", photos=read_catalogue(photos))
    assert made.manifest["evidence"]["parity"]["photos"] == 8 + 3


def test_the_commands_export_index_and_say_what_to_expect(command: CliRunner, photos: Path, tmp_path: Path) -> None:
    bundle, gallery = str(tmp_path / "b"), str(tmp_path / "g")
    arguments = ["export", "--pretrained", "tiny", "-o", bundle, "--target-fpir", "0.1"]
    result = command.invoke(group, arguments, catch_exceptions=False)
    assert "it has no threshold; a gallery sets one for FPIR 0.1" in result.output
    result = command.invoke(group, ["index", bundle, str(photos), "-o", gallery], catch_exceptions=False)
    assert "An unknown item (one that is not in the catalogue) returns a match in about" in result.output
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        point = stored_point(gallery.kept(POINT), Bundle.open(tmp_path / "b"))
    assert point is not None
    assert point.target_fpir == 0.1


@pytest.mark.parametrize(
    "options",
    [
        ["RUN"],
        ["--certify"],
    ],
)
def test_options_for_the_threshold_of_a_run_are_refused(command: CliRunner, options: list[str], tmp_path: Path) -> None:
    result = command.invoke(group, ["export", "--pretrained", "tiny", "-o", str(tmp_path / "b"), *options])
    assert isinstance(result.exception, InvalidParameter | SystemExit)
    assert options[0] in str(result.exception) + result.output
    assert not (tmp_path / "b").exists()


def test_a_run_or_a_model_is_needed(command: CliRunner, tmp_path: Path) -> None:
    result = command.invoke(group, ["export", "-o", str(tmp_path / "b")])
    assert result.exit_code != 0
    assert "--pretrained" in str(result.exception) + result.output


def test_the_choice_and_its_reason_are_printed(
    command: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def load(cls: type[Pretrained], name: str, size: int | None = None) -> Pretrained:
        asked.append(name)
        raise InvalidParameter("backbone", "be another", name)

    monkeypatch.setattr(module.Pretrained, "load", classmethod(load))
    monkeypatch.setattr("training.backbones.choose_backbone", lambda: ("efficientnet-lite0", "no hub answers"))
    result = command.invoke(group, ["export", "--pretrained", "auto", "-o", str(tmp_path / "b")])
    assert "Backbone: efficientnet-lite0 (no hub answers)." in result.output
    assert asked == ["efficientnet-lite0"]
