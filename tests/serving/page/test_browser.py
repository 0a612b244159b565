"""The page in a real headless Chromium: what a person sees, and that nothing leaves the server's own host."""

from __future__ import annotations

import base64
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.feedback import read_feedback
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.plan import SyncSettings
from retrieval.search.boxes import windows
from serving.access.keys import add_key
from tests.serving.live_page import CHROMIUM, under_path

from ...words import looks, word_bundle, write_shop
from ...world import draw, encode
from ..conftest import Served, bearer, start, stop, until, watched

expect.set_options(timeout=15_000)  # ms; a busy machine needs seconds for its first search

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"),
]
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    """Return the open page (`watched`)."""
    with watched(browser, served.address) as page:
        visit(page, served.address)
        yield page


def visit(page: Page, address: str) -> None:
    """Open the page; its script has run then."""
    page.goto(address)
    expect(page.locator("#title")).to_have_text("Show us a photo of one thing")


def send(page: Page, image: bytes, name: str = "photo.jpg", kind: str = "image/jpeg") -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": kind, "buffer": image})


def wait_for_thumbnails(page: Page) -> None:
    """Wait until every card's picture is drawn; a broken one is never, and the time runs out."""
    script = "[...document.querySelectorAll('.card img')].every(i => i.complete && i.naturalWidth)"
    until(lambda: bool(page.evaluate(script)), 30)


def test_a_match_shows_items_with_thumbnails(page: Page) -> None:
    send(page, encode(draw(3, 5)))
    expect(page.locator("#title")).to_have_text("This is item-03")
    expect(page.locator("#text")).to_have_text("We are sure.")
    first = page.locator(".card").first
    expect(first).to_contain_text("item-03")
    wait_for_thumbnails(page)


def test_a_page_under_a_path_of_a_proxy_asks_for_nothing_outside_of_the_path(browser: Browser, served: Served) -> None:
    with under_path(served.address, "/find") as address:
        asked: set[str] = set()
        page = browser.new_page()
        page.on("request", lambda request: asked.add(request.url))
        visit(page, address)
        send(page, encode(draw(3, 5)))
        expect(page.locator("#title")).to_have_text("This is item-03")
        wait_for_thumbnails(page)
        for name, seen in (("manage", "img"), ("docs", "h2")):
            page.goto(address + name)
            expect(page.locator(seen).first).to_be_visible()
        page.close()
    outside = {url for url in asked if not url.startswith((address, "blob:", "data:"))}
    assert {urlsplit(url).path for url in outside} <= {"/favicon.ico"}


def test_no_match_shows_the_closest_item_without_a_claim(page: Page) -> None:
    send(page, encode(draw(77, 0)))
    expect(page.locator("#title")).to_have_text("We do not have this")
    expect(page.locator("#text")).to_have_text("This comes closest, and is not close enough.")
    expect(page.locator(".card")).to_have_count(1)
    assert page.locator("#ours.several").count() == 1  # small
    assert page.locator(".card img").evaluate("e => getComputedStyle(e).filter") == "none"


def test_a_photo_that_cannot_be_used_says_why_and_the_next_one_works(page: Page) -> None:
    send(page, b"no image")
    expect(page.locator("#title")).to_have_text("This cannot be searched")
    expect(page.locator("#text")).to_contain_text("This is not a JPEG")
    expect(page.locator("#picture")).to_be_hidden()  # no broken picture
    expect(page.locator("#parts")).to_be_hidden()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#drop")).to_be_visible()
    expect(page.locator("#title")).to_have_text("Show us a photo of one thing")
    send(page, encode(draw(5, 5)))
    expect(page.locator("#title")).to_have_text("This is item-05")


def test_a_search_that_the_server_has_no_room_for_is_tried_again_by_a_button(page: Page) -> None:
    busy = '{"title": "the queue is full", "status": 503, "detail": "Try again in a second"}'
    page.route("**/v1/search?*", lambda route: route.fulfill(status=503, body=busy), times=1)
    send(page, encode(draw(3, 5)))
    expect(page.locator("#text")).to_have_text("The queue is full. Try again in a second.")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#title")).to_have_text("This is item-03")
    page.route("**/v1/search?*", lambda route: route.abort(), times=1)
    send(page, encode(draw(5, 5)))
    expect(page.locator("#title")).to_have_text("The server does not answer")


