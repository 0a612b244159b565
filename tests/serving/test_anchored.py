"""Serving a gallery with a threshold of its own: answers, info, metrics, page and changes over HTTP."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.files import take_lock
from index.location import MEASURING
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import GalleryError, GalleryLocked, InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.point import Point, Rates
from retrieval.measuring.sides import in_words, sides_of
from retrieval.retriever import Retriever
from serving import measuring
from serving.app import create_app
from serving.measuring import Measuring
from serving.page.page import header_of
from serving.reloads import Places
from serving.service import Service
from serving.settings import ServeSettings

from ..world import FILLED, INDEPENDENT, between, draw, encode, make_bundle, write_folder

JPEG = {"content-type": "image/jpeg"}


@pytest.fixture(autouse=True)
def measured_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the server does not measure by itself."""
    monkeypatch.setattr(measuring, "CHECK_S", 3600.0)


@pytest.fixture
def retriever(filled_copy: Path) -> Iterator[Retriever]:
    with Retriever.open(filled_copy / "bundle", filled_copy / "gallery") as opened:
        yield opened


def serving(retriever: Retriever, **settings: object) -> TestClient:
    return TestClient(create_app(retriever, settings=ServeSettings(**settings), page=False))  # type: ignore[arg-type]


def test_answers_info_metrics_and_page_tell_of_the_gallerys_threshold(retriever: Retriever) -> None:
    with serving(retriever) as client:
        answer = client.post("/v1/search", content=encode(draw(3, 5)), headers=JPEG).json()
        info = client.get("/v1/info").json()
        metrics = client.get("/metrics").text
        report = client.get("/v1/report").text
    point = retriever.point
    assert point.threshold != retriever.bundle.threshold
    assert (answer["threshold"], answer["threshold_status"]) == (point.threshold, "estimated")
    assert answer["nearest"]["p_value"] == pytest.approx(1 / (INDEPENDENT + 1))
    assert (info["threshold"], info["threshold_status"]) == (point.threshold, "estimated")
    assert info["in_gallery"]["fpir"] == pytest.approx(point.evidence["fpir"])
    assert info["in_gallery"]["broken"] is False
    sides = sides_of(point, retriever.gallery_point.rates())
    assert sides is not None
    assert info["sides"] == {"text": in_words(sides), **vars(sides)}
    assert in_words(sides) in report
    assert f"retrieval_fpir {info['in_gallery']['fpir']}" in metrics
    assert "retrieval_threshold_broken 0.0" in metrics
    header = header_of(retriever)
    assert header["rates"] == f"{in_words(sides)}."
    assert header["bound"].startswith("At worst, ")


def test_answers_list_candidates_for_review(retriever: Retriever) -> None:
    with serving(retriever, review=1.0) as client, serving(retriever, review=0.0) as strict:
        for item in range(100, 110):
            send = {"content": encode(draw(item, 0)), "headers": JPEG}
            answer, plain = (each.post("/v1/search?fields=none", **send).json() for each in (client, strict))
            assert len(plain["review"]) == (plain["decision"] == "perhaps")  # an item to confirm
            assert answer["decision"] == plain["decision"]
            assert answer["p_value_without_filter"] is False
            assert len(answer["review"]) + len(answer["matches"]) > 1
            for match in answer["review"]:
                assert match["distance"] > answer["threshold"]
                assert match["metadata"] == {}  # like matches, without what was not asked for
    with pytest.raises(InvalidParameter, match="review"):
        ServeSettings(review=2.0)


def test_a_search_asks_for_items_up_to_a_p_value_and_the_server_has_the_last_word(retriever: Retriever) -> None:
    photo = encode(draw(100, 0))

    def listed(client: TestClient, review: float) -> list[float]:
        raw = client.post(f"/v1/search?review={review}", content=photo, headers=JPEG).json()
        body = {"image": base64.b64encode(photo).decode(), "review": review}
        assert client.post("/v1/search", json=body).json()["review"] == raw["review"]
        return [match["p_value"] for match in raw["review"]]

    with serving(retriever) as client, serving(retriever, review=0.5) as strict:
        every, some = listed(client, 1.0), listed(client, 0.5)
        assert len(every) > len(some)
        assert max(some, default=0.0) <= 0.5
        assert listed(strict, 1.0) == some  # as `serve --review 0.5` says
        assert client.post("/v1/search?review=1.1", content=photo, headers=JPEG).status_code == 422


