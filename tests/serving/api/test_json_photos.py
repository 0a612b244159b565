"""Photos in JSON, as browsers and tools make it, and addresses in their place."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from retrieval.errors import ImageUnreadable
from serving.api.bodies import decoded
from serving.settings import ServeSettings

from ...world import draw, encode

MINE = encode(draw(3, 5))
PLAIN = base64.b64encode(MINE).decode()


@pytest.mark.parametrize(
    "image",
    [
        f"data:image/jpeg;base64,{PLAIN}",
        f"DATA:image/jpeg;name=a.jpg;BASE64,{PLAIN}",
        f"data:;base64,{quote(PLAIN, safe='')}",
        base64.encodebytes(MINE).decode(),
        base64.encodebytes(MINE).decode().replace("\n", "\r\n"),
        f"data:image/jpeg;base64,{base64.encodebytes(MINE).decode()}",
        base64.urlsafe_b64encode(MINE).decode(),
        base64.urlsafe_b64encode(MINE).decode().rstrip("="),
        f"  {PLAIN}\n",
        f"\n data:image/jpeg; base64, {PLAIN}",
        f"data:image/jpeg;name=a,b.jpg;charset=utf-8;base64,{PLAIN}",
        "\t".join(PLAIN[start : start + 76] for start in range(0, len(PLAIN), 76)),
    ],
)
def test_base64_as_browsers_and_tools_make_it_is_read(client: TestClient, image: str) -> None:
    answer = client.post("/v1/search", json={"image": image})
    assert (answer.status_code, answer.json()["matches"][0]["item_id"]) == (200, "item-03")


def test_base64_that_is_read_gives_the_bytes_that_were_sent() -> None:
    data = bytes(range(256)) * 3
    for size in range(700, 768):
        for text in (base64.encodebytes(data[:size]), base64.urlsafe_b64encode(data[:size]).rstrip(b"=")):
            assert decoded(text.decode()) == data[:size]


@pytest.mark.parametrize(
    "image", [f"data:image/jpeg,{PLAIN}", "data:image/jpeg;base64,", "data:", PLAIN[:-3] + "!", PLAIN.replace("/", " ")]
)
def test_what_is_no_base64_is_refused(client: TestClient, image: str) -> None:
    answer = client.post("/v1/search", json={"image": image})
    assert (answer.status_code, answer.json()["type"]) == (400, "/problems/image-unreadable")
    assert answer.json()["detail"]


@pytest.mark.parametrize("kind", ["text/json", "application/vnd.api+json", "APPLICATION/JSON; charset=UTF-8"])
def test_json_of_every_type_is_read(client: TestClient, kind: str) -> None:
    body = json.dumps({"image": PLAIN})
    assert client.post("/v1/search", content=body, headers={"Content-Type": kind}).status_code == 200


@pytest.mark.parametrize("body", [json.dumps({"image": PLAIN}), f"data:image/jpeg;base64,{PLAIN}"])
def test_text_without_its_type_is_refused_with_the_type_to_send(client: TestClient, body: str) -> None:
    answer = client.post("/v1/search", content=body, headers={"Content-Type": "text/plain;charset=UTF-8"})
    assert (answer.status_code, answer.json()["title"]) == (400, "the body is text")
    assert "Content-Type: application/json" in answer.json()["detail"]


@pytest.mark.parametrize("body", ["[]", '"text"', "null", "{", "\ufeff{}"])
def test_json_that_is_no_object_is_refused_with_what_to_send(client: TestClient, body: str) -> None:
    answer = client.post("/v1/search", content=body.encode(), headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (
        422,
        "Send a JSON object with the fields of the API, in UTF-8",
    )


def test_a_data_url_of_escapes_takes_no_more_memory_than_its_text() -> None:
    text = "data:;base64," + "%41" * 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(ImageUnreadable):
            decoded(text)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        {"url": "https://shop.example/a.jpg"},
        {"image_url": "https://shop.example/a.jpg"},
        {"image": "https://shop.example/a.jpg"},
        {"image": " HTTP://shop.example/a.jpg"},
        {"image": "blob:https://shop.example/0e3f"},
        {"image": "file:///photos/a.jpg"},
        {"image": {"url": "https://shop.example/a.jpg"}},
        {"image": None},
        {"image": PLAIN, "url": "https://shop.example/a.jpg"},
    ],
)
def test_an_address_in_place_of_a_photo_is_refused_with_what_to_send_instead(
    client: TestClient, body: dict[str, Any]
) -> None:
    answer = client.post("/v1/search", json=body)
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"].startswith("Send the photo's bytes, as base64 or as a data: URL in `image`")
    assert "fetches no addresses" in answer.json()["detail"]


def test_the_largest_photo_fits_as_base64_in_lines(client: TestClient) -> None:
    photo = MINE + bytes(ServeSettings().photo_bytes - len(MINE))
    lines = base64.encodebytes(photo).decode().replace("\n", "\r\n")
    assert client.post("/v1/search", json={"image": lines}).status_code == 200
