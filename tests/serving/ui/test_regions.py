"""The page's search for all items in a photo: boxes, cards and the text of the answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from PIL import Image

from retrieval.regions.result import RegionMatch, RegionsResult
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import read_feedback
from serving.service import Service
from serving.ui.page_events import EVENT, EventContext
from serving.ui.page_search import Found, PageSearch
from serving.ui.regions_html import regions_html
from serving.ui.uploads import Uploads

from ...retrieval.regions.scenes import scene
from ...world import encode
from ..conftest import Served
from .page_client import run, upload

CUP = RegionMatch("cup", "cup/1.png", 0.3, {"name": "Cup <b>"}, 0.01, bbox=(10, 20, 60, 70))
PAN = RegionMatch("pan", "pan/1.png", 0.4, bbox=(100, 20, 200, 120), score=0.9)
RESULT = RegionsResult((CUP, PAN), "match", "", 0.5, CUP, "id", 3, "auto", 26, 200, 160, threshold_status="estimated")
NOTHING = replace(RESULT, matches=(), decision="no_match", reason="beyond_threshold", nearest=PAN)


def test_boxes_lie_on_the_photo_and_lead_to_the_cards() -> None:
    page = regions_html(RESULT, "token", 0.04)
    boxes = re.findall(r'<a href="#(.*?)" style="(.*?)" aria-label="(.*?)">', page)
    assert boxes == [
        ("region-1", "left:5.00%;top:12.50%;width:25.00%;height:31.25%", "Box 1: Cup &lt;b&gt;"),
        ("region-2", "left:50.00%;top:12.50%;width:50.00%;height:62.50%", "Box 2: pan"),
    ]
    assert re.findall(r'id="(region-\d)"', page) == ["region-1", "region-2"]
    assert "<b>1 Cup &lt;b&gt;</b>" in page
    assert "Cup <b>" not in page
    assert "2 items found" in page
    assert "An unknown item comes this close in 1.0% of searches." in page
    assert "in about 4.0% of searches, measured for this kind of search" in page
    assert "This is Cup" in regions_html(replace(RESULT, matches=(CUP,)), "token")


def test_a_no_match_shows_the_nearest_item_without_a_claim() -> None:
    page = regions_html(NOTHING, "token", 0.04)
    assert "No confident match" in page
    assert 'class="r-scene r-unsure"' in page
    assert "Box 1: pan" in page
    assert "items found" not in page
    empty = regions_html(replace(NOTHING, nearest=None, reason="no_region"), "token")
    assert "No item was found in the photo." in empty
    assert "<a href" not in empty


def test_an_answer_that_was_not_measured_says_so() -> None:
    assert "was not measured" in regions_html(replace(RESULT, threshold_status="unanchored"), "token")
    ranked = replace(NOTHING, decision="ranked", ranked=(CUP, PAN), threshold=None, threshold_status="uncalibrated")
    page = regions_html(ranked, "token")
    assert "The closest items" in page
    assert page.count("<figure") == 2


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Uploads]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = Uploads(client_bytes=2**24, total_bytes=2**24)
    yield made
    made.close()


def test_the_search_is_that_of_the_retriever(retriever: Retriever, uploads: Uploads) -> None:
    service, event = Service(retriever), EventContext("a", "one", "request")

    async def found(token: str | None) -> Found:
        EVENT.set(event)
        return await PageSearch(service, uploads).run_regions(token)

    try:
        photo = encode(scene(3, 8), "PNG")
        token = uploads.store("a", photo)
        shown = asyncio.run(found(token))
        assert shown.html == regions_html(retriever.search_regions(photo, top_k=12), token)
        assert shown.answer is not None
        assert shown.answer.boxes == tuple(match.bbox for match in retriever.search_regions(photo, top_k=12).matches)
        assert (shown.answer.request_id, shown.takes_more, event.status) == ("request", False, 200)
        assert "Upload, paste or take" in asyncio.run(found(None)).html
        broken = encode(Image.new("L", (2000, 9)), "PNG")
        assert "cannot be searched" in asyncio.run(found(uploads.store("a", broken))).html
        assert event.status == 415
    finally:
        service.stop()


@pytest.mark.slow
def test_the_button_searches_the_photo_of_the_session(served: Served) -> None:
    with httpx.Client(base_url=served.address, timeout=60) as page:
        events = {d["api_name"]: d["id"] for d in page.get("/config").json()["dependencies"]}
        token = upload(page, encode(scene(3, 8), "PNG"))
        assert run(page, events["search_whole"], {"path": token}, session="regions").status_code == 200
        answer = run(page, events["search_regions"], {"path": token}, session="regions")
        assert answer.status_code == 200
        assert "r-scene" in answer.text
        assert run(page, events["search_regions"], {"path": "/etc/passwd"}, session="regions").status_code != 200


@pytest.mark.slow
def test_a_box_is_chosen_by_its_card_and_judged(served: Served, world: Path, retriever: Retriever) -> None:
    photo, feedback = encode(scene(3, 9), "PNG"), world / "gallery.feedback.jsonl"
    second = retriever.search_regions(photo, top_k=12).matches[1]
    with httpx.Client(base_url=served.address, timeout=60) as page:
        events = {d["api_name"]: d["id"] for d in page.get("/config").json()["dependencies"]}
        token = upload(page, photo)
        run(page, events["search_whole"], {"path": token}, session="boxes")
        shown = run(page, events["search_regions"], {"path": token}, session="boxes").json()["data"][0]

        def do(name: str) -> str:
            return str(run(page, events[f"verdict_{name}"], session="boxes").json()["data"][0])

        assert shown.count("Is this right?</button>") == shown.count("<figure") > 1
        assert f"Box 2: is it {second.item_id}?" in do("pick_1")
        assert "Saved, thank you: box 2." in do("right")
        assert "could not be saved" in do("right")  # of no box
        assert "Saved, thank you." in do("unknown")  # of the whole photo
        assert "could not be saved" in do("pick_1")  # the answer was judged as a whole
    boxed, whole = read_feedback(feedback)[-2:]
    assert (boxed.verdict, boxed.item_id, boxed.bbox) == ("right", second.item_id, second.bbox)
    assert (whole.verdict, whole.bbox) == ("unknown", None)
