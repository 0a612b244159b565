"""Several photos of the same item on the page: the store's photos in a search, and the words of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from retrieval.result import Match, SearchResult
from retrieval.retriever import Retriever
from serving.service import Service
from serving.ui.page_events import EVENT, EventContext
from serving.ui.page_html import answer_html
from serving.ui.page_search import WHOLE_PHOTO, Found, PageSearch
from serving.ui.several_html import previews_html, several_html
from serving.ui.uploads import Uploads
from serving.ui.verified_html import AskedPhotos

from ...prints import draw_cover
from ...world import draw, encode
from ..conftest import Served
from .page_client import run, upload

CLIENT, SESSION = "a", "one"


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def events(page: httpx.Client) -> dict[str, int]:
    return {d["api_name"]: d["id"] for d in page.get("/config").json()["dependencies"]}


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Uploads(client_bytes=2**24, total_bytes=2**24)
    yield made
    made.close()


def send(page: httpx.Client, number: int, *tokens: str, session: str) -> httpx.Response:
    """Run an event of the page with a photo: the first token, and a second one before it if it is added."""
    *added, photo = ({"path": token} for token in tokens)
    return run(page, number, *added, photo, *WHOLE_PHOTO, session=session)


def start(page: httpx.Client, events: dict[str, int], session: str) -> str:
    first = upload(page, encode(draw(3, 5)))
    assert run(page, events["search_whole"], {"path": first}, session=session).status_code == 200
    return first


def search(retriever: Retriever, uploads: Uploads, token: str, another: str | None = None) -> tuple[Found, int]:
    """Return what the page shows, and the status of the request."""
    service, event = Service(retriever), EventContext(CLIENT, SESSION, "request")

    async def answer() -> Found:
        EVENT.set(event)
        return await PageSearch(service, uploads).run(token, WHOLE_PHOTO, another)

    try:
        return asyncio.run(answer()), event.status
    finally:
        service.stop()


def photos(uploads: Uploads, *images: bytes) -> list[str]:
    """Store photos as one query of the session."""
    tokens = [uploads.store(CLIENT, image) for image in images]
    uploads.claim(tokens[0], CLIENT, SESSION)
    for token in tokens[1:]:
        uploads.claim_added(token, CLIENT, SESSION)
    return tokens


def test_all_photos_of_the_session_are_one_query(retriever: Retriever, uploads: Uploads) -> None:
    images = [encode(draw(3, number)) for number in (5, 6, 7)]
    first, *_ = photos(uploads, *images)
    expected = retriever.search_photos(images, top_k=12)
    found, status = search(retriever, uploads, first)
    assert (status, found.takes_more) == (200, True)
    assert f'"distance {expected.matches[0].distance:.4f},' in found.html
    assert "One answer for your 3 photos together." in found.html
    assert found.answer is not None
    assert found.answer.matched == "item-03"


def test_a_photo_that_cannot_be_used_is_not_added(retriever: Retriever, uploads: Uploads) -> None:
    first, second, bad = photos(uploads, encode(draw(3, 5)), encode(draw(3, 6)), b"no image")
    found, status = search(retriever, uploads, first, bad)
    assert status == 400  # in the log
    assert found.html.index("This photo was not added") < found.html.index("photo 3: this is not a JPEG")
    assert found.html.index("photo 3") < found.html.index("This is item-03")
    assert "One answer for your 2 photos together." in found.html
    assert uploads.added(CLIENT, SESSION) == [second]


def test_the_places_of_the_photo_that_agrees_most_are_shown(covers: Path, uploads: Uploads) -> None:
    with Retriever.open(covers / "bundle", covers / "gallery") as retriever:
        first, second = photos(uploads, encode(Image.new("RGB", (160, 160), "gray")), encode(draw_cover(3, 5)))
        found, status = search(retriever, uploads, first)
    assert (status, found.takes_more) == (200, True)
    assert "One answer for your 2 photos together." in found.html
    assert f'{second}" alt="Your photo 2"' in found.html


@pytest.mark.slow
def test_a_second_session_cannot_add_or_search_the_photos_of_the_first(
    page: httpx.Client, events: dict[str, int]
) -> None:
    first, added = start(page, events, "ann"), upload(page, encode(draw(3, 6)))
    answer = send(page, events["search_added"], added, first, session="ann").json()["data"]
    assert "One answer for your 2 photos together." in answer[0]
    own = start(page, events, "bob")
    for stolen in (first, added):
        refused = send(page, events["search_added"], stolen, own, session="bob")
        assert (refused.status_code, "no longer stored" in refused.text) == (404, True)
        refused = run(page, events["search_whole"], {"path": stolen}, session="bob")
        assert refused.status_code == 404
    for name in ("search_part", "search_removed_0"):  # removes nothing of ann's
        assert "photos together" not in send(page, events[name], own, session="bob").text
    assert "for your 2 photos" in send(page, events["search_part"], first, session="ann").text


@pytest.mark.slow
def test_the_ninth_photo_is_refused_with_a_sentence(page: httpx.Client, events: dict[str, int]) -> None:
    first = start(page, events, "nine")
    for number in range(2, 9):
        answer = send(page, events["search_added"], upload(page, encode(draw(3, 4 + number))), first, session="nine")
        assert f"for your {number} photos together" in answer.text
    assert "No more can be added." in answer.text
    ninth = upload(page, encode(draw(3, 20)))
    refused = send(page, events["search_added"], ninth, first, session="nine")
    assert refused.status_code == 422
    assert "photos must be at most 8 for one search" in refused.json()["error"]
    assert page.get(f"/gradio_api/file={ninth}").status_code == 404
    assert "for your 7 photos" in send(page, events["search_removed_6"], first, session="nine").text


@pytest.mark.slow
def test_another_first_photo_begins_another_query(page: httpx.Client, events: dict[str, int]) -> None:
    first, added = start(page, events, "again"), upload(page, encode(draw(3, 6)))
    assert "for your 2 photos" in send(page, events["search_added"], added, first, session="again").text
    example = run(page, events["example"], 0, session="again").json()["data"][0]["path"]
    answer = run(page, events["search_whole"], {"path": example}, session="again")
    assert (answer.status_code, "photos together" in answer.text) == (200, False)
    for token in (first, added):
        assert page.get(f"/gradio_api/file={token}").status_code == 404
    added = upload(page, encode(draw(3, 6)))  # an example takes more photos too
    assert "for your 2 photos" in send(page, events["search_added"], added, example, session="again").text


@pytest.mark.slow
def test_clearing_the_first_photo_keeps_the_others(page: httpx.Client, events: dict[str, int]) -> None:
    first = start(page, events, "clear")
    second, third = (upload(page, encode(draw(3, number))) for number in (6, 7))
    for added in (second, third):
        send(page, events["search_added"], added, first, session="clear")
    *others, shown = run(page, events["search_whole"], None, session="clear").json()["data"]
    assert shown["path"] == second
    assert not any(isinstance(other, str) for other in others)  # no answer: the photo's own event follows
    assert page.get(f"/gradio_api/file={first}").status_code == 404
    answer = run(page, events["search_whole"], {"path": second}, session="clear").json()["data"]
    assert "for your 2 photos together" in answer[0]
    assert "path" not in answer[-1]
    assert run(page, events["search_whole"], None, session="clear").json()["data"][-1]["path"] == third
    assert "Upload, paste" in run(page, events["search_whole"], None, session="clear").text


def result(photos: int, threshold_photos: int, status: str, **values: Any) -> SearchResult:
    match = Match("mug", "p", 0.2)
    made = SearchResult((match,), "match", "", 0.5, 0.2, 1.0, match, "b", 1, threshold_status=status)
    return replace(made, photos=photos, threshold_photos=threshold_photos, **values)


@pytest.mark.parametrize(
    ("answer", "told", "not_told"),
    [
        (result(3, 3, "estimated"), "was measured for searches with 3 photos.", "more often"),
        (result(3, 1, "extrapolated"), "measured for searches with one photo. With 3, unknown items", "same photo"),
        (result(3, 2, "extrapolated"), "measured for searches with 2 photos. With 3, unknown items", "same photo"),
        (result(2, 2, "estimated"), "the same photo, so they count as 2.", "more often"),
        (result(1, 1, "estimated"), "the same photo, so they count as one.", "measured"),
        (result(3, 1, "uncalibrated", threshold=None), "for your 3 photos together.", "measured"),
    ],
)
def test_the_answer_says_what_it_stands_on(answer: SearchResult, told: str, not_told: str) -> None:
    words = several_html(answer, 3)
    assert told in words
    assert not_told not in words
    assert words in answer_html(answer, AskedPhotos(["t", "u", "v"]))
    assert several_html(answer, 1) == ""


@pytest.mark.parametrize("reason", ["low_certainty", "out_of_domain"])
def test_a_no_match_is_about_all_photos(reason: str) -> None:
    missed = {"matches": (), "decision": "no_match", "reason": reason}
    several, single = (answer_html(result(photos, 1, "estimated", **missed)) for photos in (2, 1))
    assert " photos are " in several
    assert " photo is " in single


def test_previews_have_names_and_escape_their_tokens() -> None:
    assert previews_html([]) == ""
    page = previews_html(["one", '"><script>'])
    assert page.count("<li>") == 2
    assert 'alt="Photo 3"' in page
    assert 'data-remove="1" aria-label="Remove photo 3"' in page
    assert "<script>" not in page
