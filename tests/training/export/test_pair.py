"""Bundles of two pretrained models as one: exported, fitted, in lower precisions, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from retrieval.measuring.point import UNCALIBRATED
from training.backbones.base import Backbone
from training.backbones.load import SmallConvNet
from training.config import LITE0
from training.export import pretrained as module
from training.export.fit import features_of
from training.export.pretrained import Pretrained, export_pretrained
from training.export.projection import fit_projection
from training.export.variants import Variant
from training.model import PretrainedModel, ProjectionLayer

from ...world import write_folder

pytestmark = pytest.mark.usefixtures("onnx_written_once")
PREPROCESSING = {
    LITE0: Preprocessing(size=32, view=0.9, std=(0.3, 0.3, 0.3)),
    "b": Preprocessing(size=48, squash=True, mean=(0.1, 0.2, 0.3)),
}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two names stand for small networks with different weights."""

    def load(name: str) -> tuple[Backbone, None]:
        torch.manual_seed(list(PREPROCESSING).index(name))
        return SmallConvNet().eval(), None

    monkeypatch.setattr(module, "load_backbone", load)
    monkeypatch.setattr(module, "published_preprocessing", lambda name, size: PREPROCESSING[name])
    monkeypatch.setattr("training.backbones.choose_backbone", lambda: (LITE0, "no hub answers"))


@pytest.mark.usefixtures("two")
def test_one_file_has_both_and_a_gallery_sets_its_threshold(tmp_path: Path) -> None:
    words = ["export", "--pretrained", "auto", "--and", "b", "-o", str(tmp_path / "bundle")]
    result = CliRunner().invoke(group, words, catch_exceptions=False)
    assert "Backbone: efficientnet-lite0 (no hub answers)." in result.output
    bundle = Bundle.open(tmp_path / "bundle")
    assert bundle.manifest["evidence"]["pretrained"] == "efficientnet-lite0 + b"
    assert bundle.operating_point.status == UNCALIBRATED  # the threshold for all catalogues is of one model alone
    preprocessing = bundle.embedder().preprocessing
    assert (preprocessing.size, preprocessing.view, preprocessing.squash) == (32, 0.9, False)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    made, pair = bundle.embedder().embed_pixels(pixels), Pretrained.load_pair(LITE0, "b")
    assert bundle.dim == 512
    assert np.abs(made.vectors - pair.embed_pixels(pixels)).max() < 1e-5
    assert made.certainties == pytest.approx([1, 1])


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pretrained", "b", "--and", "b"], "--and must be another model"),
        (["--pretrained", "auto", "--and", LITE0], "--and must be another model"),
        (["--and", "b"], "RUN must be given"),
    ],
)
def test_the_same_model_twice_and_a_second_without_a_first_are_refused(
    tmp_path: Path, words: list[str], says: str
) -> None:
    result = CliRunner().invoke(group, ["export", *words, "-o", str(tmp_path / "bundle")])
    assert isinstance(result.exception, InvalidParameter)
    assert says in str(result.exception)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_pair_is_fitted_and_written_in_lower_precisions(tmp_path: Path, precision: str) -> None:
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(40), photos=range(2)))
    pair = Pretrained.load_pair(LITE0, "b")
    items = np.array([photo.item_id for photo in photos])
    projection = fit_projection(features_of(pair, photos).astype(np.float64), items, 0.5, 0.4)
    fitted = replace(pair, model=PretrainedModel(pair.model.backbone, projection=ProjectionLayer(projection)).eval())
    made = export_pretrained(fitted, tmp_path / "bundle", variant=Variant(precision), photos=photos)
    assert 0.99 < made.manifest["evidence"]["parity"]["mean_cosine"] < 1
