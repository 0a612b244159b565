import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from index.gallery import Gallery
from retrieval.bundle.bundle import CALIBRATION, REPORT, Bundle
from retrieval.bundle.calibration_set import CalibrationSet
from retrieval.cli.main import group
from retrieval.errors import BundleError, CalibrationError, InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates
from retrieval.retriever import Retriever
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.certainty import without_uncertain
from retrieval.threshold.forecast import fpir_forecast
from retrieval.threshold.pair_protocol import calibrate_pairs
from retrieval.threshold.recalibrate import propose, recalibrate
from retrieval.threshold.targets import Target

from ...world import draw, encode, make_bundle
from .test_gallery_size import searches, simulated

pytestmark = pytest.mark.usefixtures("empty_pictures")


@pytest.fixture(scope="module")
def scores() -> SearchScores:
    vectors, labels = simulated(300, 4, seed=0)
    return searches(vectors, labels, np.arange(300), 4)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the report's pictures out, which take seconds."""
    monkeypatch.setattr("retrieval.threshold.recalibrate.render_report", lambda data: "")


@pytest.fixture
def bundle(scores: SearchScores, tmp_path: Path) -> Bundle:
    packed = CalibrationSet(
        scores, None, np.arange(len(scores.own)).astype(str), np.ones(len(scores.own), np.float32)
    ).pack()
    return make_bundle(tmp_path / "bundle", point=calibrate(scores), files={CALIBRATION: packed})


def test_searches_survive_a_bundle(bundle: Bundle, scores: SearchScores) -> None:
    again = bundle.require_calibration()
    assert (again.scores.own == scores.own).all()
    assert (again.scores.near == scores.near).all()
    assert again.groups is None
    assert calibrate(again.scores).threshold == bundle.threshold


@pytest.mark.usefixtures("no_pictures")
def test_another_promise_is_another_bundle_of_the_same_model(bundle: Bundle, tmp_path: Path) -> None:
    looser = recalibrate(bundle, tmp_path / "looser", target=Target(fpir=0.1))
    larger = recalibrate(bundle, tmp_path / "larger", gallery_size=2000)
    assert larger.threshold < bundle.threshold < looser.threshold
    assert len({bundle.bundle_id, looser.bundle_id, larger.bundle_id}) == 3
    assert bundle.embedding_id == looser.embedding_id == larger.embedding_id
    assert larger.manifest["evidence"]["recalibrated_from"] == bundle.bundle_id
    assert larger.require_calibration().scores.gallery_items == 300
    again = recalibrate(larger, tmp_path / "again")
    assert again.operating_point == larger.operating_point  # what it promises now is kept


def test_an_estimate_is_not_the_default(bundle: Bundle) -> None:
    with pytest.raises(CalibrationError, match=r"cannot certify an FPIR of 0\.001"):
        propose(bundle, target=Target(fpir=0.001))
    assert propose(bundle, target=Target(fpir=0.001), allow_estimate=True).point.status == "estimated"