def test_an_example_has_its_file_name_as_a_label(browser: Browser, world: Path, tmp_path: Path) -> None:
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "1-the-third-item.jpg").write_bytes(encode(draw(3, 5)))
    (examples / "2-unknown.jpg").write_bytes(encode(draw(77, 0)))
    running = start(world, tmp_path, "--examples", str(examples))
    page = browser.new_page(viewport=PHONE)  # type: ignore[arg-type]
    visit(page, running.address)
    for label, answer in (("The third item", "This is item-03"), ("Unknown", "We do not have this")):
        page.get_by_role("button", name=label, exact=True).click()
        expect(page.locator("#title")).to_have_text(answer)
    page.get_by_role("button", name="You are right").click()  # what is not in the gallery can be judged
    expect(page.locator("#verdicts")).to_contain_text("thank you")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()
    stop(running, signal.SIGTERM)


def test_examples_of_the_gallery_show_what_they_say(browser: Browser, served: Served) -> None:
    page = browser.new_page()
    until(lambda: "data-example" in httpx.get(served.address).text, 60)
    visit(page, served.address)
    expect(page.locator("#examples")).to_contain_text("the rates above are measured on all photos")
    buttons = page.locator("[data-example]")
    assert 3 <= buttons.count() <= 6
    for button in buttons.all():
        told = button.inner_text().split("\n")
        button.click()
        unknown = told[1:] == ["Searched as if we did not have it"]
        expect(page.locator("#title")).to_have_text("We do not have this" if unknown else f"This is {told[0]}")
        if told[1:] != ["A part of its photo"]:
            expect(page.locator("#verdicts button")).to_have_count(0)  # nobody may judge what was left out
    page.close()


FILE = """async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    window.dropped = new DataTransfer();
    window.dropped.items.add(new File([bytes], "photo.jpg", {type: "image/jpeg"}));
}"""


@pytest.mark.parametrize("gesture", ["paste", "drop"])
def test_a_photo_can_be_pasted_and_dropped_anywhere_also_after_another(page: Page, gesture: str) -> None:
    fire = {
        "paste": "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: dropped, bubbles: true}))",
        "drop": "for (const kind of ['dragover', 'drop']) document.querySelector('#said').dispatchEvent("
        "new DragEvent(kind, {dataTransfer: dropped, bubbles: true, cancelable: true}))",
    }
    for item in (3, 5):
        page.evaluate(FILE, base64.b64encode(encode(draw(item, 5))).decode())
        page.evaluate(fire[gesture])
        expect(page.locator("#title")).to_have_text(f"This is item-0{item}")


def test_text_can_be_pasted_into_a_field_and_is_no_photo(page: Page) -> None:
    page.evaluate(
        "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: new DataTransfer(), bubbles: true}))"
    )
    expect(page.locator("#drop")).to_be_visible()


def test_a_phone_takes_photos_with_its_camera(browser: Browser, served: Served) -> None:
    page = browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    visit(page, served.address)
    expect(page.get_by_text("Take a photo", exact=True)).to_be_visible()
    camera = page.locator("#camera input")
    assert camera.get_attribute("capture") == "environment"
    assert not page.locator("#drop").get_by_text("drop it anywhere").is_visible()  # a phone drops nothing
    for item in (3, 5):
        camera.set_input_files({"name": "i.jpg", "mimeType": "image/jpeg", "buffer": encode(draw(item, 5))})
        expect(page.locator("#title")).to_have_text(f"This is item-0{item}")
    page.close()


def test_boxes_of_the_items_that_are_shown_are_numbered_and_open_their_answer(page: Page) -> None:
    expect(page.locator("#parts")).to_be_hidden()  # there is no photo yet
    send(page, encode(pair_of(4, 6), "PNG"), "pair.png")
    expect(page.locator("#title")).not_to_have_text("Looking…")
    page.get_by_role("button", name="Find all items in the photo").click()
    expect(page.locator(".found").first).to_be_visible()
    assert page.locator(".found").count() == page.locator("#ours .card").count() >= 2
    numbers = page.locator(".found .number")
    places = [tuple(number.bounding_box().values()) for number in numbers.all()]  # type: ignore[union-attr]
    assert len(set(places)) == numbers.count() == page.locator("#ours .number").count()  # none covers another
    named = page.locator("#ours .card", has_text="item-04")
    number = named.locator(".number").inner_text()
    chosen = page.get_by_role("button", name=f"Search with box {number}", exact=True)
    chosen.dispatch_event("click")  # a smaller box may lie over its middle
    expect(page.locator("#title")).to_have_text("This is item-04")
    expect(page.locator(".part")).to_be_visible()
    page.get_by_role("button", name="Whole photo").click()
    expect(page.locator(".part")).to_have_count(0)


