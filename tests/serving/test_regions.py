"""Regions over HTTP and with the clients: the same answers as the retriever, limits, and `/v1/info`."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from retrieval.client import AsyncRetrievalClient, RetrievalClient
from retrieval.client.models import ApiError
from retrieval.errors import InvalidParameter
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import read_feedback
from retrieval.threshold.reviewed_photos import reviewed_photos
from serving.app import create_app
from serving.config import ServeSettings
from serving.kept_photos import photo_name

from ..retrieval.regions.scenes import box_of, scene, write_detector
from ..world import encode

PATH = "/v1/search/regions"
PHOTO = encode(scene(3, 8), "PNG")
TEXT = base64.b64encode(PHOTO).decode()
BOXES = [box_of(0), box_of(1)]


@pytest.fixture(scope="module")
def detecting(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return a client of a server with a detector that finds two boxes."""
    path = write_detector(tmp_path_factory.mktemp("d") / "d.onnx", np.float32(BOXES), np.array([0.9, 0.8], np.float32))
    settings = ServeSettings(feedback=path.with_suffix(".jsonl"))
    with (
        Retriever.open(world / "bundle", world / "gallery", detector=path) as retriever,
        TestClient(create_app(retriever, settings=settings, page=False)) as client,
    ):
        yield client


def test_the_answer_is_that_of_the_retriever(client: TestClient, retriever: Retriever) -> None:
    expected = retriever.search_regions(PHOTO)
    form = {"image": ("photo.png", PHOTO)}
    for sent in (
        client.post(PATH, content=PHOTO),
        client.post(PATH, files=form),
        client.post(PATH, json={"image": TEXT}),
        client.post(f"{PATH}?regions=auto", content=PHOTO),
    ):
        answer = sent.json()
        assert sent.status_code == 200, answer
        assert [(m["item_id"], tuple(m["bbox"]), m["distance"]) for m in answer["matches"]] == [
            (match.item_id, match.bbox, match.distance) for match in expected.matches
        ]
        assert (answer["regions"], answer["searched"], answer["fpir_per"]) == ("auto", 26, "photo")
        assert answer["threshold_status"] == "unanchored"
        assert answer["request_id"] == sent.headers["x-request-id"]
        assert not any(key.startswith("_") for match in answer["matches"] for key in match["metadata"])


def test_given_boxes_get_an_answer_each(client: TestClient, retriever: Retriever) -> None:
    expected = [(match.item_id, match.bbox) for match in retriever.search_regions(PHOTO, BOXES).matches]
    texts = [",".join(f"{side:g}" for side in bbox) for bbox in BOXES]
    for sent in (
        client.post(PATH, params={"bbox": texts}, content=PHOTO),
        client.post(PATH, json={"image": TEXT, "bbox": BOXES}),
    ):
        answer = sent.json()
        assert [(match["item_id"], tuple(match["bbox"])) for match in answer["matches"]] == expected
        assert (answer["regions"], answer["fpir_per"]) == ("given", "bbox")
    one = client.post("/v1/search", params={"bbox": texts[1]}, content=PHOTO).json()
    assert one["matches"][0]["item_id"] == "item-08"
    assert client.post("/v1/search", json={"image": TEXT, "bbox": BOXES[1]}).json()["matches"] == one["matches"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"regions": "windows"},
        {"regions": "detector"},
        {"regions": "auto", "bbox": "0,0,40,40"},
        {"bbox": "0,0,400,400"},
        {"bbox": "40,0,0,40"},
        {"bbox": "0,0,40"},
        {"bbox": "0,0,nan,40"},
        {"bbox": ["0,0,40,40"] * 65},
        {"top_k": 0},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(client: TestClient, parameters: dict[str, object]) -> None:
    refused = client.post(PATH, params=parameters, content=PHOTO)  # type: ignore[arg-type]
    assert refused.status_code == 422, refused.json()
    assert refused.json()["type"] == "/problems/invalid-parameter"


@pytest.mark.parametrize(
    "body", [{"bbox": [[0, 0, 40]]}, {"bbox": [[0, 0, 40, -1]]}, {"bbox": [BOXES[0]] * 65}, {"scales": [1]}]
)
def test_bodies_out_of_range_are_refused(client: TestClient, body: dict[str, object]) -> None:
    assert client.post(PATH, json={"image": TEXT, **body}).status_code == 422


def test_a_photo_that_cannot_be_used_is_refused(client: TestClient) -> None:
    assert client.post(PATH, content=b"no photo").status_code == 400
    assert client.post(PATH).status_code == 400


def test_a_server_with_a_detector_answers_with_its_boxes(detecting: TestClient) -> None:
    answer = detecting.post(f"{PATH}?regions=detector", content=PHOTO).json()
    assert {(m["item_id"], tuple(m["bbox"]), round(m["score"], 3)) for m in answer["matches"]} == {
        ("item-03", box_of(0), 0.9),
        ("item-08", box_of(1), 0.8),
    }
    states = {state["regions"]: state for state in detecting.get("/v1/info").json()["regions"]}
    assert set(states) == {"auto", "detector"}
    assert states["detector"]["threshold_status"] == "unanchored"
    assert detecting.post("/v1/admin/reload").json()["swapped"]
    assert detecting.post(f"{PATH}?regions=detector", content=PHOTO).status_code == 200  # the detector is still there


