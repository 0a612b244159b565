"""The table: thresholds are never laxer than those that were measured, and its words fit numbers and directions."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.promise.contents import Contents
from retrieval.promise.levels import Level, Limit
from retrieval.promise.metric import METRICS
from retrieval.promise.promise import Promise
from retrieval.promise.table import percent, target_text, threshold_text

from .shops import promise_of, shop


@pytest.fixture(scope="module")
def promise() -> Promise:
    return promise_of(shop(51, items=40, largest=3, grouped=False))


@pytest.mark.parametrize("name", METRICS)
@given(distance=st.floats(1e-4, 2))
def test_a_rounded_threshold_is_not_laxer_and_little_stricter(name: str, distance: float) -> None:
    metric = METRICS[name]
    threshold = float(metric.scores(distance))
    text = threshold_text(threshold, metric)
    if metric.is_similarity:
        assert Decimal(text) >= Decimal(threshold)
    else:
        assert Decimal(text) <= Decimal(threshold)
    assert abs(float(text) - threshold) < 1.01e-4
    assert metric.distances(float(text)) >= 0.97 * metric.distances(threshold) - 1e-6
    assert len(text.partition(".")[2]) >= 4
    assert text != "-0.0000"


@pytest.mark.parametrize(
    ("threshold", "name", "text"),
    [
        (0.38101, "cosine", "0.3811"),
        (0.3810, "cosine", "0.3811"),  # the number in the computer is slightly greater
        (0.5, "cosine", "0.5000"),
        (0.61899, "cosine_distance", "0.6189"),
        (-0.38101, "negative_ip", "-0.3811"),
        (-0.00001, "ip", "0.0000"),
        (0.99998, "cosine", "0.99998"),  # 1.0000 would accept copies only
        (0.0000213, "cosine_distance", "0.000021"),
        (1.25, "l2", "1.2500"),
    ],
)
def test_thresholds_have_four_digits_or_more(threshold: float, name: str, text: str) -> None:
    assert threshold_text(threshold, METRICS[name]) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.05, "5 %"),
        (0.01, "1 %"),
        (0.001, "0.1 %"),
        (0.125, "12.5 %"),
        (0.07, "7 %"),
        (0.29, "29 %"),
        (1e-4, "0.01 %"),
    ],
)
def test_targets_have_no_more_digits_than_they_need(share: float, text: str) -> None:
    assert target_text(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0634, "6.3 %"), (0.974, "97.4 %"), (1.0, "100.0 %"), (0.0, "0.0 %"), (0.0004, "0.04 %"), (0.0013, "0.13 %")],
)
def test_rates_below_one_percent_have_two_digits(share: float, text: str) -> None:
    assert percent(share) == text


def lines(promise: Contents) -> list[str]:
    return str(promise).splitlines()


def test_the_table_names_the_numbers_the_metric_and_the_target_that_decides(promise: Promise) -> None:
    first, head, five, one, tenth, last = lines(promise)[-6:]
    assert first.startswith(f"{promise.vectors:,} vectors of 40 items, cosine similarity. Of strangers like your items")
    assert head.split("  ")[1].strip() == "are called somebody"
    assert "use score >=" in head
    assert five.strip().startswith("5 %  (at most ")
    assert five.endswith("<- decide() uses this target")
    assert "needs 99 items" in one
    assert "needs 999 items" in tenth
    assert "The score holds up to about 44 items" in last


@pytest.mark.parametrize("name", ["cosine_distance", "negative_ip", "l2", "squared_l2"])
def test_a_metric_of_distances_is_used_below_its_threshold(name: str) -> None:
    text = str(promise_of(shop(51, items=40, largest=3), metric=name))
    assert "use distance <=" in text
    assert "The distance holds up to" in text
    assert METRICS[name].formula in text


def test_twins_are_named_in_the_singular_and_the_plural_with_their_cost(promise: Promise) -> None:
    pair = ("a", "b\x1b[31m")
    text = str(replace(promise, twins=(pair,), twins_cost=0.0031))
    assert "1 pair of items looks like one item under two ids (0.3 points of what is found): a and b" in text
    assert "\x1b" not in text
    assert "2 pairs of items look like one item under two ids: " in str(replace(promise, twins=(pair, pair)))


def test_warnings_come_first_and_control_no_terminal(promise: Promise) -> None:
    text = str(replace(promise, warnings=("The item '\x1b[2J' is odd", "second")))
    assert text.startswith("Warning: The item")
    assert "\nWarning: second\n" in text
    assert "\x1b" not in text


def test_a_level_says_why_there_is_no_threshold(promise: Promise) -> None:
    limit = Limit(0.5, 0.05, 0.06, None)
    levels = (Level(0.05, limit, None), Level(0.01, None, None, "why"), Level(0.001, None, None, "why", 12_345))
    text = str(replace(promise, levels=levels))
    assert "1 %  no threshold finds anything" in text
    assert "0.1 %  needs 12,345 items" in text
    row = next(line for line in text.splitlines() if line.strip().startswith("5 %"))
    assert row.split().count("-") == 2  # no rate of known items, and no item distance
