from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retrieval.bundle.bundle import CALIBRATION, Bundle
from retrieval.bundle.calibration_set import CalibrationSet
from retrieval.metrics.identification import SearchScores, identification_rates
from retrieval.threshold.calibrate import calibrate
from retrieval.threshold.certainty import without_uncertain
from retrieval.threshold.forecast import fpir_forecast
from retrieval.threshold.pair_protocol import calibrate_pairs

from ...world import make_bundle
from .test_gallery_size import searches, simulated

pytestmark = pytest.mark.usefixtures("empty_pictures")


@pytest.fixture(scope="module")
def scores() -> SearchScores:
    vectors, labels = simulated(300, 4, seed=0)
    return searches(vectors, labels, np.arange(300), 4)


@pytest.fixture
def bundle(scores: SearchScores, tmp_path: Path) -> Bundle:
    packed = CalibrationSet(
        scores, None, np.arange(len(scores.own)).astype(str), np.ones(len(scores.own), np.float32)
    ).pack()
    return make_bundle(tmp_path / "bundle", point=calibrate(scores), files={CALIBRATION: packed})


def test_searches_survive_a_bundle(bundle: Bundle, scores: SearchScores) -> None:
    again = bundle.calibration
    assert (again.scores.own == scores.own).all()
    assert (again.scores.near == scores.near).all()
    assert again.groups is None
    assert calibrate(again.scores).threshold == bundle.threshold


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
    assert "`retrieval calibrate BUNDLE GALLERY`" in large.warning()
    assert "`retrieval calibrate b g`" in large.warning(Path("b"), "g")


def test_a_bundle_without_searches_or_of_pairs_has_no_forecast(
    world: Path, scores: SearchScores, tmp_path: Path
) -> None:
    assert fpir_forecast(Bundle.open(world / "bundle"), 10) is None
    searched = CalibrationSet(
        scores, None, np.arange(len(scores.own)).astype(str), np.ones(len(scores.own), np.float32)
    )
    made = make_bundle(tmp_path / "made", point=calibrate(scores), files={CALIBRATION: searched.pack()})
    assert fpir_forecast(made, 0) is None
    vectors, labels = simulated(300, 4, seed=0)
    items = [f"item-{label}" for label in labels]
    pairs = calibrate_pairs(vectors, items, scores, far_range=(0.01, 0.1), allow_estimate=True)
    packed = CalibrationSet(
        scores, None, np.arange(len(scores.own)).astype(str), np.ones(len(scores.own), np.float32)
    ).pack()
    bundle = make_bundle(tmp_path / "pairs", point=pairs, files={CALIBRATION: packed})
    assert fpir_forecast(bundle, 100_000) is None  # and no warning sends anybody to `calibrate`
