"""The verification of a bundle: a vocabulary fitted to photos, and details that lower the item distance."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import DataError, InvalidParameter
from retrieval.images import Preprocessing
from training.backbones.load import SmallConvNet
from training.export import verification
from training.export.fit import fit_to_catalogue
from training.export.pretrained import Pretrained, export_pretrained
from training.export.verification import fit_verifier
from training.model import PretrainedModel

from ...prints import DETECTOR, write_covers

pytestmark = pytest.mark.usefixtures("onnx_written_once")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Pretrained:
    """Return a tiny model whose verification finds few key points per photo, to save time."""
    monkeypatch.setattr(verification, "VerifierSettings", lambda: DETECTOR)
    torch.manual_seed(0)
    return Pretrained("tiny", PretrainedModel(SmallConvNet()).eval(), Preprocessing(size=32))


def test_a_model_is_verified_if_it_is_asked_for(tiny: Pretrained, tmp_path: Path) -> None:
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(6), photos=range(2)))
    assert fit_to_catalogue(tiny, photos)[0].fit.verifier is None
    fitted, told = fit_to_catalogue(tiny, photos, verify=True)
    assert "The model is used as it is" in told
    bundle = export_pretrained(fitted, tmp_path / "bundle")
    assert bundle.verifier is not None
    assert bundle.item_distance == ItemDistance.default(verified=True)
    assert bundle.item_distance.details > 0
    assert not bundle.operating_point.decides


def test_a_vocabulary_is_fitted_to_a_sample_that_depends_on_the_seed_alone(
    tiny: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "MOST_FITTED", 4)
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(6), photos=range(2)))
    keys = [fit_verifier(photos, tiny.preprocessing, catalogue_photos=12, seed=seed).key for seed in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_photos_without_details_are_refused(tiny: Pretrained, tmp_path: Path) -> None:
    for item in range(3):
        (tmp_path / "photos" / f"i{item}").mkdir(parents=True)
        Image.new("RGB", (64, 64), (item, 90, 90)).save(tmp_path / "photos" / f"i{item}" / "0.png")
    photos = read_catalogue(tmp_path / "photos")
    with pytest.raises(DataError, match="have key points, a vocabulary needs 2"):
        fit_verifier(photos, tiny.preprocessing, catalogue_photos=3)


def test_more_photos_than_a_gallery_with_features_holds_are_refused(tiny: Pretrained, tmp_path: Path) -> None:
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(2), photos=range(2)))
    with pytest.raises(InvalidParameter, match="verify must be left out for more than 200,000 photos"):
        fit_verifier(photos, tiny.preprocessing, catalogue_photos=200_001)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--verify"], "--verify must be used with photos to fit its visual words to"),
        (["--verify", "--item-distance", "nearest"], "--item-distance must be default with --verify"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, words: list[str], told: str) -> None:
    command = ["export", "--pretrained", "efficientnet-lite0", *words, "-o", str(tmp_path / "bundle")]
    error = CliRunner().invoke(group, command).exception
    assert told in str(error)
    assert not (tmp_path / "bundle").exists()


def test_the_nearest_photo_can_decide(tiny: Pretrained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretrained, "load", classmethod(lambda cls, name, size=None: tiny))
    command = ["export", "--pretrained", "tiny", "--item-distance", "nearest", "-o", str(tmp_path / "bundle")]
    assert CliRunner().invoke(group, command).exit_code == 0
    assert Bundle.open(tmp_path / "bundle").item_distance.is_plain
