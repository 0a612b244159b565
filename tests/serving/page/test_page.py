from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval.retriever import Retriever
from serving.page.answers import example_label, labels_html
from serving.page.page import PageSearch, gallery_examples
from serving.page.uploads import Uploads
from serving.service import Service

from ...world import draw, encode
from ..conftest import Served, start, stop
from .page_client import ask, upload


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, timeout=60) as client:
        yield client


@pytest.mark.end_to_end
def test_the_page_answers_as_the_endpoint_does(page: httpx.Client) -> None:
    assert "This is item-03" in ask(page, path=upload(page, encode(draw(3, 5))))
    assert "Nothing like this here" in ask(page, path=upload(page, encode(draw(77, 0))))
    assert page.get("/readyz").status_code == page.get("/healthz").status_code == 200


@pytest.mark.slow
def test_gradio_hands_over_the_file_as_it_came(page: httpx.Client, retriever: Retriever) -> None:
    """Gradio would rotate, convert and save a photo again, and move its distance."""
    turned = draw(4, 4).rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = io.BytesIO()
    turned.save(sideways, "JPEG", exif=exif, quality=30)
    clear = Image.fromarray(np.dstack([np.asarray(draw(5, 5)), np.full((40, 40), 120, np.uint8)]))
    for image, name in ((sideways.getvalue(), "a.jpg"), (encode(clear, "PNG"), "b.png")):
        expected = retriever.search(image).nearest_distance
        assert f'data-distance="{expected:.4f}"' in ask(page, path=upload(page, image, name), orig_name=name)


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("image", "name", "told"),
    [
        (b"no image", "a.jpg", "this is not a JPEG, PNG"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "a.svg", "this is not a JPEG, PNG"),
        (encode(draw(0, 0), "TGA"), "a.tga", "this is not a JPEG, PNG"),
        (encode(draw(0, 0))[:700], "a.jpg", "damaged"),
        (None, "bomb.png", "pixels"),
    ],
)
def test_hostile_files_meet_the_same_gate(page: httpx.Client, image: bytes | None, name: str, told: str) -> None:
    if image is None:  # made here: it takes seconds
        image = encode(Image.new("1", (30_000, 30_000)), "PNG")
    answer = ask(page, path=upload(page, image, name), orig_name=name)
    assert "This photo cannot be searched" in answer
    assert told in answer


@pytest.mark.slow
def test_nothing_is_kept_or_reported(page: httpx.Client) -> None:
    config = page.get("/config").json()
    assert (config["analytics_enabled"], config["run_history"]) == (False, False)


def test_examples_are_spread_over_the_gallery_and_the_last_two_are_of_items_that_are_left_out(
    retriever: Retriever,
) -> None:
    found = gallery_examples(retriever)
    items = [retriever.search(example.image).matches[0].item_id for example in found]
    assert len(items) == 8
    assert len(set(items)) >= 6
    of_item = {item: {name for name, _, _ in retriever.gallery.photos(item)} for item in items}
    for example, item in zip(found, items, strict=True):
        answer = retriever.search(example.image, left_out=example.left_out)
        assert answer.nearest is not None
        assert answer.nearest.photo_id not in example.left_out
        assert answer.nearest_distance > 0.01  # its own photo is missing
        if example.label:
            assert (example.label, set(example.left_out)) == ("Not in the catalogue", of_item[item])
        else:
            assert (len(example.left_out), answer.nearest.item_id) == (1, item)
    alone = [len(of_item[item]) == 1 for item in items]
    assert [bool(example.label) for example in found] == [*alone[:6], True, True]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("1-match-Nova-mint-mug.jpg", "Match Nova mint mug"),
        ("kiwi_seen from above.png", "Kiwi seen from above"),
        ("0012.jpg", "0012"),
    ],
)
def test_an_example_is_labelled_by_its_file_name(name: str, label: str) -> None:
    assert example_label(Path(name)) == label


def test_labels_belong_to_the_photos_that_can_be_read(retriever: Retriever, tmp_path: Path) -> None:
    (tmp_path / "1-a.jpg").write_bytes(encode(draw(1, 1)))
    (tmp_path / "3-<b>.jpg").write_bytes(encode(draw(2, 1)))
    files = [tmp_path / name for name in ("1-a.jpg", "2-missing.jpg", "3-<b>.jpg")]
    uploads = Uploads(client_bytes=2**20, total_bytes=2**20)
    found = PageSearch(Service(retriever), uploads).add_examples(files)
    told = [(uploads.read(token, "someone"), example.label, example.left_out) for token, example in found.items()]
    assert told == [(files[0].read_bytes(), "A", ()), (files[2].read_bytes(), "<b>", ())]
    assert "<li>A</li><li>&lt;b&gt;</li>" in labels_html([label for _, label, _ in told])


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_when_asked_and_wrote_no_photo(
    how: signal.Signals, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    running = start(world, tmp_path, "--threads", "1", "--examples", str(world / "photos"))
    with httpx.Client(base_url=running.address, timeout=60) as client:
        assert "This is item-01" in ask(client, path=upload(client, encode(draw(1, 1))))
    assert stop(running, how) in (0, -how)
    assert list(tmp_path.iterdir()) == [running.log]
    told = running.log.read_text()
    assert "30 photos of 10 items" in told
    assert f"page at {running.address}" in told
    assert "Traceback" not in told
