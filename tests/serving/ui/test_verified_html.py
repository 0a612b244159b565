"""The places that agree, as the page shows them under a match."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from retrieval.result import Match, SearchResult
from serving.ui.page_html import answer_html
from serving.ui.verified_html import WHOLE, AskedPhotos, verified_html

PLACES = [[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]]
HOSTILE = '<script>alert(1)</script>" onerror="x'


def answer(name: str = "red tin", *, inliers: int = 3, verified: str = "p0", query_photo: int = 1) -> SearchResult:
    """Return an answer whose first match is the photo p0, and whose explanation is about the photo `verified`."""
    match = Match(name, "p0", 0.2)
    places = PLACES[:inliers]
    photo = {"item_id": name, "photo_id": verified, "inliers": inliers, "query": places, "photo": places}
    photo["query_photo"] = query_photo
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
    page = verified_html(answer(), AskedPhotos(["token"]), "red tin")
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
    page = answer_html(hostile, AskedPhotos([HOSTILE]))
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
    assert verified_html(unverified, AskedPhotos(["token"]), "red tin") == ""


def test_places_of_a_searched_part_lie_in_it() -> None:
    found = AskedPhotos(["t", "u"], (20, 60, 50, 100)).places(PLACES, 1)
    assert np.allclose(found, [(0.2, 0.5), (0.6, 0.5), (0.4, 1.0)])
    for number, part in ((2, (20, 60, 50, 100)), (1, WHOLE)):  # the part is that of the first photo
        assert AskedPhotos(["t", "u"], part).places(PLACES, number) == [tuple(place) for place in PLACES]


def test_of_several_photos_the_one_that_agrees_most_is_shown() -> None:
    page = verified_html(answer(query_photo=2), AskedPhotos(["first", "second"]), "red tin")
    assert '<img src="gradio_api/file=second" alt="Your photo 2">' in page
    assert "first" not in page
    assert "3 details of your photo 2 are at the same places" in page
