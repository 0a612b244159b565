"""Backward-compatible training: the influence loss, the centres of the earlier bundle, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.export.export import export
from training.loop.compatible import CENTRES, check_settings, compatible_with
from training.loop.run import LAST, START, Run
from training.loop.train import begin_run, train
from training.losses.influence import SCALE, BackwardCompatible, influence

from ...world import DIM, make_bundle
from ..conftest import tiny_settings

pytestmark = pytest.mark.usefixtures("empty_pictures")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("old"))


def train_compatible(catalogue: Path, old: Bundle, path: Path, *, epochs: int) -> Run:
    options = f"--size 32 --epochs {epochs} --items-per-batch 4 --learning-rate 3e-3 --no-freeze-batch-norm --no-flip"
    words = ["train", str(catalogue), *options.split(), "--crop-area", "0.7", "--compatible-with", str(old.path)]
    done = CliRunner().invoke(group, [*words, "-o", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    return Run.open(path)


@pytest.fixture(scope="module")
def trained(catalogue: Path, old: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_compatible(catalogue, old, tmp_path_factory.mktemp("compatible") / "run", epochs=1)


def test_the_influence_loss_by_hand() -> None:
    embeddings = torch.tensor([[3.0, 0.0], [0.0, 0.5]])
    centres = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    expected = np.log1p(np.exp(-4.0))
    assert influence(embeddings, torch.tensor([0, 1]), centres, scale=4.0).item() == pytest.approx(expected, rel=1e-5)
    assert influence(embeddings, torch.tensor([1, 0]), centres, scale=4.0).item() == pytest.approx(
        4.0 + expected, rel=1e-5
    )
    loss = BackwardCompatible(torch.nn.MSELoss(), centres, weight=0.5)
    labels = torch.tensor([0, 1])
    loss.loss.forward = lambda *_: torch.tensor(1.0)
    own = influence(embeddings, labels, centres, scale=SCALE).item()
    assert loss(embeddings, labels).item() == pytest.approx(1 + 0.5 * own)
    assert not list(loss.parameters())


def test_a_run_keeps_the_centres_of_the_earlier_model(trained: Run, old: Bundle) -> None:
    assert compatible_with(trained) == old.embedding_id
    assert (trained.settings.dim, trained.settings.select) == (DIM, "last")
    centres = trained.load(CENTRES)[0]["centres"]
    item = trained.splits.fit[1]
    photos = [photo.path for photo in trained.photos() if photo.item_id == item]
    np.testing.assert_allclose(centres[1], old.embedder().embed(photos).vectors.mean(axis=0), atol=1e-6)
    assert torch.equal(trained.load(LAST)[0]["loss.centres"], centres)  # which is not trained


@pytest.mark.slow
def test_queries_of_the_new_model_find_items_among_the_old_vectors(
    run: Run, old: Bundle, catalogue: Path, tmp_path: Path
) -> None:
    trained = train_compatible(catalogue, old, tmp_path / "run", epochs=8)
    photos = [photo for photo in read_catalogue(catalogue) if photo.item_id in trained.splits.fit]
    items = np.array([photo.item_id for photo in photos])
    reader = PhotoReader(photos, trained.preprocessing)
    gallery = old.embedder().embed([photo.path for photo in photos]).vectors
    similar = embed_photos(trained.best_model(), reader, len(photos), trained.preprocessing) @ gallery.T
    np.fill_diagonal(similar, -1)
    assert float((items[similar.argmax(axis=1)] == items).mean()) > 0.6  # 1 of 13 by chance
    assert compatible_with(run) is None


@pytest.mark.slow
def test_its_bundle_names_the_earlier_model_and_keeps_its_vectors_as_trained(
    trained: Run, old: Bundle, tmp_path: Path
) -> None:
    bundle = export(trained, tmp_path / "bundle", allow_estimate=True)
    assert Bundle.open(bundle.path).compatible_with == old.embedding_id
    assert bundle.manifest["distance"] == {"form": "plain"}
    assert [tried["whitened"] for tried in bundle.manifest["evidence"]["distances_tried"]] == [False]


def test_local_features_cannot_be_compatible(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="verify must be auto or off here, because galleries of the earlier"):
        export(trained, tmp_path / "verified", allow_estimate=True, verify="on")


def test_what_cannot_be_compatible_is_refused(catalogue: Path, old: Bundle, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidParameter, match=r"dim must be 48, the embedding size of the bundle in --compatible-with.*--dim 48"
    ):
        train(tiny_settings(catalogue), tmp_path / "run", compatible_with=old)
    assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidParameter, match="projector"):
        check_settings(tiny_settings(catalogue, dim=DIM, projector=8), old)
    with pytest.raises(InvalidParameter, match="compatible_weight"):
        tiny_settings(catalogue, compatible_weight=-1.0)


def test_a_run_may_continue_another_and_be_compatible(trained: Run, old: Bundle, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    begin_run(trained.settings, run.path, start=trained, compatible_with=old)
    start = run.load(START)[0]
    assert not any(name.startswith("loss.") for name in start)  # smooth_ap has no parameters of its own
    assert torch.equal(F.normalize(run.load(CENTRES)[0]["centres"]), F.normalize(trained.load(CENTRES)[0]["centres"]))
