"""Measuring: the shift of a new point, and stricter points for those that break their promise."""

from __future__ import annotations

import doctest
from dataclasses import replace

import numpy as np
import pytest

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import NEAREST_PHOTO
from retrieval.errors import InvalidParameter
from retrieval.measuring import measure as measure_module
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import LABELLED, OWN, Draws, Probes
from retrieval.measuring.labelled import query_shift
from retrieval.measuring.measure import Material, _stricter, measure
from retrieval.measuring.point import CERTIFIED, ESTIMATED, GALLERY, Point, Shift
from retrieval.measuring.rates import VersionRates
from tests.index.vectors import unit
from tests.retrieval.measuring.samples import all_draws, drawn_from, draws, set_point


def tightened(before: Point, drawn: Draws) -> Point | None:
    kept = all_draws({OWN: drawn})
    return _stricter(kept, before, 100, GALLERY)


def test_a_point_that_misses_its_target_is_replaced_by_one_of_its_status_that_keeps_it() -> None:
    """With 100 items, a target of 10 % is certified if it was certified before, and not otherwise."""
    generator = np.random.default_rng(3)
    source = draws(generator.permutation(np.linspace(0.3, 0.9, 100)), np.arange(100), own=np.full(100, 0.1))
    rates = VersionRates(drawn_from(source))
    for status, certify in ((CERTIFIED, True), (ESTIMATED, False)):
        kept = set_point({OWN: source}, 0.1, items=100, certify=certify)
        assert kept.status == status
        assert tightened(kept, source) is None
        found = tightened(replace(kept, threshold=kept.threshold + 0.1), source)
        assert found is not None
        assert (found.status, found.target_fpir) == (status, 0.1)
        assert found.threshold == pytest.approx(kept.threshold)
        assert not rates.broken(found)
    certain = Point(0.5, CERTIFIED, 0.02, GALLERY)  # 100 items certify no such target, but estimate it
    found = tightened(certain, source)
    assert found is not None
    assert (found.status, found.target_fpir) == (ESTIMATED, 0.02)
    strict = tightened(Point(0.25, CERTIFIED, 0.02, GALLERY), source)  # nearer than all draws, but of too few items
    assert strict is not None
    assert (strict.threshold, strict.status) == (0.25, ESTIMATED)
    lowest = tightened(Point(0.5, ESTIMATED, 0.001, GALLERY), source)  # and below the smallest that they support
    assert lowest is not None
    assert (lowest.status, lowest.target_fpir) == (ESTIMATED, 0.001)
    assert rates.fpir(lowest.threshold) == 0
    assert tightened(lowest, source) is None  # there is no stricter one


def test_a_point_stays_if_no_stricter_one_finds_anything_or_too_few_items_show_its_rate() -> None:
    lost = draws(np.linspace(0.1, 0.5, 40), np.arange(40), own=np.full(40, 1.0))
    few = draws(np.linspace(0.1, 0.5, 5), np.arange(5))  # too few items for rates
    for source in (lost, few):
        assert tightened(Point(0.4, ESTIMATED, 0.1, GALLERY), source) is None


def test_the_point_of_a_gallery_has_the_shift_of_its_labelled_photos() -> None:
    generator = np.random.default_rng(0)
    own = draws(generator.uniform(0.8, 1, 60), np.arange(60), own=generator.uniform(0.1, 0.2, 60))
    labelled = draws(generator.uniform(0.6, 0.8, 60), np.arange(60), own=generator.uniform(0.3, 0.4, 60))
    sources = {OWN: own, LABELLED: labelled}
    photos = ArrayPhotos(unit(60), [f"i{item}" for item in range(60)])
    point = measure(photos, NEAREST_PHOTO, draws=all_draws(sources), target_fpir=0.1).required
    assert point.shift == query_shift(sources) != Shift()


def test_a_rule_or_a_source_of_probes_that_does_not_exist_is_refused() -> None:
    photos = ArrayPhotos(unit(60), [f"i{item}" for item in range(60)])
    with pytest.raises(InvalidParameter, match="rule must be one of set, keep, tighten, got 'kept'"):
        measure(photos, NEAREST_PHOTO, rule="kept")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="probes must have sources among probe, reference, labelled, unknown"):
        Material({"labeled": Probes(unit(1), ["a"], ["i0"])})


def test_a_probe_of_an_item_that_is_not_here_finds_none_of_its_own_group() -> None:
    """The nearest item is of group g; a group of another name, or none, is no rival of it."""
    vectors = unit(60)
    photos = ArrayPhotos(vectors, [f"i{item}" for item in range(60)], groups=["g"] * 2 + [""] * 58)
    for group, found in (("g", np.inf), ("other", 0.0), ("", 0.0)):
        probes = Probes(vectors[:1], ["new"], ["elsewhere"], groups=[group])
        drawn = Drawing(photos, NEAREST_PHOTO).probes(probes)
        assert drawn.distances.tolist() == pytest.approx([found], abs=1e-6)


def test_the_example_of_measure_is_right() -> None:
    assert doctest.testmod(measure_module) == doctest.TestResults(0, 13)