def answer_of(item: str, decision: str, **others: Any) -> dict[str, Any]:
    """Return an answer of the API that names an item."""
    match = {"item_id": item, "photo_id": f"{item}/0.png", "distance": 0.3, "metadata": {"name": f"No. {item}"}}
    empty = {"matches": [], "review": [], "ranked": [], "reason": "", "look": "photo", "box": None, "explanation": None}
    found = {"matches": [match]} if decision == "match" else {"review": [match]} if decision == "perhaps" else {}
    return {**empty, **found, "decision": decision, "nearest": match, "request_id": "", **others}


def test_all_items_of_a_photo_are_told_with_what_is_sure_and_each_takes_a_verdict(page: Page) -> None:
    boxes = ([0, 0, 40, 40], [0, 0, 80, 40], [40, 0, 80, 40], [20, 10, 60, 30])
    items = (("a", "match"), ("b", "perhaps"), ("a", "match"), ("c", "no_match"))
    answers = [
        answer_of(item, decision, box=box, request_id=f"r-{number}")
        for number, ((item, decision), box) in enumerate(zip(items, boxes, strict=True))
    ]
    sent: list[Any] = []
    page.route("**/v1/search/boxes?*", lambda route: route.fulfill(json={"answers": answers, "request_id": "r"}))
    page.route("**/v1/feedback**", lambda route: (sent.append(route.request), route.fulfill(json={}))[1])
    send(page, encode(pair_of(4, 6), "PNG"), "pair.png")
    page.get_by_role("button", name="Find all items in the photo").click()
    expect(page.locator("#title")).to_have_text("This shows No. a")
    expect(page.locator("#text")).to_contain_text("We are not sure about the others.")
    expect(page.locator("#ours .card")).to_have_count(2)  # an item once, and nothing that is not there
    expect(page.locator(".found")).to_have_count(2)
    page.get_by_role("button", name="Yes, No. b").click()
    expect(page.locator("#ours .card").nth(1)).to_contain_text("thank you")
    page.get_by_role("button", name="No, No. a").click()
    page.locator("#ours .card").nth(0).get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="No, No. a")).to_be_visible()
    assert [(each.method, each.url.rsplit("/", 1)[1], each.post_data_json) for each in sent] == [
        ("POST", "feedback", {"request_id": "r-1", "verdict": "wrong", "item_id": "b"}),
        ("POST", "feedback", {"request_id": "r-0", "verdict": "wrong", "item_id": ""}),
        ("DELETE", "r-0", None),
    ]


def test_closest_items_of_parts_that_overlap_a_nearer_one_are_not_drawn_without_a_threshold(page: Page) -> None:
    parts = (("far", [20, 0, 60, 40], 0.9), ("near", [0, 0, 40, 40], 0.4), ("beside", [40, 0, 80, 40], 0.6))
    answers = []
    for item, box, distance in parts:
        answer = answer_of(item, "ranked", box=box)
        answers.append({**answer, "nearest": {**answer["nearest"], "distance": distance}})
    page.route("**/v1/search/boxes?*", lambda route: route.fulfill(json={"answers": answers, "request_id": "r"}))
    send(page, encode(pair_of(4, 6), "PNG"), "pair.png")
    page.get_by_role("button", name="Find all items in the photo").click()
    expect(page.locator("#title")).to_have_text("The closest items")
    expect(page.locator(".found")).to_have_count(2)
    expect(page.locator("#ours .card").nth(0)).to_contain_text("No. near")
    expect(page.locator("#ours .card").nth(1)).to_contain_text("No. beside")


def test_a_search_for_all_items_tells_how_many_parts_it_looks_at(page: Page) -> None:
    send(page, encode(pair_of(4, 6), "PNG"), "pair.png")
    expect(page.locator("#title")).not_to_have_text("Looking…")
    waiting: list[Route] = []
    page.route("**/v1/search/boxes?*", lambda route: waiting.append(route))  # noqa: PLW0108 - not a builtin
    page.get_by_role("button", name="Find all items in the photo").click()
    expect(page.locator("#title")).to_have_text(f"Looking at {len(windows(1000, 1000))} parts of the photo…")
    waiting[0].continue_()
    expect(page.locator("#title")).not_to_contain_text("Looking")


