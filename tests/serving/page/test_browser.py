"""The page in a real headless Chromium: what a person sees, and that nothing leaves the server's own host."""

from __future__ import annotations

import base64
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo
from retrieval.feedback import read_feedback
from retrieval.indexing.pipeline import index_catalogue
from tests.serving.live_page import FLAGS, under_path

from ...world import draw, encode
from ..conftest import Served, start, stop

expect.set_options(timeout=30_000)  # ms; a busy machine needs seconds for its first search

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"),
]
CLEAR = "button[aria-label='Clear'], button[aria-label='Remove Image']"
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    """Return the open page; at the end, nothing was asked of another host and no script failed."""
    hosts, errors = set(), []
    page = browser.new_page()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.on("pageerror", lambda error: errors.append(str(error)))
    visit(page, served.address)
    yield page
    page.close()
    assert {host for host in hosts if host} == {urlsplit(served.address).netloc}
    assert errors == []


def visit(page: Page, address: str) -> None:
    """Open the page, and wait until its events work."""
    page.goto(address)
    expect(page.locator("#answer .r-empty")).to_be_visible()
    expect(page.locator(".r-head")).to_be_visible()


def send(page: Page, image: bytes, name: str = "photo.jpg", kind: str = "image/jpeg") -> None:
    page.locator("input[type=file]").first.set_input_files({"name": name, "mimeType": kind, "buffer": image})


def wait_for_thumbnails(page: Page) -> None:
    """Wait until every card's picture is drawn; a broken one is never, and the time runs out."""
    script = "[...document.querySelectorAll('.r-card img')].every(i => i.complete && i.naturalWidth)"
    page.wait_for_function(script, timeout=30_000)


def test_a_match_shows_items_with_thumbnails(page: Page) -> None:
    send(page, encode(draw(3, 5)))
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
    first = page.locator(".r-card").first
    expect(first).to_contain_text("item-03")
    wait_for_thumbnails(page)


def test_a_page_under_a_path_of_a_proxy_asks_for_nothing_outside_of_the_path(browser: Browser, served: Served) -> None:
    with under_path(served.address, "/find") as address:
        asked: set[str] = set()
        page = browser.new_page()
        page.on("request", lambda request: asked.add(request.url))
        visit(page, address)
        send(page, encode(draw(3, 5)))
        expect(page.locator("#answer h2")).to_have_text("This is item-03")
        wait_for_thumbnails(page)
        for name, seen in (("manage", "img"), ("docs", "h2")):
            page.goto(address + name)
            expect(page.locator(seen).first).to_be_visible()
        page.close()
    outside = {url for url in asked if not url.startswith((address, "blob:", "data:"))}
    assert {urlsplit(url).path for url in outside} <= {"/favicon.ico"}


def test_no_match_shows_the_closest_item_in_colour(page: Page) -> None:
    send(page, encode(draw(77, 0)))
    expect(page.locator("#answer h2")).to_have_text("Nothing like this here")
    expect(page.locator("#answer .r-banner")).to_contain_text("Is it this one after all?")
    expect(page.locator(".r-card")).to_have_count(1)
    assert page.locator(".r-card img").evaluate("e => getComputedStyle(e).filter") == "none"


def test_a_photo_that_cannot_be_used_says_why_and_the_next_one_works(page: Page) -> None:
    send(page, b"no image")
    expect(page.locator("#answer h2")).to_have_text("This photo cannot be searched")
    page.locator(CLEAR).first.click()
    expect(page.locator("#answer .r-empty")).to_be_visible()
    send(page, encode(draw(5, 5)))
    expect(page.locator("#answer h2")).to_have_text("This is item-05")


