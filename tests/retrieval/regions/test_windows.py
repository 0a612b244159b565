"""Windows of a photo, boxes, and the suppression of overlapping regions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from index.snapshot import Neighbour
from retrieval.errors import InvalidParameter
from retrieval.regions.boxes import bbox_text, check_bbox, check_bboxes, cropped, overlap, parse_bbox
from retrieval.regions.policy import Region
from retrieval.regions.suppression import MOST_OVERLAP, Sighting, without_overlaps
from retrieval.regions.windows import AutoRegions, windows

SIDES = st.integers(8, 400)


def test_a_square_photo_has_one_nine_and_sixteen_windows() -> None:
    found = windows(100, 100, (1.0, 0.6, 0.4), 64)
    assert [sum(right - left == side for left, _, right, _ in found) for side in (100, 60, 40)] == [1, 9, 16]
    assert found[0] == (0, 0, 100, 100)
    assert found[1] == (0, 0, 60, 60)
    assert found[10:12] == [(0, 0, 40, 40), (20, 0, 60, 40)]


@given(width=SIDES, height=SIDES, most=st.integers(3, 64))
def test_windows_are_squares_within_the_photo_and_no_more_than_allowed(width: int, height: int, most: int) -> None:
    found = windows(width, height, (1.0, 0.6, 0.4), most)
    assert 1 <= len(found) <= most
    assert len(set(found)) == len(found)
    for left, upper, right, lower in found:
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert right - left == lower - upper >= min(8, width, height)


@given(width=st.integers(100, 400), height=st.integers(100, 400))
def test_the_largest_windows_cover_the_photo(width: int, height: int) -> None:
    covered = np.zeros((height, width), bool)
    for left, upper, right, lower in windows(width, height, (1.0,), 64):
        covered[int(upper) : int(lower), int(left) : int(right)] = True
    assert covered.all()


@pytest.mark.parametrize("wrong", [{"scales": ()}, {"scales": (1.2,)}, {"scales": (0.05,)}, {"most": 2}, {"most": 65}])
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=r"scales|max_windows"):
        AutoRegions(**wrong)  # type: ignore[arg-type]


def test_settings_survive_json() -> None:
    policy = AutoRegions((0.4, 1, 0.4), 20)
    assert policy.scales == (1.0, 0.4)
    assert AutoRegions.from_dict(policy.to_dict()) == policy


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
        with pytest.raises(InvalidParameter, match="regions"):
            check_bboxes(boxes)  # type: ignore[arg-type]


def test_boxes_that_cover_a_large_photo_many_times_are_refused() -> None:
    whole = (0, 0, 5000, 5000)
    assert check_bboxes([whole] * 8) == [whole] * 8
    with pytest.raises(InvalidParameter, match="cover at most 200,000,000 pixels"):
        check_bboxes([whole] * 9)


def test_a_box_beyond_the_photo_is_refused() -> None:
    photo = Image.new("RGB", (40, 30))
    assert cropped(photo, (10, 10, 40, 30)).size == (30, 20)
    for bbox in ((10.0, 10.0, 41.0, 30.0), (0.0, 0.0, 40.0, 5.0)):
        with pytest.raises(InvalidParameter, match="bbox must"):
            cropped(photo, bbox)


def test_the_overlap_is_a_share_of_the_smaller_box() -> None:
    assert overlap((0, 0, 10, 10), (2, 2, 4, 4)) == 1
    assert overlap((0, 0, 10, 10), (5, 0, 25, 10)) == 0.5
    assert overlap((0, 0, 10, 10), (10, 0, 20, 10)) == 0


def sighting(item: str, distance: float, *bbox: float) -> Sighting:
    return Sighting(Region(bbox), Neighbour(item, f"{item}.png", distance))  # type: ignore[arg-type]


def test_each_item_keeps_its_best_region_and_the_nearest_item_wins_an_overlap() -> None:
    left, right, whole = (0, 0, 50, 50), (50, 0, 100, 50), (0, 0, 100, 50)
    seen = [
        sighting("cup", 0.3, *left),
        sighting("cup", 0.2, *whole),
        sighting("pan", 0.1, *left),
        sighting("lid", 0.4, *right),
        sighting("cup", 0.5, *right),
    ]
    kept = without_overlaps(seen)
    assert [(s.neighbour.item_id, s.region.bbox) for s in kept] == [("pan", left), ("lid", right)]
    assert without_overlaps(seen[:2]) == [seen[1]]
    assert [s.neighbour.item_id for s in without_overlaps([*seen[:3], seen[4]])] == ["pan", "cup"]  # another region


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.floats(0, 2), st.integers(0, 60), st.integers(0, 60), st.integers(8, 40)),
        max_size=20,
    )
)
def test_suppression_never_drops_the_nearest_item(found: list[tuple[str, float, int, int, int]]) -> None:
    seen = [sighting(item, far, left, up, left + side, up + side) for item, far, left, up, side in found]
    kept = without_overlaps(seen)
    assert [s.neighbour.distance for s in kept[:1]] == sorted(s.neighbour.distance for s in seen)[:1]
    assert len({s.neighbour.item_id for s in kept}) == len(kept)
    assert all(
        overlap(one.region.bbox, other.region.bbox) <= MOST_OVERLAP
        for place, one in enumerate(kept)
        for other in kept[:place]
    )