@pytest.mark.parametrize(
    ("answer", "title", "text", "cards"),
    [
        (answer_of("a", "perhaps"), "Is it No. a?", "We are not sure. Please compare the two pictures.", 1),
        (answer_of("a", "ranked"), "The closest items", "cannot tell yet", 1),
        (answer_of("a", "no_match", reason="damaged_photo"), "This photo is damaged", "take it again", 1),
        (answer_of("a", "no_match", nearest=None, reason="gallery_empty"), "We do not have this", "holds no photos", 0),
    ],
)
def test_each_answer_has_its_words_and_no_number(
    page: Page, answer: dict[str, Any], title: str, text: str, cards: int
) -> None:
    page.route("**/v1/search?*", lambda route: route.fulfill(json=answer))
    send(page, encode(draw(3, 5)))
    expect(page.locator("#title")).to_have_text(title)
    expect(page.locator("#text")).to_contain_text(text)
    expect(page.locator(".card")).to_have_count(cards)
    assert re.search(r"\d of \d|%", page.locator("main").inner_text()) is None


def test_twins_are_both_shown_with_their_ids(page: Page) -> None:
    one, other = (answer_of(item, "perhaps")["review"][0] for item in ("a", "b"))
    answer = answer_of("a", "perhaps", review=[one, other], reason="twins", request_id="r")
    page.route("**/v1/search?*", lambda route: route.fulfill(json=answer))
    send(page, encode(draw(3, 5)))
    expect(page.locator("#title")).to_have_text("Is it No. a or No. b?")
    expect(page.locator("#text")).to_have_text("The catalogue may have this item twice. Please check both.")
    expect(page.locator(".card figcaption")).to_have_text(["No. aa", "No. bb"])
    expect(page.get_by_role("button", name="It is this one")).to_have_count(2)


def test_the_part_that_a_second_look_found_an_item_in_is_framed(page: Page) -> None:
    answer = answer_of("a", "match", look="block", box=[10, 10, 30, 30])
    page.route("**/v1/search?*", lambda route: route.fulfill(json=answer))
    send(page, encode(draw(3, 5)))
    expect(page.locator("#text")).to_have_text("We are sure. This is about the framed part of your photo.")
    expect(page.locator(".found")).to_have_count(1)
    answer["look"] = "photo"
    send(page, encode(draw(3, 5)))
    expect(page.locator("#text")).to_have_text("We are sure.")
    expect(page.locator(".found")).to_have_count(0)


def test_details_that_agree_are_circled_in_both_pictures(page: Page) -> None:
    places = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]
    answer = answer_of("item-03", "match", explanation={"items": [], "places": places})
    page.route("**/v1/search?*", lambda route: route.fulfill(json=answer))
    send(page, encode(draw(3, 5)))
    expect(page.locator("#more")).to_contain_text("2 details of your photo are in our picture, too.")
    page.get_by_role("button", name="Show No. item-03").click()
    expect(page.locator("#item svg circle")).to_have_count(4)


def test_a_card_opens_the_item_beside_the_photo_and_links_to_it(page: Page, served: Served) -> None:
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="Show item-03").click()
    dialog = page.locator("#item")
    expect(dialog.locator("h2")).to_have_text("item-03")
    expect(dialog.locator(".both figure")).to_have_count(2)
    expect(dialog.locator(".photos button")).to_have_count(3)
    expect(dialog).to_contain_text("It shows the item, not your photo.")
    before = dialog.locator(".both img").last.get_attribute("src")
    for place in range(3):  # one of them is shown already
        dialog.locator(".photos button").nth(place).click()
        expect(dialog.locator(".both img").last).to_have_attribute(
            "src", str(dialog.locator(".photos img").nth(place).get_attribute("src"))
        )
    assert before in [image.get_attribute("src") for image in dialog.locator(".photos img").all()]
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.goto(f"{served.address}/#item=item-05")
    page.reload()
    expect(page.locator("#item h2")).to_have_text("item-05")
    expect(page.locator("#item .both figure")).to_have_count(1)
    with page.expect_event("dialog") as told:
        page.evaluate("location.hash = 'item=gone'")
    assert told.value.message == "The item gone cannot be shown. It may have been removed."
    told.value.dismiss()


