from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.bundle.bundle import CALIBRATION, Bundle
from retrieval.cli.main import group
from retrieval.errors import BundleError, InvalidParameter
from retrieval.metrics.identification import SearchScores
from retrieval.retriever import Retriever
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.recalibrate import Searches, outlook, pack_searches, recalibrate, searches_of
from retrieval.threshold.targets import Target

from ...world import draw, encode, make_bundle
from .test_gallery_size import searches, simulated


@pytest.fixture(scope="module")
def scores() -> SearchScores:
    vectors, labels = simulated(300, 4, seed=0)
    return searches(vectors, labels, np.arange(300), 4)


@pytest.fixture
def bundle(scores: SearchScores, tmp_path: Path) -> Bundle:
    packed = pack_searches(
        Searches(scores, None, np.arange(len(scores.own)).astype(str), np.ones(len(scores.own), np.float32))
    )
    return make_bundle(tmp_path / "bundle", point=calibrate(scores), files={CALIBRATION: packed})


def test_searches_survive_a_bundle(bundle: Bundle, scores: SearchScores) -> None:
    again = searches_of(bundle)
    assert (again.scores.own == scores.own).all()
    assert (again.scores.near == scores.near).all()
    assert again.groups is None
    assert calibrate(again.scores).threshold == bundle.threshold


def test_another_promise_is_another_bundle_of_the_same_model(bundle: Bundle, tmp_path: Path) -> None:
    looser = recalibrate(bundle, tmp_path / "looser", target=Target(fpir=0.1))
    larger = recalibrate(bundle, tmp_path / "larger", gallery_size=2000)
    assert larger.threshold < bundle.threshold < looser.threshold
    assert len({bundle.bundle_id, looser.bundle_id, larger.bundle_id}) == 3
    assert bundle.embedding_id == looser.embedding_id == larger.embedding_id
    assert larger.manifest["evidence"]["recalibrated_from"] == bundle.bundle_id
    assert searches_of(larger).scores.gallery_items == 300
    again = recalibrate(larger, tmp_path / "again")
    assert again.operating_point == larger.operating_point  # what it promises now is kept


def test_an_outgrown_gallery_is_told(bundle: Bundle) -> None:
    small, large, huge = (outlook(bundle, items) for items in (200, 2000, 20_000))
    assert small.warning() == ""
    assert not small.outgrown
    assert small.fpir < large.fpir < huge.fpir
    assert "2000 items and the threshold was set for 300" in large.warning()
    assert "a guess" in huge.warning()
    assert "a guess" not in large.warning()


def test_a_bundle_without_searches_says_so(world: Path) -> None:
    plain = Bundle.open(world / "bundle")
    assert outlook(plain, 10) is None
    with pytest.raises(BundleError, match="no calibration searches"):
        recalibrate(plain, world / "never")


def test_the_command_line_moves_a_threshold(bundle: Bundle, tmp_path: Path) -> None:
    arguments = ["recalibrate", str(bundle.path), "-o", str(tmp_path / "new"), "--gallery-size", "1000"]
    result = CliRunner().invoke(group, arguments)
    assert result.exit_code == 0, result.output
    assert "FPIR 0.05 is certified for 1000 items" in result.output
    assert Bundle.open(tmp_path / "new").threshold < bundle.threshold


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target-precision", "0.9"], "mated_share"),
        (["--target-fpir", "0.1", "--target-far", "0.01"], "one of FPIR, FAR and precision"),
        (["--target-fpir", "1.5"], "lie between 0 and 1"),
    ],
)
def test_targets_that_make_no_sense_are_refused(
    bundle: Bundle, tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(group, ["recalibrate", str(bundle.path), "-o", str(tmp_path / "new"), *arguments])
    assert isinstance(result.exception, InvalidParameter)
    assert message in str(result.exception)
    assert not (tmp_path / "new").exists()


def test_a_gallery_serves_the_new_threshold_at_once(bundle: Bundle, tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "gallery", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        photos = [encode(draw(item, 0)) for item in range(8)]
        vectors = bundle.embedder().embed(photos).vectors
        gallery.add([str(i) for i in range(8)], [f"item-{i}" for i in range(8)], vectors)
        moved = recalibrate(bundle, tmp_path / "moved", target=Target(fpir=0.2))
        answers = [Retriever(b, gallery).search(photos[3]) for b in (bundle, moved)]
    assert [answer.threshold for answer in answers] == [bundle.threshold, moved.threshold]
    assert {answer.matches[0].item_id for answer in answers} == {"item-3"}
