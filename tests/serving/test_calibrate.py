"""`POST /v1/admin/calibrate` beside writes: photos are stored, and a threshold that is set meanwhile stays."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import httpx
import pytest
from fastapi.testclient import TestClient

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.galleries import measured
from retrieval.galleries.kept import Kept, read_draws
from retrieval.galleries.measured import measure_gallery
from retrieval.galleries.points import stored_point
from retrieval.measuring.draws import AllDraws
from retrieval.measuring.point import Point
from retrieval.retriever import Retriever
from serving import measuring
from serving.app import create_app

from ..world import draw, encode

JPEG = {"content-type": "image/jpeg"}


@pytest.fixture(autouse=True)
def measured_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the server does not measure by itself."""
    monkeypatch.setattr(measuring, "CHECK_S", 3600.0)


@contextmanager
def calibrating(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestClient, list[httpx.Response]]]:
    """Serve a gallery, and yield the client while a calibration makes its draws; its response is listed afterwards."""
    begun, may_end, make = Event(), Event(), measured.draw

    def slow(*arguments: object) -> AllDraws:
        made = make(*arguments)  # type: ignore[arg-type]
        if not begun.is_set():  # of the calibration over HTTP
            begun.set()
            assert may_end.wait(120)
        return made

    monkeypatch.setattr(measured, "draw", slow)
    app = create_app(Retriever.open(folder / "bundle", folder / "gallery"), page=False)
    responses: list[httpx.Response] = []
    with TestClient(app) as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.post, "/v1/admin/calibrate")
        try:
            assert begun.wait(120)
            yield client, responses
            assert not asked.done()
        finally:
            may_end.set()
        responses.append(asked.result(120))


def point_in(folder: Path) -> Point:
    with Gallery.open(folder / "gallery", read_only=True) as gallery:
        point = stored_point(gallery.kept(POINT), Bundle.open(folder / "bundle"))
    assert point is not None
    return point


def test_photos_are_stored_while_a_calibration_makes_its_draws(
    filled_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with calibrating(filled_copy, monkeypatch) as (client, responses):
        path = "/v1/photos/new?item_id=new"
        assert client.put(path, content=encode(draw(100, 0)), headers=JPEG).status_code == 200
        assert client.delete("/v1/photos/0").status_code == 200
        stored = client.get("/v1/info").json()["gallery"]["version"]
    (response,) = responses
    assert response.status_code == 200, response.text
    assert response.json()["gallery_version"] == stored + 1
    assert point_in(filled_copy).threshold == response.json()["after"]["threshold"]
    with Gallery.open(filled_copy / "gallery", read_only=True) as gallery:
        assert gallery.photo("new") is not None
        assert gallery.photo("0") is None
        assert gallery.changes()[0].action == "measure the threshold"  # it stays what it was


def test_another_threshold_that_was_set_meanwhile_stays_and_the_answer_says_so(
    filled_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.open(filled_copy / "bundle")
    with (
        calibrating(filled_copy, monkeypatch) as (_, responses),
        Gallery.open(filled_copy / "gallery") as gallery,
    ):
        stricter = measure_gallery(bundle, gallery, rule="set", target_fpir=0.1)
        assert stricter.write(gallery)
    (response,) = responses
    assert response.status_code == 409
    assert "another one was set" in response.json()["title"]
    assert "measure again" in response.json()["detail"]
    assert point_in(filled_copy) == stricter.after
    assert stricter.after.target_fpir == 0.1


def test_photos_that_were_labelled_meanwhile_leave_the_measurement_out(
    filled_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = point_in(filled_copy)
    with (
        calibrating(filled_copy, monkeypatch) as (_, responses),
        Gallery.open(filled_copy / "gallery") as gallery,
    ):
        kept = read_draws(gallery)
        gallery.keep({Kept.QUERIES: b"labelled"}, "label photos")
        version = gallery.version
    (response,) = responses
    assert (response.status_code, "photos were labelled" in response.json()["title"]) == (409, True)
    assert point_in(filled_copy) == before
    with Gallery.open(filled_copy / "gallery", read_only=True) as gallery:
        now = read_draws(gallery)
        assert gallery.version == version
    assert kept is not None
    assert now is not None
    assert now.mark == kept.mark