@pytest.mark.parametrize(
    ("p_value", "told"),
    [
        *[(0.0001, "fewer than 1 of 1,000 photos of things we do not have come"), (0.004, "4 of 1,000")],
        *[(0.04, "1 of 25 photos of things we do not have comes this close"), (0.3, "3 of 10")],
    ],
)
def test_the_number_is_in_the_opened_card(page: Page, p_value: float, told: str) -> None:
    answer = answer_of("item-03", "match")
    answer["matches"][0]["p_value"] = p_value
    page.route("**/v1/search?*", lambda route: route.fulfill(json=answer))
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="Show No. item-03").click()
    expect(page.locator("#item")).to_contain_text(told)


def test_columns_that_the_shop_chose_stand_under_the_name_with_their_units(
    browser: Browser, world: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.png").write_bytes(encode(draw(3, 0), "PNG"))
    metadata = {"name": "Mug", "price": 12.5, "brand": "Nova", "stock": 7}
    shutil.copytree(world / "bundle", tmp_path / "bundle")
    photo = Photo("p", tmp_path / "p.png", "sku-3", metadata=metadata)
    index_catalogue(Bundle.open(tmp_path / "bundle"), [photo], tmp_path / "gallery", progress=False)
    running = start(tmp_path, tmp_path, "--show", "price=EUR,brand,none")
    page = browser.new_page()
    visit(page, running.address)
    send(page, encode(draw(3, 5)))
    expect(page.locator("#title")).to_have_text("This is Mug")
    assert page.locator("#ours figcaption").inner_text().split("\n") == ["Mug", "sku-3", "price 12.5 EUR", "brand Nova"]
    page.get_by_role("button", name="Show Mug").click()
    expect(page.locator("#item dl")).to_contain_text("stock7")  # the rest on opening
    expect(page.locator("#item dl")).to_contain_text("12.5 EUR")
    page.close()
    stop(running)


def test_another_item_is_found_by_a_part_of_its_name_and_kept_as_the_right_one(page: Page, world: Path) -> None:
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="It is another item").click()
    field = page.get_by_label("Which item is it?")
    expect(field).to_be_focused()
    field.fill("nowhere")
    expect(page.locator("#another")).to_contain_text("No item has this name or id")
    field.fill("M-07")
    option = page.get_by_role("option", name="item-07")
    expect(option.locator("img")).to_have_js_property("complete", True)
    assert option.locator("img").evaluate("e => e.naturalWidth") > 0
    option.click()
    expect(page.locator("#verdicts")).to_contain_text("thank you")
    line = read_feedback(world / "gallery.feedback.jsonl")[-1]
    assert (line.verdict, line.item_id, line.right_item_id) == ("wrong", "item-03", "item-07")


def test_another_item_is_chosen_with_the_arrow_keys(page: Page, world: Path) -> None:
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="It is another item").press("Enter")
    page.keyboard.type("item-0")
    expect(page.get_by_role("option")).to_have_count(8)
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(page.locator("[aria-selected=true]")).to_contain_text("item-01")
    page.keyboard.press("Enter")
    expect(page.locator("#verdicts")).to_contain_text("thank you")
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    assert read_feedback(world / "gallery.feedback.jsonl")[-1].right_item_id == "item-01"


