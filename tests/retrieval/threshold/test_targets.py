from dataclasses import replace

import numpy as np
import pytest

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir
from retrieval.threshold.targets import Target

from .test_calibrate import searches


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"precision": 0.9}, "mated_share"),
        ({"fpir": 0.1, "far": 0.01}, "one of FPIR, FAR and precision"),
        ({"fpir": 1.5}, "lie between 0 and 1"),
    ],
)
def test_targets_that_make_no_sense_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Target(**values)


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


def few(seed: int) -> SearchScores:
    """Return 30 searches, a third of them without a mate, at distances of a coarse grid: many are equal."""
    generator = np.random.default_rng(seed)
    own = np.where(np.arange(30) % 3 == 0, np.inf, generator.integers(1, 9, 30) / 8)
    impostor = np.where(generator.random(30) < 0.1, np.inf, generator.integers(3, 13, 30) / 8)
    return SearchScores(np.arange(30), own, impostor, 30)


def largest_with(scores: SearchScores, precision: float, share: float) -> float | None:
    """Return the FPIR of the largest threshold of a precision, by trying them all."""
    best = None
    for threshold in np.arange(0, 13) / 8:
        rates = identification_rates(scores, float(threshold))
        right = share * rates.tpir
        answered = right + share * rates.misidentification + (1 - share) * rates.fpir
        if answered and right / answered >= precision:
            best = rates.fpir
    return best


def test_a_precision_is_that_of_the_largest_threshold_that_reaches_it() -> None:
    reached = 0
    for seed in range(20):
        scores = few(seed)
        for precision, share in ((0.5, 0.5), (0.75, 0.5), (0.6, 0.9), (0.9, 0.9)):
            expected = largest_with(scores, precision, share)
            target = Target(precision=precision, mated_share=share)
            if expected is None or expected in (0.0, 1.0):
                with pytest.raises(CalibrationError, match=r"no threshold reaches|amounts to an FPIR of [01] "):
                    target.as_fpir(scores)
            else:
                reached += 1
                assert target.as_fpir(scores) == expected
    assert reached > 20


def test_a_precision_of_exactly_what_is_reached_is_met() -> None:
    """At 0.4 half of the mated searches are right and a quarter of all find a stranger: right are 2 of 3 answers."""
    own, impostor = np.array([0.2, 0.9, np.inf, np.inf]), np.array([1.0, 1.0, 0.4, 1.0])
    scores = SearchScores(np.arange(4), own, impostor, 4)
    assert identification_rates(scores, 0.4).tpir == 1 / 2
    assert identification_rates(scores, 0.4).fpir == 1 / 4
    assert Target(precision=2 / 3, mated_share=0.5).as_fpir(scores) == 1 / 4


@pytest.mark.parametrize("far", [0.01, 0.03, 0.06, 0.1])
def test_a_far_is_that_of_the_largest_threshold_that_keeps_it(far: float) -> None:
    """Of pairs on a coarse grid of distances, so that many are equal; all 20 others of 21 items are known."""
    generator = np.random.default_rng(1)
    near = np.sort(generator.integers(20, 80, size=(60, 20)) / 64, axis=1)
    scores = SearchScores(np.arange(60), np.full(60, 0.1), near[:, 0], 21, near)
    kept = [t for t in np.arange(0, 81) / 64 if (near <= t).mean() <= far]
    assert Target(far=far).as_fpir(scores) == (near[:, 0] <= kept[-1]).mean()


def test_a_far_beyond_the_nearest_items_that_are_kept_is_refused() -> None:
    """Three items of many are kept a query: pairs beyond 0.5, the first query's third item, are not known."""
    near = np.array([[0.3, 0.35, 0.5], [0.4, 0.8, 0.85], [0.6, 0.9, 0.95]])
    scores = SearchScores(np.arange(3), np.full(3, 0.1), near[:, 0], 11, near)  # 30 pairs
    assert Target(far=3.5 / 30).as_fpir(scores) == pytest.approx(2 / 3)  # three pairs are below 0.5
    for far in (4.5 / 30, 0.2, 0.3, 0.9):
        with pytest.raises(CalibrationError, match=f"a FAR of {far:g} accepts more than the 3 items nearest"):
            Target(far=far).as_fpir(scores)


def test_a_far_of_any_size_is_known_where_all_items_are_kept() -> None:
    """Half of the photos are near all three other items, half are far from all: half of all pairs, at 0.5."""
    near = np.repeat([[0.1, 0.2, 0.3], [0.7, 0.8, 0.9]], 10, axis=0)
    scores = SearchScores(np.arange(20), np.full(20, 0.05), near[:, 0], 4, near)
    assert Target(far=0.5).as_fpir(scores) == 1 / 2
    with pytest.raises(CalibrationError, match=r"a FAR of 0\.5 accepts more than the 3 items nearest"):
        Target(far=0.5).as_fpir(replace(scores, gallery_items=5))


def test_a_far_that_accepts_every_pair_is_refused() -> None:
    """Of four pairs three are known to have a distance: the fourth is of a search that was rejected."""
    near = np.array([[0.1, 0.2], [0.3, np.inf]])
    with pytest.raises(CalibrationError, match=r"a FAR of 0\.75 accepts more"):
        Target(far=0.75).as_fpir(SearchScores(np.arange(2), np.full(2, 0.05), near[:, 0], 3, near))


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", ["fpir", "far", "precision", "mated_share"])
def test_a_share_lies_between_nothing_and_all(name: str, value: float) -> None:
    values = {"precision": 0.9, "mated_share": 0.5} if name in ("precision", "mated_share") else {}
    with pytest.raises(InvalidParameter, match=f"target {name} must lie between 0 and 1"):
        Target(**values | {name: value})


def test_one_target_is_given_and_a_share_with_a_precision_alone() -> None:
    for values in ({}, {"fpir": 0.1, "far": 0.1}, {"far": 0.1, "precision": 0.9, "mated_share": 0.5}):
        with pytest.raises(InvalidParameter, match="be one of FPIR, FAR and precision"):
            Target(**values)
    for values in ({"precision": 0.9}, {"fpir": 0.1, "mated_share": 0.5}, {"far": 0.1, "mated_share": 0.5}):
        with pytest.raises(InvalidParameter, match="with a precision, and only then"):
            Target(**values)
    assert Target(fpir=0.07).as_fpir(few(0)) == 0.07


def test_a_target_that_amounts_to_nothing_or_all_is_refused() -> None:
    own, impostor = np.array([0.2, 0.3, 0.4]), np.array([0.9, 0.9, 0.9])
    scores = SearchScores(np.arange(3), own, impostor, 3)
    with pytest.raises(CalibrationError, match="amounts to an FPIR of 1 "):
        Target(precision=0.5, mated_share=0.9).as_fpir(scores)
    with pytest.raises(CalibrationError, match="amounts to an FPIR of 0 "):
        Target(precision=0.99, mated_share=0.5).as_fpir(scores)


def test_targets_out_of_reach_are_refused() -> None:
    scores = searches(100)
    hopeless = SearchScores(scores.labels, scores.own + 1, scores.impostor, 100)
    with pytest.raises(CalibrationError, match=r"no threshold reaches a precision of 0\.99"):
        Target(precision=0.99, mated_share=0.1).as_fpir(hopeless)
    near = np.sort(np.random.default_rng(0).uniform(size=(100, 5)), axis=1)
    with pytest.raises(CalibrationError, match="more than the 5 items nearest"):
        Target(far=0.5).as_fpir(SearchScores(np.arange(100), np.full(100, 0.1), near[:, 0], 200, near))
