"""The report of a gallery: rates, charts, pictures and assumptions, whatever the evidence holds and the ids are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from markupsafe import escape

from index.database import POINT
from index.gallery import Gallery
from index.photos import NONE
from index.search.item_distance import RIVALS
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.read import Photo
from retrieval.cli.main import group
from retrieval.galleries.points import served_point
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.draws import LABELLED, OWN, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import Perhaps, Point, Rates, Shift
from retrieval.measuring.rates import VersionRates
from retrieval.reports.gallery_report import SOURCES, GalleryReport, render_gallery_report

from ...world import draw, make_bundle


def escaped(text: str) -> str:
    return str(escape(text))


EVIL = '"><script>alert(1)</script>'


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a bundle and a gallery beside it: 24 items of two photos, one with a hostile id, one photo twice."""
    folder = tmp_path_factory.mktemp("report")
    bundle = make_bundle(
        folder, point=Point(0.5, "estimated", 0.2, rates=Rates(fpir=0.05)), files={FITTED: Fitted.of([], []).pack()}
    )
    photos = []
    for item in range(24):
        for number in range(2):
            path = folder / f"{item}-{number}.png"
            draw(item, number).save(path)
            photos.append(Photo(f"{EVIL}{item}-{number}", path, f"{EVIL}-{item}"))
    photos.append(Photo("the same file", folder / "3-0.png", "another id"))
    index_catalogue(bundle, photos, folder / "gallery", progress=False)
    return bundle


@pytest.fixture
def report(bundle: Bundle) -> Iterator[GalleryReport]:
    with Gallery.open(bundle.path.with_name("gallery"), read_only=True) as gallery:
        yield GalleryReport.of(bundle, gallery, served_point(gallery.kept(POINT), bundle, gallery))


def test_the_report_shows_rates_charts_pictures_and_assumptions(report: GalleryReport) -> None:
    page = render_gallery_report(report)
    told = max(report.rates.fpir(report.point.threshold), report.point.rates.fpir_expected)
    assert f"An unknown item returns a match in <b>about {told:.1%}</b> of searches" in page
    assert f"{report.rates.fpir_upper(report.point.threshold):.1%} with 95 % confidence" in page
    assert page.count("<svg") == 2
    for heading in (
        "Of 100 matches, how many are right?",
        "Error rates at other thresholds",
        "Items that are hardest to tell apart",
        "What is assumed",
    ):
        assert heading in page
    for assumed in report.point.basis.assumptions:
        assert escaped(assumed) in page
    assert "(in use)" in page


def test_it_needs_nothing_from_elsewhere_and_runs_nothing(report: GalleryReport) -> None:
    page = render_gallery_report(report)
    assert "<script" not in page
    assert '"">' not in page
    assert re.findall(r"""(?:src|href)=["'](?!data:image/jpeg;base64)""", page) == []
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page


def test_a_file_under_two_ids_is_shown_as_a_duplicate(report: GalleryReport) -> None:
    duplicates = render_gallery_report(report).split("<h2>Duplicates</h2>")[1].split("<h2>")[0]
    assert duplicates.count('class="card"') == 1
    assert duplicates.count("<img") == 2
    assert "another id" in duplicates


def test_families_and_items_with_the_most_false_matches_are_listed_with_their_shares(report: GalleryReport) -> None:
    # c, d and e are nearest to each other, x has no draws, and a copy does not count
    items = ["c", "c", "d", "e", "far", "copy"]
    nearest = ["d", "x", "c", "d", "x", "x"]
    distances = np.array([0.1, 0.2, 0.15, 0.3, 0.9, 0.01])
    texts, nothing = np.array(items), np.full(len(items), "")
    none = np.full(6, np.inf)
    draws = Draws(
        ids=texts,
        items=texts,
        groups=texts,
        distances=distances,
        nearest=nothing,
        nearest_items=np.array(nearest),
        rivals=np.full((6, RIVALS), NONE),
        without=np.full((6, 1 + RIVALS), np.inf),
        plain=distances,
        duplicates=np.where(texts == "copy", "p7", ""),
        own=none,
        own_plain=none,
        wrong=none,
    )
    moved = Shift(0.05, 0.01, 20)
    told = replace(
        report,
        point=replace(report.point, threshold=0.3, shift=moved),  # e is within it without the shift only
        draws={OWN: draws},
        rates=VersionRates(DrawnDistances.of({OWN: draws}, shift=moved)),
    )
    page = render_gallery_report(told)
    assert "c, d: 3 similar items: 100% of all false matches." in page
    assert "x: returned in 33% of all false matches." in page
    assert "d: returned in 33% of all false matches." in page
    assert "copy" not in page.split("Items that unknown items are mistaken for")[1].split("<h2>")[0]