def test_who_may_write_makes_a_new_item_of_the_photo_and_undoes_it_and_others_cannot(
    browser: Browser, shop: Path, tmp_path: Path
) -> None:
    keys = {scope: add_key(tmp_path / "keys.json", scope, scope) for scope in ("search", "admin")}
    own = start(shop, tmp_path, "--keys", str(tmp_path / "keys.json"), "--page")
    for scope, key in keys.items():
        context = browser.new_context(http_credentials={"username": "x", "password": key})
        page = context.new_page()
        visit(page, own.address)
        expect(page.get_by_role("link", name="Manage the catalogue")).to_have_count(int(scope == "admin"))
        send(page, encode(draw(3, 5)))
        page.get_by_role("button", name="It is another item").click()
        page.get_by_label("Which item is it?").fill("a/new one")
        if scope == "search":
            expect(page.locator("#another")).to_contain_text("No item has this name or id")
            expect(page.get_by_role("option")).to_have_count(0)
        else:
            page.get_by_role("option", name="New item “a/new one”").click()
            expect(page.locator("#verdicts")).to_contain_text("a/new one is a new item now.")
            item, headers = f"{own.address}/v1/items/a%2Fnew%20one", bearer(key)
            assert len(httpx.get(item, headers=headers).json()["photos"]) == 1
            page.get_by_role("button", name="Undo").click()
            expect(page.get_by_role("button", name="You do not have it")).to_be_visible()
            assert httpx.get(item, headers=headers).status_code == 404
        context.close()
    assert stop(own) == 0
    verdicts = [line.verdict for line in read_feedback(shop / "gallery.feedback.jsonl")]
    assert verdicts == ["unknown", "undone"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, served: Served, scheme: str) -> None:
    page = browser.new_page(viewport=PHONE, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    visit(page, served.address)
    send(page, encode(draw(3, 5)))
    expect(page.locator("#title")).to_have_text("This is item-03")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    answer, yours, ours, examples = (
        page.locator(each).bounding_box() for each in ("#said", "#photo", "#ours .card img", "#examples")
    )
    assert answer["y"] < yours["y"] == ours["y"] < examples["y"]  # side by side, the answer first
    page.close()


def test_a_hostile_catalogue_stays_text(browser: Browser, world: Path, tmp_path: Path) -> None:
    evil = '"><img src=x onerror="document.title=1">${document.title=2}{{constructor}}'
    folder = tmp_path / "photos"
    folder.mkdir()
    draw(1, 0).save(folder / "p.png")
    photo = Photo(f"../{evil}", folder / "p.png", evil, metadata={"name": evil})
    shutil.copytree(world / "bundle", tmp_path / "bundle")
    index_catalogue(Bundle.open(tmp_path / "bundle"), [photo], tmp_path / "gallery", progress=False)
    running = start(tmp_path, tmp_path)
    page = browser.new_page()
    visit(page, running.address)
    title = page.title()
    for item in (1, 77):
        send(page, encode(draw(item, 5)))
        expect(page.locator("#title")).to_have_text(f"This is {evil}" if item == 1 else "We do not have this")
        expect(page.locator(".card b")).to_have_text(evil)
        wait_for_thumbnails(page)  # whatever its id
        page.get_by_role("button", name="It is another item").click()
        page.get_by_label("Which item is it?").fill("onerror")
        expect(page.get_by_role("option").locator("b")).to_have_text(evil)
    assert page.title() == title
    page.close()
    stop(running)


def pair_of(*items: int) -> Image.Image:
    """Return a picture of two items, side by side."""
    pair = Image.new("RGB", (80, 40))
    for place, item in enumerate(items):
        pair.paste(draw(item, 1), (40 * place, 0))
    return pair


def test_a_box_that_is_dragged_on_the_photo_is_searched_at_once(page: Page) -> None:
    send(page, encode(pair_of(4, 6), "PNG"), "pair.png")
    expect(page.locator("#title")).not_to_have_text("Looking…")
    for half, item in ((0, "item-04"), (1, "item-06")):
        page.locator("#picture").scroll_into_view_if_needed()
        box = page.locator("#picture").bounding_box()
        height = box["width"] / 2  # the picture in its frame is twice as wide as high
        if height > box["height"]:
            height = box["height"]
        left, top = box["x"] + box["width"] / 2 - height, box["y"] + (box["height"] - height) / 2
        page.mouse.move(left + half * height + 1, top + 1)
        page.mouse.down()
        page.mouse.move(left + (half + 1) * height - 1, top + height - 1, steps=5)
        page.mouse.up()
        expect(page.locator("#title")).to_have_text(f"This is {item}")
        expect(page.locator(".part")).to_be_visible()
    send(page, encode(draw(3, 5)))  # another photo is whole again
    expect(page.locator("#title")).to_have_text("This is item-03")
    expect(page.locator(".part")).to_have_count(0)


def test_a_verdict_is_appended_and_thanked_for_and_can_be_undone(page: Page, world: Path) -> None:
    file = world / "gallery.feedback.jsonl"
    before = len(read_feedback(file)) if file.exists() else 0
    send(page, encode(draw(3, 5)))
    expect(page.locator("#title")).to_have_text("This is item-03")
    page.get_by_role("button", name="You do not have it").click()
    expect(page.locator("#verdicts")).to_contain_text("Saved, thank you.")
    expect(page.get_by_role("button", name="You do not have it")).to_have_count(0)  # one verdict per answer
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Yes", exact=True).click()
    expect(page.locator("#verdicts")).to_contain_text("Saved, thank you.")
    lines = read_feedback(file)[before:]
    assert [(line.verdict, line.item_id) for line in lines] == [
        (verdict, "item-03") for verdict in ("unknown", "undone", "right")
    ]
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#verdicts")).to_be_empty()


def test_a_verdict_that_cannot_be_kept_says_so_and_can_be_given_again(page: Page) -> None:
    problem = '{"title": "the server\'s disk is full", "status": 507, "detail": ""}'
    page.route("**/v1/feedback", lambda route: route.fulfill(status=507, body=problem), times=1)
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="Yes", exact=True).click()
    expect(page.locator("#verdicts")).to_contain_text("The server's disk is full.")
    page.get_by_role("button", name="Yes", exact=True).click()
    expect(page.locator("#verdicts")).to_contain_text("Saved, thank you.")


