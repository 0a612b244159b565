"""The demo in Gradio in a real headless Chromium, over a real server, and its decisions at each target."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from click.testing import CliRunner
from playwright.sync_api import Browser, Page, expect

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.client import RetrievalClient
from retrieval.errors import InvalidParameter, MissingDependency
from retrieval.feedback import read_feedback
from retrieval.galleries.measured import measure_gallery
from retrieval.galleries.points import TARGETS, pack_points, read_points
from retrieval.measuring.point import Perhaps
from retrieval.retriever import Retriever
from serving.access.keys import add_key
from serving.cli import serve
from tests.serving.live_page import CHROMIUM

from ..world import SIDE, between, draw, encode
from .conftest import Served, start, stop, until, watched

gradio = pytest.importorskip("gradio")
expect.set_options(timeout=30_000)  # ms

skip = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
CLEAR = "button[aria-label='Clear'], button[aria-label='Remove Image']"
PHONE = {"width": 390, "height": 844}
KNOWN = encode(draw(3, 5))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Demo:
    """A running server with its demo."""

    server: Served
    address: str
    folder: Path


@pytest.fixture(scope="module")
def demo(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Serve a gallery of 40 items with numbers as ids, whose own target is 20 %, with its demo."""
    folder = tmp_path_factory.mktemp("demo")
    for name in ("bundle", "gallery"):
        shutil.copytree(filled / name, folder / name)
    ask_more(folder)
    (folder / "examples").mkdir()
    (folder / "examples" / "1-known.jpg").write_bytes(KNOWN)
    port = free_port()
    running = start(folder, folder, "--gradio-port", str(port), "--examples", str(folder / "examples"))
    address = f"http://127.0.0.1:{port}"
    until(lambda: httpx.get(address, timeout=60).status_code == 200, 120)
    yield Demo(running, address, folder)
    stop(running, signal.SIGTERM)
    until(lambda: not answers(address), 30)


def ask_more(folder: Path) -> None:
    """Let a gallery ask about what is a little beyond its threshold."""
    bundle = Bundle.open(folder / "bundle")
    with Gallery.open(folder / "gallery") as gallery:
        stored = gallery.kept(POINT)
        (point,) = (each.point for each in read_points(stored))
        asking = replace(point, perhaps=Perhaps(point.threshold + 0.1, 0.9, 5, 0.1, 0.1))
        gallery.lock()
        gallery.keep({POINT: pack_points(stored, bundle, asking)}, "ask more")


def answers(address: str) -> bool:
    try:
        httpx.get(address, timeout=5)
    except httpx.TransportError:
        return False
    return True


@pytest.fixture
def page(browser: Browser, demo: Demo) -> Iterator[Page]:
    """Return the open demo (`watched`)."""
    with watched(browser, demo.address) as page:
        page.goto(demo.address)
        expect(page.locator("#verdict .answer")).to_be_visible()
        yield page


def send(page: Page, image: bytes) -> None:
    page.locator("input[type=file]").first.set_input_files(
        {"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": image}
    )


def send_anew(page: Page, image: bytes) -> None:
    """Take the photo away and send another one."""
    if page.locator(CLEAR).first.is_visible():
        page.locator(CLEAR).first.click()
        says(page, "Send a photo")
    send(page, image)


def says(page: Page, words: str) -> None:
    expect(page.locator("#verdict h2")).to_have_text(words)


