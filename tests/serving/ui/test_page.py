from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval.images import MAX_BYTES
from retrieval.retriever import Retriever
from serving.ui.page import gallery_examples

from ...world import draw, encode
from ..conftest import Served, start, stop


@pytest.fixture(scope="module")
def page(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.address, timeout=20) as client:
        yield client


def upload(page: httpx.Client, image: bytes, name: str = "photo.jpg") -> str:
    response = page.post("/gradio_api/upload", files={"files": (name, image)})
    response.raise_for_status()
    path: str = response.json()[0]
    return path


def ask(page: httpx.Client, **file: Any) -> str:
    """Send a file to the page as its own script does, and return the answer's HTML, or the error."""
    config = page.get("/config").json()
    events = [d for d in config["dependencies"] if any(t[1] == "change" for t in d["targets"])]
    assert len(events) == 1
    event = {
        "data": [{"meta": {"_type": "gradio.FileData"}, **file}],
        "fn_index": events[0]["id"],
        "session_hash": "test",
    }
    page.post("/gradio_api/queue/join", json=event).raise_for_status()
    with page.stream("GET", "/gradio_api/queue/data", params={"session_hash": "test"}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                message = json.loads(line[5:])
                if message["msg"] == "process_completed":
                    return str(message["output"].get("data", message["output"].get("error")))
    return "no answer"


def test_the_page_answers_as_the_endpoint_does(page: httpx.Client) -> None:
    assert "This is item-03" in ask(page, path=upload(page, encode(draw(3, 5))))
    assert "Not in the catalogue" in ask(page, path=upload(page, encode(draw(77, 0))))
    assert page.get("/readyz").status_code == page.get("/healthz").status_code == 200


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
        assert f"<strong>{expected:.3f}<" in ask(page, path=upload(page, image, name), orig_name=name)


@pytest.mark.parametrize(
    ("image", "name", "told"),
    [
        (b"no image", "a.jpg", "not a JPEG, PNG or WebP"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "a.svg", "not a JPEG, PNG or WebP"),
        (encode(draw(0, 0), "GIF"), "a.gif", "not a JPEG, PNG or WebP"),
        (encode(draw(0, 0))[:700], "a.jpg", "damaged"),
        (encode(Image.new("1", (30_000, 30_000)), "PNG"), "bomb.png", "pixels"),
    ],
)
def test_hostile_files_meet_the_same_gate(page: httpx.Client, image: bytes, name: str, told: str) -> None:
    answer = ask(page, path=upload(page, image, name), orig_name=name)
    assert "This photo cannot be searched" in answer
    assert told in answer


def test_nothing_is_read_or_fetched_but_uploads(page: httpx.Client, served: Served, world: Path) -> None:
    mine = str(next((world / "photos").rglob("*.png")))  # a real photo that the server could read, but nobody sent
    uploaded = upload(page, encode(draw(0, 0)))
    data = "data:image/png;base64,iVBORw0KGgo="
    for file in (
        {"path": mine},
        {"path": mine, "url": data},
        {"path": f"{uploaded}/../../../../..{mine}"},
        {"path": "http://example.com/a.jpg"},
        {"path": "http://example.com/a.jpg", "url": "http://example.com/a.jpg"},
    ):
        answer = ask(page, **file)
        assert "r-card" not in answer, file
    assert "This is item-00" in ask(page, path=uploaded, url="http://example.com/a.jpg")  # the path is what counts
    for path in (
        f"/gradio_api/file={mine}",
        "/gradio_api/file=pyproject.toml",
        "/gradio_api/file=http://example.com/a.jpg",
        "/gradio_api/file=HTTPS%3A//example.com/a.jpg",
        "/gradio_api/proxy=http://example.com/a.jpg",
        "/file=http://example.com/a.jpg",
    ):
        assert page.get(path).status_code in (403, 404), path
    assert served.strangers() == []  # no telemetry either


def test_an_upload_has_the_endpoints_limit(page: httpx.Client) -> None:
    response = page.post("/gradio_api/upload", files={"files": ("a.jpg", b"x" * (MAX_BYTES + 2**20))})
    assert response.status_code == 413


def test_nothing_is_kept_or_reported(page: httpx.Client) -> None:
    config = page.get("/config").json()
    assert (config["analytics_enabled"], config["run_history"]) == (False, False)


def test_examples_are_spread_over_the_gallery(retriever: Retriever, tmp_path: Path) -> None:
    files = gallery_examples(retriever, tmp_path)
    items = [retriever.search(file).matches[0].item_id for file in files]
    assert len(items) == len(set(items)) == 6


def test_the_server_ends_when_asked_and_takes_the_uploads_along(world: Path, tmp_path: Path) -> None:
    for how in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / how.name
        folder.mkdir()
        running = start(world, folder, "--threads", "1", "--examples", str(world / "photos"))
        with httpx.Client(base_url=running.address) as client:
            sent = Path(upload(client, encode(draw(1, 1))))
            assert sent.exists()
        assert stop(running, how) in (0, -how)
        assert not sent.exists()
        told = running.log.read_text()
        assert "30 photos of 10 items" in told
        assert f"page at {running.address}" in told
        assert "Traceback" not in told