def test_the_report_is_that_of_the_gallery(retriever: Retriever) -> None:
    with serving(retriever) as client:
        report, bundles = client.get("/v1/report"), client.get("/v1/report/bundle")
    assert (report.status_code, report.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert f"about {retriever.point.evidence['fpir_expected']:.1%}" in report.text
    assert "Drift of live photos" in report.text
    assert "img-src data:" in report.headers["content-security-policy"]  # the pictures are in the page
    assert bundles.status_code == 404  # this bundle has none
    assert "report/bundle" not in report.text


def test_a_change_that_was_not_measured_is_told(retriever: Retriever, tmp_path: Path) -> None:
    place = str(tmp_path / "gallery")
    with serving(retriever) as client:
        assert client.get("/v1/info").json()["warnings"] == []
        assert header_of(retriever)["warnings"] == []
        CliRunner().invoke(group, ["gallery", "remove", place, "--item", "3"], catch_exceptions=False)
        info = client.get("/v1/info").json()
    assert info["in_gallery"] is None
    assert any("was not measured" in warning and "retrieval calibrate" in warning for warning in info["warnings"])
    assert "has changed since this was measured" in header_of(retriever)["warnings"][0]
    told = CliRunner().invoke(group, ["gallery", "info", place], catch_exceptions=False).output
    assert "Warning: The gallery has changed" in told


def test_bundle_and_threshold_move_together_in_a_reload_and_a_rollback(retriever: Retriever, tmp_path: Path) -> None:
    """The gallery is calibrated with the new bundle first; the running server keeps the threshold of its own."""
    files = {FITTED: Fitted.of([], []).pack()}
    make_bundle(tmp_path, name="looser", point=Point(0.6, "estimated", 0.4), files=files)
    make_bundle(tmp_path, name="new", point=Point(0.001, "estimated", 0.4), files=files)
    link, gallery = tmp_path / "current", tmp_path / "gallery"
    served = retriever.bundle.path

    def lead(to: Path) -> None:
        link.unlink(missing_ok=True)
        link.symlink_to(to)

    def state(client: TestClient) -> tuple[str, float, str]:
        answer = client.post("/v1/search", content=encode(draw(3, 5)), headers=JPEG).json()
        info = client.get("/v1/info").json()
        assert [info[name] for name in ("bundle_id", "threshold", "threshold_status")] == [
            answer[name] for name in ("bundle_id", "threshold", "threshold_status")
        ]
        return answer["bundle_id"], answer["threshold"], answer["threshold_status"]

    lead(served)
    places = Places(link, gallery)
    app = create_app(places.open(), page=False, places=places)
    with TestClient(app) as client:
        before = state(client)
        assert before[1:] == (retriever.point.threshold, "estimated")
        words = ["calibrate", str(tmp_path / "looser"), str(gallery)]
        assert CliRunner().invoke(group, words, catch_exceptions=False).exit_code == 0
        assert state(client) == before
        lead(tmp_path / "looser")
        looser = Retriever.open(link, gallery).point
        assert looser.threshold > before[1]
        told = client.post("/v1/admin/reload").json()
        assert told["threshold"] == {"before": before[1], "after": looser.threshold}
        assert told["threshold_status"] == {"before": "estimated", "after": "estimated"}
        assert state(client) == (Bundle.open(link).bundle_id, looser.threshold, "estimated")
        lead(tmp_path / "new")  # the gallery is not calibrated with it
        after = client.post("/v1/admin/reload").json()
        assert after["threshold_status"] == {"before": "estimated", "after": "unanchored"}
        assert after["threshold"] == {"before": looser.threshold, "after": 0.001}
        assert state(client)[1:] == (0.001, "unanchored")
        lead(served)
        client.post("/v1/admin/reload")
        assert state(client) == before


def put(client: TestClient, items: range, *, near: bool = False) -> None:
    """Store photos of new items, which look half like those of the gallery with `near`."""
    for item in items:
        path = f"/v1/photos/new-{item}?item_id=item-{item}"
        photo = between(item % FILLED, item) if near else draw(item, 0)
        assert client.put(path, content=encode(photo), headers=JPEG).status_code in (200, 201)


def test_photos_over_http_are_measured_in_the_background_and_a_broken_promise_tightens(
    retriever: Retriever, caplog: pytest.LogCaptureFixture
) -> None:
    before = retriever.point.threshold
    with serving(retriever) as client:
        put(client, range(100, 136), near=True)
        info = client.get("/v1/info").json()
        assert (info["threshold"], info["in_gallery"]) == (before, None)
        version = info["gallery"]["version"]
        work = Measuring(Service(retriever))
        work.measure_if_due()
        info = client.get("/v1/info").json()
        assert info["gallery"]["version"] == version + 1  # one transaction
        assert info["in_gallery"]["items"] == INDEPENDENT + 36
        assert info["threshold"] < before
        assert not info["in_gallery"]["broken"]
        assert f"from {before:.4f} to {info['threshold']:.4f}" in caplog.text
        work.measure_if_due()
        assert client.get("/v1/info").json()["gallery"]["version"] == version + 1


def test_a_small_change_is_measured_after_an_hour(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "STALE", 0.5)
    with serving(retriever) as client:
        put(client, range(100, 101))
        work = Measuring(Service(retriever))
        version = retriever.gallery.version
        work.measure_if_due()
        assert retriever.gallery.version == version
        monkeypatch.setattr(measuring, "LONGEST_S", 0.0)
        work.measure_if_due()
        assert retriever.gallery.version == version + 1


def test_one_process_measures_at_a_time(retriever: Retriever) -> None:
    with serving(retriever) as client:
        put(client, range(100, 106))
        version = retriever.gallery.version
        held = take_lock(Path(retriever.gallery.path) / MEASURING)
        with pytest.raises(GalleryLocked):
            Measuring(Service(retriever)).measure_if_due()
        assert retriever.gallery.version == version
        os.close(held)
        Measuring(Service(retriever)).measure_if_due()
        assert retriever.gallery.version == version + 1


def test_servers_with_two_bundles_do_not_measure_one_gallery_in_turn(retriever: Retriever, tmp_path: Path) -> None:
    fitted = {FITTED: Fitted.of(["5"], []).pack()}  # draws of other items
    bundle = make_bundle(tmp_path / "other", point=retriever.bundle.operating_point, files=fitted)
    other = Retriever.open(bundle.path, retriever.gallery.path)
    servers, versions = [Measuring(Service(each)) for each in (retriever, other)], []
    assert retriever.bundle.draws_id != other.bundle.draws_id
    with serving(retriever) as client:
        for round_ in range(4):
            if round_ == 2:
                put(client, range(100, 106))
            for server in servers:
                server.measure_if_due()
            versions.append(retriever.gallery.version)
    assert versions[1] == versions[0]
    assert versions[3] == versions[2] > versions[1]


def test_a_gallery_on_a_read_only_disk_is_not_measured(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(retriever) as client:
        put(client, range(100, 106))
        version = retriever.gallery.version
        monkeypatch.setattr(os, "access", lambda *_: False)
        Measuring(Service(retriever)).measure_if_due()
        assert retriever.gallery.version == version
        assert not (Path(retriever.gallery.path) / MEASURING).exists()


def test_the_thread_of_the_server_measures(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "CHECK_S", 0.05)
    with serving(retriever) as client:
        put(client, range(100, 106))
        end, items = time.monotonic() + 60, 0
        while items <= INDEPENDENT and time.monotonic() < end:  # it may measure before the last photos are stored
            time.sleep(0.05)
            items = (client.get("/v1/info").json()["in_gallery"] or {"items": 0})["items"]
        assert INDEPENDENT < items <= INDEPENDENT + 6


def test_a_server_that_closes_while_it_measures_logs_no_failure(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(measuring, "CHECK_S", 0.01)
    begun, closed, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def measure(_: Measuring) -> None:
        threads.append(threading.current_thread())
        begun.set()
        assert closed.wait(30)
        retriever.gallery.snapshot()

    monkeypatch.setattr(Measuring, "measure_if_due", measure)
    with serving(retriever):
        assert begun.wait(30)
    retriever.close()
    with pytest.raises(GalleryError):
        retriever.gallery.snapshot()
    closed.set()
    (thread,) = threads
    thread.join(30)
    assert not thread.is_alive()
    assert "could not be measured" not in caplog.text


def test_a_gallery_that_grows_over_http_gets_a_threshold_of_its_own(tmp_path: Path) -> None:
    point = Point(1.9, "estimated", 0.2, rates=Rates(fpir=0.05))
    bundle = make_bundle(tmp_path, point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = write_folder(tmp_path / "photos", items=range(12), photos=range(1))
    index_catalogue(bundle, read_catalogue(photos), tmp_path / "gallery", progress=False)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever, serving(retriever) as client:
        for items, status in ((range(12, 19), "unanchored"), (range(19, 24), "estimated")):
            put(client, items)
            Measuring(Service(retriever)).measure_if_due()
            info = client.get("/v1/info").json()
            assert info["threshold_status"] == status
        assert info["threshold"] < 1.9
        assert info["in_gallery"]["items"] == 24
