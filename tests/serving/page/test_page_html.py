from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retrieval.galleries.points import GalleryPoint
from retrieval.measuring.point import GALLERY, Point, Rates
from retrieval.retriever import Retriever
from retrieval.search.result import Match, SearchResult
from serving.page.answers import answer_html, header_html, of_photos, shown_items, thumbnail_url


def result(*distances: float, threshold: float = 0.5, **match: Any) -> SearchResult:
    found = [
        Match(**{"item_id": f"item {i}", "photo_id": f"p{i}", **match}, distance=d) for i, d in enumerate(distances)
    ]
    matches = tuple(m for m in found if m.distance <= threshold)
    return SearchResult(
        matches=matches,
        decision="match" if matches else "no_match",
        reason="" if matches else "beyond_threshold",
        threshold=threshold,
        nearest_distance=found[0].distance if found else None,
        nearest=found[0] if found else None,
        bundle_id="b",
        gallery_version=1,
    )


def with_p_values(answer: SearchResult, *values: float) -> SearchResult:
    """Return an answer whose items beyond the threshold are for review, with p-values in their order."""
    found = [Match(f"item {i}", f"p{i}", 0.4 + i / 10, {}, value) for i, value in enumerate(values)]
    return replace(
        answer,
        matches=tuple(m for m in found if m.distance <= 0.5),
        review=tuple(m for m in found if m.distance > 0.5),
        nearest=found[0],
    )


def test_matches_stand_side_by_side() -> None:
    page = answer_html(result(0.123, 0.456, 0.7))
    assert "This is item 0" in page
    assert "2 items are close enough" in page
    assert re.findall(r'data-distance="([\d.]+)"', page) == ["0.1230", "0.4560"]
    assert page.count("<figure") == page.count("<img") == 2
    assert "<details" not in page


def test_the_p_value_of_the_first_item_stands_once_in_words_where_it_was_measured() -> None:
    page = answer_html(with_p_values(result(0.4), 0.004, 0.07, 0.2))
    assert "4 of 1,000 photos of other things come this close." in page
    assert page.count("come this close") == 1
    assert "It is close enough." in answer_html(result(0.4))


@pytest.mark.parametrize(("least_p", "told"), [(0.01, "At most 1 of 100"), (0.009, ">1 of 100")])
def test_a_p_value_at_its_floor_is_at_most_that(least_p: float, told: str) -> None:
    assert f"{told} photos of other things" in answer_html(with_p_values(result(0.4), 0.01), least_p=least_p)


@pytest.mark.parametrize(
    ("share", "told"),
    [
        *[(0.0001, "fewer than 1 of 1,000"), (0.0006, "1 of 1,000"), (0.0094, "9 of 1,000"), (0.0096, "1 of 104")],
        *[(0.05, "1 of 20"), (0.096, "1 of 10"), (0.62, "6 of 10"), (0.996, "10 of 10")],
    ],
)
def test_shares_are_told_in_photos(share: float, told: str) -> None:
    assert of_photos(share) == told


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.112, "1 of 8"), (0.147, "1 of 6"), (0.31, "4 of 10"), (0.0301, "1 of 33"), (0.0061, "7 of 1,000")],
)
def test_a_bound_is_never_told_smaller_than_it_is(share: float, told: str) -> None:
    assert of_photos(share, at_most=True) == told


def test_no_match_shows_the_closest_item_and_claims_nothing_about_it() -> None:
    page = answer_html(result(0.51, 0.6))
    assert "Nothing like this here" in page
    assert "No item is close enough. Is it this one after all?" in page
    assert page.count("<figure") == 1
    assert "This is item" not in page


def test_candidates_for_review_can_be_picked_from() -> None:
    nearby = with_p_values(result(0.4), *[0.1] * 12)
    page = answer_html(replace(nearby, matches=(), decision="no_match", reason="beyond_threshold"), "r-1")
    assert "Is it one of these after all?" in page
    assert re.findall(r'data-item="item (\d+)"', page) == [str(n) for n in range(2, 8)]  # a few are enough to look at
    assert [m.item_id for m in shown_items(replace(nearby, matches=()))] == [f"item {n}" for n in range(2, 8)]


def test_the_first_match_is_confirmed_below_and_others_are_picked_on_their_cards() -> None:
    page = answer_html(with_p_values(result(0.4), 0.01, 0.02, 0.1), "r-1")
    assert re.findall(r'data-item="item (\d+)"', page) == ["1", "2"]


