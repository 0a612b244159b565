"""The page of `retrieval explain` in a real headless Chromium, from a file: map, keyboard, themes, accessibility."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serving.live_page import FLAGS
from training.explain.page import explain_page
from training.explain.run import explain_run
from training.loop.run import Run

from .explain_world import changed_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"),
]
EVIL = "</script><img src=x onerror=document.title=1>{}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the tiny run, whose items have hostile names."""
    folder = tmp_path_factory.mktemp("explain")
    explained = explain_run(changed_run(run, folder, rename=EVIL.format), split="mixed", progress=False)
    path = folder / "explain.html"
    path.write_text(explain_page(explained))
    return path


def opened(browser: Browser, file: Path, *, width: int = 1180, scheme: str = "light") -> Page:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(file.as_uri())
    return page


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """Return the open page; at the end nothing but the file was asked for, and no script failed."""
    asked, errors = [], []
    page = browser.new_page(viewport={"width": 1180, "height": 900})
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    yield page
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert errors == []
    assert page.title() == "Errors of run"
    page.close()


def test_pointing_at_a_photo_shows_it(page: Page) -> None:
    tip = page.locator("#map-tip")
    expect(tip).to_be_hidden()
    page.locator("#map-next").click()  # where it puts the ring is a photo
    expect(tip).to_be_visible()
    told = tip.inner_text()
    page.locator("#map-frame").focus()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.locator("#map-frame").scroll_into_view_if_needed()
    frame = page.locator("#map-frame").bounding_box()
    assert frame is not None
    seen = set()
    for row, column in itertools.product(range(1, 6), range(1, 20)):
        page.mouse.move(frame["x"] + frame["width"] * column / 20, frame["y"] + frame["height"] * row / 6)
        if tip.is_visible():
            seen.add(tip.inner_text())
            assert tip.locator("canvas").count() == 1
    assert "</script><img" in told  # as text
    assert len(seen) > 1
    pixels = (
        "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].some((v, i) => i % 4 < 3 && v > 40)"
    )
    page.locator("#map-next").click()
    assert tip.locator("canvas").evaluate(pixels)  # a picture, not an empty square


def test_the_map_is_walked_by_keyboard_and_says_where_it_is(page: Page) -> None:
    frame, told = page.locator("#map-frame"), page.locator("#map-told")
    frame.focus()
    said = []
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "n", "n", "p"):
        page.keyboard.press(key)
        expect(page.locator("#map-tip")).to_be_visible()
        said.append(told.inner_text())
    assert len(set(said)) > 3
    assert said[4] == said[6]  # the next but one, and back
    assert any(words in said[4] for words in ("own item not found", "another item returned first"))
    for key in ("+", "+", "ArrowRight", "-", "0"):
        page.keyboard.press(key)
        expect(page.locator("#map-tip")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") != "map-frame"  # no trap


def test_one_item_can_be_shown_alone_and_kinds_hidden(page: Page) -> None:
    def drawn() -> str:
        return str(page.locator("#map-frame > canvas").evaluate("canvas => canvas.toDataURL()"))

    whole = drawn()
    page.locator("#map-item").select_option(index=1)
    name = page.locator("#map-item option").nth(1).inner_text()
    one = drawn()
    page.locator("#map-next").click()
    if page.locator("#map-tip").is_visible():
        assert name in page.locator("#map-tip").inner_text()
    page.locator("#map-item").select_option("-1")
    assert drawn() == whole != one
    for box in page.locator("[data-kind]").all():
        box.uncheck()
    assert drawn() != whole
    page.locator("#map-next").click()
    expect(page.locator("#map-told")).to_have_text("No error is shown.")


@pytest.mark.parametrize("width", [1180, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_never_scrolls_sideways(browser: Browser, file: Path, width: int, scheme: str) -> None:
    page = opened(browser, file, width=width, scheme=scheme)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_it_follows_the_theme(browser: Browser, file: Path) -> None:
    back = {}
    for scheme in ("light", "dark"):
        page = opened(browser, file, scheme=scheme)
        color = page.evaluate("getComputedStyle(document.body).backgroundColor")
        back[scheme] = [int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")]
        page.close()
    assert min(back["light"]) > 240
    assert max(back["dark"]) < 60
