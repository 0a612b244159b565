"""The desk in a real browser: each of its tasks, by mouse and by keyboard alone, and the one Undo."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from index.gallery import Gallery
from retrieval.feedback import read_feedback
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.app import create_app
from serving.settings import ServeSettings
from tests.serving.live_page import CHROMIUM, serving, under_path

from ...world import draw, encode

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"),
]
PHONE = {"width": 390, "height": 844}
expect.set_options(timeout=15_000)  # ms; a busy machine needs seconds


@pytest.fixture
def address(shop: Path) -> Iterator[str]:
    """Serve a copy of the world that may be changed, with feedback."""
    yield from served(shop)


@pytest.fixture
def measured(filled_copy: Path) -> Iterator[str]:
    """Serve a gallery of 40 items that has a threshold of its own."""
    yield from served(filled_copy)


def served(folder: Path) -> Iterator[str]:
    settings = ServeSettings(feedback=folder / "feedback.jsonl", feedback_photos=folder / "judged")
    with (
        Retriever.open(folder / "bundle", folder / "gallery") as retriever,
        serving(create_app(retriever, settings=settings, page=False)) as address,
    ):
        yield address


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page whose scripts must not fail."""
    errors: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def go(page: Page, address: str, section: str = "items") -> None:
    page.goto(f"{address.rstrip('/')}/manage#{section}")
    expect(page.locator("#facts")).to_contain_text("photos")


def photos_of(address: str, item: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{address}/v1/items/{item}")
    return [] if answer.status_code == 404 else answer.json()["photos"]


def rename(address: str, item: str, name: str) -> None:
    """Name all photos of an item, as another program would."""
    photos = [{**photo, "metadata": {**photo["metadata"], "name": name}} for photo in photos_of(address, item)]
    httpx.post(f"{address}/v1/admin/sync", json={"photos": photos}).raise_for_status()


def save(page: Page, column: str, value: str) -> None:
    page.get_by_label(column, exact=True).fill(value)
    page.get_by_role("button", name="Save").click()


def undo(page: Page) -> None:
    page.get_by_role("button", name="Undo").click()


def doubtful(address: str, folder: Path, photos: list[tuple[int, int]]) -> list[str]:
    """Search with photos and make the answers doubtful ones; return their request ids, the newest first."""
    for item, number in photos:
        httpx.post(f"{address}/v1/search", content=encode(draw(item, number))).raise_for_status()
    with closing(sqlite3.connect(folder / "feedback.jsonl.answers.sqlite")) as table, table:
        table.execute("UPDATE recent SET answer = json_set(answer, '$.decision', 'perhaps')")
        rows = table.execute("SELECT request_id FROM recent ORDER BY number DESC").fetchall()
    return [request_id for (request_id,) in rows]


def verdicts(folder: Path) -> list[tuple[str, str]]:
    """Return verdict and right item of each line of the feedback file."""
    path = folder / "feedback.jsonl"
    return [(line.verdict, line.right_item_id) for line in read_feedback(path)] if path.exists() else []


def test_items_have_a_thumbnail_and_a_count_and_are_found_by_id(page: Page, address: str) -> None:
    go(page, address)
    rows = page.locator(".list a")
    expect(rows).to_have_count(10)
    expect(rows.filter(has_text="item-05")).to_contain_text("5")
    expect(rows.first.locator("img")).to_have_js_property("complete", True)
    page.get_by_label("Find items").fill("M-03")
    expect(rows).to_have_count(1)
    rows.first.click()
    expect(page.locator(".right h2")).to_have_text("item-03")
    expect(rows).to_have_attribute("aria-current", "true")
    page.get_by_label("Find items").fill("nothing has this")
    expect(page.locator(".list")).to_have_text("No item has this text.")


def test_an_item_that_arrives_late_leaves_the_list_and_the_item_chosen_after_it(page: Page, address: str) -> None:
    go(page, address)
    rows = page.locator(".list a")
    expect(rows).to_have_count(10)
    kept: list[Route] = []
    page.route("**/v1/items/item-03", lambda route: kept.append(route))  # noqa: PLW0108 (playwright marks its handlers)
    rows.filter(has_text="item-03").click()
    while not kept:
        page.wait_for_timeout(10)
    rows.filter(has_text="item-05").click()
    expect(page.locator(".right h2")).to_have_text("item-05")
    with page.expect_response("**/v1/items/item-03"):
        kept[0].continue_()
    page.wait_for_timeout(300)
    expect(rows).to_have_count(10)
    expect(page.locator(".right h2")).to_have_text("item-05")
    assert rows.filter(has_text="item-05").get_attribute("aria-current") == "true"


def test_a_new_item_is_shown_at_once(page: Page, address: str, tmp_path: Path) -> None:
    go(page, address)
    page.get_by_role("button", name="New item").click()
    page.get_by_label("Id of the item").fill("z<b>/é")
    page.get_by_label("Photos").set_input_files(
        [{"name": f"{n}.jpg", "mimeType": "image/jpeg", "buffer": encode(draw(50, n))} for n in (1, 2, 3)]
    )
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".right h2")).to_have_text("z<b>/é")
    expect(page.locator(".cards li")).to_have_count(3)
    expect(page.locator(".list a", has_text="z<b>/é")).to_contain_text("3")
    expect(page.locator("#facts")).to_have_text("11 items, 33 photos")
    undo(page)
    expect(page.locator("#facts")).to_have_text("10 items, 30 photos")


