"""`serve --fixed-threshold`: whatever is stored, the threshold is the file's; without it, a broken one is tightened."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.galleries.points import read_points
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.point import Point, Rates
from retrieval.retriever import Retriever
from serving import launch, measuring
from serving.app import create_app
from serving.measuring import Measuring
from serving.service import Service
from serving.settings import ServeSettings

from ..world import FILLED, INDEPENDENT, between, draw, encode, make_bundle, write_folder


@pytest.fixture(autouse=True)
def measured_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the server does not measure by itself."""
    monkeypatch.setattr(measuring, "CHECK_S", 3600.0)


def test_after_a_hundred_photos_the_threshold_is_the_files_and_without_the_option_it_is_tightened(
    filled_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Gallery.open(filled_copy / "gallery", read_only=True) as gallery:
        (kept,) = read_points(gallery.kept(POINT))
    with Retriever.open(filled_copy / "bundle", filled_copy / "gallery") as retriever:
        fixed, free = (ServeSettings(fixed_threshold=value) for value in (True, False))
        with TestClient(create_app(retriever, settings=fixed, page=False)) as client:
            work = Measuring(Service(retriever, fixed))
            for number in range(100):
                photo = encode(between(number % FILLED, 1000 + number), "PNG")  # near to an item
                path, headers = f"/v1/photos/new-{number}?item_id=new-{number}", {"content-type": "image/png"}
                assert client.put(path, content=photo, headers=headers).status_code == 200
                if number % 20 == 19:
                    work.measure_if_due()
                    info = client.get("/v1/info").json()
                    assert info["in_gallery"]["items"] == INDEPENDENT + number + 1  # the rates are measured anew
            assert (info["threshold"], info["threshold_status"]) == (kept.point.threshold, "estimated")
            assert info["in_gallery"]["broken"]
            assert any("above the target of 20.0%" in warning for warning in info["warnings"])
            answer = client.post("/v1/search", content=photo, headers=headers).json()
            assert answer["threshold"] == kept.point.threshold
            (now,) = read_points(retriever.gallery.kept(POINT))
            assert (now.point.threshold, now.point.target_fpir) == (kept.point.threshold, kept.point.target_fpir)
            assert caplog.text == ""
            Measuring(Service(retriever, free)).measure_if_due()
            info = client.get("/v1/info").json()
            assert info["threshold"] < kept.point.threshold
            assert not info["in_gallery"]["broken"]
            assert f"tightened from {kept.point.threshold:.4f} to {info['threshold']:.4f}" in caplog.text


def test_a_fixed_threshold_of_the_bundle_serves_on_where_the_gallery_could_set_its_first(tmp_path: Path) -> None:
    point = Point(1.9, "estimated", 0.2, rates=Rates(fpir=0.05))
    bundle = make_bundle(tmp_path, point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = write_folder(tmp_path / "photos", items=range(12), photos=range(1))
    index_catalogue(bundle, read_catalogue(photos), tmp_path / "gallery", progress=False)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        fixed, free = (ServeSettings(fixed_threshold=value) for value in (True, False))
        with TestClient(create_app(retriever, settings=fixed, page=False)) as client:
            for item in range(12, 30):
                headers = {"content-type": "image/png"}
                path = f"/v1/photos/new-{item}?item_id=item-{item}"
                assert client.put(path, content=encode(draw(item, 0), "PNG"), headers=headers).status_code == 200
            Measuring(Service(retriever, fixed)).measure_if_due()
            info = client.get("/v1/info").json()
            assert (info["threshold"], info["threshold_status"]) == (1.9, "unanchored")
            assert retriever.gallery.kept(POINT) is None
            Measuring(Service(retriever, free)).measure_if_due()
            info = client.get("/v1/info").json()
            assert info["threshold"] < 1.9
            assert info["threshold_status"] == "estimated"


def test_the_command_fixes_the_threshold(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[launch.ServePlan] = []
    monkeypatch.setattr(launch, "serve", lambda plan, host, port, demo: plans.append(plan))
    for options in ([], ["--fixed-threshold"]):
        words = ["serve", str(filled / "bundle"), str(filled / "gallery"), "--port", "0", *options]
        assert CliRunner().invoke(group, words, catch_exceptions=False).exit_code == 0
    assert [plan.settings.fixed_threshold for plan in plans] == [False, True]