def test_a_server_adds_the_drift_of_live_photos(report: GalleryReport) -> None:
    live = {"told": "No drift was found", "searches": "1,200", "rows": [(EVIL, "1", "2", "–")]}
    page = render_gallery_report(report, live={**live, "has_bundle_report": True})
    assert "No drift was found. Searches compared: 1,200." in page
    assert 'href="report/bundle"' in page
    assert "<script" not in page
    assert "report/bundle" not in render_gallery_report(report, live={**live, "has_bundle_report": False})


def test_each_source_of_draws_has_a_row_of_its_own(report: GalleryReport) -> None:
    assert report.draws is not None
    page = render_gallery_report(replace(report, draws={**report.draws, LABELLED: report.draws[OWN]}))
    for name in (OWN, LABELLED):
        assert f"{SOURCES[name]}</th>" in page


def test_the_promise_of_a_report_is_the_expected_rate_where_no_draw_returned_a_match(report: GalleryReport) -> None:
    assert report.rates is not None
    point = replace(report.point, threshold=float(report.rates.drawn.distances[0]) * 0.999, status="estimated")
    assert report.rates.fpir(point.threshold) == 0
    page = render_gallery_report(replace(report, point=point))
    assert f"<b>about {report.rates.expected(point.threshold):.1%}</b>" in page
    assert report.rates.expected(point.threshold) > 0.01
    assert f"at most {report.rates.fpir_upper(point.threshold):.1%} with 95 % confidence" in page


def test_twins_and_how_often_perhaps_is_right_are_reported(report: GalleryReport) -> None:
    within = report.point.threshold + 0.2
    basis = replace(report.point.basis, twins=(("cup & saucer", "set"),))
    point = replace(report.point, basis=basis, perhaps=Perhaps(within, right=0.75, searches=40))
    page = render_gallery_report(replace(report, point=point))
    assert "1 pair of items looks like one item under two ids: cup &amp; saucer and set." in page
    assert f"Between the threshold and {within:.3f}, an answer is" in page
    assert "this item was right in 75% of 40 such answers" in page


def test_the_bundles_threshold_is_not_reported_as_measured_here(report: GalleryReport) -> None:
    point = Point(0.5, "estimated", 0.05, rates=Rates(fpir=0.04, fpir_upper=0.09, tpir=0.7))
    page = render_gallery_report(GalleryReport(report.gallery, point, 49, 25))
    assert "<b>about 4.0%</b>" in page
    assert "measured with other items, not in this catalogue" in page
    assert "<svg" not in page
    none = render_gallery_report(GalleryReport(report.gallery, Point.uncalibrated(0.05), 6, 3))
    assert "There is no threshold yet" in none
    assert "%" not in none.split("</style>")[1].split("What is assumed")[0]


def test_rates_of_other_photos_are_not_shown(filled_copy: Path) -> None:
    bundle = Bundle.open(filled_copy / "bundle")
    with Gallery.open(filled_copy / "gallery") as gallery:
        point = served_point(gallery.kept(POINT), bundle, gallery)
        assert GalleryReport.of(bundle, gallery, point).rates is not None
        gallery.remove(photo_ids=["3"])  # without updating the draws
        page = render_gallery_report(GalleryReport.of(bundle, gallery, point))
    assert "has changed since these rates were measured" in page
    assert "<svg" not in page


def test_photos_that_are_removed_while_a_report_is_made_are_left_out(bundle: Bundle, tmp_path: Path) -> None:
    photos = [Photo(f"p{i}", bundle.path.with_name(f"{i}-0.png"), f"i{i}") for i in range(24)]
    index_catalogue(bundle, photos, tmp_path / "gallery", progress=False)
    with Gallery.open(tmp_path / "gallery") as gallery:
        report = GalleryReport.of(bundle, gallery, served_point(gallery.kept(POINT), bundle, gallery))
        gallery.remove(photo_ids=["p3"])
        page = render_gallery_report(report)
    assert page.count("<svg") == 2
    assert " and i3" not in page


def test_the_command_writes_the_page_also_into_a_new_folder(bundle: Bundle, tmp_path: Path) -> None:
    places = [str(bundle.path), str(bundle.path.with_name("gallery"))]
    for file in (tmp_path / "report.html", tmp_path / "new" / "report.html"):
        done = CliRunner().invoke(group, ["gallery", "report", *places, "-o", str(file)])
        assert done.exit_code == 0, done.output
        assert "How often this search is wrong" in file.read_text()
