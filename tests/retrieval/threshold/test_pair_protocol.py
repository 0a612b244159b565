import numpy as np
import pytest

from retrieval.errors import CalibrationError
from retrieval.metrics.consistency import opis, utility_curves
from retrieval.metrics.identification import SearchScores
from retrieval.threshold.pair_protocol import calibrate_pairs

from .test_gallery_size import searches, simulated


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, list[str], SearchScores]:
    vectors, labels = simulated(100, 5, seed=0)
    return vectors, [f"item-{label}" for label in labels], searches(vectors, labels, np.arange(100), 5)


def test_the_threshold_lies_in_the_range_and_no_other_has_more_utility(
    world: tuple[np.ndarray, list[str], SearchScores],
) -> None:
    vectors, labels, scores = world
    point = calibrate_pairs(vectors, labels, scores, far_range=(1e-3, 1e-2), allow_estimate=True)
    found = opis(vectors, labels, far_range=(1e-3, 1e-2))
    assert found.d_min <= point.threshold <= found.d_max
    curves = utility_curves(vectors, labels, np.linspace(found.d_min, found.d_max, 300))
    here = utility_curves(vectors, labels, [point.threshold])
    error = curves.utility.std(axis=0, ddof=1).max() / 10
    assert here.utility.mean() >= curves.utility.mean(axis=0).max() - error
    assert point.evidence["far_mean_over_items"] == pytest.approx(1 - here.specificity.mean(), abs=1e-6)
    assert 1e-3 <= point.evidence["far_mean_over_items"] <= 1e-2
    assert point.status == "estimated"
    assert "FAR 0.0" in point.describe()


def test_an_estimate_must_be_allowed(world: tuple[np.ndarray, list[str], SearchScores]) -> None:
    with pytest.raises(CalibrationError, match="never certified"):
        calibrate_pairs(*world)
