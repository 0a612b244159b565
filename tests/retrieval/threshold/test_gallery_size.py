import numpy as np
import pytest

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.threshold.calibrate import calibrate, size_model
from retrieval.threshold.gallery_size import GallerySize


def simulated(items: int, photos: int, *, seed: int, crowds: int = 40, dim: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors and labels of items in crowds of different width."""
    generator = np.random.default_rng(seed)
    crowd = generator.integers(crowds, size=items)
    width = generator.uniform(0.5, 1.2, size=(crowds, 1))
    centres = generator.normal(size=(crowds, dim))[crowd] + width[crowd] * generator.normal(size=(items, dim))
    labels = np.repeat(np.arange(items), photos)
    spread = generator.uniform(0.2, 0.5, size=(items, 1))
    vectors = centres[labels] + spread[labels] * generator.normal(size=(len(labels), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def searches(vectors: np.ndarray, labels: np.ndarray, items: np.ndarray, photos: int) -> SearchScores:
    """Return what photos of some items find: the last photo of each is in the gallery, the others ask."""
    mine, last = np.isin(labels, items), np.arange(len(labels)) % photos == photos - 1
    return search_scores(vectors[mine & ~last], labels[mine & ~last], vectors[mine & last], labels[mine & last])


@pytest.fixture(scope="module")
def scores() -> SearchScores:
    vectors, labels = simulated(300, 4, seed=0)
    return searches(vectors, labels, np.arange(300), 4)


def test_at_its_own_size_it_is_what_was_observed(scores: SearchScores) -> None:
    size = size_model(scores)
    for threshold in np.quantile(scores.impostor, [0.01, 0.1, 0.5]):
        assert size.fpir(float(threshold), 299) == pytest.approx((scores.impostor <= threshold + 1e-5).mean(), abs=2e-3)


def test_a_smaller_gallery_is_the_mean_over_its_subsets(scores: SearchScores) -> None:
    size, threshold = size_model(scores), float(np.quantile(scores.impostor, 0.3))
    counts = (scores.near <= threshold).sum(axis=1)
    generator = np.random.default_rng(0)
    drawn = [(generator.permuted(np.arange(299) < c)[:100]).any() for c in counts for _ in range(20)]
    assert size.fpir(threshold, 100) == pytest.approx(np.mean(drawn), abs=0.01)


def test_it_grows_with_gallery_and_threshold(scores: SearchScores) -> None:
    size = size_model(scores)
    sizes = [10, 100, 299, 300, 1000, 3000, 30_000]
    for threshold in np.quantile(scores.impostor, [0.001, 0.01, 0.1, 0.5]):
        rates = [size.fpir(float(threshold), items) for items in sizes]
        assert all(a <= b + 1e-9 or n == 300 for a, b, n in zip(rates, rates[1:], sizes[1:], strict=False))
        assert rates[3] == pytest.approx(rates[2], rel=0.35, abs=2e-3)  # where the model takes over
    rates = [size.fpir(t, 3000) for t in np.linspace(0, 1.2, 60)]
    assert (np.diff(rates) > -0.01).all()
    assert (rates[0], rates[-1]) == (0, pytest.approx(1, abs=0.05))


@pytest.mark.parametrize("items", [100, 299, 2000])
def test_the_threshold_of_a_rate_keeps_it_and_no_larger_one_does(scores: SearchScores, items: int) -> None:
    size = size_model(scores)
    threshold = size.threshold(0.05, items)
    assert size.fpir(threshold, items) <= 0.05 < size.fpir(threshold + 1e-3, items) + 2e-3
    with pytest.raises(InvalidParameter, match="fpir"):
        size.threshold(1.0, items)


@pytest.mark.slow
def test_ten_times_the_gallery_is_predicted() -> None:
    """Over eight catalogues, where the measured rate is between 0.01 and 0.3 with 30 events or more."""
    ratios = []
    for seed in range(8):
        vectors, labels = simulated(3600, 6, seed=seed)
        generator = np.random.default_rng(seed)
        size = size_model(searches(vectors, labels, generator.permutation(3600)[:300], 6))
        truth = searches(vectors, labels, generator.permutation(3600)[:3000], 6)
        thresholds = np.quantile(truth.impostor, [0.01, 0.03, 0.1, 0.3])
        ratios.append([size.fpir(float(t), 2999) / f for t, f in zip(thresholds, [0.01, 0.03, 0.1, 0.3], strict=True)])
    assert (np.abs(np.log(np.median(ratios, axis=0))) < np.log(1.5)).all()


def test_a_larger_gallery_gets_a_stricter_threshold(scores: SearchScores) -> None:
    points = [calibrate(scores, gallery_size=items, allow_estimate=True) for items in (100, 300, 1000, 3000)]
    thresholds = [point.threshold for point in points]
    assert thresholds == sorted(thresholds, reverse=True)
    assert all(point.evidence["fpir"] <= 0.05 for point in points)
    assert [point.evidence["gallery_size"] for point in points] == [100, 300, 1000, 3000]
    assert points[1] == calibrate(scores, allow_estimate=True)


def test_far_out_nothing_is_certified(scores: SearchScores) -> None:
    assert calibrate(scores, gallery_size=1000).status == "certified"
    with pytest.raises(CalibrationError, match="3001 items are more than 10 times the 300"):
        calibrate(scores, gallery_size=3001)
    assert calibrate(scores, gallery_size=3001, allow_estimate=True).status == "estimated"


def test_broken_rules_are_named(scores: SearchScores) -> None:
    with pytest.raises(InvalidParameter, match="items must be at least 1"):
        size_model(scores).fpir(0.5, 0)
    with pytest.raises(InvalidParameter, match="near"):
        GallerySize(np.zeros((0, 3)), 10)
