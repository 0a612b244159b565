"""Labelled photos of unknown items: how they are marked, what they measure, and the report of a calibration."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

from index.database import POINT as POINT_KEPT
from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.photos import QUERIES
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.main import group
from retrieval.errors import DataError
from retrieval.galleries.kept import pack_queries, read_draws, read_queries
from retrieval.galleries.measured import measure_gallery
from retrieval.galleries.points import served_point
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.draws import LABELLED, OWN, UNKNOWN, Probes
from retrieval.measuring.labelled import by_source
from retrieval.measuring.point import Basis, Point, Rates
from tests.retrieval.measuring.samples import set_point

from ...world import draw, make_bundle, write_folder

POINT = Point(0.5, "estimated", 0.2, rates=Rates(fpir=0.05))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return a bundle with a gallery of 24 items and `labelled.csv`: 22 photos of them, 22 of nothing in it."""
    folder = tmp_path_factory.mktemp("unknown")
    bundle = make_bundle(folder, point=POINT, files={FITTED: Fitted.of([], []).pack()})
    photos = write_folder(folder / "photos", items=range(24), photos=range(2))
    index_catalogue(bundle, read_catalogue(photos), folder / "gallery", progress=False)
    lines = ["path,item_id"]
    for item in (*range(22), *range(100, 122)):
        draw(item, 9).save(folder / f"{item}.png")
        lines.append(f"{item}.png,{f'item-{item:02d}' if item < 24 else ''}")
    (folder / "labelled.csv").write_text("\n".join(lines))
    return bundle


def photos_of(bundle: Bundle) -> list[Photo]:
    return read_catalogue(bundle.path.with_name("labelled.csv"), labels=QUERIES)


