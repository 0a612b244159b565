"""Queries of several photos over HTTP: the same answer as in this process, its limits, and what it leaves alone."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from retrieval.arguments import MOST_QUERY_PHOTOS
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import feedback_on, read_feedback
from retrieval.threshold.judged import parts_of
from retrieval.threshold.verdicts import judged_answers
from serving.api.schemas import PhotosRequest
from serving.app import create_app
from serving.config import ServeSettings
from serving.ops.drift_monitor import NEAREST
from serving.service import Service

from ..world import draw, encode

PATH = "/v1/search/photos"
PHOTOS = [encode(draw(3, number), "PNG") for number in (8, 9)]
FILES = [("images", (f"{number}.png", photo)) for number, photo in enumerate(PHOTOS)]
TEXTS = [base64.b64encode(photo).decode() for photo in PHOTOS]


def test_the_answer_is_that_of_the_retriever(client: TestClient, retriever: Retriever) -> None:
    expected = retriever.search_photos(PHOTOS, top_k=2)
    for sent in (
        client.post(f"{PATH}?top_k=2", files=FILES),
        client.post(PATH, json={"images": TEXTS, "top_k": 2}),
    ):
        answer = sent.json()
        assert sent.status_code == 200
        assert answer["request_id"] == sent.headers["x-request-id"]
        assert [match["item_id"] for match in answer["matches"]] == [match.item_id for match in expected.matches]
        assert answer["nearest"]["distance"] == expected.nearest_distance
        assert (answer["photos"], answer["threshold_photos"], answer["threshold_status"]) == (2, 1, "extrapolated")
    single = client.post("/v1/search", content=PHOTOS[0]).json()
    assert (single["photos"], single["threshold_photos"], single["threshold_status"]) == (1, 1, "unanchored")


@pytest.mark.parametrize("count", [0, 1, MOST_QUERY_PHOTOS + 1])
def test_other_numbers_of_photos_are_refused(client: TestClient, count: int) -> None:
    assert client.post(PATH, json={"images": TEXTS[:1] * count}).status_code == 422
    assert client.post(PATH, files=FILES[:1] * count or None).status_code in (400, 422)


def test_the_limits_are_those_of_the_retriever() -> None:
    images = PhotosRequest.model_json_schema()["properties"]["images"]
    assert (images["minItems"], images["maxItems"]) == (2, MOST_QUERY_PHOTOS)


def test_a_photo_that_cannot_be_used_is_named(client: TestClient) -> None:
    refused = client.post(PATH, files=[FILES[0], ("images", ("b.png", b"no photo"))])
    assert refused.status_code == 400
    assert "photo 2" in refused.json()["title"]
    assert client.post(PATH, json={"images": [TEXTS[0], "?"]}).status_code == 400


def test_feedback_on_several_photos_sets_no_threshold_of_single_ones(retriever: Retriever, tmp_path: Path) -> None:
    settings = ServeSettings(feedback=tmp_path / "feedback.jsonl")
    with TestClient(create_app(retriever, settings=settings, page=False)) as client:
        for path, files in ((PATH, FILES), ("/v1/search", [("image", ("a.png", PHOTOS[0]))])):
            request_id = client.post(path, files=files).json()["request_id"]
            verdict = {"request_id": request_id, "verdict": "unknown"}
            assert client.post("/v1/feedback", json=verdict).json() == {"recorded": True}
    several, single = read_feedback(tmp_path / "feedback.jsonl")
    assert judged_answers(retriever.bundle, [several, single]) == [single]
    result = parts_of(retriever.search_photos(PHOTOS))[None]
    assert feedback_on(result, "unknown", retriever.bundle, gallery_items=10).distance_form == "plain, 2 photos"


def test_the_drift_of_single_photos_leaves_them_out(retriever: Retriever) -> None:
    service = Service(retriever)

    async def ask() -> list[int]:
        await service.search_photos(PHOTOS)
        seen = [len(service.monitor._seen[NEAREST])]
        await service.search(PHOTOS[0])
        return [*seen, len(service.monitor._seen[NEAREST])]

    assert asyncio.run(ask()) == [0, 1]
