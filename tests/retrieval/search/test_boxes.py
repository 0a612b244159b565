"""Boxes of a caller, and windows of a photo."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from retrieval.errors import InvalidParameter
from retrieval.search.boxes import (
    MOST_WINDOWS,
    bbox_text,
    check_bbox,
    check_boxes,
    cropped,
    parse_bbox,
    windows,
)

SIDES = st.integers(8, 400)


def test_windows_are_the_photo_its_halves_its_quarters_and_its_centre() -> None:
    found = windows(100, 60)
    assert found[:5] == [(0, 0, 100, 60), (0, 0, 50, 60), (50, 0, 100, 60), (0, 0, 100, 30), (0, 30, 100, 60)]
    assert found[5:] == [(0, 0, 50, 30), (50, 0, 100, 30), (0, 30, 50, 60), (50, 30, 100, 60), (25, 15, 75, 45)]


@given(width=SIDES, height=SIDES)
def test_windows_lie_within_the_photo_and_have_sides_of_8_pixels(width: int, height: int) -> None:
    found = windows(width, height)
    assert found[0] == (0, 0, width, height)
    assert len(found) <= MOST_WINDOWS
    for left, upper, right, lower in found:
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert min(right - left, lower - upper) >= 8


@pytest.mark.parametrize(
    "bbox",
    [
        (0, 0, 0, 5),
        (5, 0, 1, 5),
        (-1, 0, 5, 5),
        (0, 0, math.inf, 5),
        (0, 0, math.nan, 5),
        (0, 0, 5),
        "0 0 5 5",
        3,
        (0, 0, 10**400, 5),
    ],
)
def test_boxes_without_sense_are_refused(bbox: object) -> None:
    with pytest.raises(InvalidParameter, match="bbox must be four numbers"):
        check_bbox(bbox)  # type: ignore[arg-type]


def test_boxes_are_read_from_text_and_back() -> None:
    assert parse_bbox("1, 2.5 30,4") == (1, 2.5, 30, 4)
    assert parse_bbox(bbox_text((1, 2.125, 30, 400))) == (1, 2.125, 30, 400)
    for text in ("", "1 2 3", "a b c d", "1 2 3 4 5", "1,2,1,4"):
        with pytest.raises(InvalidParameter, match="bbox"):
            parse_bbox(text)


def test_too_many_or_no_boxes_are_refused() -> None:
    for boxes in ([], [(0, 0, 1, 1)] * 65, "auto", 4):
        with pytest.raises(InvalidParameter, match="boxes"):
            check_boxes(boxes)  # type: ignore[arg-type]


def test_boxes_that_cover_a_large_photo_many_times_are_refused() -> None:
    whole = (0, 0, 5000, 5000)
    assert check_boxes([whole] * 8) == [whole] * 8
    with pytest.raises(InvalidParameter, match="cover at most 200,000,000 pixels"):
        check_boxes([whole] * 9)


def test_a_box_beyond_the_photo_is_refused() -> None:
    photo = Image.new("RGB", (40, 30))
    assert cropped(photo, (10, 10, 40, 30)).size == (30, 20)
    for bbox in ((10.0, 10.0, 41.0, 30.0), (0.0, 0.0, 40.0, 5.0)):
        with pytest.raises(InvalidParameter, match="bbox must"):
            cropped(photo, bbox)