def test_several_photos_are_moved_and_removed_at_once_and_each_can_be_undone(page: Page, address: str) -> None:
    go(page, address, "item=item-05")
    cards, done = page.locator(".cards li"), page.locator("#done span")
    expect(cards).to_have_count(5)
    for number in (1, 3):
        cards.nth(number).locator("input").check()
    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To this item").fill("item-03")
    expect(page.get_by_role("option", name="item-03").locator("img")).to_be_visible()
    page.get_by_role("option", name="item-03").click()
    page.get_by_role("button", name="Move", exact=True).click()
    expect(done).to_have_text("Moved 2 photos from item-05 to item-03.")
    expect(cards).to_have_count(3)
    cards.first.locator("input").check()
    cards.nth(2).locator("input").check()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(done).to_contain_text("Removed 2 photos of item-05.")
    expect(cards).to_have_count(1)
    undo(page)
    expect(done).to_contain_text("Undone. Before that: Moved 2 photos")
    expect(cards).to_have_count(3)
    undo(page)
    expect(cards).to_have_count(5)
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()


def test_undo_after_a_removal_belongs_to_the_removal_and_not_to_a_rename_before(page: Page, address: str) -> None:
    go(page, address, "item=item-05")
    save(page, "name", "Renamed")
    expect(page.locator(".right h2")).to_have_text("Renamed")
    page.locator(".cards input").first.check()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator(".cards li")).to_have_count(4)
    undo(page)
    expect(page.locator(".cards li")).to_have_count(5)
    expect(page.locator("#wrong")).to_be_hidden()
    assert {photo["metadata"]["name"] for photo in photos_of(address, "item-05")} == {"Renamed"}


def test_a_removed_item_can_be_restored_after_the_page_was_left(page: Page, address: str) -> None:
    before = photos_of(address, "item-03")
    go(page, address, "item=item-03")
    page.get_by_role("button", name="Remove the item").click()
    expect(page.locator("#facts")).to_contain_text("9 items")
    page.reload()
    page.get_by_role("link", name="Removed").click()
    expect(page.locator(".removed li")).to_contain_text("item-03")
    page.get_by_role("button", name="Restore").click()
    expect(page.locator("#done span")).to_have_text("Restored 3 photos of item-03.")
    key = lambda photo: photo["photo_id"]  # noqa: E731
    assert sorted(photos_of(address, "item-03"), key=key) == sorted(before, key=key)
    undo(page)
    expect(page.locator(".removed li")).to_have_count(1)
    assert photos_of(address, "item-03") == []


