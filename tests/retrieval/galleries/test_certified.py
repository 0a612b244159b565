"""Galleries estimate a threshold at every size; a certificate is set on request, and its cost is told before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from index.database import POINT
from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.cli.main import group
from retrieval.errors import CalibrationError
from retrieval.galleries.measured import GalleryMeasurement, measure_gallery
from retrieval.galleries.points import stored_point
from retrieval.measuring.point import Point
from tests.retrieval.galleries.writing import remeasure

from ...world import DIM, make_bundle

TARGET = 0.05


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a bundle and galleries of independent items with two photos each, named by their number."""
    folder, generator = tmp_path_factory.mktemp("shops"), np.random.default_rng(0)
    files = {FITTED: Fitted.of([], []).pack()}
    bundle = make_bundle(folder, point=Point.uncalibrated(TARGET), files=files)
    for items in (40, 100, 400):
        centres = np.repeat(generator.normal(size=(items, DIM)), 2, axis=0)
        vectors = centres + 0.9 * generator.normal(size=centres.shape)
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        names = [f"item-{number // 2}" for number in range(2 * items)]
        with Gallery.create(folder / str(items), dim=DIM, embedding_id=bundle.embedding_id) as gallery:
            gallery.add([f"{name}/{row % 2}" for row, name in enumerate(names)], names, vectors)
    return folder


def shop(shops: Path, folder: Path, items: int) -> tuple[Bundle, Path]:
    """Return the bundle, and a copy of the gallery of so many items."""
    shutil.copytree(shops / str(items), folder / "g")
    return Bundle.open(shops / "bundle"), folder / "g"


@pytest.mark.parametrize("items", [40, 100, 400])
def test_a_gallery_estimates_its_threshold_at_every_size(shops: Path, tmp_path: Path, items: int) -> None:
    bundle, place = shop(shops, tmp_path, items)
    with Gallery.open(place) as gallery:
        for _ in range(2):  # the first one is set, and the next one is measured
            point = remeasure(bundle, gallery).after
            assert (point.status, point.basis.items_drawn) == ("estimated", items)
            assert stored_point(gallery.kept(POINT), bundle) == point
    assert point.rates.fpir_expected == pytest.approx(TARGET, abs=0.01)
    assert point.rates.fpir_upper is not None
    assert point.rates.fpir_upper > TARGET  # the bound is always told


@pytest.mark.parametrize("items", [100, 400])
def test_a_certificate_is_set_on_request_beside_the_estimated_point(shops: Path, tmp_path: Path, items: int) -> None:
    bundle, place = shop(shops, tmp_path, items)

    def measured(certify: bool) -> GalleryMeasurement:
        with Gallery.open(place, read_only=True) as gallery:
            return measure_gallery(bundle, gallery, rule="set", certify=certify)

    usual, asked = measured(False), measured(True)
    assert (usual.after.status, asked.after.status) == ("estimated", "certified")
    assert usual.measured.estimated is None
    assert asked.measured.estimated == usual.after
    assert asked.after.threshold < usual.after.threshold
    assert asked.after.rates.fpir_upper is not None
    assert asked.after.rates.fpir_upper <= TARGET


def calibrate(bundle: Bundle, place: Path, *options: str) -> Result:
    return CliRunner().invoke(group, ["calibrate", str(bundle.path), str(place), *options])


def test_the_command_prints_the_cost_of_a_certificate_before_it_writes(
    shops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, place = shop(shops, tmp_path, 100)
    write, lines, told_before = GalleryMeasurement.write, list[str](), list[str]()

    def noted(self: GalleryMeasurement, gallery: Gallery, *, actor: str | None = None) -> bool:
        told_before.extend(lines)
        return write(self, gallery, actor=actor)

    monkeypatch.setattr("retrieval.cli.calibrate.click.echo", lambda text="": lines.append(str(text)))
    monkeypatch.setattr(GalleryMeasurement, "write", noted)
    assert calibrate(bundle, place, "--certify").exit_code == 0
    with Gallery.open(place, read_only=True) as gallery:
        after = stored_point(gallery.kept(POINT), bundle)
        estimated = measure_gallery(bundle, gallery, rule="set").after
    assert after is not None
    assert after.status == "certified"
    assert estimated.rates.tpir is not None
    assert after.rates.tpir is not None
    assert after.rates.tpir < estimated.rates.tpir
    cost = (
        f"The certificate lowers the threshold from {estimated.threshold:.4f} to {after.threshold:.4f}: "
        f"{after.rates.tpir:.0%} of photos find their item with it, {estimated.rates.tpir:.0%} without. "
        "Leave --certify out for the estimated threshold."
    )
    assert told_before == [cost]
    assert any(f"at most {TARGET:.1%} of searches (certified on 100 items)" in line for line in lines)


def test_without_the_option_no_certificate_is_mentioned(shops: Path, tmp_path: Path) -> None:
    bundle, place = shop(shops, tmp_path, 400)
    done = calibrate(bundle, place)
    assert done.exit_code == 0, done.output
    assert "certif" not in done.output
    assert "estimated from 400 items; at most" in done.output
    assert json.loads(calibrate(bundle, place, "--json", "--dry-run").output)["after"]["status"] == "estimated"


def test_too_few_items_certify_nothing_and_the_remedy_names_what_helps(shops: Path, tmp_path: Path) -> None:
    bundle, place = shop(shops, tmp_path, 40)
    refused = calibrate(bundle, place, "--certify")
    assert isinstance(refused.exception, CalibrationError)
    assert "40 items cannot certify an FPIR of 0.05: they count as 35 independent ones, and 59 are needed" in str(
        refused.exception
    )
    assert "label more photos, accept more false matches with a larger --target-fpir, or leave --certify out" in str(
        refused.exception
    )
    with Gallery.open(place, read_only=True) as gallery:
        assert gallery.kept(POINT) is None
    assert calibrate(bundle, place, "--certify", "--target-fpir", "0.2").exit_code == 0
