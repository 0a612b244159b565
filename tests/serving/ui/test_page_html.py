from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retrieval.result import Match, SearchResult
from retrieval.retriever import Retriever
from retrieval.threshold.forecast import FpirForecast
from serving.ui.page_html import answer_html, header_html, thumbnail_url


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
        certainty=1.0,
        nearest=found[0] if found else None,
        bundle_id="b",
        gallery_version=1,
    )


def test_matches_stand_side_by_side_with_their_distances() -> None:
    page = answer_html(result(0.123, 0.456, 0.7))
    assert "This is item 0" in page
    assert re.findall(r"distance <strong>([\d.]+)", page) == ["0.123", "0.456"]
    assert page.count("<figure") == page.count("<img") == 2
    assert "r-grey" not in page
    assert "threshold 0.500" in page


def test_no_match_says_so_and_greys_the_closest_item() -> None:
    page = answer_html(result(0.51, 0.6))
    assert "Not in the catalogue" in page
    assert "The closest item is 0.510 away; a match needs 0.500 or less." in page
    assert page.count("<figure") == 1
    assert page.index("r-grey") < page.index("closest, but not a match")
    assert "This is" not in page


def test_other_reasons_are_said_in_words() -> None:
    unsure = answer_html(replace(result(0.3), matches=(), decision="no_match", reason="low_certainty"))
    assert "too ambiguous" in unsure
    assert "a match needs" not in unsure
    assert "does not look like anything" in answer_html(replace(result(0.9), reason="out_of_domain"))


def test_an_outgrown_promise_is_a_warning_on_the_page(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = Retriever.open(world / "bundle", world / "gallery")
    assert "r-warning" not in header_html(retriever)
    monkeypatch.setattr(retriever, "fpir_forecast", lambda: FpirForecast(5000, 300, 0.05, 0.31, known=False))
    assert "about 31.0% of photos of unknown items now return something" in header_html(retriever)


def test_an_empty_gallery_is_no_match_either() -> None:
    assert "holds no photos" in answer_html(result())


def test_the_bar_ends_before_the_line_exactly_for_a_match() -> None:
    for distance in (0.0, 0.3, 0.499, 0.5, 0.52, 2.0):
        page = answer_html(result(distance))
        ends, line = re.search(r'<i style="width:([\d.]+)%"></i><u style="left:([\d.]+)%', page).groups()  # type: ignore[union-attr]
        assert 0 <= float(ends) <= 100
        assert (float(ends) <= float(line)) == (distance <= 0.5)


def test_a_name_is_the_title_and_every_text_is_escaped() -> None:
    assert "This is Tea" in answer_html(result(0.1, metadata={"name": "Tea"}))
    assert "This is item 0" in answer_html(result(0.1, metadata={"name": " "}))
    assert "This is item 0" in answer_html(result(0.1, metadata={"name": 7}))
    evil = '"><script>alert(1)</script>'
    for distance in (0.1, 0.9):
        page = answer_html(result(distance, item_id=evil, photo_id=evil, metadata={"name": evil}))
        assert "<script" not in page
        assert '"">' not in page


def test_a_thumbnail_address_survives_any_photo_id() -> None:
    assert thumbnail_url("../a b/ü?#.jpg") == "v1/thumbnails/..%2Fa%20b%2F%C3%BC%3F%23.jpg"


def test_the_header_states_the_promise_and_its_status(retriever: Retriever) -> None:
    page = header_html(retriever)
    for told in ("<b>10</b> items", "<b>30</b> photos", "<b>0.500</b>", "5%", "<b>estimated</b>"):
        assert told in page


def test_stand_ins_are_what_the_retriever_answers(retriever: Retriever) -> None:
    photo = next(iter(retriever.gallery.photo_ids()))
    thumbnail = retriever.gallery.thumbnail(photo)
    assert thumbnail is not None
    real = retriever.search(thumbnail)
    assert answer_html(replace(real, matches=real.matches[:1])).count("<figure") == 1
