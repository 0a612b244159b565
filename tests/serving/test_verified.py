"""Serving a bundle that verifies matches: photos, searches, explanations and reloads over HTTP."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from retrieval.retriever import Retriever
from serving.app import create_app
from serving.reloads import Places

from ..prints import draw_cover
from ..world import encode

JPEG = {"content-type": "image/jpeg"}
ASKED = encode(draw_cover(3, 5))
UNKNOWN = encode(draw_cover(200, 5))


class Opens:
    """Opens a bundle of `covers`, by its name, with their gallery; a server asks it at each reload."""

    def __init__(self, shop: Path) -> None:
        self.shop, self.name = shop, "bundle"

    def open(self) -> Retriever:
        return Retriever.open(self.shop / self.name, self.shop / "gallery")

    def state(self) -> tuple[object, ...]:
        return Places(self.shop / "bundle", self.shop / "gallery").state()


def client_of(opens: Opens) -> TestClient:
    return TestClient(create_app(opens.open(), page=False, places=opens))


def test_a_photo_is_put_and_found_by_its_print(covers: Path) -> None:
    with client_of(Opens(covers)) as client:
        assert client.post("/v1/search", content=UNKNOWN, headers=JPEG).json()["decision"] == "no_match"
        new = encode(draw_cover(300, 0))
        path = "/v1/photos/new?item_id=cover-300"
        assert client.put(path, content=new, headers=JPEG).status_code == 200
        answer = client.post("/v1/search", content=encode(draw_cover(300, 5)), headers=JPEG).json()
        assert (answer["decision"], answer["matches"][0]["item_id"]) == ("match", "cover-300")
        assert answer["explanation"] is None
        assert client.put(path, content=encode(draw_cover(301, 0)), headers=JPEG).status_code == 200
        replaced = client.post("/v1/search", content=encode(draw_cover(300, 5)), headers=JPEG).json()
        assert replaced["decision"] == "no_match"
        assert client.delete("/v1/photos/new").status_code == 200


def test_a_bundle_without_verification_adds_no_photo_to_a_gallery_with_features(covers: Path) -> None:
    opens = Opens(covers)
    opens.name = "plain"
    with client_of(opens) as client:
        refused = client.put("/v1/photos/new?item_id=new", content=encode(draw_cover(300, 0)), headers=JPEG)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/gallery-mismatch")
        assert "keeps local features" in refused.json()["title"]
        assert "Serve the bundle" in refused.json()["detail"]
        assert client.get("/v1/photos/new").status_code == 404


def test_a_reload_to_another_vocabulary_is_refused_and_the_old_bundle_serves(
    covers: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opens = Opens(covers)
    with client_of(opens) as client:
        before = client.get("/v1/info").json()["bundle_id"]
        opens.name = "other"
        with caplog.at_level(logging.ERROR):
            refused = client.post("/v1/admin/reload")
        assert refused.status_code == 409
        assert "keeps other local features" in caplog.text
        assert "retrieval index" in caplog.text
        answer = client.post("/v1/search", content=ASKED, headers=JPEG).json()
        assert (answer["bundle_id"], answer["decision"]) == (before, "match")
