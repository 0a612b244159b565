"""Rates of draws, for a point and for other kinds of query, and the sentences about them."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.measuring.draws import LABELLED, OWN, PHOTOS, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import CERTIFIED, ESTIMATED, GALLERY, Perhaps, Point, Shift
from retrieval.measuring.rates import CROSS_FITTED, Mated, VersionRates, assumptions, precision, rated
from retrieval.measuring.sentences import warning_of
from tests.retrieval.measuring.samples import all_draws, drawn_from, draws, sample, set_point


def test_an_estimated_point_keeps_its_target_within_an_error_and_a_certified_one_by_its_bound() -> None:
    """Of 400 unknown items, 20 are accepted: 5 % as observed, a little more to expect, and up to 7.2 % by the bound."""
    generator = np.random.default_rng(2)
    order = generator.permutation(400)
    drawn = DrawnDistances.of_items(np.linspace(0.1, 1, 400)[order], generator.permutation(400).astype(str))
    rates, threshold = VersionRates(drawn), drawn.at_share(0.05)
    observed, expected, upper = drawn.fpir(threshold), drawn.expected(threshold), drawn.fpir_upper(threshold)
    assert observed == pytest.approx(0.05)
    assert observed < expected < upper
    for target in (0.02, 0.03, 0.036, 0.038, 0.045, observed, expected, 0.06, upper - 0.001, upper + 0.001):
        error = 1.645 * (target * (1 - target) / 400) ** 0.5  # of an FPIR that was measured on 400 items
        for status, is_broken in (("estimated", expected > target + error), ("certified", upper > target)):
            point = Point(threshold, status, target, GALLERY)
            assert rates.broken(point) == is_broken == rates.to_dict(point)["broken"]


def own_draws(items: int) -> Draws:
    """Return one draw of each of some items, at distances of 0.5 to 1 in no order."""
    order = np.random.default_rng(items).permutation(items)
    return sample(order.astype(str), np.linspace(0.5, 1, items)[order])


@pytest.mark.parametrize(("items", "status"), [(19, None), (20, ESTIMATED), (28, ESTIMATED), (29, CERTIFIED)])
def test_other_kinds_of_query_decide_from_20_items_on_and_are_certified_like_the_point(
    items: int, status: str | None
) -> None:
    """29 items certify a target of 10 % without a single error."""
    kind = PHOTOS.format(2)
    kept = all_draws({OWN: own_draws(400), kind: own_draws(items)})
    rates = VersionRates.of(kept, Point(0.5, CERTIFIED, 0.1, GALLERY))
    assert rates is not None
    assert (rates.kinds[kind][1].status if kind in rates.kinds else None) == status
    estimated = VersionRates.of(kept, Point(0.5, ESTIMATED, 0.1, GALLERY))
    assert estimated is not None
    assert all(point.status == ESTIMATED for _, point in estimated.kinds.values())


def test_precision_counts_misidentified_and_unknown_items() -> None:
    assert precision(0.6, 0.1, 0.05, unknown=0.5) == pytest.approx(0.3 / (0.3 + 0.05 + 0.025))
    assert precision(0.2, 0.2, 0.0, unknown=0.5) == 0.5
    assert precision(0.0, 0.0, 0.0, unknown=0.5) is None


def test_a_threshold_at_exactly_its_target_is_not_broken() -> None:
    rates = VersionRates(drawn_from(draws(np.arange(1, 21) / 20, np.arange(20))))
    held, near, passed = (Point(threshold, ESTIMATED, 0.05, GALLERY) for threshold in (0.05, 0.1, 0.2))
    assert rates.fpir(0.05) == pytest.approx(0.05)
    for point in (held, near):  # 3 of 21 is within the error of 8 % of so few items
        assert not rates.broken(point)
        assert warning_of(point, rates) == ""
    assert rates.broken(passed)
    assert f"{rates.expected(0.2):.1%} of searches" in warning_of(passed, rates)
    assert rates.broken(Point(0.05, CERTIFIED, 0.05, GALLERY))  # the bound of 1 in 20 is 22 %


def test_a_broken_certificate_without_any_hit_says_the_expected_rate_and_no_zero() -> None:
    rates = VersionRates(drawn_from(draws(np.linspace(0.5, 1, 30), np.arange(30))))
    point = Point(0.4, CERTIFIED, 0.05, GALLERY)
    assert (rates.fpir(0.4), rates.broken(point)) == (0, True)
    told = warning_of(point, rates)
    assert f"{rates.expected(0.4):.1%} of searches (at most {rates.fpir_upper(0.4):.1%}" in told
    assert " 0.0%" not in told


def test_a_threshold_that_finds_nothing_any_more_has_a_tpir_of_zero_which_is_not_unknown() -> None:
    lost = draws(np.linspace(0.1, 0.5, 40), np.arange(40), own=np.full(40, 1.0))
    kept, mated = all_draws({OWN: lost}), Mated.of({OWN: lost}, gallery_items=40)
    point = rated(Point(0.2, ESTIMATED, 0.1, GALLERY), kept, drawn_from(lost), mated, items=40)
    assert (point.rates.tpir, point.rates.tpir_of, point.basis.cross_fitted) == (0, "catalogue photos", 0)
    assert point.rates.precision is not None
    assert point.rates.precision["0.5"] == 0


@pytest.mark.parametrize(("items", "photos"), [(19, "catalogue photos"), (20, "labelled queries")])
def test_labelled_queries_of_20_items_or_more_measure_the_tpir(items: int, photos: str) -> None:
    own = draws(np.linspace(0.5, 1, 40), np.arange(40), own=np.full(40, 0.1))
    labelled = draws(np.linspace(0.5, 1, items), np.arange(items), own=np.full(items, 0.1))
    assert set_point({OWN: own, LABELLED: labelled}, 0.1, items=40).rates.tpir_of == photos


def test_a_threshold_says_whether_users_photos_were_measured() -> None:
    own = draws(np.linspace(0.5, 1, 40), np.arange(40))
    measured = set_point({OWN: own}, 0.1, items=40, shift=Shift(-0.1, 0.01, 33))
    assert "as measured on 33 items" in measured.basis.assumptions[1]
    for told in (set_point({OWN: own}, 0.1, items=40).basis.assumptions, assumptions([OWN])):
        assert told[1].endswith("this was not measured.")
        assert CROSS_FITTED not in told
    few = {OWN: own, LABELLED: draws(np.linspace(0.5, 1, 5), np.arange(5))}
    told = set_point(few, 0.1, items=40).basis.assumptions
    assert "this was not measured, because the labelled photos show fewer than 20 items" in told[1]


def slow_perhaps(mated: Draws, drawn: DrawnDistances, point: Point) -> Perhaps | None:
    """Ask about each first item whose p-value is at most twice the FPIR to expect."""
    right = np.isfinite(mated.own) & np.isinf(mated.wrong)
    first = np.where(right, mated.own, mated.wrong)
    most = 2 * drawn.expected(point.threshold)

    def is_near(distances: np.ndarray) -> np.ndarray:
        """Return whether unknown items come as near seldom enough, or none has come as near."""
        shares = np.array([drawn.fpir(distance) for distance in distances])
        return (distances > point.threshold) & ((drawn.p_values(distances) <= most) | (shares == 0))

    searches = list(zip(right.tolist(), is_near(first).tolist(), strict=True))
    asked = [is_right for is_right, is_asked in searches if is_asked]
    if not asked:
        return None
    weights = np.array([1 / np.count_nonzero(drawn.codes == code) for code in drawn.codes]) / drawn.items
    known, unknown = len(asked) / len(searches), float(weights[is_near(drawn.distances)].sum())
    share = sum(asked) / len(searches) / (known + unknown)
    within = point.perhaps.within if point.perhaps is not None else 0.0
    return None if share < 0.6 else Perhaps(within, share, len(asked), known, unknown, "catalogue photos")


def test_perhaps_asks_about_first_items_as_seldom_unknown_as_matches_are_and_mostly_right() -> None:
    counts = {True: 0, False: 0}
    for seed in range(24):
        generator = np.random.default_rng(seed)
        items = np.repeat(np.arange(60), generator.integers(1, 5, 60))
        own = generator.normal(0.7 + 0.1 * (seed % 6), 0.3, len(items)).clip(0.01)
        own[generator.random(len(own)) < 0.1] = np.inf  # items with a single photo
        source = draws(generator.normal(1.2, 0.2, len(items)).clip(0.01), items, own=own)
        at_a_draw = float(np.sort(own)[3 + seed])
        for cap in (np.inf, at_a_draw):
            point, drawn = set_point({OWN: source}, 0.1, items=60, cap=cap), drawn_from(source)
            found, expected = point.perhaps, slow_perhaps(source.where(np.isfinite(own)), drawn, point)
            counts[found is not None] += 1
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert vars(found) == pytest.approx(vars(expected))
                assert drawn.fpir(found.within) <= 2 * drawn.expected(point.threshold)
    assert min(counts.values()) > 5


def test_perhaps_of_numbers_a_reader_can_check() -> None:
    """Beyond the threshold, 9 of 20 searches find their item, and 5 of 60 draws come as near."""
    near = np.where(np.arange(60) < 11, 0.1, np.inf)
    near[51:] = np.linspace(0.64, 0.67, 9)
    apart = np.linspace(0.6, 1, 60)
    source = draws(apart, np.arange(60), own=near)
    point = set_point({OWN: source}, 0.1, items=60)
    assert point.perhaps is not None
    assert 0.63 < point.threshold < 0.64 < 0.67 < point.perhaps.within < 0.68
    assert point.perhaps.searches == 9
    assert (point.perhaps.known, point.perhaps.unknown) == (9 / 20, pytest.approx(5 / 60))
    assert point.perhaps.right == pytest.approx(9 / 20 / (9 / 20 + 5 / 60))
    assert point.perhaps.measured_on == "catalogue photos"
    lost = draws(apart, np.arange(60), own=np.where(np.arange(60) < 11, 0.1, 1.5))
    assert set_point({OWN: lost}, 0.1, items=60).perhaps is None  # nobody finds anything beyond the threshold
    alone = draws(apart, np.arange(60))
    assert set_point({OWN: alone}, 0.1, items=60).perhaps is None  # nothing tells whether an answer is right
