"""The desk /manage: who may open it, and the routes that it needs: removals, answers to judge, twins, calibration."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED
from retrieval.bundle.fitted import Fitted
from retrieval.galleries.kept import Kept
from retrieval.measuring.point import Point
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.app import create_app
from serving.feedback import FeedbackRecorder
from serving.settings import ServeSettings

from ...world import draw, encode, make_bundle

LOCAL = "http://127.0.0.1:7860"


@pytest.fixture
def shop(world: Path, tmp_path: Path) -> Path:
    """Return a folder with a gallery of its own."""
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, tmp_path / "shop" / name)
    return tmp_path / "shop"


@pytest.fixture
def anchored(filled_copy: Path) -> Path:
    """Return a folder with a gallery whose own items can set its threshold, and a bundle that promises 0.2."""
    shutil.rmtree(filled_copy / "bundle")
    make_bundle(filled_copy, point=Point.uncalibrated(0.2), files={FITTED: Fitted.of([], []).pack()})
    with Gallery.open(filled_copy / "gallery") as gallery:
        gallery.keep({POINT: None, Kept.DRAWS: None}, "forget the threshold")
    return filled_copy


@contextmanager
def server(shop: Path, **settings: Any) -> Iterator[TestClient]:
    settings = {"feedback": shop / "feedback.jsonl", "feedback_photos": shop / "judged", **settings}
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        app = create_app(retriever, settings=ServeSettings(**settings), page=False)
        with TestClient(app, LOCAL) as client:
            yield client


def ask(client: TestClient, item: int) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/v1/search", content=encode(draw(item, 5))).json()
    return answer


@pytest.mark.parametrize("path", ["/manage", "/manage.js", "/manage.css", "/v1/admin/answers", "/v1/admin/look-alikes"])
def test_only_admins_open_the_page_and_its_routes(shop: Path, tmp_path: Path, path: str) -> None:
    keys = {scope: add_key(tmp_path / "keys.json", scope, scope) for scope in ("search", "admin")}
    with server(shop, keys=tmp_path / "keys.json") as client:
        refused = client.get(path)
        assert refused.status_code == 401
        prompts = refused.headers["www-authenticate"].startswith("Basic")
        assert prompts == (path == "/manage")  # a browser asks for the key there
        assert client.get(path, headers={"x-api-key": keys["search"]}).status_code == 403
        assert client.get(path, headers={"x-api-key": keys["admin"]}).status_code == 200


def test_no_other_site_can_calibrate_or_frame_the_page(shop: Path) -> None:
    with server(shop) as client:
        assert client.post("/v1/admin/calibrate", headers={"origin": "https://example.com"}).status_code == 403
        policy = client.get("/manage").headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy


def test_look_alikes_are_pairs_of_items_and_copies_come_first(shop: Path) -> None:
    with server(shop) as client:
        assert client.put("/v1/photos/copy?item_id=item-77", content=encode(draw(5, 1))).status_code == 200
        found = client.get("/v1/admin/look-alikes").json()
    names = [{pair["item_id"], pair["other_item_id"]} for pair in found]
    assert {"item-05", "item-77"} in names
    assert all(names.count(pair) == 1 for pair in names)
    assert found[names.index({"item-05", "item-77"})]["why"] != "close"


def test_answers_to_review_are_listed_with_verdicts_and_photos_until_they_are_added(shop: Path) -> None:
    with server(shop) as client:
        match, stranger, _ = ask(client, 3), ask(client, 77), ask(client, 5)  # the last one needs no review
        for answer, verdict in ((match, {"verdict": "right"}), (stranger, {"verdict": "wrong", "item_id": "item-04"})):
            assert client.post("/v1/feedback", json={"request_id": answer["request_id"], **verdict}).status_code == 200
        found = client.get("/v1/admin/answers").json()
        assert [one["request_id"] for one in found] == [stranger["request_id"], match["request_id"]]
        assert [(one["verdict"], one["right_item_id"]) for one in found] == [("wrong", "item-04"), ("right", "")]
        assert [one["decision"] for one in found] == ["no_match", "match"]
        photo = client.get(f"/v1/admin/answers/{match['request_id']}/photo")
        assert (photo.content, photo.headers["content-type"]) == (encode(draw(3, 5)), "image/jpeg")
        assert client.get("/v1/admin/answers/nobody/photo").status_code == 404
        name = f"answer-{match['request_id']}"
        assert client.put(f"/v1/photos/{name}?item_id=item-03", content=photo.content).status_code == 200
        assert client.get("/v1/admin/answers").json() == found[:1]


def test_perhaps_is_to_be_reviewed_without_a_verdict(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server(shop) as client:
        answer = ask(client, 3)
        assert client.get("/v1/admin/answers").json() == []
        unsure = {"request_id": answer["request_id"], "decision": "perhaps", "item_id": "item-03", "verdict": "", "photo": "p"}
        kept = [{**unsure, "right_item_id": ""}]
        monkeypatch.setattr(FeedbackRecorder, "recent", lambda _: kept)
        assert client.get("/v1/admin/answers").json() == kept


def test_without_kept_photos_there_is_nothing_to_review(shop: Path) -> None:
    with server(shop, feedback_photos=None) as client:
        ask(client, 3)
        assert client.get("/v1/admin/answers").json() == []


def test_calibrating_says_what_was_and_what_is_and_is_in_the_log(anchored: Path) -> None:
    with server(anchored) as client:
        found = client.post("/v1/admin/calibrate")
        assert found.status_code == 200, found.text
        told = found.json()
        assert told["after"]["status"] == "estimated"
        assert told["before"]["status"] == "uncalibrated"
        assert any("An unknown item" in line for line in told["told"])
        info = client.get("/v1/info").json()
    assert (info["threshold"], info["gallery"]["version"]) == (told["after"]["threshold"], told["gallery_version"])
    with Retriever.open(anchored / "bundle", anchored / "gallery") as retriever:
        assert retriever.gallery.changes()[0].action == "calibrate"


def test_calibrating_too_few_items_is_a_conflict(shop: Path) -> None:
    with server(shop) as client:
        refused = client.post("/v1/admin/calibrate")
        assert refused.status_code == 409
        assert "items" in refused.json()["title"]
