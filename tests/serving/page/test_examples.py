"""Examples on the page: photos of the operator, or photos of the gallery whose answers are right."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever
from serving.app import create_app
from serving.page.examples import CROP, LEFT_OUT, Examples, _evenly_spaced, gallery_examples
from serving.settings import ServeSettings
from tests.index.vectors import filled as filled_gallery

from ...world import draw, encode, write_folder
from ..conftest import until

STOPPED_WHILE_CHOOSING = """
import sys
from threading import Event
import numpy as np
from retrieval.retriever import Retriever
from serving.page.examples import Examples

retriever, begun = Retriever.open(*sys.argv[1:]), Event()
search, pixels = retriever.search, np.zeros((4, 3, 3, 3), np.uint8).repeat(16, axis=1).repeat(16, axis=2)

def long_search(*args, **options):
    begun.set()
    for _ in range(200):
        retriever.embedder.embed_pixels(pixels[:, :size, :size])
    return search(*args, **options)

size = retriever.embedder.preprocessing.size
retriever.search = long_search
Examples([]).start(retriever)
begun.wait()
"""


def test_a_server_that_stops_while_it_chooses_examples_exits_in_peace(filled: Path) -> None:
    """Python would end a daemon thread inside ONNX Runtime, which aborts the process."""
    command = [sys.executable, "-c", STOPPED_WHILE_CHOOSING, filled / "bundle", filled / "gallery"]
    for _ in range(3):
        made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        assert (made.returncode, made.stderr) == (0, "")


@pytest.mark.parametrize("count", [1, 2, 5, 7, 36, 37, 100])
def test_photos_that_are_evenly_spaced_lie_in_the_middles_of_equal_parts(tmp_path: Path, count: int) -> None:
    with filled_gallery(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p3", "p17", "p30"])
        now = gallery.snapshot()
    live, parts = np.flatnonzero(now.live), min(count, 37)
    assert _evenly_spaced(now, count).tolist() == [int(live[int((part + 0.5) * 37 / parts)]) for part in range(parts)]


def test_an_empty_gallery_has_no_evenly_spaced_photos(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=2, embedding_id="e") as gallery:
        assert _evenly_spaced(gallery.snapshot(), 3).tolist() == []


def test_examples_are_of_different_items_and_their_answers_are_right(retriever: Retriever) -> None:
    found = gallery_examples(retriever)
    items = [retriever.gallery.photo(example.photo_id)[1] for example in found]  # type: ignore[index]
    kinds: Counter[str] = Counter()
    for example, item in zip(found, items, strict=True):
        own = {photo_id for photo_id, _, _ in retriever.gallery.photos(item)}
        answer = retriever.search(example.image, left_out=example.left_out)
        kinds[answer.decision] += 1
        if example.note == LEFT_OUT:
            assert (answer.decision, set(example.left_out)) == ("no_match", own)
            assert len(own) > 1
        else:
            assert (answer.decision, answer.matches[0].item_id) == ("match", item)
            assert set(example.left_out) == (set() if len(own) == 1 else {example.photo_id})
            assert example.note == (CROP if len(own) == 1 else "")
    assert len(set(items)) == len(items) <= 6
    assert kinds["match"] == 3
    assert kinds["no_match"] >= 1


def test_a_catalogue_of_single_photos_has_only_crops_as_examples(world: Path, tmp_path: Path) -> None:
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(9), photos=range(1)))
    index_catalogue(Bundle.open(world / "bundle"), photos, tmp_path / "gallery", progress=False)
    with Retriever.open(world / "bundle", tmp_path / "gallery") as retriever:
        found = gallery_examples(retriever)
        assert {(example.note, example.left_out) for example in found} <= {(CROP, ())}
        for example in found:
            assert Image.open(io.BytesIO(example.image)).size == (28, 28)  # of 40 by 40 pixels


def test_files_are_labelled_by_their_names_and_those_that_cannot_be_read_are_left_out(
    retriever: Retriever, tmp_path: Path
) -> None:
    (tmp_path / "1-match-Nova-mint_mug.jpg").write_bytes(encode(draw(1, 1)))
    (tmp_path / "0012.jpg").write_bytes(encode(draw(2, 1)))
    (tmp_path / "3-<b>.jpg").write_bytes(encode(draw(3, 1)))
    (tmp_path / "none.jpg").write_bytes(b"no photo")
    names = ("1-match-Nova-mint_mug.jpg", "missing.jpg", "none.jpg", "0012.jpg", "3-<b>.jpg")
    examples = Examples([tmp_path / name for name in names])
    examples.start(retriever)
    shown = examples.shown(retriever)
    assert [(example.label, example.left_out) for example in shown] == [
        ("Match Nova mint mug", ()),
        ("0012", ()),
        ("<b>", ()),
    ]
    assert len({example.name for example in shown}) == 3


def test_an_example_is_searched_by_its_address_also_in_parts_and_a_verdict_needs_a_photo_that_was_not_left_out(
    shop: Path, tmp_path: Path
) -> None:
    (tmp_path / "file.png").write_bytes(encode(draw(3, 5), "PNG"))
    for files in ([], [tmp_path / "file.png"]):
        retriever = Retriever.open(shop / "bundle", shop / "gallery")
        settings = ServeSettings(feedback=shop / "judged.jsonl")
        with TestClient(create_app(retriever, settings=settings, examples=files)) as page:
            until(lambda shown=page: "data-example" in shown.get("/").text)  # type: ignore[misc]
            html = page.get("/").text
            name = html.split('data-example="')[1].split('"')[0]
            address = f"/page/examples/{name}"
            image = page.get(address)
            assert Image.open(io.BytesIO(image.content)).size == (40, 40)
            answer = page.post(f"{address}?top_k=2").json()
            assert answer["decision"] == "match"
            judged = page.post("/v1/feedback", json={"request_id": answer["request_id"], "verdict": "right"})
            assert judged.status_code == (200 if files else 404)
            assert page.post(f"{address}?bbox=0,0,20,40").json()["box"] == [0, 0, 20, 40]
            parts = page.post(f"{address}?find=windows&top_k=1").json()["answers"]
            assert len(parts) > 1
            for wrong in ("bbox=0,0,1", "find=all", "left_out=x"):
                assert page.post(f"{address}?{wrong}").status_code == 422
            assert page.get(f"{address}x").status_code == page.post("/page/examples/..%2fx").status_code == 404


def test_a_photo_that_was_removed_is_no_example_any_more(shop: Path) -> None:
    retriever = Retriever.open(shop / "bundle", shop / "gallery")
    with TestClient(create_app(retriever)) as page:
        until(lambda: "data-example" in page.get("/").text)
        examples = gallery_examples(retriever)
        gone = examples[0]
        assert page.get(f"/page/examples/{gone.name}").status_code == 200
        with Gallery.open(shop / "gallery") as gallery:
            gallery.remove(photo_ids=[gone.photo_id])
        assert gone.name not in page.get("/").text
        assert page.get(f"/page/examples/{gone.name}").status_code == 404
        assert page.post(f"/page/examples/{gone.name}").status_code == 404
