"""The choice of the verification: kept where it finds more items, refused where it cannot be chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.catalogue.read import read_catalogue
from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from training.backbones.small import SmallConvNet
from training.export import verification
from training.export.fit import fit_to_catalogue
from training.export.pretrained import Pretrained, export_pretrained
from training.export.verification import clustered_error, not_verified
from training.model import PretrainedModel

from ...prints import DETECTOR, write_covers

pytestmark = pytest.mark.usefixtures("onnx_written_once")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Pretrained:
    """Return a tiny model; its verification is chosen with a few key points per photo, to save time."""
    monkeypatch.setattr(verification, "VerifierSettings", lambda: DETECTOR)
    torch.manual_seed(0)
    return Pretrained("tiny", PretrainedModel(SmallConvNet()).eval(), Preprocessing(size=32))


@pytest.mark.slow
def test_printed_covers_are_verified_and_their_items_set_no_threshold(tiny: Pretrained, tmp_path: Path) -> None:
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(60), photos=range(2)))
    fitted, told = fit_to_catalogue(tiny, photos, verify="auto", target_fpir=0.1)
    assert "With verification, " in told
    bundle = export_pretrained(fitted, tmp_path / "bundle")
    evidence = bundle.manifest["evidence"]["verification"]
    assert evidence["gain"] > evidence["standard_error"]
    assert evidence["told"] in told
    assert bundle.verifier is not None
    assert bundle.verifier.settings.strength == evidence["strength"]
    assert bundle.fitted is not None
    assert len(bundle.fitted.items) == 30


@pytest.mark.slow
def test_a_catalogue_too_small_to_fit_the_model_to_may_choose_the_verification(
    tiny: Pretrained, tmp_path: Path
) -> None:
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(40), photos=range(2)))
    fitted, told = fit_to_catalogue(tiny, photos, verify="auto", target_fpir=0.1)
    assert "The model is used as it is: 20 items with several photos are too few to fit on" in told
    assert "With verification, " in told
    assert (fitted.model, len(fitted.fitted.items)) == (tiny.model, 20)


def test_a_catalogue_of_fewer_than_forty_items_is_not_verified(tiny: Pretrained, tmp_path: Path) -> None:
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(40), photos=range(2)))
    unverified, told = fit_to_catalogue(tiny, photos[:-1], verify="auto", target_fpir=0.1)
    assert unverified.verification.verifier is None
    assert "Without verification: only 39 items have several photos." in told


def test_the_error_of_a_gain_is_clustered_by_group() -> None:
    values = np.array([0.0, 1, 0, 1, 1])
    alone = clustered_error(values, ["a", "b", "c", "d", "e"])
    assert alone == pytest.approx(values.std(ddof=1) / np.sqrt(5))
    assert clustered_error(np.repeat(values, 4), [*"aaaabbbbccccddddeeee"]) == pytest.approx(alone)
    assert clustered_error(values, ["a"] * 5) == np.inf


def test_without_photos_to_choose_by_auto_is_off_and_on_is_an_error(tiny: Pretrained, tmp_path: Path) -> None:
    photos = read_catalogue(write_covers(tmp_path / "photos", items=range(4), photos=range(2)))
    fitted, _ = fit_to_catalogue(tiny, photos, verify="auto")
    assert fitted.verification.verifier is None
    with pytest.raises(InvalidParameter, match="4 items have several photos"):
        fit_to_catalogue(tiny, photos, verify="on")
    with pytest.raises(InvalidParameter, match="there are no photos to choose it by"):
        not_verified("on", "there are no photos to choose it by", "Pass --fit PHOTOS")
    with pytest.raises(InvalidParameter, match="be one of auto, on, off"):
        fit_to_catalogue(tiny, photos, verify="maybe")