def test_an_example_has_its_file_name_as_a_label(browser: Browser, world: Path, tmp_path: Path) -> None:
    examples = tmp_path / "examples"
    examples.mkdir()
    (examples / "1-the-third-item.jpg").write_bytes(encode(draw(3, 5)))
    (examples / "2-unknown.jpg").write_bytes(encode(draw(77, 0)))
    running = start(world, tmp_path, "--examples", str(examples))
    page = browser.new_page(viewport=PHONE)  # type: ignore[arg-type]
    visit(page, running.address)
    for label, answer in (("The third item", "This is item-03"), ("Unknown", "Nothing like this here")):
        button = page.get_by_role("button", name=label, exact=True)
        expect(button).to_be_visible()
        assert button.evaluate("e => getComputedStyle(e, '::after').content") == f'"{label}"'
        button.click()
        expect(page.locator("#answer h2")).to_have_text(answer)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()
    stop(running, signal.SIGTERM)


FILE = """async (base64) => {
    const blob = await (await fetch(`data:image/jpeg;base64,${base64}`)).blob();
    window.dropped = new DataTransfer();
    window.dropped.items.add(new File([blob], "photo.jpg", {type: "image/jpeg"}));
}"""


@pytest.mark.parametrize("gesture", ["paste", "drop"])
def test_a_photo_can_be_pasted_and_dropped_anywhere_also_after_another(page: Page, gesture: str) -> None:
    fire = {
        "paste": "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: dropped, bubbles: true}))",
        "drop": "for (const kind of ['dragover', 'drop']) document.querySelector('#answer').dispatchEvent("
        "new DragEvent(kind, {dataTransfer: dropped, bubbles: true, cancelable: true}))",
    }
    for item in (3, 5):
        page.evaluate(FILE, base64.b64encode(encode(draw(item, 5))).decode())
        page.evaluate(fire[gesture])
        expect(page.locator("#answer h2")).to_have_text(f"This is item-0{item}")


def test_text_can_be_pasted_into_a_field_and_is_no_photo(page: Page) -> None:
    page.evaluate(
        "document.body.dispatchEvent(new ClipboardEvent('paste', {clipboardData: new DataTransfer(), bubbles: true}))"
    )
    expect(page.locator("#answer .r-empty")).to_be_visible()


def test_a_phone_takes_photos_with_its_camera(browser: Browser, served: Served) -> None:
    page = browser.new_page(viewport=PHONE, has_touch=True, is_mobile=True)  # type: ignore[arg-type]
    visit(page, served.address)
    expect(page.get_by_text("Take a photo", exact=True)).to_be_visible()
    camera = page.locator(".r-camera input")
    assert camera.get_attribute("capture") == "environment"
    for item in (3, 5):
        camera.set_input_files({"name": "i.jpg", "mimeType": "image/jpeg", "buffer": encode(draw(item, 5))})
        expect(page.locator("#answer h2")).to_have_text(f"This is item-0{item}")
    page.close()


def test_boxes_that_were_found_are_drawn_and_open_their_answer(page: Page) -> None:
    expect(page.locator("#parts")).to_be_hidden()  # there is no photo yet
    send(page, encode(pair_of(4, 6), "PNG"), "pair.png")
    expect(page.locator("#answer .r-banner")).to_be_visible()
    page.get_by_role("button", name="Find all items in the photo").click()
    expect(page.locator(".r-found-box").first).to_be_visible()
    assert page.locator(".r-found-box").count() == page.locator("#answer [data-box]").count() >= 2
    named = page.locator("#answer [data-box]", has_text="item-04")
    number = named.locator(".r-number").inner_text()
    chosen = page.get_by_role("button", name=f"Search with box {number}", exact=True)
    chosen.dispatch_event("click")  # a smaller box may lie over its middle
    expect(page.locator("#answer h2")).to_have_text("This is item-04")
    expect(page.locator(".r-part-box")).to_be_visible()
    page.get_by_role("button", name="Whole photo").click()
    expect(page.locator(".r-part-box")).to_have_count(0)