@pytest.mark.usefixtures("no_pictures")
def test_searches_of_one_group_stay_one_observation(scores: SearchScores, tmp_path: Path) -> None:
    groups = np.array([int(label) // 3 for label in scores.labels])
    ids = np.arange(len(groups)).astype(str)
    packed = CalibrationSet(scores, groups, ids, np.ones(len(groups), np.float32)).pack()
    point = calibrate(scores, target_fpir=0.1, groups=groups)
    grouped = make_bundle(tmp_path / "grouped", point=point, files={CALIBRATION: packed})
    again = recalibrate(grouped, tmp_path / "again").operating_point
    assert (again.threshold, again.evidence["clusters"]) == (point.threshold, 100)
    assert calibrate(scores, target_fpir=0.1).evidence["clusters"] == 300


def test_without_matplotlib_a_bundle_has_no_report(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert REPORT not in recalibrate(bundle, tmp_path / "new", target=Target(fpir=0.1)).further_files


@pytest.fixture
def doubting(scores: SearchScores, tmp_path: Path) -> tuple[Bundle, SearchScores]:
    """Return a bundle that answers below a certainty of 1 with a no-match, and what its searches return then.

    The uncertain tenth of the searches are those with the nearest impostors.
    """
    uncertain = scores.impostor < np.quantile(scores.impostor, 0.1)
    certainties = np.where(uncertain, 0.5, 1.5).astype(np.float32)
    served = without_uncertain(scores, certainties, 1.0)
    point = replace(calibrate(served), min_certainty=1.0)
    ids = np.arange(len(scores.own)).astype(str)
    packed = CalibrationSet(scores, None, ids, certainties).pack()
    return make_bundle(tmp_path / "doubting", point=point, files={CALIBRATION: packed}), served


@pytest.mark.usefixtures("no_pictures")
def test_uncertain_searches_stay_no_matches(
    doubting: tuple[Bundle, SearchScores], scores: SearchScores, tmp_path: Path
) -> None:
    """An uncertain search returns nothing: what it would have found must neither tighten nor loosen the threshold."""
    bundle, served = doubting
    again = recalibrate(bundle, tmp_path / "again").operating_point
    assert (again.threshold, again.status, again.min_certainty) == (bundle.threshold, "certified", 1.0)
    assert again.evidence["fpir"] == bundle.operating_point.evidence["fpir"]
    looser = recalibrate(bundle, tmp_path / "looser", target=Target(fpir=0.1)).operating_point
    assert (
        looser.threshold == calibrate(served, target_fpir=0.1).threshold > calibrate(scores, target_fpir=0.1).threshold
    )
    assert looser.evidence["fpir"] == identification_rates(served, looser.threshold).fpir
    target = Target(far=0.001)
    pairs = recalibrate(bundle, tmp_path / "pairs", target=target).operating_point
    assert pairs.target_fpir == target.as_fpir(served) != target.as_fpir(scores)


def test_the_fpir_forecast_leaves_uncertain_searches_out(doubting: tuple[Bundle, SearchScores]) -> None:
    bundle, served = doubting
    told = fpir_forecast(bundle, 299)
    assert told.fpir == pytest.approx(identification_rates(served, bundle.threshold).fpir, abs=2e-3)


def test_an_outgrown_gallery_is_told(bundle: Bundle) -> None:
    small, large, huge = (fpir_forecast(bundle, items) for items in (200, 2000, 20_000))
    assert small.warning() == ""
    assert not small.outgrown
    assert small.fpir < large.fpir < huge.fpir
    assert "2000 items and the threshold was set for 300" in large.warning()
    assert "a guess" in huge.warning()
    assert "a guess" not in large.warning()


def test_a_bundle_without_searches_says_so(world: Path) -> None:
    plain = Bundle.open(world / "bundle")
    assert fpir_forecast(plain, 10) is None
    with pytest.raises(BundleError, match="no calibration searches"):
        recalibrate(plain, world / "never")


def test_a_bundle_of_pairs_is_refused(scores: SearchScores, tmp_path: Path) -> None:
    vectors, labels = simulated(300, 4, seed=0)
    items = [f"item-{label}" for label in labels]
    pairs = calibrate_pairs(vectors, items, scores, far_range=(0.01, 0.1), allow_estimate=True)
    packed = CalibrationSet(
        scores, None, np.arange(len(scores.own)).astype(str), np.ones(len(scores.own), np.float32)
    ).pack()
    bundle = make_bundle(tmp_path / "pairs", point=pairs, files={CALIBRATION: packed})
    for options in ({}, {"allow_estimate": True}, {"target": Target(fpir=0.05)}, {"gallery_size": 1000}):
        with pytest.raises(CalibrationError, match="a threshold for pairs"):
            recalibrate(bundle, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()
    assert fpir_forecast(bundle, 100_000) is None  # and no warning sends anybody there


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


@pytest.mark.usefixtures("no_pictures")
def test_a_gallery_serves_the_new_threshold_at_once(bundle: Bundle, tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "gallery", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        photos = [encode(draw(item, 0)) for item in range(8)]
        vectors = bundle.embedder().embed(photos).vectors
        gallery.add([str(i) for i in range(8)], [f"item-{i}" for i in range(8)], vectors)
        moved = recalibrate(bundle, tmp_path / "moved", target=Target(fpir=0.2))
        answers = [Retriever(b, gallery).search(photos[3]) for b in (bundle, moved)]
    assert [answer.threshold for answer in answers] == [bundle.threshold, moved.threshold]
    assert {answer.matches[0].item_id for answer in answers} == {"item-3"}
