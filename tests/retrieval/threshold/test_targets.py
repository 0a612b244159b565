import numpy as np
import pytest

from retrieval.errors import CalibrationError
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from retrieval.threshold.targets import Target

from .test_calibrate import searches


def test_a_precision_is_reached_on_the_searches_it_is_asked_of() -> None:
    scores = searches(300)
    for share in (0.2, 0.8):
        fpir = Target(precision=0.9, mated_share=share).as_fpir(scores)
        rates = identification_rates(scores, threshold_at_fpir(scores, fpir))
        wrong = share * rates.misidentification + (1 - share) * rates.fpir
        assert share * rates.tpir / (share * rates.tpir + wrong) == pytest.approx(0.9, abs=0.01)
    assert Target(precision=0.9, mated_share=0.2).as_fpir(scores) < Target(precision=0.9, mated_share=0.8).as_fpir(
        scores
    )


def test_a_far_counts_pairs_of_a_photo_and_an_item() -> None:
    generator = np.random.default_rng(0)
    near = np.sort(generator.uniform(0.5, 1.5, size=(400, 20)), axis=1)
    scores = SearchScores(np.repeat(np.arange(100), 4), np.full(400, 0.4), near[:, 0], 21, near)
    fpir = Target(far=0.01).as_fpir(scores)
    threshold = np.sort(near.ravel())[80]  # 1 % of 8,000 pairs
    assert fpir == pytest.approx((near[:, 0] < threshold).mean())


def test_targets_out_of_reach_are_refused() -> None:
    scores = searches(100)
    hopeless = SearchScores(scores.labels, scores.own + 1, scores.impostor, 100)
    with pytest.raises(CalibrationError, match=r"no threshold reaches a precision of 0\.99"):
        Target(precision=0.99, mated_share=0.1).as_fpir(hopeless)
    near = np.sort(np.random.default_rng(0).uniform(size=(100, 5)), axis=1)
    with pytest.raises(CalibrationError, match="more than the 5 items nearest"):
        Target(far=0.5).as_fpir(SearchScores(np.arange(100), np.full(100, 0.1), near[:, 0], 200, near))