def test_a_card_opens_the_item_beside_the_photo_and_links_to_it(page: Page, served: Served) -> None:
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="Show item-03").click()
    dialog = page.locator("#item")
    expect(dialog.locator("h2")).to_have_text("item-03")
    expect(dialog.locator(".r-pair figure")).to_have_count(2)
    expect(dialog.locator(".r-photos button")).to_have_count(3)
    expect(dialog).to_contain_text(re.compile(r"\(a match is at most [\d.]+\).*It shows the item, not your photo\."))
    before = dialog.locator(".r-pair img").last.get_attribute("src")
    for place in range(3):  # one of them is shown already
        dialog.locator(".r-photos button").nth(place).click()
        expect(dialog.locator(".r-pair img").last).to_have_attribute(
            "src", str(dialog.locator(".r-photos img").nth(place).get_attribute("src"))
        )
    assert before in [image.get_attribute("src") for image in dialog.locator(".r-photos img").all()]
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.goto(f"{served.address}/#item=item-05")
    page.reload()
    expect(page.locator("#item h2")).to_have_text("item-05")
    expect(page.locator("#item .r-pair figure")).to_have_count(1)
    with page.expect_event("dialog") as told:
        page.evaluate("location.hash = 'item=gone'")
    assert told.value.message == "The item gone cannot be shown. It may have been removed."
    told.value.dismiss()


def test_another_item_is_found_by_a_part_of_its_name_and_kept_as_the_right_one(page: Page, world: Path) -> None:
    send(page, encode(draw(3, 5)))
    page.get_by_role("button", name="It is another item").click()
    field = page.get_by_label("Which item is it?")
    field.fill("nowhere")
    expect(page.locator("#another")).to_contain_text("No item has this name or id")
    field.fill("M-07")
    page.locator("#another").get_by_role("button", name="item-07").click()
    expect(page.locator("#noted")).to_contain_text("thank you")
    line = read_feedback(world / "gallery.feedback.jsonl")[-1]
    assert (line.verdict, line.item_id, line.right_item_id) == ("wrong", "item-03", "item-07")


