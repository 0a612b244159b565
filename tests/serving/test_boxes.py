"""Parts of a photo and several photos over HTTP: the same answers as the retriever, and limits."""

from __future__ import annotations

import base64

import pytest
from fastapi.testclient import TestClient

from retrieval.retriever import Retriever
from retrieval.search.looks import MOST_QUERY_PHOTOS

from ..retrieval.search.scenes import box_of, scene
from ..world import draw, encode

PATH = "/v1/search/boxes"
PHOTO = encode(scene(3, 8), "PNG")
TEXT = base64.b64encode(PHOTO).decode()
BOXES = [box_of(0), box_of(1)]


def test_windows_have_the_answers_of_the_retriever(client: TestClient, retriever: Retriever) -> None:
    expected = retriever.search_boxes(PHOTO)
    form = {"image": ("photo.png", PHOTO)}
    for sent in (
        client.post(PATH, content=PHOTO),
        client.post(PATH, files=form),
        client.post(f"{PATH}?find=windows", content=PHOTO),
    ):
        answers = sent.json()["answers"]
        assert sent.status_code == 200, answers
        assert [(tuple(a["box"]), a["nearest"]["item_id"], a["nearest_distance"]) for a in answers] == [
            (result.box, result.nearest and result.nearest.item_id, result.nearest_distance) for result in expected
        ]
        assert {(a["decision"], a["threshold"], a["threshold_status"]) for a in answers} == {
            ("ranked", None, "uncalibrated")
        }
        assert sent.json()["request_id"] == sent.headers["x-request-id"]
        assert answers[1]["request_id"] == f"{sent.headers['x-request-id']}-1"
        assert not any(key.startswith("_") for a in answers for match in a["ranked"] for key in match["metadata"])


def test_given_boxes_get_an_answer_each(client: TestClient, retriever: Retriever) -> None:
    texts = [",".join(f"{side:g}" for side in bbox) for bbox in BOXES]
    answers = client.post(PATH, params={"bbox": texts}, content=PHOTO).json()["answers"]
    assert [(a["nearest"]["item_id"], tuple(a["box"])) for a in answers] == [
        ("item-03", BOXES[0]),
        ("item-08", BOXES[1]),
    ]
    one = client.post("/v1/search", params={"bbox": texts[1]}, content=PHOTO).json()
    assert (one["matches"][0]["item_id"], tuple(one["box"])) == ("item-08", BOXES[1])
    assert client.post("/v1/search", json={"image": TEXT, "bbox": BOXES[1]}).json()["matches"] == one["matches"]
    (alone,) = client.post(PATH, params={"bbox": texts[1]}, content=PHOTO).json()["answers"]
    assert alone["matches"] == one["matches"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"find": "auto"},
        {"find": "detector"},
        {"find": "windows", "bbox": "0,0,40,40"},
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


@pytest.mark.parametrize("bbox", [[], [0, 0, 40], [0, 0, 40, -1], [BOXES[0]]], ids=str)
def test_a_box_in_json_that_is_none_is_refused(client: TestClient, bbox: object) -> None:
    assert client.post("/v1/search", json={"image": TEXT, "bbox": bbox}).status_code == 422


def test_only_one_search_takes_json(client: TestClient) -> None:
    assert client.post(PATH, json={"image": TEXT}).status_code == 400
    for path in ("/v1/search/photos", "/v1/search/batch"):
        assert client.post(path, json={"images": [TEXT, TEXT]}).status_code in (400, 422)


def test_a_refusal_says_what_a_box_is_and_which_boxes_are_found(client: TestClient) -> None:
    for parameters, told in (
        ({"bbox": "0,0,nan,40"}, "bbox.0 must be four numbers, left upper right lower in pixels"),
        ({"find": "detector"}, "find must be 'windows'"),
    ):
        assert told in client.post(PATH, params=parameters, content=PHOTO).text


def test_a_photo_that_cannot_be_used_is_refused(client: TestClient) -> None:
    assert client.post(PATH, content=b"no photo").status_code == 400
    assert client.post(PATH).status_code == 400


def test_several_photos_rank_as_the_retriever_does(client: TestClient, retriever: Retriever) -> None:
    photos = [encode(draw(3, number), "PNG") for number in (8, 9)]
    files = [("images", (f"{number}.png", photo)) for number, photo in enumerate(photos)]
    expected = retriever.search_photos(photos, top_k=2)
    sent = client.post("/v1/search/photos?top_k=2", files=files)
    answer = sent.json()
    assert (sent.status_code, answer["decision"]) == (200, "ranked")
    assert [match["item_id"] for match in answer["ranked"]] == [match.item_id for match in expected.ranked]
    assert answer["nearest"]["distance"] == expected.nearest_distance
    for count in (0, 1, MOST_QUERY_PHOTOS + 1):
        assert client.post("/v1/search/photos", files=files[:1] * count or None).status_code in (400, 422)
    refused = client.post("/v1/search/photos", files=[files[0], ("images", ("b.png", b"no photo"))])
    assert (refused.status_code, "photo 2" in refused.json()["title"]) == (400, True)