@pytest.mark.parametrize("kept", ["item-03", "item-04"])
def test_merging_asks_with_both_pictures_which_id_stays(page: Page, address: str, kept: str) -> None:
    go(page, address, "item=item-04")
    page.get_by_role("button", name="Change the id or merge…").click()
    page.get_by_label("New id").fill("item-03")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator("dialog h2")).to_have_text("Are these one thing?")
    expect(page.locator("dialog .choice img")).to_have_count(2)
    page.get_by_role("button", name=f"Keep {kept}").click()
    expect(page.locator(".right h2")).to_have_text(kept)
    expect(page.locator(".cards li")).to_have_count(4)
    undo(page)
    expect(page.locator("#done span")).to_have_text("Undone.")
    assert [len(photos_of(address, item)) for item in ("item-03", "item-04")] == [3, 1]


def test_a_merge_that_is_cancelled_changes_nothing(page: Page, address: str) -> None:
    go(page, address, "item=item-04")
    page.locator(".tools label input").check()
    page.get_by_role("button", name="Move…").click()
    page.get_by_label("To this item").fill("item-03")
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.locator("dialog .choice")).to_have_count(2)  # all photos of an item: a merge
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()
    assert [len(photos_of(address, item)) for item in ("item-03", "item-04")] == [3, 1]


def test_any_column_is_edited_for_all_photos_or_the_chosen_ones(page: Page, shop: Path, address: str) -> None:
    exact = 2**60 + 1  # more digits than a browser's numbers have
    with Gallery.open(shop / "gallery") as gallery:
        ids, items, abouts = zip(*gallery.photos("item-03"), strict=True)
        new = [{**about, "serial": exact, "price": 3.5 + n, "sold": True} for n, about in enumerate(abouts)]
        gallery.update(ids, items, new)
        gallery.declare({"price": "number", "brand": "text"})
    go(page, address, "item=item-03")
    expect(page.get_by_label("serial", exact=True)).to_have_value(str(exact))
    expect(page.get_by_label("price", exact=True)).to_have_attribute("placeholder", "differs")
    page.get_by_label("brand", exact=True).fill("Acme")  # a declared column that no photo has yet
    save(page, "sold", "false")
    expect(page.locator("#done span")).to_have_text("Changed brand, sold of item-03.")
    page.locator(".cards input").first.check()
    save(page, "price", "12")
    expect(page.locator("#done span")).to_have_text("Changed price of item-03.")
    save(page, "price", "much")
    expect(page.locator("#wrong")).to_have_text("price must be a number.")
    abouts = [photo["metadata"] for photo in json.loads(httpx.get(f"{address}/v1/items/item-03").text)["photos"]]
    assert sum(about["price"] == 12 for about in abouts) == 1
    assert {(about["brand"], about["sold"], about["serial"]) for about in abouts} == {("Acme", False, exact)}


def test_what_somebody_else_changed_is_neither_overwritten_nor_undone(page: Page, address: str) -> None:
    def names() -> set[str]:
        return {photo["metadata"]["name"] for photo in photos_of(address, "item-03")}

    go(page, address, "item=item-03")
    expect(page.locator(".cards li")).to_have_count(3)
    rename(address, "item-03", "Theirs")
    for work in ("Save", "Remove the item"):
        page.get_by_label("name", exact=True).fill("Mine")
        page.get_by_role("button", name=work).click()
        expect(page.locator("#wrong")).to_contain_text("somebody else has changed")
    assert names() == {"Theirs"}
    page.reload()
    save(page, "name", "Mine")
    expect(page.locator(".right h2")).to_have_text("Mine")
    rename(address, "item-03", "Theirs again")
    undo(page)
    expect(page.locator("#wrong")).to_contain_text("somebody else has changed")
    assert names() == {"Theirs again"}


def test_what_a_busy_server_did_not_undo_can_be_undone_later(page: Page, address: str) -> None:
    go(page, address, "item=item-03")
    for name in ("First", "Second"):
        save(page, "name", name)
        expect(page.locator(".right h2")).to_have_text(name)
    busy = {"title": "another process writes"}
    page.route("**/v1/admin/sync", lambda route: route.fulfill(status=503, json=busy))
    undo(page)
    expect(page.locator("#wrong")).to_contain_text("another process writes")
    page.unroute("**/v1/admin/sync")
    expect(page.locator(".right h2")).to_have_text("Second")
    undo(page)
    expect(page.locator(".right h2")).to_have_text("First")