@pytest.mark.parametrize(
    ("verdict", "offered", "item"),
    [
        ("Yes", "item-03", "item-03"),
        ("It is another item", "item-07", "item-07"),
        ("It is not in the catalogue", "", "a/new one"),
    ],
)
def test_a_judged_photo_is_added_from_the_answer(
    browser: Browser, world: Path, tmp_path: Path, verdict: str, offered: str, item: str
) -> None:
    shutil.copytree(world / "gallery", tmp_path / "gallery")
    (tmp_path / "bundle").symlink_to(world / "bundle")
    own = start(tmp_path, tmp_path, "--feedback-photos", str(tmp_path / "kept"))
    page = browser.new_page()
    visit(page, own.address)
    send(page, encode(draw(3, 5)))
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
    page.locator("#answer").get_by_role("button", name=verdict).click()
    if verdict == "It is another item":
        page.get_by_label("Which item is it?").fill(item)
        page.locator("#another").get_by_role("button", name=item).click()
    field = page.get_by_label("Add this photo to the item")
    expect(field).to_have_value(offered)
    field.fill(item)
    page.get_by_role("button", name="Add").click()
    expect(page.locator(".r-verdicts")).to_contain_text(f"Added to {item}.")
    page.get_by_role("link", name=item).click()
    expect(page.get_by_role("heading", name=item)).to_be_visible()
    page.close()
    assert stop(own) == 0
    with Gallery.open(tmp_path / "gallery", read_only=True) as gallery:
        added = [photo for photo, _, _ in gallery.photos(item) if photo.startswith("answer-")]
        assert (len(added), len(gallery)) == (1, 31)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, served: Served, scheme: str) -> None:
    page = browser.new_page(viewport=PHONE, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    visit(page, served.address)
    send(page, encode(draw(3, 5)))
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    answer, examples = (page.locator(e).bounding_box() for e in ("#answer .r-banner", "button.gallery-item >> nth=0"))
    assert answer["y"] < examples["y"]  # the answer first
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
        expect(page.locator("#answer h2")).to_have_text(f"This is {evil}" if item == 1 else "Nothing like this here")
        expect(page.locator(".r-card b")).to_have_text(evil)
        wait_for_thumbnails(page)  # whatever its id
        page.locator(CLEAR).first.click()
        expect(page.locator("#answer .r-empty")).to_be_visible()
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
    expect(page.locator("#answer .r-banner")).to_be_visible()
    for half, item in ((0, "item-04"), (1, "item-06")):
        page.locator("#photo img").scroll_into_view_if_needed()
        box = page.locator("#photo img").bounding_box()
        height = box["width"] / 2  # the picture in its frame is twice as wide as high
        if height > box["height"]:
            height = box["height"]
        left, top = box["x"] + box["width"] / 2 - height, box["y"] + (box["height"] - height) / 2
        page.mouse.move(left + half * height + 1, top + 1)
        page.mouse.down()
        page.mouse.move(left + (half + 1) * height - 1, top + height - 1, steps=5)
        page.mouse.up()
        expect(page.locator("#answer h2")).to_have_text(f"This is {item}")
        expect(page.locator(".r-part-box")).to_be_visible()
    send(page, encode(draw(3, 5)))  # another photo is whole again
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
    expect(page.locator(".r-part-box")).to_have_count(0)


def test_a_verdict_is_appended_and_thanked_for(page: Page, world: Path) -> None:
    file = world / "gallery.feedback.jsonl"
    before = len(read_feedback(file)) if file.exists() else 0
    send(page, encode(draw(3, 5)))
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
    page.locator("#verdict-unknown").click()
    expect(page.locator("#noted")).to_contain_text("thank you")
    expect(page.locator("#verdict-unknown")).to_be_hidden()  # one verdict per answer
    lines = read_feedback(file)
    assert len(lines) == before + 1
    assert (lines[-1].verdict, lines[-1].item_id) == ("unknown", "item-03")
    page.locator(CLEAR).first.click()
    expect(page.locator("#noted")).to_be_hidden()


def test_the_right_item_of_a_no_match_is_picked_on_its_card(page: Page, world: Path) -> None:
    send(page, encode(draw(77, 0)))
    expect(page.locator("#answer h2")).to_have_text("Nothing like this here")
    expect(page.locator("#verdict-right")).to_be_hidden()  # there is nothing to confirm
    item = page.locator(".r-card b").inner_text()
    page.get_by_role("button", name=f"It is this one: {item}").click()
    expect(page.locator("#noted")).to_contain_text("thank you")
    expect(page.locator(".r-pick")).to_be_hidden()
    line = read_feedback(world / "gallery.feedback.jsonl")[-1]
    assert (line.verdict, line.decision, line.right_item_id) == ("wrong", "no_match", item)
    send(page, encode(draw(3, 5)))  # the next answer can be judged again
    expect(page.locator("#verdict-right")).to_be_visible()


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
    expect(page.locator("#answer h2")).to_be_in_viewport()
    expect(page.locator(".r-card img")).to_be_in_viewport(ratio=1)
    assert page.evaluate(SMALL) == []
    page.close()


def test_it_works_by_keyboard_alone(page: Page) -> None:
    page.keyboard.press("Tab")
    for _ in range(40):
        if page.evaluate("document.activeElement.matches('button.gallery-item')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#answer h2")).to_contain_text("This is item-")
    for _ in range(40):
        if page.evaluate("document.activeElement.matches('.r-open')"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#item h2")).to_contain_text("item-")
    page.keyboard.press("Escape")
    expect(page.locator("#item")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1180, 900), (390, 844)])
def test_an_accessibility_check_finds_nothing_serious(
    browser: Browser, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    visit(page, served.address)
    serious = []
    for item, title in ((3, "This is item-03"), (77, "Nothing like this here")):
        send(page, encode(draw(item, 5)))
        expect(page.locator("#answer h2")).to_have_text(title)
        page.wait_for_function("document.getAnimations().every(animation => animation.playState !== 'running')")
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
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