def test_the_right_item_of_a_no_match_is_picked_on_its_card(page: Page, world: Path) -> None:
    send(page, encode(draw(77, 0)))
    expect(page.locator("#title")).to_have_text("We do not have this")
    item = page.locator(".card b").inner_text()
    page.get_by_role("button", name=f"It is this one: {item}").click()
    expect(page.locator("#verdicts")).to_contain_text("thank you")
    expect(page.locator(".pick")).to_be_hidden()
    line = read_feedback(world / "gallery.feedback.jsonl")[-1]
    assert (line.verdict, line.decision, line.right_item_id) == ("wrong", "no_match", item)
    send(page, encode(draw(3, 5)))  # the next answer can be judged again
    expect(page.get_by_role("button", name="Yes", exact=True)).to_be_visible()


MEASURED = """
window.shift = window.largest = 0;
new PerformanceObserver(list => { for (const entry of list.getEntries()) window.shift += entry.value; })
    .observe({type: "layout-shift", buffered: true});
new PerformanceObserver(list => { for (const entry of list.getEntries()) window.largest = entry.startTime; })
    .observe({type: "largest-contentful-paint", buffered: true});
"""
SMALL = """[...document.querySelectorAll("button, a, input, summary")].filter(e => {
    const {width, height} = e.getBoundingClientRect();
    const inline = getComputedStyle(e).display === "inline";
    return width && height && !inline && Math.min(width, height) < 43.9;
}).map(e => e.outerHTML.slice(0, 120))"""


def test_a_phone_scrolls_to_the_answer_and_fingers_find_the_buttons(browser: Browser, served: Served) -> None:
    page = browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True, reduced_motion="reduce")  # type: ignore[arg-type]
    visit(page, served.address)
    assert page.evaluate("scrollY") == 0
    send(page, encode(draw(77, 0)))
    expect(page.locator("#title")).to_be_in_viewport()
    expect(page.locator("#picture")).to_be_in_viewport(ratio=1)
    assert page.evaluate(SMALL) == []
    page.close()


def tab_to(page: Page, selector: str) -> None:
    for _ in range(40):
        if page.evaluate(f"document.activeElement.matches('{selector}')"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} is not reached")


def test_it_works_by_keyboard_alone(page: Page, served: Served) -> None:
    until(lambda: "data-example" in httpx.get(served.address).text, 60)
    visit(page, served.address)
    page.keyboard.press("Tab")
    tab_to(page, "#file")
    tab_to(page, "[data-example]")
    page.keyboard.press("Enter")
    expect(page.locator("#title")).to_contain_text("This is item-")
    page.evaluate("document.activeElement.blur()")
    tab_to(page, ".open")
    page.keyboard.press("Enter")
    expect(page.locator("#item h2")).to_contain_text("item-")
    page.keyboard.press("Escape")
    expect(page.locator("#item")).to_have_count(0)
    tab_to(page, "#parts")
    page.keyboard.press("Enter")
    expect(page.locator("#title")).not_to_contain_text("Looking")
    expect(page.locator(".found").first).to_be_visible()