def test_undoing_an_addition_keeps_the_photo_that_somebody_else_put_in_its_place(page: Page, address: str) -> None:
    def file(name: str, item: int) -> dict[str, Any]:
        return {"name": name, "mimeType": "image/jpeg", "buffer": encode(draw(item, 1))}

    new = f"{address}/v1/photos/item-03%2Fnew.jpg"
    go(page, address, "item=item-03")
    page.get_by_label("Add photos").set_input_files(file("new.jpg", 50))
    expect(page.locator("#done")).to_contain_text("Added 1 photo")
    httpx.put(f"{new}?item_id=item-03", content=encode(draw(77, 1))).raise_for_status()
    undo(page)
    expect(page.locator("#wrong")).to_contain_text("somebody else has changed")
    assert httpx.get(new).status_code == 200
    page.get_by_label("Add photos").set_input_files([file("another.jpg", 51), file("new.jpg", 50)])
    expect(page.locator("#wrong")).to_contain_text("already")
    undo(page)  # the one before the failure
    expect(page.locator("#done span")).to_have_text("Undone.")
    assert httpx.get(f"{address}/v1/photos/item-03%2Fanother.jpg").status_code == 404


def tab_to(page: Page, selector: str, key: str = "Tab") -> None:
    """Press a key until an element has the focus."""
    for _ in range(20):
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
        page.keyboard.press(key)
    raise AssertionError(f"no key leads to {selector}")


def test_the_items_are_managed_by_keyboard_alone(page: Page, address: str) -> None:
    go(page, address)
    expect(page.locator(".list a")).to_have_count(10)
    press, text = page.keyboard.press, page.keyboard.type
    page.get_by_label("Find items").focus()
    text("item-05")
    expect(page.locator(".list a")).to_have_count(1)
    press("Enter")
    expect(page.locator(".right h2")).to_have_text("item-05")
    tab_to(page, ".cards input")
    press("Space")
    expect(page.locator(".cards input:checked")).to_have_count(1)
    tab_to(page, ".tools .bad", "Shift+Tab")
    press("Enter")
    expect(page.locator(".cards li")).to_have_count(4)
    press("Control+z")
    expect(page.locator(".cards li")).to_have_count(5)


def test_a_hundred_doubtful_answers_are_judged_by_keys_alone(page: Page, shop: Path, address: str) -> None:
    photos = [(item, number) for item in range(10) for number in range(20, 28)] + [(70 + n, 0) for n in range(20)]
    requests = doubtful(address, shop, photos)
    truth = dict(zip(requests, reversed(photos), strict=True))
    go(page, address, "judge")
    pressed, begun = 0, time.monotonic()
    for number in range(100):
        case = page.locator(f".case:not([data-request='{requests[number - 1] if number else ''}'])")
        item = truth[case.get_attribute("data-request") or ""][0]  # the photo that is shown
        names = [page.locator(".case h2").inner_text()[6:-1], *page.locator(".closest .choice span").all_inner_texts()]
        name = f"item-{item:02d}"
        key = "o" if item >= 70 else "y" if names[0] == name else str(names.index(name)) if name in names else "n"
        page.keyboard.press(key)
        pressed += 1
    expect(page.locator("#main h2")).to_have_text("All judged")
    assert pressed == 100
    assert time.monotonic() - begun < 300
    said = verdicts(shop)
    assert len(said) == 100
    assert sum(verdict == "unknown" for verdict, _ in said) == 20
    assert sum(verdict == "right" or right != "" for verdict, right in said) >= 78
    lines = read_feedback(shop / "feedback.jsonl")
    assert len({line.request_id for line in lines}) == 100
    for line in lines:  # each verdict is about the photo that was shown
        item = truth[line.request_id][0]
        assert line.verdict == "unknown" if item >= 70 else f"item-{item:02d}" in (line.item_id, line.right_item_id, "")