@pytest.fixture(scope="module")
def at_targets(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """Return copies of the gallery that `retrieval calibrate` has set to 5, 10 and 20 %."""
    places = {}
    for target in (*TARGETS[1:], 0.2):
        place = places[target] = tmp_path_factory.mktemp("target") / "gallery"
        shutil.copytree(filled / "gallery", place)
        if target == 0.2:
            shutil.copytree(filled / "bundle", place.parent / "bundle")
            ask_more(place.parent)
            continue
        with Gallery.open(place) as gallery:
            bundle = Bundle.open(filled / "bundle")
            measure_gallery(bundle, gallery, rule="set", target_fpir=target).set_in(gallery)
    return places


@pytest.fixture(scope="module")
def decisions(filled: Path, at_targets: dict[float, Path]) -> dict[bytes, dict[float, str]]:
    """Return the decision on each of many photos at each target, by a gallery that was set to it."""
    drawn = [draw(item, 6) for item in (*range(12), *range(100, 160))]
    drawn += [between(item, item + step) for item in range(30) for step in (1, 7, 100)]
    found: dict[bytes, dict[float, str]] = {encode(photo): {} for photo in drawn}
    for target, place in at_targets.items():
        with Retriever.open(filled / "bundle", place) as retriever:
            for photo, each in found.items():
                each[target] = retriever.search(photo).decision
    return found


def photo_of(decisions: dict[bytes, dict[float, str]], **wanted: str) -> bytes:
    """Return a photo with the wanted decisions at targets in percent, such as at5="match"."""
    targets = {int(name.removeprefix("at")) / 100: decision for name, decision in wanted.items()}
    photos = (p for p, each in decisions.items() if all(each[target] == word for target, word in targets.items()))
    found = next(photos, None)
    assert found is not None, wanted
    return found


# decisions


def test_info_tells_the_thresholds_that_calibrate_would_set(demo: Demo, at_targets: dict[float, Path]) -> None:
    with RetrievalClient(demo.server.address) as client:
        told = {at.target_fpir: at for at in client.info().targets}
    assert list(told) == [0.01, 0.05, 0.1, 0.2]
    for target, place in at_targets.items():
        with Retriever.open(demo.folder / "bundle", place) as retriever:
            point = retriever.point
        assert told[target].threshold == pytest.approx(point.threshold, abs=1e-12), target
        assert told[target].perhaps_within == (None if point.perhaps is None else point.perhaps.within)
        assert told[target].text.startswith("Says for sure in ")
    assert told[0.01].threshold is None
    assert "support no FPIR below" in told[0.01].text


def test_a_target_decides_as_a_gallery_that_was_set_to_it(demo: Demo, decisions: dict[bytes, dict[float, str]]) -> None:
    from serving.gradio_demo import decided

    seen = set()
    with RetrievalClient(demo.server.address) as client:
        info = client.info()
        for photo, expected in decisions.items():
            answer = client.search(photo, explain=True)
            assert {target: decided(answer, info, target) for target in expected} == expected
            seen |= {(target, decision) for target, decision in expected.items()}
    assert {decision for target, decision in seen if target == 0.2} == {"match", "perhaps", "no_match"}


def test_a_target_asks_up_to_its_own_distance_and_matches_no_twin(demo: Demo) -> None:
    from serving.gradio_demo import decided

    with RetrievalClient(demo.server.address) as client:
        answer, info = client.search(KNOWN), client.info()
    assert answer.nearest is not None
    distance = answer.nearest.distance

    def at(threshold: float, within: float | None, reason: str = "") -> str:
        other = info.targets[1].model_copy(update={"threshold": threshold, "perhaps_within": within})
        return decided(replace(answer, reason=reason), info.model_copy(update={"targets": [other]}), 0.05)  # type: ignore[arg-type]

    assert [at(distance, None), at(distance - 0.01, distance), at(distance - 0.01, None)] == [
        "match",
        "perhaps",
        "no_match",
    ]
    assert {at(distance, None, reason) for reason in ("twins", "shared_photo", "damaged_photo")} == {"perhaps"}


def test_a_name_is_text_in_html_and_in_the_templates_of_gradio(demo: Demo) -> None:
    from serving.gradio_demo import verdict

    with RetrievalClient(demo.server.address) as client:
        answer = client.search(KNOWN)
    told = verdict(answer, "match", ["<b>a</b> {{value}} ${1 + 1}"])
    assert "This is &lt;b&gt;a&lt;/b&gt; &#123;&#123;value}} &#36;&#123;1 + 1}" in told


# the command


def test_a_taken_port_of_the_demo_is_refused_with_the_next_free_one(world: Path) -> None:
    words = [str(world / "bundle"), str(world / "gallery"), "--port", "0", "--gradio-port"]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        refused = CliRunner().invoke(serve, [*words, str(port)])
    assert isinstance(refused.exception, InvalidParameter)
    assert f"--gradio-port must be free, got {port}. Use --gradio-port " in str(refused.exception)
    named = int(str(refused.exception).split("Use --gradio-port ")[1].split(",")[0])
    with socket.create_server(("127.0.0.1", named)):
        assert named > port


def test_without_gradio_the_remedy_is_the_extra(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.cli.find_spec", lambda _: None)
    refused = CliRunner().invoke(serve, [str(world / "bundle"), str(world / "gallery"), "--port", "0", "--gradio"])
    assert isinstance(refused.exception, MissingDependency)
    assert str(refused.exception).startswith("gradio is not installed. ")
    assert str(refused.exception).endswith("'.[demo]'")


def test_a_server_with_keys_serves_no_demo(world: Path, tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", "shop", "search")
    words = [str(world / "bundle"), str(world / "gallery"), "--keys", str(tmp_path / "keys.json"), "--gradio"]
    refused = CliRunner().invoke(serve, [*words, "--port", "0"])
    assert "--gradio must be left out where there are API keys" in str(refused.exception)


def test_the_demo_ends_with_a_server_that_is_killed(world: Path, tmp_path: Path) -> None:
    port = free_port()
    running = start(world, tmp_path, "--gradio-port", str(port), "--feedback", str(tmp_path / "feedback.jsonl"))
    address = f"http://127.0.0.1:{port}"
    until(lambda: httpx.get(address, timeout=60).status_code == 200, 120)
    told = [line.split("/v1")[0] for line in running.log.read_text().splitlines() if " at http" in line]
    assert told == [f"Demo at {address}", f"Search at {running.address}"]
    stop(running, signal.SIGKILL)
    until(lambda: not answers(address), 30)


# in a browser


@pytest.mark.browser
@skip
def test_the_three_answers_are_shown_with_the_catalogues_photo(
    page: Page, decisions: dict[bytes, dict[float, str]]
) -> None:
    expect(page.locator("#about")).to_contain_text("Says for sure in")
    expect(page.get_by_label("20 %", exact=True)).to_be_checked()
    expect(page.get_by_text("1 % is not offered")).to_be_visible()
    send(page, photo_of(decisions, at20="match"))
    expect(page.locator("#verdict .match h2")).to_contain_text("This is ")
    page.wait_for_function(f"document.querySelector('#ours img').naturalWidth === {SIDE}", timeout=30_000)
    send_anew(page, photo_of(decisions, at20="perhaps"))
    expect(page.locator("#verdict .perhaps h2")).to_contain_text("Is it ")
    expect(page.locator("#ours img")).to_be_visible()
    send_anew(page, photo_of(decisions, at20="no_match"))
    says(page, "We do not have this")
    expect(page.locator("#ours img")).to_have_count(0)
    expect(page.locator("#closest img").first).to_be_visible()


@pytest.mark.browser
@skip
def test_the_target_changes_an_answer_and_the_header(page: Page, decisions: dict[bytes, dict[float, str]]) -> None:
    send(page, photo_of(decisions, at5="no_match", at20="match"))
    expect(page.locator("#verdict .match h2")).to_contain_text("This is ")
    before = page.locator("#about").inner_text()
    page.get_by_label("5 %", exact=True).check()
    says(page, "We do not have this")
    expect(page.locator("#about")).not_to_have_text(before)


@pytest.mark.browser
@skip
def test_an_example_is_searched(page: Page) -> None:
    page.locator(".gallery button").click()
    says(page, "This is 3")


@pytest.mark.browser
@skip
def test_a_photo_that_is_none_is_refused_and_the_next_one_works(page: Page) -> None:
    send(page, b"no image")
    expect(page.get_by_text("Convert it to JPEG or PNG").first).to_be_visible()
    send_anew(page, KNOWN)
    says(page, "This is 3")


@pytest.mark.browser
@skip
def test_what_a_visitor_says_is_feedback_on_the_answer_of_the_server(
    page: Page, demo: Demo, decisions: dict[bytes, dict[float, str]]
) -> None:
    file = demo.folder / "gallery.feedback.jsonl"
    send(page, photo_of(decisions, at20="match"))
    page.get_by_role("button", name="It is ", exact=False).first.click()
    expect(page.get_by_text("Thank you")).to_be_visible()
    send_anew(page, photo_of(decisions, at5="no_match", at20="match"))
    expect(page.locator("#verdict .match")).to_be_visible()
    page.get_by_label("5 %", exact=True).check()
    says(page, "We do not have this")
    page.get_by_role("button", name="You do not have it").click()
    until(lambda: len(read_feedback(file)) == 2, 30)
    page.get_by_label("20 %", exact=True).check()
    send_anew(page, photo_of(decisions, at20="no_match"))
    says(page, "We do not have this")
    page.get_by_role("button", name="after all").click()
    until(lambda: len(read_feedback(file)) == 3, 30)
    first, second, third = read_feedback(file)
    assert (first.verdict, first.decision, first.label) == ("right", "match", first.item_id)
    assert (second.verdict, second.decision, second.label) == ("unknown", "match", "")
    assert (third.verdict, third.decision, third.right_item_id) == ("wrong", "no_match", third.item_id)


@pytest.mark.browser
@skip
def test_a_phone_in_the_dark_needs_no_sideways_scroll_and_has_no_serious_barrier(browser: Browser, demo: Demo) -> None:
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport=PHONE, color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(demo.address)
        expect(page.locator("#verdict .answer")).to_be_visible()
        send(page, KNOWN)
        says(page, "This is 3")
        expect(page.locator("#closest img").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        serious = [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        found = [(v["id"], node["html"][:120]) for v in serious for node in v["nodes"]]
        # Gradio's own pictures that are buttons, as those of examples, have no name
        assert [each for each in found if each[0] != "button-name"] == [], scheme
        page.close()


def test_the_api_of_gradio_gives_the_same_answer(demo: Demo, tmp_path: Path) -> None:
    gradio_client = pytest.importorskip("gradio_client")
    (tmp_path / "photo.jpg").write_bytes(KNOWN)
    client = gradio_client.Client(demo.address, verbose=False, download_files=False)
    try:
        *_, answer = client.predict(gradio_client.handle_file(str(tmp_path / "photo.jpg")), 0.05, api_name="/search")[
            :4
        ]
    finally:
        client.close()
    assert (answer["target_fpir"], answer["decision_at_target"]) == (0.05, "match")
    with RetrievalClient(demo.server.address) as own:
        assert answer["answer"]["matches"][0]["item_id"] == own.search(KNOWN).matches[0].item_id == "3"