def test_the_first_view_is_complete_at_once_and_moves_nothing(browser: Browser, served: Served) -> None:
    until(lambda: "data-example" in httpx.get(served.address).text, 60)
    measured = []
    for _ in range(3):  # a busy machine may delay one
        page = browser.new_page(viewport={"width": 1180, "height": 900})
        page.add_init_script(MEASURED)
        visit(page, served.address)
        page.wait_for_timeout(700)
        measured.append(page.evaluate("[window.largest, window.shift]"))
        page.close()
    assert max(shift for _, shift in measured) < 0.02
    assert 0 < min(largest for largest, _ in measured) < 500


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1180, 900), (390, 844)])
def test_an_accessibility_check_finds_nothing_serious(
    browser: Browser, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    visit(page, served.address)
    serious = []
    for item, title in ((3, "This is item-03"), (77, "We do not have this")):
        send(page, encode(draw(item, 5)))
        expect(page.locator("#title")).to_have_text(title)
        page.get_by_role("button", name="It is another item").click()
        page.get_by_label("Which item is it?").fill("item")
        expect(page.get_by_role("option")).to_have_count(8)
        serious += [
            f"{title}, {violation['id']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
            for violation in Axe().run(page).response["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
    page.close()
    assert serious == []


@pytest.mark.parametrize(("scheme", "size"), [("light", (1180, 900)), ("dark", (390, 844))])
def test_the_report_can_be_read_everywhere(
    browser: Browser, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    visit(page, served.address)
    with page.expect_popup() as popup:
        page.get_by_text("How this was measured").click()
    report = popup.value
    expect(report.locator("h1")).to_have_text("How often this search is wrong")
    expect(report.locator("h2").last).to_have_text("Drift of live photos")
    assert report.evaluate("document.documentElement.scrollWidth") <= size[0]
    violations = Axe().run(report).response["violations"]
    page.close()
    assert [violation["id"] for violation in violations if violation["impact"] in ("serious", "critical")] == []


def test_routes_are_tried_from_the_docs(browser: Browser, served: Served) -> None:
    page = browser.new_page()
    page.goto(f"{served.address}/docs")
    violations = Axe().run(page).response["violations"]
    search = page.locator("section", has=page.locator("form[data-path='/v1/search']"))
    search.get_by_text("Try it").click()
    photo = {"name": "photo.png", "mimeType": "image/png", "buffer": encode(draw(3, 5), "PNG")}
    search.get_by_label("image").set_input_files(photo)  # type: ignore[arg-type]
    search.get_by_label("top_k").fill("2")
    search.get_by_role("button", name="POST").click()
    expect(search.locator("output")).to_contain_text("POST /v1/search?top_k=2: 200")
    expect(search.locator("pre")).to_contain_text('"item_id": "item-03"')
    found = re.search(r'"photo_id": "(.+?)"', search.locator("pre").inner_text())
    assert found
    thumbnail = page.locator("section", has=page.locator("form[data-path^='/v1/thumbnails']"))
    thumbnail.get_by_text("Try it").click()
    thumbnail.get_by_label("photo_id").fill(found[1])
    thumbnail.get_by_role("button", name="GET").click()
    expect(thumbnail.locator("output img")).to_be_visible()
    page.close()
    assert [violation["id"] for violation in violations if violation["impact"] in ("serious", "critical")] == []


def test_a_photo_that_only_the_browser_opens_is_converted(page: Page) -> None:
    send(page, encode(draw(3, 5), "BMP"), "photo.bmp", "image/bmp")
    expect(page.locator("#title")).to_have_text("This is item-03")


def test_a_large_photo_is_made_smaller_before_it_is_sent(page: Page) -> None:
    page.evaluate("window.fetch = (send => (place, options) => send(place, window.sent = options))(window.fetch)")
    for side, kind, expected in (
        (3000, "image/png", ["image/jpeg", 2048, 1638]),
        (50, "image/png", ["image/png", 50, 40]),
    ):
        send(page, encode(draw(3, 5).resize((side, side * 4 // 5)), "PNG"), "photo.png", kind)
        expect(page.locator("#verdicts button").first).to_be_visible()
        script = "createImageBitmap(sent.body).then(image => [sent.body.type, image.width, image.height])"
        assert page.evaluate(script) == expected


def test_words_are_searched_where_the_bundle_reads_them(browser: Browser, tmp_path: Path) -> None:
    bundle = word_bundle(tmp_path, looks())
    photos = read_catalogue(write_shop(tmp_path / "photos"))
    index_catalogue(bundle, photos, tmp_path / "gallery", progress=False, sync=SyncSettings(names="name"))
    running = start(tmp_path, tmp_path)
    page = browser.new_page()
    visit(page, running.address)
    field = page.get_by_label("Or search by words")
    for words, title in (("thing3", "This is thing3"), ("no such word", "We do not have this")):
        field.fill(words)
        field.press("Enter")
        expect(page.locator("#title")).to_have_text(title)
        expect(page.locator("#verdicts button")).to_have_count(0)  # words are not kept
    expect(page.locator("#photo")).to_be_hidden()
    send(page, encode(draw(3, 0)))
    expect(page.locator("#picture")).to_be_visible()
    page.close()
    stop(running)