def test_each_key_gives_its_verdict_and_undo_takes_back_the_last_one(
    page: Page, filled_copy: Path, measured: str
) -> None:
    requests = doubtful(measured, filled_copy, [(3, 20), (5, 20), (7, 20), (8, 20)])
    go(page, measured, "judge")
    case, counter = page.locator(".case"), page.locator("#counter")
    expect(counter).to_have_text("0 judged, 4 left")
    page.keyboard.press("s")
    expect(case).to_have_attribute("data-request", requests[1])
    other = page.locator(".closest .choice span").nth(1).inner_text()
    page.keyboard.press("2")
    expect(case).to_have_attribute("data-request", requests[2])
    page.keyboard.press("n")
    expect(case).to_have_attribute("data-request", requests[3])
    page.keyboard.press("u")
    expect(case).to_have_attribute("data-request", requests[2])
    expect(counter).to_have_text("1 judged, 2 left")
    page.keyboard.press("o")
    expect(case).to_have_attribute("data-request", requests[3])
    page.keyboard.press("e")
    expect(page.get_by_label("Item; an id that is new")).to_have_value("")
    page.keyboard.type("brand new")
    page.keyboard.press("Enter")
    expect(page.locator("#main h2")).to_have_text("All judged")
    expect(page.locator(".cards li")).to_have_count(1)  # a judged photo that is not in the catalogue: that of key 2
    assert [photo["photo_id"] for photo in photos_of(measured, "brand new")] == [f"answer-{requests[3]}"]
    said = [("wrong", other), ("wrong", ""), ("undone", ""), ("unknown", ""), ("wrong", "brand new")]
    assert verdicts(filled_copy) == said
    page.keyboard.press("u")
    expect(case).to_have_attribute("data-request", requests[3])
    assert photos_of(measured, "brand new") == []


def test_the_same_photo_is_asked_about_once(page: Page, shop: Path, address: str) -> None:
    doubtful(address, shop, [(3, 20), (5, 20), (3, 20), (3, 20)])
    go(page, address, "judge")
    expect(page.locator("#counter")).to_have_text("0 judged, 2 left")


def test_after_twenty_answers_the_rates_before_and_after_are_shown(
    page: Page, filled_copy: Path, measured: str
) -> None:
    doubtful(measured, filled_copy, [(item, 30) for item in range(22)])
    go(page, measured, "judge")
    for number in range(20):
        expect(page.locator("#counter")).to_have_text(f"{number} judged, {22 - number} left")
        page.keyboard.press("y")
    table = page.locator("#judged-rates")
    expect(table).to_contain_text("After 20 judged answers")
    row = table.get_by_role("row", name="Photos of catalogue items that find their item")
    expect(row.get_by_role("cell")).to_have_count(2)
    for cell in row.get_by_role("cell").all():
        assert cell.inner_text().endswith(" %")


def test_a_verdict_is_about_the_photo_that_was_shown(page: Page, shop: Path, address: str) -> None:
    """Clients choose request ids: a later search with the same one must not be judged or added."""
    named = {"X-Request-ID": "chosen"}
    httpx.post(f"{address}/v1/search", content=encode(draw(3, 5)), headers=named).raise_for_status()
    doubtful(address, shop, [])
    go(page, address, "judge")
    expect(page.locator(".case figure img").first).to_have_js_property("naturalWidth", draw(3, 5).width)
    httpx.post(f"{address}/v1/search", content=encode(draw(77, 0)), headers=named).raise_for_status()
    page.keyboard.press("y")
    expect(page.locator("#wrong")).to_contain_text("another search has this request id")
    expect(page.get_by_role("button", name="Undo")).to_be_hidden()
    assert verdicts(shop) == []


def test_judged_photos_are_added_to_their_items(page: Page, shop: Path, address: str) -> None:
    requests = doubtful(address, shop, [(3, 20), (7, 20), (77, 0)])
    go(page, address, "judge")
    for key, request_id in zip("oyy", requests, strict=True):
        expect(page.locator(".case")).to_have_attribute("data-request", request_id)
        page.keyboard.press(key)
    expect(page.locator(".cards li")).to_have_count(2)  # not the one that shows none of ours
    page.get_by_label("All", exact=True).check()
    page.get_by_role("button", name="Add the chosen photos").click()
    expect(page.locator("#done span")).to_have_text("Added 2 photos.")
    expect(page.locator(".cards li")).to_have_count(0)
    undo(page)
    expect(page.locator(".cards li")).to_have_count(2)


