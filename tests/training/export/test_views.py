"""Views that an exported model averages: by hand, in every precision, and their choice on the validation items."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from retrieval.bundle.embedder import Embedder
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from training.backbones.small import SmallConvNet
from training.config import CROPS, MIRROR, PHOTO, VIEWS
from training.data.reader import PhotoReader
from training.data.splits import photos_in_protocol
from training.evaluation.embedding import embed_photos
from training.export import views as views_module
from training.export.export import export
from training.export.fp16 import to_fp16
from training.export.onnx_writer import write_onnx
from training.export.quantization import to_int8
from training.export.views import COUNTS, TriedViews, choose_views, describe_views, with_views
from training.loop.run import Run
from training.model import EmbeddingModel, ViewedModel

pytestmark = pytest.mark.usefixtures("empty_pictures", "onnx_written_once")
SIZE = 32


@pytest.fixture(scope="module")
def model() -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(SmallConvNet(), dim=16, pooling="average").eval()


def pixels(count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 3, SIZE, SIZE)).astype(np.float32))


@torch.inference_mode()
def test_the_mean_of_a_photo_and_its_mirror_image(model: EmbeddingModel) -> None:
    photos = pixels(3)
    unit, norms = ViewedModel(model, MIRROR).eval().parts(photos)
    raw, other = model(photos), model(photos.flip(3))
    torch.testing.assert_close(unit, F.normalize(F.normalize(raw) + F.normalize(other)))
    torch.testing.assert_close(norms, (raw.norm(dim=1) + other.norm(dim=1)) / 2)
    torch.testing.assert_close(ViewedModel(model, MIRROR).eval()(photos), unit * norms[:, None])
    torch.testing.assert_close(ViewedModel(model, MIRROR).eval().parts(photos.flip(3))[0], unit)


@torch.inference_mode()
def test_the_crops_have_the_size_of_the_photo(model: EmbeddingModel) -> None:
    photos = torch.zeros(1, 3, SIZE, SIZE)
    photos[:, :, 4:28, 4:28] = 1  # the middle of three quarters
    unit, _ = ViewedModel(model, CROPS).eval().parts(photos)
    crops = [F.interpolate(photos[:, :, e:-e, e:-e], (SIZE, SIZE), mode="bilinear") for e in (2, 4)]
    assert (crops[1] == 1).all()
    expected = torch.stack([F.normalize(model(view)) for view in (photos, *crops)]).sum(dim=0)
    torch.testing.assert_close(unit, F.normalize(expected))


def test_other_views_are_refused(model: EmbeddingModel) -> None:
    assert with_views(model, PHOTO) is model
    with pytest.raises(InvalidParameter, match="views must be one of photo, mirror, crops"):
        with_views(model, "corners")


@pytest.mark.slow
@pytest.mark.parametrize("views", [MIRROR, CROPS])
def test_every_precision_has_the_views(model: EmbeddingModel, views: str, tmp_path: Path, run: Run) -> None:
    viewed, photos = ViewedModel(model, views).eval(), pixels(5)
    fp32 = tmp_path / "fp32.onnx"
    write_onnx(viewed, fp32, size=SIZE)
    with torch.inference_mode():
        unit, norms = (part.numpy() for part in viewed.parts(photos))
        alone = F.normalize(model(photos)).numpy()
    embedder = Embedder(fp32, run.preprocessing)
    made = embedder.embed_tensor(photos.numpy())
    np.testing.assert_allclose(made.vectors, unit, atol=1e-5)
    np.testing.assert_allclose(made.certainties, norms, rtol=1e-4)
    np.testing.assert_allclose(embedder.embed_tensor(photos[2:3].numpy()).vectors, unit[2:3], atol=1e-5)
    assert ((made.vectors * alone).sum(axis=1) < 0.9999).all()
    to_fp16(fp32, tmp_path / "fp16.onnx")
    to_int8(fp32, tmp_path / "int8.onnx", [photos.numpy()])
    for name, floor in (("fp16", 0.999), ("int8", 0.98)):
        lower = Embedder(tmp_path / f"{name}.onnx", run.preprocessing).embed_tensor(photos.numpy()).vectors
        assert (lower * unit).sum(axis=1).mean() > floor, name


def test_views_are_chosen_where_they_gain_more_than_a_standard_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = photos_in_protocol(run.photos(), [*run.splits.fit, *run.splits.validation], run.protocol)
    numbers = np.unique([photo.item_id for photo in photos], return_inverse=True)[1]
    mixed = np.random.default_rng(0).normal(size=(len(photos), 16)).astype(np.float32)
    mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
    apart = np.eye(numbers.max() + 1, dtype=np.float32)[numbers]

    def embed(best: str | None) -> Any:
        def embedded(tried: Any, *_: Any, **__: Any) -> tuple[np.ndarray, np.ndarray]:
            views = tried.views if isinstance(tried, ViewedModel) else PHOTO
            return (apart if views == best else mixed), np.ones(len(photos))

        return embedded

    for best, chosen in ((None, PHOTO), (PHOTO, PHOTO), (MIRROR, MIRROR), (CROPS, CROPS)):
        monkeypatch.setattr(views_module, "embed_with_norms", embed(best))
        views, tried = choose_views(run, run.best_model(), photos, target_fpir=0.2)
        assert views == chosen
        assert [each.views for each in tried] == list(VIEWS)
        assert (tried[0].gain, tried[0].standard_error) == (0, 0)


@pytest.mark.slow
def test_a_bundle_says_which_views_it_averages(run: Run, tmp_path: Path) -> None:
    bundle = export(run, tmp_path / "mirror", target_fpir=0.2, allow_estimate=True, views=MIRROR)
    evidence = bundle.manifest["evidence"]["views"]
    assert (evidence["views"], evidence["photos_per_embedding"], evidence["tried"]) == (MIRROR, 2, [])
    assert evidence["ms_per_photo"] > 0
    (line,) = describe_views(evidence)
    assert line.startswith("Views: mirror. The network runs 2 times for each photo, ")
    photos = run.photos()[:4]
    squares = PhotoReader(photos, run.preprocessing).pixels(range(4))
    plain = embed_photos(run.best_model(), PhotoReader(photos, run.preprocessing), 4, run.preprocessing)
    vectors = bundle.embedder().embed_pixels(squares).vectors
    mirrored = bundle.embedder().embed_pixels(np.ascontiguousarray(squares[:, :, ::-1])).vectors
    np.testing.assert_allclose(vectors, mirrored, atol=1e-5)  # a photo and its mirror image are the same to it
    assert np.abs(vectors - plain).max() > 1e-3


@pytest.mark.slow
def test_the_choice_is_told(run: Run, tmp_path: Path) -> None:
    bundle = export(run, tmp_path / "auto", target_fpir=0.2, allow_estimate=True, views="auto")
    evidence = bundle.manifest["evidence"]["views"]
    assert [tried["views"] for tried in evidence["tried"]] == list(VIEWS)
    lines = describe_views(evidence)
    assert len(lines) == 4
    assert lines[0].startswith("Views tried: photo, TPIR ")
    assert "standard error" in lines[1]


def test_views_that_were_tried_are_told() -> None:
    tried = [TriedViews(views, 0.5 + gain, gain, 0.02) for views, gain in zip(VIEWS, (0.0, 0.1, 0.05), strict=True)]
    made = {"views": MIRROR, "photos_per_embedding": COUNTS[MIRROR], "ms_per_photo": 1.25}
    lines = describe_views({**made, "tried": [asdict(each) for each in tried]})
    assert lines[0] == "Views tried: photo, TPIR 0.500 on validation items"
    assert lines[1].endswith("(gain +0.100, standard error 0.020)")
    assert lines[3] == "Views: mirror. The network runs 2 times for each photo, 1.2 ms on this machine."
    assert describe_views({**made, "views": PHOTO, "tried": []}) == []


def test_a_pretrained_model_has_nothing_to_choose_views_on(tmp_path: Path) -> None:
    arguments = ["export", "--pretrained", "efficientnet-lite0", "--views", "auto", "-o", str(tmp_path / "b")]
    refused = CliRunner().invoke(group, arguments)
    assert isinstance(refused.exception, InvalidParameter)
    assert "no validation items" in str(refused.exception)