def test_perhaps_names_the_item_to_confirm_and_claims_no_match() -> None:
    nearby = replace(with_p_values(result(0.6), 0.1, 0.2, 0.2), matches=(), decision="perhaps")
    page = answer_html(nearby, "r-1")
    assert "Probably item 2. Is it?" in page
    assert "2 of 10 photos of other things come this close." in page
    assert "This is" not in page
    assert 'data-verdict="right"' not in page  # a yes names the item, which was no match
    assert re.findall(r'data-item="item (\d+)"', page) == ["2"]


def test_the_part_that_a_second_look_found_an_item_in_is_framed() -> None:
    seen = replace(result(0.2, 0.45), look="block", box=(10.0, 20.0, 110.0, 90.5))
    page = answer_html(seen)
    assert re.findall(r'data-box="([^"]+)"', page) == ["10.0,20.0,110.0,90.5"]
    assert page.index("data-box") < page.index("item 1")  # on the first card
    assert "This is about the framed part of your photo." in page
    for other in (result(0.2, 0.45), replace(result(0.7), look="block", box=(10.0, 20.0, 110.0, 90.5))):
        assert "data-box" not in answer_html(other)
        assert "framed" not in answer_html(other)


def test_twins_are_both_named() -> None:
    nearby = with_p_values(result(0.4, 0.45), 0.01, 0.02)
    page = answer_html(replace(nearby, matches=(), review=nearby.matches, decision="perhaps", reason="twins"), "r-1")
    assert "item 0 or item 1" in page
    assert "may have this item twice" in page
    assert page.count("<figure") == 2


def test_an_outgrown_promise_is_a_warning_on_the_page(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.open(world / "bundle", world / "gallery")
    assert "r-warning" not in header_html(retriever)
    monkeypatch.setattr(GalleryPoint, "outgrown", True)
    page = header_html(retriever)
    assert "more than intended, because the catalogue has grown" in page
    assert "recalibrate" not in page  # commands are for operators


def test_drift_is_a_warning_in_words_for_visitors(retriever: Retriever) -> None:
    assert "Recent photos look different" in header_html(retriever, drift=True)
    assert "Recent photos look different" not in header_html(retriever)


def test_an_empty_gallery_is_no_match_either() -> None:
    assert "holds no photos" in answer_html(result())


def test_a_name_is_the_title_and_every_text_is_escaped() -> None:
    assert "This is Tea" in answer_html(result(0.1, metadata={"name": "Tea"}))
    assert "This is item 0" in answer_html(result(0.1, metadata={"name": " "}))
    assert "This is item 0" in answer_html(result(0.1, metadata={"name": 7}))
    evil = '"><script>alert(1)</script>'
    for distance in (0.1, 0.9):
        page = answer_html(result(distance, item_id=evil, photo_id=evil, metadata={"name": evil}), "r-1")
        assert "<script" not in page
        assert evil not in page


def test_a_thumbnail_address_survives_any_photo_id() -> None:
    assert thumbnail_url("../a b/ü?#.jpg") == "v1/thumbnails/..%2Fa%20b%2F%C3%BC%3F%23.jpg"


def test_the_header_says_how_often_the_search_is_wrong_and_links_to_the_report(retriever: Retriever) -> None:
    page = " ".join(header_html(retriever).split())
    for told in (
        "<b>10</b> items, <b>30</b> photos",
        "Answers wrongly for about <b>1 of 20</b> photos of things we don’t have.",
        "measured on other items, not in this catalogue",
        'href="v1/report"',
    ):
        assert told in page
    assert "%" not in page


@pytest.mark.parametrize(("tpir", "told"), [(0.62, "about 6 of 10"), (0.0, "fewer than 1 of 1,000")])
def test_the_header_of_an_anchored_gallery_says_what_it_finds_and_the_bound(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, tpir: float, told: str
) -> None:
    point = Point(0.7, "estimated", 0.05, GALLERY, rates=Rates(tpir=tpir))
    rates = SimpleNamespace(broken=lambda _: False, expected=lambda _: 0.04, fpir_upper=lambda _: 0.11)
    monkeypatch.setattr(GalleryPoint, "measured", lambda _: (point, rates))
    page = re.sub("<.*?>", "", " ".join(header_html(retriever).split()))
    assert (
        f"Finds {told} photos of things we have; answers wrongly for about 1 of 25 photos of things we don’t "
        "have (at most 1 of 9)." in page.replace("  ", " ")
    )