def test_twins_are_merged_put_into_one_group_or_kept_apart(page: Page, measured: str) -> None:
    for item in (31, 33, 35):  # a second item that shows the same thing
        for number in range(40, 43):
            address = f"{measured}/v1/photos/twin-{item}-{number}?item_id=twin-{item}"
            httpx.put(
                address, content=encode(Image.blend(draw(item, number), draw(item + 50, number), 0.1))
            ).raise_for_status()
    go(page, measured, "twins")
    pairs = page.locator(".pair")
    expect(pairs.first).to_be_visible()
    first = pairs.count()
    assert first >= 3

    def choose(item: int) -> None:
        page.locator(".pair", has_text=f"twin-{item}").first.click()
        expect(page.locator(".right figcaption").filter(has_text=f"twin-{item}")).to_be_visible()

    choose(31)
    expect(page.locator(".right")).to_contain_text("of 100 photos of the catalogue would find their item")
    page.keyboard.press("m")
    page.get_by_role("button", name="Keep 31").click()
    expect(pairs).to_have_count(first - 1)
    assert photos_of(measured, "twin-31") == []
    choose(33)
    page.keyboard.press("g")
    expect(page.locator("#done")).to_contain_text("of the group")
    expect(pairs).to_have_count(first - 2)
    groups = {photo["metadata"]["group"] for item in ("33", "twin-33") for photo in photos_of(measured, item)}
    assert len(groups) == 1
    choose(35)
    page.keyboard.press("k")
    expect(pairs).to_have_count(first - 3)
    undo(page)
    expect(pairs).to_have_count(first - 2)
    undo(page)
    undo(page)
    expect(pairs).to_have_count(first)
    assert len(photos_of(measured, "twin-31")) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_section_is_accessible_and_fits_a_phone(browser: Browser, shop: Path, address: str, scheme: Any) -> None:
    doubtful(address, shop, [(3, 20), (5, 20)])
    page = browser.new_page(viewport=PHONE, color_scheme=scheme)  # type: ignore[arg-type]
    go(page, address)
    page.evaluate("localStorage.setItem('retrieval-kept-apart', '7]')")  # as no version of the page would
    page.get_by_role("link", name="item-03").click()
    expect(page.locator(".cards li")).to_have_count(3)
    check(page, "item")
    for section in ("Items", "Judge", "Twins", "Removed", "Rates"):
        page.get_by_role("navigation").get_by_role("link", name=section).click()
        expect(page.get_by_role("navigation").get_by_role("link", name=section)).to_have_attribute(
            "aria-current", "page"
        )
        expect(page.locator("#main")).not_to_have_text("Loading…")
        check(page, section)
    expect(page.get_by_role("row", name="Catalogue photos that find their item")).to_contain_text("not measured")
    expect(page.locator("#wrong")).to_be_hidden()
    page.close()


def check(page: Page, section: str) -> None:
    violations = Axe().run(page).response["violations"]
    assert [each["id"] for each in violations if each["impact"] in ("serious", "critical")] == [], section
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], section


def test_the_desk_works_under_the_path_of_a_proxy(page: Page, address: str) -> None:
    with under_path(address, "/shop") as inner:
        go(page, inner, "item=item-03")
        save(page, "name", "Renamed")
        expect(page.locator(".right h2")).to_have_text("Renamed")
        expect(page.locator(".list img").first).to_have_js_property("complete", True)
        assert page.locator(".list img").first.evaluate("image => image.naturalWidth") > 0


def test_the_desk_works_with_a_key_that_the_browser_asked_for(browser: Browser, shop: Path) -> None:
    key = add_key(shop / "keys.json", "shop", "admin")
    with (
        Retriever.open(shop / "bundle", shop / "gallery") as retriever,
        serving(create_app(retriever, settings=ServeSettings(keys=shop / "keys.json"), page=False)) as address,
    ):
        context = browser.new_context(http_credentials={"username": "any", "password": key})
        page = context.new_page()
        go(page, address, "item=item-03")
        save(page, "name", "Renamed")
        expect(page.locator(".right h2")).to_have_text("Renamed")
        page.get_by_role("button", name="Remove the item").click()
        expect(page.locator("#facts")).to_contain_text("9 items")
        undo(page)
        expect(page.locator("#facts")).to_contain_text("10 items")
        context.close()
        assert {change.actor for change in retriever.gallery.changes()[:3]} == {"shop"}
