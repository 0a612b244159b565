"""Points as plain values, of today and of version 0.2.0."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retrieval.errors import InvalidParameter
from retrieval.measuring.point import BUNDLE, GALLERY, PROMISE, Basis, Origin, Perhaps, Point, Rates, Shift


def test_a_point_is_plain_values_and_comes_back_from_whole_numbers() -> None:
    point = Point(1.0, "certified", 0.05, rates=Rates(fpir=0.01))
    values = json.loads(json.dumps(point.to_dict()))
    assert Point.from_dict(values) == point
    whole = Point.from_dict(values | {"threshold": 1})
    assert type(whole.threshold) is float
    assert whole == point


@pytest.mark.parametrize("origin", [GALLERY, BUNDLE, PROMISE])
def test_a_point_of_any_origin_keeps_its_shift(origin: Origin) -> None:
    point = Point(1.0, "estimated", 0.05, origin, shift=Shift(-0.1, 0.02, 30))
    assert Point.from_dict(json.loads(json.dumps(point.to_dict()))) == point


@pytest.mark.parametrize(("name", "value"), [("tpir", "<b>"), ("least_items", "x"), ("fpir_upper", [0.1])])
def test_a_point_whose_evidence_is_no_number_is_refused(name: str, value: object) -> None:
    values = Point(1.0, "certified", 0.05, rates=Rates(fpir=0.01)).to_dict()
    values["evidence"]["tpir"] = None
    assert Point.from_dict(values).rates.tpir is None
    values["evidence"][name] = value
    with pytest.raises(InvalidParameter, match=f"evidence {name} must be a finite number"):
        Point.from_dict(values)


def test_every_value_of_a_point_comes_back() -> None:
    rates = Rates(0.04, 0.05, 0.07, 0.8, "labelled queries", 0.9, 0.01, precision={"0.5": 0.9}, queries=3, items=2)
    basis = Basis(30, 7, items_drawn=28, sources={"own": 28}, twins=(("a", "b"), ("c", "d")), assumptions=("One.",))
    halves = Basis(confidence=0.95, fpir_on_other_half=(0.01, 0.09), clusters=40, clusters_are="items")
    shift, perhaps = Shift(-0.02, 0.01, 33), Perhaps(0.6, 0.7, 9)
    for point in (
        Point(0.5, "estimated", 0.05, GALLERY, rates, basis, perhaps, shift),
        Point(0.5, "certified", 0.05, BUNDLE, Rates(0.01), halves),
        Point.uncalibrated(0.1, origin=GALLERY),
    ):
        assert Point.from_dict(json.loads(json.dumps(point.to_dict()))) == point


def test_a_point_of_version_0_2_0_was_set_in_its_gallery_if_it_says_so() -> None:
    evidence: dict[str, Any] = {
        "anchored": True,
        "fpir_expected": 0.05,
        "tpir": None,
        "items_drawn": 28,
        "twins": [["a", "b"]],
        "shift": {"value": -0.02, "error": 0.01, "items": 33, "applied": -0.02},
        "perhaps": {"within": 0.6, "right": None, "searches": 0},
    }
    values = {"threshold": 0.5, "status": "estimated", "target_fpir": 0.05, "evidence": evidence}
    point = Point.from_dict(values)
    assert point == Point(
        *(0.5, "estimated", 0.05, GALLERY, Rates(fpir_expected=0.05), Basis(items_drawn=28, twins=(("a", "b"),))),
        Perhaps(0.6),
        Shift(-0.02, 0.01, 33),
    )
    assert (point.is_anchored, point.served_status) == (True, "estimated")
    later = {"known": None, "unknown": None, "measured_on": None}
    assert point.evidence == evidence | {"tpir_of": None, "perhaps": evidence["perhaps"] | later}
    of_a_bundle = Point.from_dict(values | {"evidence": {"fpir": 0.01}})
    assert (of_a_bundle.is_anchored, of_a_bundle.served_status) == (False, "unanchored")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"threshold": -0.1}, "threshold must be a distance"),
        ({"threshold": float("inf")}, "threshold must be a distance"),
        ({"status": "uncalibrated"}, "status must be"),
        ({"status": "sure"}, "status must be"),
        ({"target_fpir": 1}, "target_fpir must lie between 0 and 1"),
        ({"origin": "elsewhere"}, "origin must be"),
        ({"evidence": {"perhaps": {"within": "far"}}}, "within must be a finite number"),
        ({"evidence": {"shift": {"value": True}}}, "value must be a finite number"),
        ({"threshold": 10**400}, "threshold must be a distance"),
        ({"target_fpir": "0.05"}, "target_fpir must lie between 0 and 1"),
        ({"evidence": []}, "evidence must be an object"),
        ({"evidence": {"shift": None}}, "evidence shift must be an object"),
        ({"evidence": {"perhaps": 5}}, "evidence perhaps must be an object"),
        ({"evidence": {"fpir": 10**400}}, "fpir must be a finite number"),
        ({"evidence": {"precision": {"0.5": "high"}}}, "precision must name finite numbers"),
        ({"evidence": {"twins": [["a"]]}}, "twins must be a list of pairs of texts"),
        ({"evidence": {"assumptions": "none"}}, "assumptions must be a list of texts"),
        ({"evidence": {"fpir_range": [None]}}, "fpir_range must be a list of numbers"),
        ({"evidence": {"tpir_of": 3}}, "tpir_of must be text"),
    ],
    ids=str,
)
def test_points_that_make_no_sense_are_refused(values: dict[str, object], told: str) -> None:
    good = {"threshold": 0.5, "status": "estimated", "target_fpir": 0.05, "evidence": {}}
    assert Point.from_dict(good).threshold == 0.5
    with pytest.raises(InvalidParameter, match=told):
        Point.from_dict(good | values)
