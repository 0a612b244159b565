"""The desk /manage: who may open it, and the routes that it needs: removals, answers to judge, twins, calibration."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED
from retrieval.bundle.fitted import Fitted
from retrieval.galleries import held
from retrieval.galleries.kept import Kept
from retrieval.measuring.point import Point
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.app import create_app
from serving.feedback import FeedbackRecorder
from serving.settings import ServeSettings

from ...world import draw, encode, make_bundle
from ..conftest import until

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
        unsure = {
            "request_id": answer["request_id"],
            "decision": "perhaps",
            "item_id": "item-03",
            "verdict": "",
            "photo": "p",
        }
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


def test_photos_are_removed_together_if_nobody_changed_one_and_are_restored(shop: Path) -> None:
    with server(shop) as client:
        photos = client.get("/v1/items/item-05").json()["photos"]
        seen = [{"photo_id": photo["photo_id"], "etag": photo["etag"]} for photo in photos[1:4]]
        changed = [*seen[:2], {**seen[2], "etag": "another"}]
        assert client.post("/v1/admin/removed", json={"photos": changed}).status_code == 412
        missing = [*seen, {"photo_id": "none"}]
        assert client.post("/v1/admin/removed", json={"photos": missing}).status_code == 404
        assert len(client.get("/v1/items/item-05").json()["photos"]) == 5  # all or nothing
        removed = client.post("/v1/admin/removed", json={"photos": seen}).json()
        assert removed["photos"] == 3
        (listed,) = client.get("/v1/admin/removed").json()
        assert (listed["removal"], listed["item_ids"]) == (removed["removal"], ["item-05"])
        assert listed["photo_ids"] == [photo["photo_id"] for photo in seen]
        address = f"/v1/admin/removed/{removed['removal']}/restore"
        assert client.post(address).json()["photos"] == 3
        assert client.post(address).status_code == 404
        assert {photo["etag"] for photo in client.get("/v1/items/item-05").json()["photos"]} == {
            photo["etag"] for photo in photos
        }


def test_a_removal_is_not_restored_over_a_photo_that_was_added_since(shop: Path) -> None:
    with server(shop) as client:
        removed = client.delete("/v1/items/item-04").json()
        (listed,) = client.get("/v1/admin/removed").json()
        again = listed["photo_ids"][0]
        address = f"/v1/photos/{again.replace('/', '%2F')}?item_id=x"
        assert client.put(address, content=encode(draw(60, 0))).status_code == 200
        assert client.post(f"/v1/admin/removed/{removed['removal']}/restore").status_code == 412


def test_a_running_server_drops_what_was_held_back_for_a_day(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held_back() -> list[str]:
        with Gallery.open(shop / "gallery", read_only=True) as gallery:
            return held.names(gallery)

    with server(shop) as client:
        assert client.delete("/v1/items/item-04").status_code == 200
        assert len(held_back()) == 1
        monkeypatch.setattr(held, "HELD_FOR", timedelta(0))
        until(lambda: not held_back(), 60)
        assert client.get("/v1/admin/removed").json() == []


def test_a_photo_is_asked_about_once_and_a_judged_answer_stands_for_it(shop: Path) -> None:
    with server(shop) as client:
        first, second, other = ask(client, 3), ask(client, 3), ask(client, 5)
        for answer in (first, other):
            client.post("/v1/feedback", json={"request_id": answer["request_id"], "verdict": "right"})
        found = client.get("/v1/admin/answers").json()
        assert [one["request_id"] for one in found] == [other["request_id"], first["request_id"]]
        assert second["request_id"] not in [one["request_id"] for one in found]


def test_a_verdict_on_another_photo_than_the_one_that_was_seen_is_refused(shop: Path) -> None:
    with server(shop) as client:
        client.post("/v1/search", content=encode(draw(3, 5)), headers={"x-request-id": "chosen"})
        photo = client.get("/v1/admin/answers/chosen/photo").headers["etag"].strip('"')
        client.post("/v1/search", content=encode(draw(5, 5)), headers={"x-request-id": "chosen"})
        verdict = {"request_id": "chosen", "verdict": "right"}
        assert client.post("/v1/feedback", json={**verdict, "photo": photo}).status_code == 412
        assert client.post("/v1/feedback", json=verdict).status_code == 200


def test_the_closest_items_of_an_answer_are_those_of_the_gallery_now(filled_copy: Path) -> None:
    with server(filled_copy) as client:
        answer = ask(client, 33)
        address = f"/v1/admin/answers/{answer['request_id']}/closest"
        found = client.get(address).json()
        assert found[0]["item_id"] == "33"
        assert len({each["item_id"] for each in found}) == len(found) > 1
        client.delete("/v1/items/33")
        assert "33" not in {each["item_id"] for each in client.get(address).json()}
        assert client.get("/v1/admin/answers/nobody/closest").status_code == 404


def test_rates_with_judged_photos_stand_beside_those_that_serve_and_nothing_is_set(filled_copy: Path) -> None:
    with server(filled_copy) as client:
        assert client.post("/v1/admin/calibrate?judged=true").status_code == 404  # nothing was judged
        for item in (*range(20), *range(70, 76)):
            answer = ask(client, item)
            right = answer["nearest"]["item_id"] == str(item)
            said = {"verdict": "unknown"} if item >= 70 else {"verdict": "right"} if right else {"verdict": "wrong"}
            client.post("/v1/feedback", json={"request_id": answer["request_id"], **said})
        before = client.get("/v1/info").json()
        told = client.post("/v1/admin/calibrate?judged=true").json()
        assert set(told["rates"]["unknown"]) == {"before", "after", "upper"}
        assert 0 <= told["rates"]["tpir"]["before"] <= 1
        after = client.get("/v1/info").json()
    assert (before["threshold"], before["gallery"]) == (after["threshold"], after["gallery"])
    assert told["before"]["threshold"] == before["threshold"]