def run(bundle: Bundle, *options: str) -> str:
    words = ["calibrate", str(bundle.path), str(bundle.path.with_name("gallery")), *options]
    done = CliRunner().invoke(group, words, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_an_empty_item_id_marks_an_unknown_item_only_where_asked(made: Bundle, tmp_path: Path) -> None:
    assert [photo.item_id for photo in photos_of(made)[-2:]] == ["", ""]
    with pytest.raises(DataError, match=r"line 24: path or item_id is empty"):
        read_catalogue(made.path.with_name("labelled.csv"))
    lines = tmp_path / "labelled.jsonl"
    lines.write_text('{"path": "a.png", "item_id": "a"}\n{"path": "b.png"}\n{"path": "c.png", "item_id": null}\n')
    assert [photo.item_id for photo in read_catalogue(lines, labels=QUERIES)] == ["a", "", ""]
    lines.write_text('{"path": "", "item_id": "a"}\n')
    with pytest.raises(DataError, match="path or item_id is empty"):
        read_catalogue(lines, labels=QUERIES)


def test_queries_are_divided_into_known_and_unknown_items() -> None:
    vectors = np.eye(4, dtype=np.float32)
    sources = by_source(Probes(vectors, ["a", "b", "c", "d"], ["x", "", "x", ""]))
    assert list(sources) == [LABELLED, UNKNOWN]
    assert (sources[LABELLED].ids, sources[LABELLED].items) == (["a", "c"], ["x", "x"])
    assert sources[UNKNOWN].ids == ["b", "d"]
    assert len(set(sources[UNKNOWN].items)) == 2
    np.testing.assert_array_equal(sources[UNKNOWN].vectors, vectors[[1, 3]])
    assert list(by_source(Probes(vectors[:1], ["a"], [""]))) == [UNKNOWN]


def test_photos_of_one_unknown_item_count_as_one_where_a_group_says_so(made: Bundle) -> None:
    photos = photos_of(made)
    unknown = [photo for photo in photos if not photo.item_id]
    grouped = [replace(photo, group=f"thing {place // 2}") for place, photo in enumerate(unknown)]
    with Gallery.open(made.path.with_name("gallery"), read_only=True) as gallery:
        told = [
            measure_gallery(made, gallery, rule="set", photos=[photo for photo in photos if photo.item_id] + some)
            for some in (unknown, grouped)
        ]
        items = [measurement.after.basis.items_drawn for measurement in told]
        kept = SimpleNamespace(kept=lambda _: pack_queries(told[1].labelled, ""), dim=made.dim)
        read = read_queries(kept)  # type: ignore[arg-type]
    assert len(unknown) == 22
    assert items[0] - items[1] == 11
    assert read is not None
    assert by_source(read)[UNKNOWN].groups == by_source(told[1].labelled)[UNKNOWN].groups != ()


def test_photos_of_unknown_items_measure_the_rate_and_keep_the_target(made: Bundle) -> None:
    with Gallery.open(made.path.with_name("gallery"), read_only=True) as gallery:
        measurement = measure_gallery(made, gallery, rule="set", photos=photos_of(made))
    draws = measurement.draws.sources[UNKNOWN]
    assert np.isinf(draws.own).all()
    assert len(draws.ids) == 22
    unknown = measurement.change.rates()["unknown"]
    share = float((draws.distances <= measurement.after.threshold).mean())
    assert unknown["after"] == pytest.approx(share)
    assert share <= 0.2
    assert unknown["upper"] is not None
    assert share < unknown["upper"] < 1
    assert measurement.after.basis.sources == {OWN: 24, LABELLED: 22, UNKNOWN: 22}
    assert measurement.after.rates.tpir_of == "labelled queries"


def test_few_labelled_photos_tell_no_share_of_photos_that_find_their_item(made: Bundle) -> None:
    """The evidence takes them from 20 items on, too: two lines must not tell different shares."""
    with Gallery.open(made.path.with_name("gallery")) as gallery:
        measurement = measure_gallery(made, gallery, rule="set")
    own = measurement.draws.sources[OWN]
    few = replace(own.where(np.arange(len(own)) < 3), own=np.full(3, 1.9))
    with_few = replace(measurement.draws, sources={**measurement.draws.sources, LABELLED: few})
    assert replace(measurement.change, draws=with_few).rates()["tpir"] == measurement.change.rates()["tpir"]


def test_a_labelled_photo_that_cannot_be_read_is_told_as_that(made: Bundle, tmp_path: Path) -> None:
    first, *others = photos_of(made)
    with Gallery.open(made.path.with_name("gallery"), read_only=True) as gallery:
        labelled = [replace(first, path=tmp_path / "missing.png"), *others]
        refused = measure_gallery(made, gallery, rule="set", photos=labelled).refused
    assert [(photo_id, "cannot be read" in why) for photo_id, why in refused] == [(first.photo_id, True)]


def test_labelled_photos_of_items_that_are_gone_are_left_out(made: Bundle, tmp_path: Path) -> None:
    """Their items may be there under another id: they show neither how many photos find theirs, nor unknown items."""
    shutil.copytree(made.path.with_name("gallery"), tmp_path / "gallery")
    with Gallery.open(tmp_path / "gallery") as gallery:
        before = measure_gallery(made, gallery, rule="set", photos=photos_of(made))
        before.write(gallery)
        renamed = [photo_id for photo_id, *_ in gallery.photos("item-00")]
        gallery.update(renamed, ["new name"] * 2, [{}] * 2)
        gallery.remove(item_ids=["item-01"])
        after = measure_gallery(made, gallery, rule="set")
        again = measure_gallery(made, gallery, rule="set", photos=photos_of(made))
    assert [photo_id for photo_id, _ in again.refused] == ["0.png", "1.png"]
    assert again.refused[0][1].startswith("the gallery has no item item-00: ")
    draws = after.draws.sources
    assert set(draws[LABELLED].items) == {f"item-{item:02d}" for item in range(2, 22)}
    assert not any(item.startswith("item-") for item in draws[UNKNOWN].items)
    rates, sources = after.after.rates, after.after.basis.sources
    assert sources is not None
    assert sources[LABELLED] == rates.items == rates.queries == 20
    assert before.after.basis.sources == {OWN: 24, LABELLED: 22, UNKNOWN: 22}


def test_labelled_photos_that_the_gallery_got_since_are_left_out(made: Bundle, tmp_path: Path) -> None:
    """They find themselves: photos of an unknown item that was added, and of an item that got the photo."""
    shutil.copytree(made.path.with_name("gallery"), tmp_path / "gallery")
    labelled = photos_of(made)
    with Gallery.open(tmp_path / "gallery") as gallery:
        measure_gallery(made, gallery, rule="set", photos=labelled).write(gallery)
        added = [replace(labelled[0], photo_id="known"), replace(labelled[-1], photo_id="new", item_id="new item")]
    index_catalogue(made, added, tmp_path / "gallery", progress=False)
    with Gallery.open(tmp_path / "gallery", read_only=True) as gallery:
        draws = measure_gallery(made, gallery, rule="set").draws.sources
    assert (len(draws[LABELLED]), len(draws[UNKNOWN])) == (21, 21)
    assert labelled[0].photo_id not in draws[LABELLED].ids
    assert labelled[-1].photo_id not in draws[UNKNOWN].ids


def test_labelled_photos_that_the_model_was_fitted_on_are_refused(made: Bundle, tmp_path: Path) -> None:
    """They would show that unknown items are far, although those that the model has not seen are not."""
    labelled = photos_of(made)
    contents = [content_hash(photo.read(), None) for photo in labelled]
    for fitted, usable in ((contents[-3:], 41), (contents, 0)):
        bundle = make_bundle(tmp_path / str(usable), point=POINT, files={FITTED: Fitted.of([], fitted).pack()})
        with Gallery.open(made.path.with_name("gallery"), read_only=True) as gallery:
            if not usable:
                with pytest.raises(DataError, match="fitted on all of the labelled photos"):
                    measure_gallery(bundle, gallery, rule="set", photos=labelled)
                continue
            measurement = measure_gallery(bundle, gallery, rule="set", photos=labelled)
        assert sorted(measurement.refused) == sorted(
            (photo.photo_id, "the model was fitted on this photo") for photo in labelled[-3:]
        )
        assert (len(measurement.draws.sources[LABELLED]), len(measurement.draws.sources[UNKNOWN])) == (22, 19)


def test_a_measurement_begun_before_photos_were_labelled_is_not_kept(made: Bundle, tmp_path: Path) -> None:
    """It would replace draws with the labelled photos by draws without them."""
    shutil.copytree(made.path.with_name("gallery"), tmp_path / "gallery")
    with Gallery.open(tmp_path / "gallery") as gallery:
        gallery.add(["more"], ["item-00"], np.eye(1, made.dim), upsert=True)
        begun = measure_gallery(made, gallery, rule="tighten")
        measure_gallery(made, gallery, rule="set", photos=photos_of(made)).write(gallery)
        version = gallery.version
        begun.write(gallery)
        assert gallery.version == version
        kept = read_draws(gallery)
    assert kept is not None
    assert {LABELLED, UNKNOWN} <= kept.sources.keys()


def test_unknown_items_that_come_close_lower_the_threshold(made: Bundle) -> None:
    with Gallery.open(made.path.with_name("gallery"), read_only=True) as gallery:
        draws = measure_gallery(made, gallery, rule="set", photos=photos_of(made)).draws.sources
        near = replace(draws[UNKNOWN], distances=draws[LABELLED].own)  # as close as photos of the items themselves
        given, strict = (set_point({**draws, UNKNOWN: each}, 0.2, items=24) for each in (draws[UNKNOWN], near))
    assert strict.threshold < given.threshold
    assert strict.rates.fpir_expected <= 0.2
    assert "Unknown items are like the items of this catalogue" in strict.basis.assumptions[0]


def test_the_command_tells_the_rate_writes_a_report_and_keeps_the_queries(made: Bundle, tmp_path: Path) -> None:
    queries = ["--queries", str(made.path.with_name("labelled.csv"))]
    page = tmp_path / "report.html"
    dry = run(made, *queries, "--dry-run", "--report", str(page))
    assert "Labelled photos of unknown items that return a match: " in dry
    assert f"Wrote {page}." in dry
    with Gallery.open(made.path.with_name("gallery"), read_only=True) as gallery:
        assert read_queries(gallery) is None
        after = measure_gallery(made, gallery, rule="set", photos=photos_of(made)).after
    text = page.read_text()
    assert "photos of users that show no item of this catalogue" in text
    assert f"{after.threshold:.3f} (in use)" in text
    values = json.loads(run(made, *queries, "--json", "--report", str(page)))
    assert values["after"]["threshold"] == after.threshold
    assert values["answers"][-1]["searched"] == 22
    assert (
        json.loads(run(made, "--json", "--dry-run"))["answers"][-1]["searched"] == 22
    )  # the gallery keeps the queries


def test_the_command_of_the_warning_about_a_larger_gallery_works_with_eighteen_items(tmp_path: Path) -> None:
    point = Point(0.5, "estimated", 0.2, rates=Rates(fpir=0.05), basis=Basis(gallery_items=7))
    bundle = make_bundle(tmp_path, point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = write_folder(tmp_path / "photos", items=range(18), photos=range(2))
    words = ["index", str(bundle.path), str(photos), "-o", str(tmp_path / "gallery")]
    told = CliRunner().invoke(group, words, catch_exceptions=False).output
    warning = next(line for line in told.splitlines() if line.startswith("Warning:"))
    assert "at least 20 labelled photos of unknown items" in warning
    lines = ["path,item_id"]
    for item in range(100, 120):
        draw(item, 9).save(tmp_path / f"{item}.png")
        lines.append(f"{item}.png,")
    (tmp_path / "LABELLED.csv").write_text("\n".join(lines))
    words = shlex.split(warning.split("`")[1].replace("LABELLED.csv", str(tmp_path / "LABELLED.csv")))
    done = CliRunner().invoke(group, words[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Wrote the threshold" in done.output


def test_a_threshold_of_the_bundle_for_larger_galleries_counts_as_none(made: Bundle, tmp_path: Path) -> None:
    point = Point(0.5, "estimated", 0.2, basis=Basis(least_items=200))
    large = make_bundle(tmp_path, name="large", point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = write_folder(tmp_path / "photos", items=range(12), photos=range(2))
    words = ["index", str(large.path), str(photos), "-o", str(tmp_path / "gallery")]
    indexed = CliRunner().invoke(group, words, catch_exceptions=False).output
    assert "This gallery has no threshold, so searches only rank items: 12 items" in indexed
    shutil.copytree(made.path.with_name("gallery"), tmp_path / "other")
    with Gallery.open(tmp_path / "other") as gallery:
        measurement = measure_gallery(large, gallery, rule="set", photos=photos_of(made))
    assert not measurement.served.decides
    assert measurement.change.lines() == [f"The gallery gets its first threshold, {measurement.after.threshold:.4f}."]


def test_calibrate_has_written_the_threshold_before_it_prints(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made.path.with_name("gallery"), tmp_path / "gallery")
    with Gallery.open(tmp_path / "gallery") as gallery:
        version = gallery.version
    monkeypatch.setattr("retrieval.cli.calibrate.show_measurement", Mock(side_effect=BrokenPipeError))  # as by `| head`
    words = ["calibrate", str(made.path), str(tmp_path / "gallery"), "--target-fpir", "0.3"]
    assert CliRunner().invoke(group, words).exit_code != 0
    with Gallery.open(tmp_path / "gallery") as gallery:
        assert gallery.version == version + 1
        assert served_point(gallery.kept(POINT_KEPT), made, gallery).target_fpir == 0.3
