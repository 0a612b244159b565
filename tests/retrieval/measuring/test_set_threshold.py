"""Anchoring: rates and bounds of draws, the rule, the sources as one sample, the query shift, and the promise kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.measuring.draws import LABELLED, OWN, PROBE, REFERENCE, UNKNOWN, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.labelled import query_shift
from retrieval.measuring.point import CERTIFIED, ESTIMATED, GALLERY, Point, Shift
from retrieval.measuring.rates import CROSS_FITTED, VersionRates
from tests.retrieval.measuring.samples import all_draws, drawn_from, draws, set_point


def variants(groups: int, each: int, *, seed: int) -> tuple[Draws, np.ndarray]:
    """Return draws of a gallery of groups of variants, and how near new groups come to it."""
    generator, dim, new = np.random.default_rng(seed), 12, 300
    centres = generator.standard_normal((groups + new, 1, dim))
    centres /= np.linalg.norm(centres, axis=2, keepdims=True)
    vectors = centres + 0.1 * generator.standard_normal((groups + new, each, dim))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    here, of = vectors[:groups].reshape(-1, dim), np.repeat(np.arange(groups), each)
    order = generator.permutation(len(of))
    here, of = here[order], of[order]
    apart = np.linalg.norm(here[:, None] - here[None], axis=2) + 10 * (of[:, None] == of[None])
    drawn = draws(apart.min(axis=1), np.arange(len(of)), nearest=apart.argmin(axis=1))
    unknown = np.linalg.norm(vectors[groups:, 0][:, None] - here[None], axis=2).min(axis=1)
    return replace(drawn, groups=of.astype(str)), unknown


@pytest.mark.parametrize(("groups", "each", "certify"), [(60, 5, True), (25, 4, False)])
def test_variants_in_groups_keep_the_promise_that_as_many_single_items_would_break(
    groups: int, each: int, certify: bool
) -> None:
    """Counted as single items, they broke certificates in 11 % of such worlds, and estimates were 20 % too high."""
    realised = []
    for seed in range(80):
        drawn, unknown = variants(groups, each, seed=seed)
        point = set_point({OWN: drawn}, 0.1, items=groups * each, certify=certify)
        assert point.basis.items_drawn == groups
        realised.append(float((unknown <= point.threshold).mean()))
    if certify:
        assert np.mean(np.array(realised) > 0.1) <= 0.05
    else:
        assert 0.085 < np.mean(realised) < 0.115


def test_duplicates_are_counted_and_left_out() -> None:
    far, copied = np.linspace(0.5, 0.9, 30), np.arange(30) < 3
    some = draws(np.where(copied, 0.0, far), np.arange(30))
    copies = np.where(copied, [f"p{row}" for row in range(30)], "")
    point = set_point({OWN: replace(some, duplicates=copies)}, 0.1, items=30)
    assert point.basis.duplicates == 3
    assert point.basis.sources == {OWN: 30}
    assert point.basis.items_drawn == 27
    assert set_point({OWN: some}, 0.3, items=30).basis.duplicates == 0


@pytest.mark.parametrize("items", [20, 44, 150])
def test_a_target_below_the_smallest_supported_one_is_refused_with_its_number(items: int) -> None:
    own = draws(np.random.default_rng(items).random(items), np.arange(items))
    least = drawn_from(own).smallest_target
    assert least == pytest.approx(1 / (items + 1))
    with pytest.raises(CalibrationError, match=rf"support no FPIR below {least:.4g}, so not 0\.001") as refused:
        set_point({OWN: own}, 0.001, items=items)
    offered = float(refused.value.remedy.split("--target-fpir ")[1])
    assert least <= offered < least + 0.001
    assert set_point({OWN: own}, offered, items=items).rates.fpir_expected <= offered


def test_without_mated_searches_the_greatest_threshold_serves() -> None:
    near = draws(np.linspace(0.3, 1, 40), np.arange(40))
    point = set_point({OWN: near}, 0.1, items=40)
    assert point.threshold == drawn_from(near).limit(0.1, certified=False)
    assert (point.status, point.rates.tpir, point.rates.tpir_of) == (ESTIMATED, None, None)
    assert point.rates.fpir == pytest.approx(4 / 40)
    assert point.rates.fpir_expected == pytest.approx(0.1)
    assert point.perhaps is None  # nothing tells whether an answer is right


def test_a_target_is_certified_on_request_alone_and_a_cap_tightens() -> None:
    own = draws(np.random.default_rng(0).random(400), np.arange(400))
    few = draws(np.random.default_rng(0).random(100), np.arange(100))
    for source, items in ((own, 400), (few, 100)):
        usual, asked = (set_point({OWN: source}, 0.05, items=items, certify=certify) for certify in (False, True))
        assert (usual.status, asked.status) == (ESTIMATED, CERTIFIED)
        assert asked.threshold < usual.threshold
        assert asked.rates.fpir_upper is not None
        assert usual.rates.fpir_upper is not None
        assert asked.rates.fpir_upper <= 0.05 < usual.rates.fpir_upper
    point = set_point({OWN: own}, 0.05, items=400, certify=True)
    capped = set_point({OWN: own}, 0.05, items=400, cap=point.threshold / 2)
    assert capped.threshold == point.threshold / 2


def test_items_of_which_two_decide_each_other_certify_as_half_as_many() -> None:
    found = np.repeat(np.random.default_rng(0).random(300), 2)
    own = draws(found, np.arange(600), nearest=np.arange(600) ^ 1)
    alone = draws(found, np.arange(600))
    assert drawn_from(own).independent_items == pytest.approx(300)
    assert drawn_from(alone).independent_items == pytest.approx(600)
    first, second = (set_point({OWN: each}, 0.05, items=600, certify=True) for each in (own, alone))
    assert first.status == second.status == CERTIFIED
    assert first.threshold < second.threshold


def test_one_item_that_a_fold_model_drew_is_an_assumption() -> None:
    own = draws(np.linspace(0.5, 1, 40), np.arange(40))
    one, none = (set_point({OWN: own}, 0.1, items=40, fitted=fitted) for fitted in (["i7"], []))
    assert CROSS_FITTED in one.basis.assumptions
    assert CROSS_FITTED not in none.basis.assumptions


def test_fold_models_that_find_some_items_measure_the_tpir() -> None:
    others = np.linspace(0.5, 1, 40)
    own = draws(others, np.arange(40), own=np.where(np.arange(40) < 10, 0.1, others - 0.01))  # the last are too far
    point = set_point({OWN: own}, 0.1, items=40, fitted=["i0"])
    assert (point.rates.tpir_of, 0 < point.rates.tpir < 1) == ("catalogue photos", True)
    found = draws(others, np.arange(40), own=np.full(40, 0.1))
    at_the_threshold = set_point({OWN: found}, 0.1, items=40, fitted=["i0"], cap=0.1)
    assert (at_the_threshold.threshold, at_the_threshold.rates.tpir) == (0.1, 1)


def test_fold_models_that_find_nothing_leave_the_tpir_unknown() -> None:
    lost = draws(np.linspace(0.1, 0.5, 40), np.arange(40), own=np.full(40, 1.0))
    point = set_point({OWN: lost}, 0.1, items=40, fitted=["i0"])
    assert (point.rates.tpir, point.rates.tpir_of, point.rates.precision) == (None, None, {})


def test_asked_to_certify_a_point_is_certified_or_refused() -> None:
    few = draws(np.random.default_rng(1).uniform(0.1, 1, 25), np.arange(25))
    with pytest.raises(CalibrationError, match=r"25 items cannot certify an FPIR of 0\.05"):
        set_point({OWN: few}, 0.05, items=25, certify=True)
    more = draws(np.random.default_rng(0).uniform(0.3, 1.3, 75), 100 + np.arange(75))
    point = set_point({OWN: few, UNKNOWN: more}, 0.05, items=25, certify=True)
    assert (point.status, point.basis.items_drawn) == (CERTIFIED, 100)


@pytest.mark.parametrize(
    ("own", "fitted", "counted"), [(60, 0, 0), (60, 25, 25), (60, 900, 90), (12, 0, 8), (12, 9, 9)]
)
def test_calibration_items_that_a_gallery_lacks_count_up_to_the_number_of_its_fitted_items(
    own: int, fitted: int, counted: int
) -> None:
    """They do not outvote own items, of which the training catalogue may have had none."""
    generator = np.random.default_rng(0)
    here = draws(generator.uniform(0.2, 1, own), generator.permutation(own))
    away = draws(generator.uniform(0.8, 1, 180), 1000 + generator.permutation(np.repeat(np.arange(90), 2)))
    both = {OWN: here, PROBE: away}
    names = [f"fitted {number}" for number in range(fitted)]
    drawn = DrawnDistances.of(both, without=names)
    assert (drawn.items, len(drawn.distances)) == (own + counted, own + 2 * counted)
    point = set_point(both, 0.3, items=own, fitted=names, least_items=12)
    assert point.basis.sources == {OWN: own} | ({PROBE: counted} if counted else {})


def test_a_target_below_the_smallest_p_value_is_refused_however_few_photos_of_an_item_come_close() -> None:
    """The share that would be accepted depends on the photos of one item, and is small only if a threshold is set."""
    generator = np.random.default_rng(0)
    items = generator.permutation(np.repeat(np.arange(25), 4))
    distances = generator.uniform(0.8, 1, 100)
    distances[np.flatnonzero(items == 7)[0]] = 0.2
    few = draws(distances, items)
    assert drawn_from(few).left_out(np.zeros(1))[0] == pytest.approx(0.25 / 26)
    assert drawn_from(few).smallest_target == pytest.approx(1 / 26) == drawn_from(few).p_values(np.zeros(1))[0]
    with pytest.raises(CalibrationError, match=r"the draws of 25 items support no FPIR below 0\.03846.*fpir 0\.039"):
        set_point({OWN: few}, 0.03, items=25)
    assert set_point({OWN: few}, 0.039, items=25).threshold > 0.2
    assert not VersionRates(drawn_from(few)).shared(Point(0.9, ESTIMATED, 0.1, GALLERY), 3).decides
    assert VersionRates(drawn_from(few)).shared(Point(0.9, ESTIMATED, 0.1, GALLERY), 2).decides


def test_a_shift_is_kept_for_own_draws_that_come_later() -> None:
    generator = np.random.default_rng(0)
    own, probes = draws(generator.uniform(0.5, 1, 40), np.arange(40)), draws(generator.random(40), np.arange(40))
    shift = Shift(-0.1, 0.01, 40)
    point = set_point({PROBE: probes}, 0.05, items=40, shift=shift)
    rates = VersionRates.of(all_draws({OWN: own, PROBE: probes}), point)
    assert rates is not None
    assert rates.drawn.distances == pytest.approx(np.sort(np.r_[own.distances - 0.1, probes.distances]))
    assert rates.drawn.margin == shift.margin(rates.drawn.shift_errors(0.01)) > 0


def test_the_greatest_threshold_that_keeps_the_target_serves_however_near_the_photos_of_an_item_are() -> None:
    generator = np.random.default_rng(0)
    other = generator.uniform(0.5, 1, 60)
    bursts = draws(other, np.arange(60), own=generator.uniform(0, 0.01, 60))  # photos of one session
    sessions = draws(other, np.arange(60), own=generator.uniform(0, 1.5, 60))
    point = set_point({OWN: bursts}, 0.3, items=60)
    assert point.threshold == set_point({OWN: sessions}, 0.3, items=60).threshold
    assert point.threshold == DrawnDistances.of({OWN: bursts}).limit(0.3, certified=False)
    assert (point.rates.tpir, point.rates.tpir_of) == (1, "catalogue photos")


def test_precision_is_that_of_the_rate_to_expect_where_no_draw_returned_a_match() -> None:
    other = np.random.default_rng(0).uniform(0.5, 1, 60)
    own = draws(other, np.arange(60), own=np.full(60, 0.1))  # every item is found, and no other one before it
    point = set_point({OWN: own}, 0.3, items=60, cap=0.3)
    expected = point.rates.fpir_expected
    assert point.rates.misidentification == 0
    assert point.rates.fpir == 0 < expected < 0.05
    shares = {name: (1 - float(name)) / (1 - float(name) + float(name) * expected) for name in ("0.1", "0.5", "0.9")}
    assert point.rates.precision == pytest.approx(shares)
    assert max(shares.values()) < 1


def test_too_few_items_and_a_model_that_finds_nothing_are_refused() -> None:
    with pytest.raises(CalibrationError, match="19 items"):
        set_point({OWN: draws(np.linspace(0, 1, 19), np.arange(19))}, 0.05, items=19)
    lost = draws(np.linspace(0.1, 0.5, 40), np.arange(40), own=np.full(40, 1.0))
    with pytest.raises(CalibrationError, match=r"TPIR 0.*Use a better model"):
        set_point({OWN: lost}, 0.05, items=40)
    twice = draws(np.linspace(0.1, 0.5, 40), np.arange(40), own=np.full(40, 1.0), nearest=np.arange(40) ^ 1)
    with pytest.raises(CalibrationError, match="20 pairs of items look like one item under two ids, such as i0 and i1"):
        set_point({OWN: twice}, 0.05, items=40)
    for target in (-0.1, 0.0, 1.0):
        with pytest.raises(InvalidParameter, match="target_fpir must lie between 0 and 1"):
            set_point({OWN: lost}, target, items=40)
    with pytest.raises(
        CalibrationError, match=r"40 items cannot certify an FPIR of 0\.05: they count as 40 .*and 59 are needed"
    ):
        set_point({OWN: draws(np.linspace(0.1, 0.5, 40), np.arange(40))}, 0.05, items=40, certify=True)
    near_ones_in_pairs = np.where(np.arange(200) < 20, np.arange(200) ^ 1, (np.arange(200) + 7) % 200)
    some = draws(np.linspace(0.1, 0.5, 200), np.arange(200), nearest=near_ones_in_pairs)
    with pytest.raises(CalibrationError, match=r"200 items cannot certify .* they count as 100 independent ones"):
        set_point({OWN: some}, 0.005, items=200, certify=True)
    in_pairs = draws(np.repeat(np.linspace(0.1, 0.5, 20), 2), np.arange(40), nearest=np.arange(40) ^ 1)
    with pytest.raises(CalibrationError, match=r"40 items cannot certify .* they count as 20 independent ones"):
        set_point({OWN: in_pairs}, 0.05, items=40, certify=True)


def test_a_threshold_of_0_finds_copies() -> None:
    copies = draws(np.linspace(0.3, 0.9, 40), np.arange(40), own=np.zeros(40))
    assert set_point({OWN: copies}, 0.1, items=40, cap=0.0).threshold == 0
    twice = draws(np.r_[np.zeros(8), np.linspace(0.3, 0.9, 32)], np.arange(40), own=np.zeros(40))
    with pytest.raises(CalibrationError, match=r"more than 0.1 of the draws are at distance 0 from another item"):
        set_point({OWN: twice}, 0.1, items=40)


def test_a_threshold_stays_if_the_few_labelled_photos_find_nothing_but_own_draws_do() -> None:
    far = np.linspace(0.5, 1, 40)
    own, labelled = draws(far, np.arange(40), own=np.full(40, 0.1)), draws(far, np.arange(40), own=np.full(40, 1.5))
    point = set_point({OWN: own, LABELLED: labelled}, 0.1, items=40)
    assert 0.5 <= point.threshold < 0.6
    assert (point.rates.tpir_of, point.rates.tpir) == ("labelled queries", 0)


def test_labelled_queries_for_fitted_items_measure_the_tpir_and_set_no_threshold() -> None:
    labelled = draws(np.linspace(0.5, 1, 40), np.arange(40), own=np.full(40, 0.1))
    own = draws(np.linspace(0.7, 1, 30), 100 + np.arange(30), own=np.full(30, 0.2))
    sources = {OWN: own, LABELLED: labelled}
    point = set_point(sources, 0.05, items=70, fitted=[f"i{i}" for i in range(25)])
    assert (point.rates.tpir_of, point.rates.queries) == ("labelled queries", 40)
    assert point.basis.items_drawn == 30 + 15
    assert set_point(sources, 0.05, items=70).basis.items_drawn == 30 + 40


def test_the_shift_of_own_draws_moves_threshold_and_p_values() -> None:
    generator = np.random.default_rng(0)
    items = np.repeat(np.arange(50), 2)
    users, photos = generator.normal(1.3, 0.1, 100), generator.normal(1.0, 0.1, 100)
    shown = draws(photos, items)
    sources = {OWN: shown, PROBE: draws(users, items), REFERENCE: replace(shown, ids=np.char.add("shown ", shown.ids))}
    shift = query_shift(sources)
    assert shift.applied == pytest.approx(0.3, abs=0.06)
    assert query_shift({**sources, REFERENCE: shown}).items == 0  # the same photos have no roles
    point = set_point(sources, 0.1, items=50, shift=shift)
    unmoved = set_point(sources, 0.1, items=50)
    assert point.threshold > unmoved.threshold + 0.2
    assert point.shift.applied == shift.applied


@pytest.mark.end_to_end
def test_the_promise_is_kept_over_many_galleries() -> None:
    """Half of the items of a world with families are known, the others are asked."""
    realised = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        families = generator.normal(size=(20, 16))
        centres = families[generator.integers(0, 20, 120)] + 0.7 * generator.normal(size=(120, 16))
        centres /= np.linalg.norm(centres, axis=1, keepdims=True)
        apart = np.linalg.norm(centres[:, None] - centres[None], axis=2) + 10 * np.eye(120)
        own = draws(apart[:60, :60].min(axis=1), np.arange(60), nearest=apart[:60, :60].argmin(axis=1))
        point = set_point({OWN: own}, 0.1, items=60)
        realised.append(float((apart[60:, :60].min(axis=1) <= point.threshold).mean()))
    assert 0.085 < np.mean(realised) < 0.115


def test_probes_alone_set_a_threshold() -> None:
    probes = draws(np.linspace(0.1, 1, 40), np.arange(40))
    point = set_point({PROBE: probes}, 0.1, items=40)
    assert point.threshold == DrawnDistances.of({PROBE: probes}).limit(0.1, certified=False)
    assert (point.basis.sources, point.rates.tpir, point.basis.duplicates) == ({PROBE: 40}, None, 0)


def test_draws_without_any_other_item_and_items_at_distance_zero_set_no_threshold() -> None:
    with pytest.raises(CalibrationError, match=r"^0 items"):
        set_point({OWN: draws([np.inf] * 30, np.arange(30))}, 0.05, items=1)
    with pytest.raises(CalibrationError, match="at distance 0"):
        set_point({OWN: draws([0.0] * 30, np.arange(30))}, 0.05, items=30)
