"""The page in a real headless Chromium: what a person sees, and that nothing leaves the server's own host."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo
from retrieval.feedback import read_feedback
from retrieval.indexing.pipeline import index_catalogue
from tests.serving.live_page import FLAGS

from ...world import draw, encode
from ..conftest import Served, start, stop

expect.set_options(timeout=30_000)  # ms; a busy machine needs seconds for its first search

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"),
]
CLEAR = "button[aria-label='Clear'], button[aria-label='Remove Image']"
CAMERA = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *CAMERA])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    """Return the open page; at the end, nothing was asked of another host and no script failed."""
    hosts, errors = set(), []
    page = browser.new_page()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(served.address)
    expect(page.locator("#answer .r-empty")).to_be_visible()
    yield page
    page.close()
    assert {host for host in hosts if host} == {urlsplit(served.address).netloc}
    assert errors == []


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


def test_no_match_shows_the_closest_item_in_colour(page: Page) -> None:
    send(page, encode(draw(77, 0)))
    expect(page.locator("#answer h2")).to_have_text("No confident match")
    expect(page.locator("#answer .r-banner")).to_contain_text("This is the closest one")
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
    page.goto(running.address)
    for label, answer in (("The third item", "This is item-03"), ("Unknown", "No confident match")):
        button = page.get_by_role("button", name=label, exact=True)
        expect(button).to_be_visible()
        assert button.evaluate("e => getComputedStyle(e, '::after').content") == f'"{label}"'
        button.click()
        expect(page.locator("#answer h2")).to_have_text(answer)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()
    stop(running, signal.SIGTERM)


def test_an_image_can_be_pasted(page: Page) -> None:
    page.evaluate("""async () => {
        const canvas = Object.assign(document.createElement('canvas'), {width: 40, height: 40});
        const blob = await new Promise(done => canvas.toBlob(done, 'image/png'));
        navigator.clipboard.read = async () => [{types: ['image/png'], getType: async () => blob}];
    }""")
    page.locator("button[aria-label*='lipboard'], button[title*='lipboard'], button[aria-label*='aste']").first.click()
    expect(page.locator("#answer .r-banner")).to_be_visible()


def test_a_photo_of_the_webcam_is_searched(page: Page) -> None:
    page.get_by_label("Capture from camera").click()
    page.get_by_text("Click to Access Webcam").click()
    page.wait_for_function(
        "(video => video && video.readyState >= 3 && video.videoWidth)(document.querySelector('video'))"
    )
    page.get_by_label("capture photo").click()
    expect(page.locator("#answer h2")).to_have_text("No confident match")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, served: Served, scheme: str) -> None:
    page = browser.new_page(viewport=PHONE, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(served.address)
    expect(page.locator("#answer .r-empty")).to_be_visible()
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
    page.goto(running.address)
    expect(page.locator("#answer .r-empty")).to_be_visible()
    title = page.title()
    for item in (1, 77):
        send(page, encode(draw(item, 5)))
        expect(page.locator("#answer h2")).to_have_text(f"This is {evil}" if item == 1 else "No confident match")
        expect(page.locator(".r-card b")).to_have_text(evil)
        wait_for_thumbnails(page)  # whatever its id
        page.locator(CLEAR).first.click()
        expect(page.locator("#answer .r-empty")).to_be_visible()
    assert page.title() == title
    page.close()
    stop(running)


def test_a_box_on_the_photo_is_searched_alone(page: Page) -> None:
    pair = Image.new("RGB", (80, 40))
    for place, item in enumerate((4, 6)):
        pair.paste(draw(item, 1), (40 * place, 0))
    send(page, encode(pair, "PNG"), "pair.png")
    expect(page.locator("#answer .r-banner")).to_be_visible()
    page.get_by_text("Search a part of it").click()
    expect(page.locator("#part-left input[type=range]")).to_be_visible()
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
        expect(page.locator("#part-box")).to_be_visible()
        page.get_by_role("button", name="Search this part").click()
        expect(page.locator("#answer h2")).to_have_text(f"This is {item}")
    send(page, encode(draw(3, 5)))  # another photo is whole again
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
    expect(page.locator("#part-left input[type=range]")).to_have_value("0")


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
    expect(page.locator("#answer h2")).to_have_text("No confident match")
    expect(page.locator("#verdict-right")).to_be_hidden()  # there is nothing to confirm
    item = page.locator(".r-card b").inner_text()
    page.get_by_role("button", name=f"It is this one: {item}").click()
    expect(page.locator("#noted")).to_contain_text("thank you")
    expect(page.locator(".r-card button")).to_be_hidden()
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
    page.goto(served.address)
    expect(page.locator("#answer .r-empty")).to_be_visible()
    assert page.evaluate("scrollY") == 0
    send(page, encode(draw(77, 0)))
    expect(page.locator("#answer h2")).to_be_in_viewport()
    expect(page.locator(".r-card img")).to_be_in_viewport(ratio=1)
    page.get_by_text("Search a part of it").click()
    expect(page.locator("#part-left input[type=range]")).to_be_visible()
    assert page.evaluate(SMALL) == []
    for label, text in (("Capture from camera", "Camera"), ("Paste from clipboard", "Paste")):
        content = page.get_by_label(label).evaluate("e => getComputedStyle(e, '::after').content")
        assert content == f'"{text}"'
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
        if page.evaluate("document.activeElement.id") == "verdict-right":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#noted")).to_contain_text("thank you")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1180, 900), (390, 844)])
def test_an_accessibility_check_finds_nothing_serious(
    browser: Browser, served: Served, scheme: str, size: tuple[int, int]
) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(served.address)
    expect(page.locator("#answer .r-empty")).to_be_visible()
    page.get_by_text("Search a part of it").click()
    serious = []
    for item, title in ((3, "This is item-03"), (77, "No confident match")):
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
    page.goto(served.address)
    with page.expect_popup() as popup:
        page.get_by_text("How this was measured").click()
    report = popup.value
    expect(report.locator("h1")).to_have_text("How often this search is wrong")
    expect(report.locator("h2").last).to_have_text("Drift of live photos")
    assert report.evaluate("document.documentElement.scrollWidth") <= size[0]
    violations = Axe().run(report).response["violations"]
    page.close()
    assert [violation["id"] for violation in violations if violation["impact"] in ("serious", "critical")] == []


def test_a_photo_that_only_the_browser_opens_is_converted(page: Page) -> None:
    send(page, encode(draw(3, 5), "BMP"), "photo.bmp", "image/bmp")
    expect(page.locator("#answer h2")).to_have_text("This is item-03")