@pytest.fixture(scope="module")
def judging(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Path]]:
    """Return a client of a server that keeps judged photos, and the folder with feedback and photos."""
    folder = tmp_path_factory.mktemp("judged")
    settings = ServeSettings(feedback=folder / "feedback.jsonl", feedback_photos=folder / "kept")
    with (
        Retriever.open(world / "bundle", world / "gallery") as retriever,
        TestClient(create_app(retriever, settings=settings, page=False)) as client,
    ):
        yield client, folder


def test_each_item_of_an_answer_by_regions_is_judged_by_its_box(judging: tuple[TestClient, Path]) -> None:
    client, folder = judging
    answer = client.post(PATH, content=PHOTO).json()
    first, second = answer["matches"][:2]

    def judge(verdict: str, **fields: object) -> int:
        body = {"request_id": answer["request_id"], "verdict": verdict, **fields}
        return client.post("/v1/feedback", json=body).status_code

    assert judge("right", bbox=first["bbox"]) == 200
    assert judge("right", bbox=first["bbox"]) == 200  # said before
    assert judge("wrong", bbox=second["bbox"], item_id="item-05") == 200
    before = len(read_feedback(folder / "feedback.jsonl"))
    for fields in ({"bbox": [1, 2, 30, 40]}, {}, {"bbox": [5, 5, 5, 5]}):  # other boxes, and all items at once
        assert judge("right", **fields) == 422
    one, other = read_feedback(folder / "feedback.jsonl")
    assert before == 2
    assert (one.item_id, one.bbox, one.decision, one.found_items) == (
        *(first["item_id"], tuple(first["bbox"]), "match"),
        len(answer["matches"]),
    )
    assert (other.bbox, other.right_item_id) == (tuple(second["bbox"]), "item-05")
    assert one.photos == other.photos == (photo_name(PHOTO),)
    assert (folder / "kept" / photo_name(PHOTO)).read_bytes() == PHOTO
    assert one.distance_form.endswith(", regions auto")  # it says nothing about the threshold of whole photos
    found = reviewed_photos([one, other], folder / "kept")
    assert {photo.bbox: photo.item_id for photo in found.photos} == {one.bbox: one.item_id, other.bbox: "item-05"}
    assert [photo.metadata["all_judged"] for photo in found.photos] == [len(answer["matches"]) == 2] * 2
    assert judge("unknown") == 200  # the photo shows no item of the catalogue
    assert read_feedback(folder / "feedback.jsonl")[-1].bbox is None


def test_given_boxes_are_judged_one_by_one_and_a_part_by_its_search(judging: tuple[TestClient, Path]) -> None:
    client, folder = judging
    texts = [",".join(f"{side:g}" for side in bbox) for bbox in BOXES]
    several = client.post(PATH, params={"bbox": texts}, content=PHOTO).json()["request_id"]
    part = client.post("/v1/search", params={"bbox": texts[1]}, content=PHOTO).json()["request_id"]
    whole = client.post("/v1/search", content=PHOTO).json()["request_id"]
    statuses = [
        client.post("/v1/feedback", json={"request_id": request_id, "verdict": "right", **fields}).status_code
        for request_id, fields in (
            (several, {"bbox": BOXES[0]}),
            (several, {}),
            (part, {}),
            (part, {"bbox": BOXES[1]}),
            (whole, {"bbox": BOXES[0]}),
        )
    ]
    assert statuses == [200, 422, 200, 200, 422]
    first, second = read_feedback(folder / "feedback.jsonl")[-2:]
    assert [(verdict.bbox, verdict.item_id) for verdict in (first, second)] == [
        (BOXES[0], "item-03"),
        (BOXES[1], "item-08"),
    ]
    assert (first.distance_form, second.distance_form) == ("plain", "plain")
    assert second.photos == (photo_name(PHOTO),)


def test_the_clients_send_regions_and_boxes(detecting: TestClient, retriever: Retriever) -> None:
    transport = httpx.ASGITransport(detecting.app)
    expected = retriever.search_regions(PHOTO)

    def forward(request: httpx.Request) -> httpx.Response:
        sent = detecting.request(
            request.method, str(request.url), content=request.read(), headers=dict(request.headers)
        )
        return httpx.Response(sent.status_code, content=sent.content, headers={"content-type": "application/json"})

    with RetrievalClient("http://testserver", transport=httpx.MockTransport(forward)) as client:
        answer = client.search_regions(PHOTO)
        assert [(m.item_id, m.bbox) for m in answer.matches] == [(m.item_id, m.bbox) for m in expected.matches]
        assert answer.matched
        assert client.search_regions(PHOTO, "detector").matches[0].score is not None
        assert client.search_regions(PHOTO, BOXES).fpir_per == "bbox"
        assert client.search(PHOTO, bbox=BOXES[1]).matches[0].item_id == "item-08"
        assert client.feedback(answer, "right", bbox=answer.matches[0].bbox)
        with pytest.raises(ApiError, match="bbox"):
            client.feedback(answer, "right")
        assert client.info().regions[0]["regions"] == "auto"
        with pytest.raises(ApiError, match="regions"):
            client.search_regions(PHOTO, "windows")
        with pytest.raises(InvalidParameter, match="bbox"):
            client.search_regions(PHOTO, [(0, 0, 0, 0)])

    async def ask() -> list[str]:
        async with AsyncRetrievalClient("http://testserver", transport=transport) as client:
            found = await client.search_regions(PHOTO, BOXES)
            part = await client.search(PHOTO, bbox=BOXES[1])
            assert await client.feedback(found, "wrong", bbox=BOXES[0], item_id="item-05")
            return [found.regions, part.matches[0].item_id]

    assert asyncio.run(ask()) == ["given", "item-08"]
