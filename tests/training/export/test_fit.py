"""Pretrained models fitted to a part of a catalogue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.encoders.adapt import Projection
from retrieval.images import Preprocessing
from retrieval.indexing.pipeline import index_catalogue
from training.backbones.load import SmallConvNet
from training.export import fit as fitting
from training.export.fit import fit_to_catalogue
from training.export.pretrained import Pretrained, export_pretrained
from training.export.projection import ProjectionChoice
from training.model import PretrainedModel

from ...world import write_folder

pytestmark = pytest.mark.usefixtures("onnx_written_once")
WIDTH = SmallConvNet.width


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Photo]:
    return read_catalogue(write_folder(tmp_path_factory.mktemp("photos") / "photos", items=range(60), photos=range(2)))


@pytest.fixture
def tiny() -> Pretrained:
    torch.manual_seed(0)
    return Pretrained("tiny", PretrainedModel(SmallConvNet()).eval(), Preprocessing(size=32))


@pytest.fixture
def projection(monkeypatch: pytest.MonkeyPatch) -> Projection:
    """Return a projection that the fit will choose."""
    generator = np.random.default_rng(0)
    projection = Projection(0.5, generator.normal(size=WIDTH), np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0])
    choice = ProjectionChoice(projection, "", unfitted=0.5, gain=0.25)
    monkeypatch.setattr(fitting, "choose_projection", lambda photos, features, seed: choice)
    return projection


@pytest.mark.slow
def test_the_projection_is_in_the_bundle_and_its_items_set_no_threshold(
    tiny: Pretrained, projection: Projection, photos: list[Photo], tmp_path: Path
) -> None:
    fitted, told = fit_to_catalogue(tiny, photos)
    assert told == (
        "Fitted to 30 of the 60 items: in a cross-validation on items that were left out, 75% of the photos find "
        "their item first, 50% without it."
    )
    bundle = export_pretrained(fitted, tmp_path / "bundle")
    expected = projection(fitting.features_of(tiny, photos[:4]))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = bundle.embedder().embed([photo.path for photo in photos[:4]]).vectors
    assert np.abs(vectors - expected).max() < 1e-4
    assert bundle.manifest["evidence"]["fit"] == {"items": 30, "photos": 60, "recall_at_1": 0.5, "gain": 0.25}
    report = index_catalogue(bundle, photos, tmp_path / "gallery", progress=False)
    assert report.point is not None
    assert report.point.evidence["sources"]["own"] == 30
    assert bundle.fitted is not None
    shown = [photo for photo in photos if bundle.fitted.contains(photo.item_id, None)]
    assert len({photo.item_id for photo in shown}) == 30
    assert bundle.fitted.contains("another name", content_hash(shown[0].read(), None))


def test_groups_are_fitted_to_as_a_whole(tiny: Pretrained, projection: Projection, photos: list[Photo]) -> None:
    def group_of(photo: Photo) -> str:
        return f"family {int(photo.item_id.rpartition('-')[2]) // 6}" if "-" in photo.item_id else photo.item_id[:-1]

    grouped = [Photo(p.photo_id, p.path, p.item_id, group=group_of(p)) for p in photos]
    fitted, _ = fit_to_catalogue(tiny, grouped)
    inside = {photo.group for photo in grouped if fitted.fit.fitted.contains(photo.item_id, None)}
    outside = {photo.group for photo in grouped if not fitted.fit.fitted.contains(photo.item_id, None)}
    assert inside
    assert outside
    assert not inside & outside


def test_a_small_catalogue_leaves_the_model_as_it_is(tiny: Pretrained, photos: list[Photo]) -> None:
    fitted, told = fit_to_catalogue(tiny, photos[:-1])
    assert fitted is tiny
    assert "59 items have several photos" in told
    single, told = fit_to_catalogue(tiny, photos[::2])
    assert single is tiny
    assert "0 items have several photos" in told


def test_without_a_gain_the_model_stays_as_it_is(
    tiny: Pretrained, photos: list[Photo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fitting, "choose_projection", lambda photos, features, seed: ProjectionChoice(None, "it finds no more items")
    )
    fitted, told = fit_to_catalogue(tiny, photos)
    assert fitted is tiny
    assert told == "The model is used as it is: it finds no more items."


def test_photos_that_cannot_be_read_are_left_out(
    tiny: Pretrained, projection: Projection, photos: list[Photo], tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    broken = [Photo(f"broken-{n}", tmp_path / "broken.png", p.item_id) for n, p in enumerate(photos[::2])]
    fitted, _ = fit_to_catalogue(tiny, [*broken, *photos])
    assert fitted.fit.evidence["fit"] == {"items": 30, "photos": 60, "recall_at_1": 0.5, "gain": 0.25}
