"""Whose verdicts and changes they are: each key judges its own answers, and changes are logged with its name."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from index.gallery import Gallery
from retrieval.retriever import Retriever
from retrieval.threshold.feedback import Feedback, read_feedback
from retrieval.threshold.judged import parts_of
from retrieval.threshold.verdicts import weigh
from serving import recent_answers
from serving.app import create_app
from serving.config import ServeSettings
from serving.http.callers import Caller
from serving.http.keys import add_key

from ...world import draw, encode

MINE = encode(draw(3, 5))
STRANGER = encode(draw(77, 0))


class Shop:
    """A server with keys, and what it writes."""

    def __init__(self, folder: Path, client: TestClient, keys: dict[str, str]) -> None:
        self.folder, self.client, self.keys = folder, client, keys

    def ask(self, key: str, method: str, path: str, *, request_id: str = "", **parts: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.keys[key]}"} if key else {}
        return self.client.request(method, path, headers=headers | {"X-Request-ID": request_id}, **parts)

    def search(self, key: str, *, image: bytes = MINE, request_id: str = "") -> str:
        answer = self.ask(key, "POST", "/v1/search", request_id=request_id, content=image)
        assert answer.status_code == 200
        return str(answer.json()["request_id"])

    def judge(self, key: str, request_id: str, verdict: str = "unknown") -> int:
        body = {"request_id": request_id, "verdict": verdict}
        return int(self.ask(key, "POST", "/v1/feedback", json=body).status_code)

    def verdicts(self) -> list[Feedback]:
        file = self.folder / "feedback.jsonl"
        return read_feedback(file) if file.exists() else []


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> Iterator[Shop]:
    file = folder / "keys.json"
    keys = {
        name: add_key(file, name, "admin" if name == "operator" else "search") for name in ("web", "app", "operator")
    }
    settings = ServeSettings(keys=file, feedback=folder / "feedback.jsonl")
    app = create_app(Retriever.open(folder / "bundle", folder / "gallery"), settings=settings, page=False)
    with TestClient(app) as client:
        yield Shop(folder, client, keys)


def test_a_verdict_says_whose_it_is_and_of_which_answer(shop: Shop) -> None:
    request_id = shop.search("web")
    assert shop.judge("web", request_id, "wrong") == 200
    (line,) = shop.verdicts()
    assert (line.request_id, line.key, line.asked_by, line.verdict) == (request_id, "web", "web", "wrong")


def test_a_key_judges_its_own_answers_alone(shop: Shop) -> None:
    mine = shop.search("web")
    assert [shop.judge("app", name) for name in (mine, "made-up", "")] == [404] * 3
    assert shop.verdicts() == []
    assert shop.search("app", image=STRANGER, request_id=mine) == mine  # it takes the same id for its own
    assert shop.judge("app", mine) == 200
    assert shop.judge("web", mine, "right") == 200
    of_app, of_web = shop.verdicts()
    assert (of_app.key, of_app.decision, of_web.key, of_web.decision) == ("app", "no_match", "web", "match")


def test_an_admin_judges_any_answer(shop: Shop) -> None:
    request_id = shop.search("web")
    assert shop.judge("web", request_id, "right") == 200
    assert shop.judge("operator", request_id, "unknown") == 200
    assert [(line.key, line.asked_by) for line in shop.verdicts()] == [("web", "web"), ("operator", "web")]
    bundle = Retriever.open(shop.folder / "bundle", shop.folder / "gallery").bundle
    (counted,) = weigh(bundle, shop.verdicts(), trusted=["web", "operator"]).counted
    assert counted.key == "operator"


def test_one_search_and_many_verdicts_are_one(shop: Shop, folder: Path) -> None:
    request_id = shop.search("web")
    assert [shop.judge("web", request_id) for _ in range(120)] == [200] * 120
    assert len(shop.verdicts()) == 1
    for verdict in ("right", "unknown", "unknown"):
        assert shop.judge("web", request_id, verdict) == 200
    assert [line.verdict for line in shop.verdicts()] == ["unknown", "right", "unknown"]
    bundle = Retriever.open(folder / "bundle", folder / "gallery").bundle
    assert len(weigh(bundle, shop.verdicts(), trusted=["web"]).counted) == 1


def test_a_key_that_asks_much_does_not_crowd_out_the_answers_of_others(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_answers, "KEPT_PER_KEY", 3)
    mine = shop.search("web")
    others = [shop.search("app") for _ in range(5)]
    assert shop.judge("web", mine) == 200
    assert [shop.judge("app", name) for name in others] == [404, 404, 200, 200, 200]


def test_an_answer_that_is_kept_to_be_judged_holds_no_metadata(shop: Shop) -> None:
    kept = recent_answers.RecentAnswers()
    result = Retriever.open(shop.folder / "bundle", shop.folder / "gallery").search(MINE, explain=True)
    assert result.matches[0].metadata
    kept.add(Caller("web"), "a", parts_of(result))
    found = kept.find(Caller("web"), "a")
    assert found is not None
    assert found.parts[None].nearest.metadata == {}  # type: ignore[union-attr]


def changes(folder: Path) -> list[tuple[str, str]]:
    with Gallery.open(folder / "gallery", read_only=True) as gallery:
        return [(change.actor, change.action) for change in gallery.changes(2)]


def test_changes_are_logged_with_the_name_of_the_key(shop: Shop) -> None:
    body = {"image": base64.b64encode(STRANGER).decode(), "item_id": "new"}
    assert shop.ask("operator", "PUT", "/v1/photos/new.jpg", json=body).status_code == 200
    assert shop.ask("operator", "DELETE", "/v1/items/item-01").status_code == 200
    assert changes(shop.folder) == [("operator", "remove"), ("operator", "add")]


def test_changes_without_keys_are_not_those_of_the_servers_user(folder: Path) -> None:
    with TestClient(create_app(Retriever.open(folder / "bundle", folder / "gallery"), page=False)) as client:
        assert client.delete("/v1/items/item-01").status_code == 200
    assert changes(folder)[0] == ("http", "remove")


def test_without_a_file_no_feedback_is_taken(world: Path) -> None:
    with TestClient(create_app(Retriever.open(world / "bundle", world / "gallery"), page=False)) as client:
        request_id = client.post("/v1/search", content=MINE).json()["request_id"]
        refused = client.post("/v1/feedback", json={"request_id": request_id, "verdict": "right"})
    assert (refused.status_code, "--feedback FILE" in refused.json()["detail"]) == (404, True)
