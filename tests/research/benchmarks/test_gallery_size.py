import numpy as np
import pytest
from scipy import stats

from research.benchmarks.gallery_size import GallerySize, size_model
from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores
from tests.retrieval.threshold.simulated import searches, simulated


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


@pytest.mark.parametrize("drawn", [1, 2, 50, 298, 299])
def test_a_smaller_gallery_avoids_by_the_hypergeometric_distribution(scores: SearchScores, drawn: int) -> None:
    for threshold in np.quantile(scores.near, [0.0, 0.001, 0.1, 0.5, 1.0]):
        within = (scores.near <= threshold).sum(axis=1)
        expected = 1 - stats.hypergeom(299, within, drawn).pmf(0)
        np.testing.assert_allclose(size_model(scores).chances(float(threshold), drawn), expected, atol=1e-10)


def predicted(near: np.ndarray, known: int, threshold: float, items: int) -> np.ndarray:
    """Return the chances beyond the calibrated gallery as the module's first lines say, by scipy."""
    pooled = np.sort(near[np.isfinite(near)])
    tail = min(max(50, int(0.05 * len(near))), len(pooled))
    edge = pooled[tail - 1]
    exponent = max(tail - 2, 1) / np.log(edge / pooled[: tail - 1]).sum()  # Hill, without its bias
    power_law = tail / len(near) * (threshold / edge) ** exponent
    mean = (pooled <= threshold).sum() / len(near) if threshold >= edge else power_law
    counts = (near <= max(threshold, edge)).sum(axis=1)
    shapes = np.exp(np.linspace(-5, 5, 81))
    fits = [stats.nbinom.logpmf(counts, a, a / (a + counts.mean())).sum() for a in shapes]
    a = shapes[int(np.argmax(fits))]
    b = a / (mean / known)
    return 1 - ((b + known) / (b + known + items)) ** (a + (near <= threshold).sum(axis=1))


@pytest.mark.parametrize("queries", [30, 900, pytest.param(2400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("items", [300, 1000, 30_000])
def test_a_larger_gallery_is_what_the_model_says(queries: int, items: int) -> None:
    """With few queries the tail is 50 distances, with many 5 % of them."""
    generator = np.random.default_rng(queries)
    crowded = generator.gamma(0.7, size=(queries, 1))
    near = np.sort((generator.random((queries, 32)) / (0.2 + crowded)) ** 0.2, axis=1)
    near[generator.random(queries) < 0.01] = np.inf  # of uncertain searches
    size = GallerySize(near, 299)
    pooled = np.sort(near[np.isfinite(near)])
    for threshold in [*pooled[[0, 30, 48, 49, 50, 119, 120, 121, 400, 900]], pooled[0] / 2, pooled[49] * 0.99]:
        expected = predicted(near, 299, float(threshold), items)
        np.testing.assert_allclose(size.chances(float(threshold), items), expected, rtol=1e-9, atol=1e-12)
        assert size.fpir(float(threshold), items) == pytest.approx(expected.mean())


@pytest.mark.parametrize("near", [[[0.4, 0.5]], [[0.4, 0.45, 0.5]], [[0.3, 0.4], [0.35, 0.5]]])
def test_a_tail_of_two_or_three_distances_has_a_power_law(near: list[list[float]]) -> None:
    for threshold in (0.2, 0.39, 0.47, 0.5, 0.6):
        expected = predicted(np.array(near), 5, threshold, 20)
        assert GallerySize(np.array(near), 5).chances(threshold, 20) == pytest.approx(expected)


def test_no_distance_is_below_zero(scores: SearchScores) -> None:
    for threshold in (-0.1, 0.0):
        assert size_model(scores).fpir(threshold, 3000) == size_model(scores).fpir(threshold, 30) == 0


def test_equal_distances_have_no_tail_below_them() -> None:
    size = GallerySize(np.full((100, 3), 0.5), 10)
    assert size.fpir(0.499, 1000) == 0
    assert size.fpir(0.5, 1000) > 0.99
    assert size.fpir(0.0, 1000) == size.fpir(-0.1, 1000) == 0


def test_a_photo_that_equals_another_item_does_not_spoil_the_tail() -> None:
    near = np.sort(np.random.default_rng(0).random((900, 8)) ** 0.2, axis=1)
    near[0, 0] = 0.0
    assert 0 < GallerySize(near, 299).fpir(0.2, 1000) < GallerySize(near, 299).fpir(0.3, 1000) < 1


def test_a_gallery_has_no_more_other_items_than_it_holds() -> None:
    near = np.array([[0.1, 0.2, 0.3, 0.4, np.inf, np.inf, np.inf, np.inf]])  # of five items, one of them the query's
    small = size_model(SearchScores(np.array([0]), np.array([0.05]), near[:, 0], 5, near))
    assert (small.items, small.near.tolist()) == (4, [[0.1, 0.2, 0.3, 0.4]])
    assert small.fpir(0.25, 2) == pytest.approx(5 / 6)  # of the six pairs of items one holds none of the nearest two


def test_where_nothing_is_near_nothing_is_returned() -> None:
    size = GallerySize(np.array([[0.4, np.inf], [np.inf, np.inf]]), 10)
    assert size.threshold(0.001, 2) < 0.4
    assert size.threshold(0.999, 10) == pytest.approx(0.4, abs=2e-9)
    assert GallerySize(np.full((5, 2), np.inf), 10).threshold(0.5, 5) == 0.0


@pytest.mark.parametrize("items", [1, 10, 100, 299])
@pytest.mark.parametrize("fpir", [0.01, 0.05, 0.3])
def test_the_threshold_of_a_rate_is_exact_where_nothing_is_modelled(
    scores: SearchScores, items: int, fpir: float
) -> None:
    size = size_model(scores)
    threshold = size.threshold(fpir, items)
    assert size.fpir(threshold, items) <= fpir
    assert size.fpir(threshold + 2e-9, items) > fpir or threshold > scores.near.max() - 2e-9


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


def test_broken_rules_are_named(scores: SearchScores) -> None:
    for items in (0, -1):
        with pytest.raises(InvalidParameter, match="items must be at least 1"):
            size_model(scores).fpir(0.5, items)
    for near in (np.zeros((0, 3)), np.zeros((3, 0)), np.zeros(3)):
        with pytest.raises(InvalidParameter, match="near must be"):
            GallerySize(near, 10)
    with pytest.raises(InvalidParameter, match="items must be at least the number of nearest items"):
        GallerySize(np.zeros((3, 5)), 4)
    assert GallerySize(np.full((3, 5), 0.5), 5).fpir(0.5, 1) == 1
    for fpir in (0.0, 1.0, -0.1, 1.1, float("nan")):
        with pytest.raises(InvalidParameter, match="fpir must lie between 0 and 1"):
            size_model(scores).threshold(fpir, 10)
    with pytest.raises(InvalidParameter, match="scores must hold the distances to the nearest items"):
        size_model(SearchScores(scores.labels, scores.own, scores.impostor, 300))
