"""The page /manage: who may open it, the routes that it adds, and a walk through it in a browser."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from fastapi.testclient import TestClient
from playwright.sync_api import Page, expect, sync_playwright

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED
from retrieval.bundle.fitted import Fitted
from retrieval.errors import CalibrationError
from retrieval.galleries.kept import Kept
from retrieval.measuring.point import Point
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.api import admin
from serving.app import create_app
from serving.feedback import FeedbackRecorder
from serving.settings import ServeSettings
from tests.serving.live_page import FLAGS

from ...world import draw, encode, make_bundle
from ..conftest import start, stop

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
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


def test_a_comparison_that_takes_long_goes_on_beside_searches_and_is_fetched_later(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun, compare = threading.Event(), [0], admin.audit

    def slow(*arguments: Any) -> Any:
        begun[0] += 1
        assert go_on.wait(60)
        return compare(*arguments)

    monkeypatch.setattr(admin, "audit", slow)
    with server(shop, deadline_s=0.5, threads=1) as client:
        for _ in range(2):
            refused = client.get("/v1/admin/look-alikes")
            assert (refused.status_code, refused.json()["title"]) == (503, "the photos are being compared")
            assert client.post("/v1/search", content=encode(draw(3, 5))).status_code == 200
        go_on.set()
        answer, end = refused, time.monotonic() + 60
        while answer.status_code == 503 and time.monotonic() < end:
            answer = client.get("/v1/admin/look-alikes")
        assert (answer.status_code, begun) == (200, [1])
        assert client.get("/v1/admin/look-alikes").status_code == 200
        assert begun == [2]  # photos may have changed since
        go_on.clear()
        assert client.get("/v1/admin/look-alikes").status_code == 503
        go_on.set()
        for thread in threading.enumerate():
            if thread.name == "comparison":
                thread.join(60)
        monkeypatch.setattr(admin, "KEPT_S", 0.0)
        assert client.get("/v1/admin/look-alikes").status_code == 200
        assert begun == [4]  # nobody fetched the third in time

        def broken(*_: object) -> None:
            raise CalibrationError("there is no threshold")

        monkeypatch.setattr(admin, "audit", broken)
        assert [client.get("/v1/admin/look-alikes").status_code for _ in range(2)] == [409, 409]


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


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
def test_a_shopkeeper_adds_moves_renames_merges_undoes_and_removes(shop: Path, tmp_path: Path) -> None:
    served = start(shop, tmp_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{served.address}/manage")
        walk(page, tmp_path)
        browser.close()
    stop(served)
    assert errors == []
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        counts = {item: len(retriever.gallery.photos(item)) for item in ("item-02", "item-03", "item-04", "i<b>/é")}
        assert counts == {"item-02": 3, "item-03": 4, "item-04": 0, "i<b>/é": 0}
        assert {about["name"] for _, _, about in retriever.gallery.photos("item-02")} == {"A <b>name</b>"}


def walk(page: Page, folder: Path) -> None:
    """Manage the catalogue as a shopkeeper would."""
    facts, done = page.locator("#facts"), page.locator("#done")
    expect(facts).to_contain_text("10 items, 30 photos")
    page.get_by_label("Name, id").fill("M-03")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".cards li")).to_have_count(1)

    (folder / "new.jpg").write_bytes(encode(draw(50, 1)))
    page.get_by_label("Id of the item").fill("i<b>/é")
    page.get_by_label("Photos").set_input_files(folder / "new.jpg")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(done).to_contain_text("Added 1 photo to i<b>/é")
    expect(facts).to_contain_text("11 items, 31 photos")

    page.get_by_role("link", name="item-03").click()
    expect(page.locator(".cards li")).to_have_count(3)
    page.locator(".cards input").first.fill("i<b>/é")
    page.get_by_role("button", name="Move").first.click()
    expect(page.locator(".cards li")).to_have_count(2)
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".cards li")).to_have_count(3)

    page.goto(page.url.split("#")[0] + "#item=item-04")  # merged into another
    expect(page.locator("h2")).to_have_text("item-04")
    page.get_by_label("New id").fill("item-03")
    page.get_by_role("button", name="Change the id").click()
    expect(page.locator("h2")).to_have_text("item-03")
    expect(page.locator(".cards li")).to_have_count(4)

    page.goto(page.url.split("#")[0] + "#item=item-02")
    expect(page.locator("h2")).to_have_text("item-02")
    page.get_by_label("Name", exact=True).fill("A <b>name</b>")
    page.get_by_role("button", name="Change the name").click()
    expect(page.locator("h2")).to_have_text("A <b>name</b>")

    page.goto(page.url.split("#")[0] + "#item=i%3Cb%3E%2F%C3%A9")
    expect(page.locator("h2")).to_have_text("i<b>/é")
    page.get_by_role("button", name="Remove the item").click()
    expect(facts).to_contain_text("9 items, 30 photos")
    page.evaluate("localStorage.setItem('retrieval-kept-apart', '7]')")  # as no version of the page would
    for section in ("Items", "Look-alikes", "Answers", "Threshold and rates"):
        page.get_by_role("link", name=section).click()
        expect(page.get_by_role("link", name=section)).to_have_attribute("aria-current", "page")
        expect(page.locator("#main > *").first).to_be_visible()
        violations = Axe().run(page).response["violations"]
        assert [each["id"] for each in violations if each["impact"] in ("serious", "critical")] == [], section
    expect(page.get_by_role("row", name="Catalogue photos that find their item")).to_contain_text("not measured")
    expect(page.locator("#wrong")).to_be_hidden()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
def test_the_photo_of_an_answer_that_is_added_is_the_one_that_was_shown(shop: Path, tmp_path: Path) -> None:
    """Clients choose request ids: a later search with the same one must not bring another photo into the catalogue."""
    served = start(shop, tmp_path, "--feedback", tmp_path / "feedback.jsonl", "--feedback-photos", tmp_path / "judged")
    named = {"X-Request-ID": "chosen"}
    with httpx.Client(base_url=served.address) as client, sync_playwright() as playwright:
        client.post("/v1/search", content=encode(draw(3, 5)), headers=named).raise_for_status()
        client.post("/v1/feedback", json={"request_id": "chosen", "verdict": "right"}).raise_for_status()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{served.address}/manage")
        page.get_by_role("link", name="Answers").click()
        expect(page.locator(".cards img")).to_have_js_property("naturalWidth", draw(3, 5).width)
        client.post("/v1/search", content=encode(draw(77, 0)), headers=named).raise_for_status()
        page.get_by_label("Choose this photo").check()
        page.get_by_role("button", name="Add the chosen photos").click()
        expect(page.locator("#done")).to_contain_text("Added 1 photo.")
        browser.close()
    stop(served)
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        found = retriever.search(encode(draw(3, 5)))
        assert found.nearest is not None
        assert (found.nearest.photo_id, found.nearest.item_id) == ("answer-chosen", "item-03")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
def test_what_somebody_else_changed_is_neither_overwritten_nor_undone(shop: Path, tmp_path: Path) -> None:
    served = start(shop, tmp_path)
    with httpx.Client(base_url=served.address) as client, sync_playwright() as playwright:

        def rename(name: str) -> None:
            """Name all photos of item-03, as another program would."""
            photos = client.get("/v1/items/item-03").json()["photos"]
            body = {"photos": [{**photo, "metadata": {**photo["metadata"], "name": name}} for photo in photos]}
            client.post("/v1/admin/sync", json=body).raise_for_status()

        def names() -> set[str]:
            return {photo["metadata"]["name"] for photo in client.get("/v1/items/item-03").json()["photos"]}

        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{served.address}/manage#item=item-03")
        expect(page.locator(".cards li")).to_have_count(3)
        rename("Theirs")
        page.get_by_label("New id").fill("mine")
        page.get_by_role("button", name="Change the id").click()
        expect(page.locator("#wrong")).to_contain_text("somebody else has changed")
        assert names() == {"Theirs"}
        page.reload()
        page.get_by_label("Name", exact=True).fill("Mine")
        page.get_by_role("button", name="Change the name").click()
        expect(page.locator("h2")).to_have_text("Mine")
        rename("Theirs again")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#wrong")).to_contain_text("somebody else has changed")
        assert names() == {"Theirs again"}
        browser.close()
    stop(served)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
def test_whole_numbers_keep_all_of_their_digits_in_a_browser(shop: Path, tmp_path: Path) -> None:
    exact = 2**60 + 1
    with Gallery.open(shop / "gallery") as gallery:
        ids, items, abouts = zip(*gallery.photos("item-03"), strict=True)
        gallery.update(ids, items, [{**about, "shop": exact} for about in abouts])
    served = start(shop, tmp_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{served.address}/manage#item=item-03")
        expect(page.locator("dl")).to_contain_text(str(exact))
        page.get_by_label("Name", exact=True).fill("Renamed")
        page.get_by_role("button", name="Change the name").click()
        expect(page.locator("h2")).to_have_text("Renamed")
        browser.close()
    stop(served)
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        assert {about["shop"] for *_, about in gallery.photos("item-03")} == {exact}


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
def test_what_a_busy_server_did_not_undo_can_be_undone_later(shop: Path, tmp_path: Path) -> None:
    served = start(shop, tmp_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{served.address}/manage#item=item-03")
        for name in ("First", "Second"):
            page.get_by_label("Name", exact=True).fill(name)
            page.get_by_role("button", name="Change the name").click()
            expect(page.locator("h2")).to_have_text(name)
        busy = {"title": "another process writes"}
        page.route("**/v1/admin/sync", lambda route: route.fulfill(status=503, json=busy))
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#wrong")).to_contain_text("another process writes")
        page.unroute("**/v1/admin/sync")
        expect(page.locator("h2")).to_have_text("Second")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("h2")).to_have_text("First")
        browser.close()
    stop(served)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
def test_undoing_an_addition_keeps_the_photo_that_somebody_else_put_in_its_place(shop: Path, tmp_path: Path) -> None:
    served = start(shop, tmp_path)
    (tmp_path / "new.jpg").write_bytes(encode(draw(50, 1)))
    address = "/v1/photos/item-03%2Fnew.jpg"
    with httpx.Client(base_url=served.address) as client, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.goto(f"{served.address}/manage#item=item-03")
        page.get_by_label("Photos").set_input_files(tmp_path / "new.jpg")
        page.get_by_role("button", name="Add photos").click()
        expect(page.locator("#done")).to_contain_text("Added 1 photo")
        client.put(f"{address}?item_id=item-03", content=encode(draw(77, 1))).raise_for_status()
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#wrong")).to_contain_text("somebody else has changed")
        assert client.get(address).status_code == 200
        (tmp_path / "another.jpg").write_bytes(encode(draw(51, 1)))
        page.get_by_label("Photos").set_input_files([tmp_path / "another.jpg", tmp_path / "new.jpg"])
        page.get_by_role("button", name="Add photos").click()
        expect(page.locator("#wrong")).to_contain_text("already")
        expect(page.locator("#done")).to_contain_text("Added 1 photo to item-03")  # the one before the failure
        page.get_by_role("button", name="Undo").click()
        expect(page.locator("#done")).to_contain_text("Undone")
        assert client.get("/v1/photos/item-03%2Fanother.jpg").status_code == 404
        browser.close()
    stop(served)
