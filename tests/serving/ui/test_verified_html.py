"""The places that agree, as the page shows them under a match."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from retrieval.result import Match, SearchResult
from serving.ui.page_html import answer_html
from serving.ui.verified_html import AskedPhoto, verified_html

PLACES = [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]]
HOSTILE = '<script>alert(1)</script>" onerror="x'


def answer(name: str = "red tin", *, inliers: int = 3, verified: str = "p0") -> SearchResult:
    """Return an answer whose first match is the photo p0, and whose explanation is about the photo `verified`."""
    match = Match(name, "p0", 0.2)
    places = PLACES[:inliers]
    photo = {"item_id": name, "photo_id": verified, "inliers": inliers, "query": places, "photo": places}
    return SearchResult(
        matches=(match,),
        decision="match",
        reason="",
        threshold=0.5,
        nearest_distance=0.2,
        certainty=1.0,
        nearest=match,
        bundle_id="b",
        gallery_version=1,
        explanation={"verified": [photo]},
    )


def test_both_pictures_show_the_places_and_a_sentence_counts_them() -> None:
    page = verified_html(answer(), AskedPhoto("token"), "red tin")
    assert re.findall(r'<img src="([^"]*)" alt="([^"]*)">', page) == [
        ("gradio_api/file=token", "Your photo"),
        ("v1/thumbnails/p0", "red tin"),
    ]
    assert page.count("<svg") == page.count('aria-hidden="true"') == 2
    assert "3 details of your photo are at the same places in the picture of red tin." in page


def test_names_and_ids_are_escaped() -> None:
    found = answer(HOSTILE)
    shown = (replace(found.matches[0], photo_id=HOSTILE),)
    verified = [{**photo, "photo_id": HOSTILE} for photo in (found.explanation or {})["verified"]]
    hostile = replace(found, matches=shown, explanation={"verified": verified})
    page = answer_html(hostile, AskedPhoto(HOSTILE))
    assert "What agrees" in page
    assert "<script" not in page
    assert not re.search(r'<img [^>]*" onerror', page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.parametrize(
    "unverified",
    [
        answer(inliers=0),
        answer(verified="another photo"),
        replace(answer(), explanation={"verified": None}),
        replace(answer(), explanation=None),
        replace(answer(), matches=()),
    ],
)
def test_a_match_without_places_that_agree_draws_nothing(unverified: SearchResult) -> None:
    assert verified_html(unverified, AskedPhoto("token"), "red tin") == ""


def test_places_of_a_searched_part_lie_in_it() -> None:
    found = AskedPhoto("t", (20, 60, 50, 100)).places(PLACES)
    assert np.allclose(found, [(0.2, 0.5), (0.6, 0.5), (0.4, 1.0)])
    assert AskedPhoto("t").places(PLACES) == [tuple(place) for place in PLACES]
