"""The operating point of a gallery: set by index and calibrate, served with its version, kept true, never loosened."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from index.database import POINT
from index.errors import GalleryCorrupt
from index.files import load_arrays
from index.gallery import Gallery
from retrieval.bundle.bundle import CALIBRATION, FITTED, Bundle, CalibrationSet
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import CalibrationError, DataError
from retrieval.galleries import points
from retrieval.galleries.kept import Kept, pack_draws, read_draws, read_queries
from retrieval.galleries.measured import changed_share, draw_gallery, measure_gallery
from retrieval.galleries.points import as_served, pack_points, read_points, served_point, stored_point
from retrieval.indexing.pipeline import IndexReport, index_catalogue
from retrieval.indexing.worker import embed_batch, write_batch
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import LABELLED, OWN, PROBE, REFERENCE, AllDraws, Probes
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import GALLERY, Point, Rates
from retrieval.measuring.rates import VersionRates
from retrieval.measuring.sentences import Change, warning_of
from retrieval.metrics.identification import SearchScores
from retrieval.retriever import Retriever
from tests.retrieval.galleries.writing import remeasure

from ...world import DIM, draw, encode, make_bundle, pack_calibration, write_folder
from .version_020 import pack_draws_020

TARGET = Point(0.5, "estimated", 0.2, rates=Rates(fpir=0.05))


def bundle_of(folder: Path, *items: str, name: str = "bundle", point: Point = TARGET) -> Bundle:
    return make_bundle(folder, name=name, point=point, files={FITTED: Fitted.of(items, []).pack()})


def threshold_of(point: Point | None) -> tuple[float, str, float]:
    """Return what decides, without the evidence."""
    assert point is not None
    return point.threshold, point.status, point.target_fpir


Fill = Callable[..., IndexReport]


@pytest.fixture(scope="session")
def fill(tmp_path_factory: pytest.TempPathFactory) -> Fill:
    """Return a function that indexes photos of items into the gallery "g"; it copies a new one that it has made before.

    Most tests begin with the same gallery.
    """
    made: dict[tuple[str, range, range], tuple[Path, IndexReport]] = {}

    def filled(bundle: Bundle, folder: Path, items: range, *, photos: range = range(3)) -> IndexReport:
        place, gallery = folder / f"photos-{items.start}-{items.stop}", folder / "g"
        key, is_new = (bundle.bundle_id, items, photos), not gallery.exists()
        if is_new and key in made:
            before, report = made[key]
            for path in (place, gallery):
                shutil.copytree(before / path.name, path)
            return deepcopy(report)
        write_folder(place, items=items, photos=photos)
        report = index_catalogue(bundle, read_catalogue(place), gallery, progress=False)
        if is_new:
            made[key] = tmp_path_factory.mktemp("made"), deepcopy(report)
            for path in (place, gallery):
                shutil.copytree(path, made[key][0] / path.name)
        return report

    return filled


def test_indexing_sets_a_threshold_in_the_gallery_and_searches_use_it(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    report = fill(bundle, tmp_path, range(30))
    assert report.point is not None
    assert report.point.threshold != bundle.threshold
    assert report.rates is not None
    assert report.rates.fpir(report.point.threshold) == report.point.rates.fpir <= 0.2
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        found = retriever.search(encode(draw(3, 9)))
        assert (found.threshold, found.threshold_status) == (report.point.threshold, "estimated")
        assert found.matches[0].item_id == "item-03"
        rates = retriever.gallery_point.rates()
        assert rates is not None
        assert found.matches[0].p_value == rates.p_values(np.array([found.matches[0].distance]))[0]
        assert found.matches[0].p_value == pytest.approx(1 / 31)
        stranger = retriever.search(encode(draw(77, 1)))
        assert stranger.nearest is not None
        assert stranger.nearest.p_value is not None
        assert (stranger.nearest.p_value > 1 / 31) == (not stranger.matches)


def test_items_that_the_model_was_fitted_on_set_no_threshold(tmp_path: Path, fill: Fill) -> None:
    fitted = bundle_of(tmp_path, *(f"item-{i:02d}" for i in range(15)))
    report = fill(fitted, tmp_path, range(30))
    assert report.point is None
    assert "15 items" in report.unanchored
    with Gallery.open(tmp_path / "g") as gallery:
        assert read_draws(gallery) is None
        draws = draw_gallery(fitted, gallery)[1]
        assert set(draws.sources[OWN].items) == {f"item-{i:02d}" for i in range(15, 30)}
        assert len(draws.fitted) == 15
        measurement = measure_gallery(fitted, gallery, rule="set")
        assert (measurement.summary(), measurement.is_news) == ("", False)
        with pytest.raises(CalibrationError, match="15 items"):
            _ = measurement.after
    with Retriever.open(fitted.path, tmp_path / "g") as retriever:
        found = retriever.search(encode(draw(3, 9)))
        assert (found.threshold, found.threshold_status, found.nearest.p_value) == (0.5, "unanchored", None)  # type: ignore[union-attr]


def test_no_photo_is_looked_at_if_the_model_was_fitted_on_none(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(25))
    with Gallery.open(tmp_path / "g") as gallery:
        monkeypatch.setattr(gallery, "values", lambda *_: pytest.fail("the hashes of all photos were read"))
        draws = draw_gallery(bundle, gallery)[1]
    assert (draws.fitted, len(set(draws.sources[OWN].items))) == (frozenset(), 25)


def test_a_single_item_that_the_model_was_fitted_on_makes_no_draws(tmp_path: Path, fill: Fill) -> None:
    fitted = bundle_of(tmp_path, "item-03")
    fill(fitted, tmp_path, range(25))
    with Gallery.open(tmp_path / "g") as gallery:
        draws = draw_gallery(fitted, gallery)[1]
    assert set(draws.sources[OWN].items) == {f"item-{i:02d}" for i in range(25)} - {"item-03"}
    assert draws.fitted == {"item-03"}


def test_calibration_photos_of_the_bundle_are_searched_in_the_gallery(tmp_path: Path, fill: Fill) -> None:
    names = [f"other-{i % 7}" for i in range(15)]
    scores = SearchScores(np.array(names), np.linspace(0.1, 0.4, 15), np.linspace(0.5, 0.9, 15), 7)
    files = {FITTED: Fitted.of((), ()).pack(), CALIBRATION: pack_calibration(scores, np.ones(15, np.float32))}
    bundle = make_bundle(tmp_path, point=TARGET, files=files)
    fill(bundle, tmp_path, range(25))
    with Gallery.open(tmp_path / "g") as gallery:
        sources = draw_gallery(bundle, gallery)[1].sources
    drawn = dict(zip(sources[PROBE].ids.tolist(), sources[PROBE].items.tolist(), strict=True))
    assert drawn == {str(number): name for number, name in enumerate(names)}
    assert {name.partition("-")[0] for name in sources[PROBE].nearest_items} == {"item"}
    assert len(sources[REFERENCE]) == 15


def test_calibration_items_that_have_another_id_in_the_gallery_are_not_searched_for(tmp_path: Path, fill: Fill) -> None:
    """Their photos would find their own item, as an unknown item never does; one photo that is there is enough."""
    names = [f"other-{i % 7}" for i in range(15)]
    scores = SearchScores(np.array(names), np.linspace(0.1, 0.4, 15), np.linspace(0.5, 0.9, 15), 7)
    files = {FITTED: Fitted.of((), ()).pack(), CALIBRATION: pack_calibration(scores, np.ones(15, np.float32))}
    bundle = make_bundle(tmp_path, point=TARGET, files=files)
    assert bundle.calibration is not None
    fill(bundle, tmp_path, range(25))
    with Gallery.open(tmp_path / "g") as gallery:
        vectors = bundle.calibration.gallery.vectors
        gallery.add(["a", "b"], ["renamed", "other-5"], vectors[[3, 5]])  # the second one has the id that it had
        sources = draw_gallery(bundle, gallery)[1].sources
    for source in (PROBE, REFERENCE):
        assert set(sources[source].items) == set(names) - {"other-3"}


@pytest.mark.parametrize(("grouped", "independent"), [(3, 38), (9, 34), (40, 14)])
def test_items_of_one_group_of_a_gallery_count_as_one(tmp_path: Path, grouped: int, independent: int) -> None:
    """A threshold needs 20 independent items at least."""
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(40)))
    group_of = {f"item-{number:02d}": f"variants {number // 3}" for number in range(grouped)}
    listed = [replace(photo, group=group_of.get(photo.item_id, "")) for photo in photos]
    index_catalogue(bundle, listed, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        drawn = draw_gallery(bundle, gallery)[1].sources[OWN]
        assert len(set(drawn.items)) == 40
        assert len(set(drawn.groups)) == independent
        measurement = measure_gallery(bundle, gallery, rule="set", target_fpir=0.2)
    assert (measurement.point is None) == (independent < 20)
    assert ("items of one group count as one" in measurement.measured.why) == (independent < 20)
    assert measurement.point is None or measurement.point.basis.items_drawn == independent


def test_draws_that_version_0_2_0_kept_have_the_groups_of_the_gallery(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(30)))
    rows = [replace(photo, group="twins" if photo.item_id in ("item-07", "item-19") else "") for photo in photos]
    index_catalogue(bundle, rows, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g") as gallery:
        now = read_draws(gallery)
        assert now is not None
        gallery.keep({Kept.DRAWS: pack_draws_020(now, gallery)}, "as before")
        then = read_draws(gallery)
        assert then is not None
        assert (now.has_rivals, then.has_rivals, then.mark) == (True, False, now.mark)
        assert changed_share(bundle, gallery) == 1.0
        measured = remeasure(bundle, gallery)
        assert measured.is_new
        assert measured.draws.sources[OWN].without.tolist() == now.sources[OWN].without.tolist()
        assert changed_share(bundle, gallery) == 0.0
    assert set(now.sources) == set(then.sources) > {OWN}
    for source, draws in now.sources.items():
        assert (len(set(draws.items)) - len(set(draws.groups)) == 1) == bool(len(draws))
        old = then.sources[source].arrays()
        for name, values in draws.arrays().items():
            assert name in ("rivals", "without") or np.array_equal(old[name], values), name


def test_calibration_photos_count_by_the_groups_of_the_run_s_catalogue(tmp_path: Path, fill: Fill) -> None:
    names = [f"calibration-{item:02d}" for item in range(24) for _ in range(2)]
    scores = SearchScores(np.array(names), np.full(48, 0.2), np.full(48, 0.7), 24)
    packed = CalibrationSet.unpack(pack_calibration(scores, np.ones(48, np.float32)))
    groups = ["family" if item < "calibration-05" else "" for item in packed.gallery.items]
    with_groups = replace(packed, gallery=replace(packed.gallery, groups=groups))
    files = {FITTED: Fitted.of((), ()).pack(), CALIBRATION: with_groups.pack()}
    bundle = make_bundle(tmp_path, point=TARGET, files=files)
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        sources = draw_gallery(bundle, gallery)[1].sources
    for source in (PROBE, REFERENCE):
        assert len(set(sources[source].items)) == 24
        assert len(set(sources[source].groups)) == 20
    assert DrawnDistances.of({PROBE: sources[PROBE]}).items == 20
    older = {name: values for name, values in load_arrays(with_groups.pack()).items() if name != "gallery_group"}
    file = io.BytesIO()
    np.savez_compressed(file, **older)
    assert set(CalibrationSet.unpack(file.getvalue()).gallery.groups) == {""}


def test_folders_of_a_catalogue_are_no_groups_and_labelled_photos_have_the_group_of_their_item(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(24)))
    moved = [replace(photo, item_id=f"fruit/{photo.item_id}", group="fruit") for photo in photos]
    index_catalogue(bundle, moved, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        drawing = Drawing(gallery.snapshot(), bundle.item_distance)
        assert len(set(drawing.own().groups)) == 24
        asked = Probes(np.eye(4, DIM, dtype=np.float32), list("abcd"), ["fruit/item-03", "x", "y", "z"])
        asked = replace(asked, groups=["fruit", "family", "family", ""])
        draws = drawing.probes(asked)
    found = dict(zip(draws.items.tolist(), draws.groups.tolist(), strict=True))
    assert (found["fruit/item-03"], found["z"]) == ("fruit/item-03", "z")
    assert found["x"] == found["y"] not in ("x", "y", "family")


def test_a_group_is_no_item_of_its_name_and_its_name_may_be_long(tmp_path: Path) -> None:
    """Item 3 is in no group, and others are of the group "item-03"; so are two of a group with a very long name."""
    group_of = {"item-07": "item-03", "item-19": "item-03", "item-11": "x" * 20_000, "item-12": "x" * 20_000}
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(30)))
    rows = [replace(photo, group=group_of.get(photo.item_id, "")) for photo in photos]
    index_catalogue(bundle, rows, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        draws = draw_gallery(bundle, gallery)[1].sources[OWN]
    found = dict(zip(draws.items.tolist(), draws.groups.tolist(), strict=True))
    assert found["item-07"] == found["item-19"] != found["item-03"] == "item-03"
    assert found["item-11"] == found["item-12"] != found["item-07"]
    assert draws.groups.dtype.itemsize < 4 * 40


def test_photos_of_an_item_whose_group_is_in_the_gallery_show_no_unknown_item(tmp_path: Path) -> None:
    """Such as a product under another id: the gallery's item of its group is no false match of it."""
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(30)))
    rows = [replace(photo, group="twins" if photo.item_id == "item-07" else "") for photo in photos]
    index_catalogue(bundle, rows, tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        now = gallery.snapshot()
        vectors = np.repeat(now.vectors(now.positions(["item-07/1.png"])), 3, axis=0)
        probes = Probes(vectors, ["a", "b", "c"], ["x", "y", "z"], groups=["twins", "others", ""])
        draws = Drawing(now, bundle.item_distance).probes(probes)
    assert dict(zip(draws.ids.tolist(), np.isinf(draws.distances).tolist(), strict=True)) == {
        "a": True,
        "b": False,
        "c": False,
    }
    assert DrawnDistances.of({PROBE: draws}).items == 2


def test_a_catalogue_of_which_every_photo_is_refused_leaves_no_gallery(tmp_path: Path) -> None:
    scores = SearchScores(np.array(["a", "b"]), np.full(2, 0.1), np.full(2, 0.5), 2)
    files = {FITTED: Fitted.of((), ()).pack(), CALIBRATION: pack_calibration(scores, np.ones(2, np.float32))}
    bundle = make_bundle(tmp_path, point=TARGET, files=files)
    photos = [
        replace(photo, bbox=(500.0, 500.0, 600.0, 600.0))
        for photo in read_catalogue(write_folder(tmp_path / "photos", items=range(2)))
    ]
    report = index_catalogue(bundle, photos, tmp_path / "g", progress=False)
    assert (report.added, len(report.refused)) == (0, 6)
    assert not (tmp_path / "g").exists()


def test_a_threshold_is_tightened_once_it_exceeds_the_target_by_more_than_its_error(tmp_path: Path, fill: Fill) -> None:
    """It accepts the target share of the draws, and of unknown items a little more."""
    bundle = bundle_of(tmp_path)
    set_then = fill(bundle, tmp_path, range(30)).point
    assert set_then is not None
    with Gallery.open(tmp_path / "g") as gallery:
        rates = VersionRates.of(draw_gallery(bundle, gallery)[1], set_then)
        assert rates is not None
        for share, is_tightened in ((0.2, False), (0.25, False), (0.5, True)):
            threshold = rates.drawn.at_share(share)
            assert rates.drawn.expected(threshold) > 0.2
            loose = replace(set_then, threshold=threshold)
            gallery.keep({POINT: pack_points(None, bundle, loose)}, "calibrate")
            measurement = measure_gallery(bundle, gallery, rule="tighten")
            assert measurement.before == loose
            assert (measurement.after != loose) == is_tightened == rates.broken(loose)
            assert measure_gallery(bundle, gallery, rule="keep").after == loose
        assert measurement.after.threshold < threshold
        assert rates.drawn.expected(measurement.after.threshold) <= 0.2 + 1e-9


def test_a_fitted_photo_under_another_item_id_makes_its_item_fitted(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", items=range(25))
    data = (photos / "item-03" / "0.png").read_bytes()
    files = {FITTED: Fitted.of(["elsewhere"], [content_hash(data, None)]).pack()}
    bundle = make_bundle(tmp_path, point=TARGET, files=files)
    index_catalogue(bundle, read_catalogue(photos), tmp_path / "g", progress=False)
    with Gallery.open(tmp_path / "g") as gallery:
        kept = read_draws(gallery)
        assert kept is not None
        assert kept.fitted == {"item-03"}


def test_a_photo_saved_again_under_another_item_leaves_the_draws(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    path = tmp_path / "again.jpg"
    draw(3, 0).resize((90, 90)).save(path, quality=60)
    with Gallery.open(tmp_path / "g") as gallery:
        before = draw_gallery(bundle, gallery)[1].sources[OWN]
        assert not before.is_copied.any()
        copy = Photo("copy", path, "second-id")
        write_batch(gallery, embed_batch(bundle.embedder(), [copy], {}))
        after = draw_gallery(bundle, gallery)[1].sources[OWN]
    assert "copy" in after.ids[after.is_copied]
    assert after.nearest_items[after.ids == "copy"] != "item-03"
    assert {"copy", *before.ids} == set(after.ids)


def test_a_bundle_that_does_not_say_what_it_was_fitted_on_sets_none(tmp_path: Path, fill: Fill) -> None:
    bundle = make_bundle(tmp_path, name="old")
    assert fill(bundle, tmp_path, range(30)).point is None
    with Gallery.open(tmp_path / "g") as gallery:
        assert len(draw_gallery(bundle, gallery)[1].sources.get(OWN, ())) == 0


def test_the_point_of_another_bundle_does_not_serve(tmp_path: Path, fill: Fill) -> None:
    first = bundle_of(tmp_path)
    other = bundle_of(tmp_path, "item-01", name="other")
    fill(first, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        content = gallery.kept(POINT)
        assert stored_point(content, other) is None
        assert served_point(content, other, gallery) == other.operating_point
        assert served_point(content, first, gallery) != first.operating_point
        assert served_point(None, first, gallery) == first.operating_point


def test_the_same_model_exported_again_finds_the_threshold_of_the_gallery(tmp_path: Path, fill: Fill) -> None:
    files = {FITTED: Fitted.of((), ()).pack()}
    first = make_bundle(tmp_path, point=TARGET, files=files, evidence={"seconds": 1})
    again = make_bundle(tmp_path, name="again", point=TARGET, files=files, evidence={"seconds": 2})
    report = fill(first, tmp_path, range(30))
    assert report.point is not None
    with Retriever.open(again.path, tmp_path / "g") as retriever:
        assert retriever.search(encode(draw(3, 9))).threshold == report.point.threshold
    photos = read_catalogue(tmp_path / "photos-0-30")
    assert index_catalogue(again, photos, tmp_path / "g", progress=False).point == report.point


def test_a_gallery_keeps_the_points_of_several_bundles(tmp_path: Path, fill: Fill) -> None:
    first, other = bundle_of(tmp_path), bundle_of(tmp_path, name="other", point=replace(TARGET, target_fpir=0.4))
    assert first.bundle_id != other.bundle_id
    assert first.draws_id == other.draws_id != bundle_of(tmp_path, "item-01", name="fitted").draws_id
    fill(first, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        before = stored_point(gallery.kept(POINT), first)
        measure_gallery(other, gallery, rule="set").write(gallery)
        assert stored_point(gallery.kept(POINT), first) == before
        assert stored_point(gallery.kept(POINT), other).target_fpir == 0.4  # type: ignore[union-attr]
        kept = read_points(gallery.kept(POINT))
        assert [(each.bundle_id, each.draws_id) for each in kept] == [
            (bundle.bundle_id, bundle.draws_id) for bundle in (first, other)
        ]
        for bundle in (first, other):
            point = served_point(gallery.kept(POINT), bundle, gallery)
            assert as_served(point, gallery, bundle.draws_id)[1] is not None


@pytest.mark.parametrize("changed", [0, 2], ids=["draws of its photos", "draws of before two photos were added"])
def test_a_restored_backup_answers_like_the_original(tmp_path: Path, fill: Fill, changed: int) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["item-00/1.png", "item-17/0.png"])
        remeasure(bundle, gallery)
        vectors = [photo.vector for photo in next(gallery.walk(changed))] if changed else []
        if changed:
            gallery.add([f"new {n}" for n in range(changed)], ["item-05"] * changed, vectors)
    run = partial(CliRunner().invoke, group, catch_exceptions=False)
    assert run(["gallery", "export", str(tmp_path / "g"), str(tmp_path / "backup")]).exit_code == 0
    told = run(["gallery", "import", str(tmp_path / "backup"), str(tmp_path / "copy")]).output
    assert told == f"Wrote {tmp_path / 'copy'}: {88 + changed} photos, with their threshold.\n"
    with Gallery.open(tmp_path / "g") as one, Gallery.open(tmp_path / "copy") as other:
        mine, theirs = (read_draws(each) for each in (one, other))
        assert mine is not None
        assert theirs is not None
        assert one.snapshot().changes_since(mine.mark) == other.snapshot().changes_since(theirs.mark) == changed
        for source, draws in mine.sources.items():
            copied = theirs.sources[source]
            assert all(np.array_equal(values, copied.arrays()[name]) for name, values in draws.arrays().items())
    photos = [encode(draw(item, 9)) for item in (3, 17, 29, 40)]
    with Retriever.open(bundle.path, tmp_path / "g") as one, Retriever.open(bundle.path, tmp_path / "copy") as other:
        first, second = ([each.search(photo) for photo in photos] for each in (one, other))
    assert [r.matches for r in first] == [r.matches for r in second]
    assert [r.decision for r in first] == [r.decision for r in second]
    assert (first[0].matches[0].p_value is None) == bool(changed)  # too many of 90 photos for the rates to hold
    again = run(["gallery", "import", str(tmp_path / "backup"), str(tmp_path / "copy")]).output
    assert "keeps its own threshold" in again


def test_index_after_another_export_of_the_same_model_keeps_a_threshold_that_keeps_its_promise(
    tmp_path: Path, fill: Fill
) -> None:
    first = bundle_of(tmp_path)
    before = fill(first, tmp_path, range(30)).point
    assert before is not None
    again = bundle_of(tmp_path, name="again", point=replace(TARGET, threshold=0.9))
    laxer = bundle_of(tmp_path, name="laxer", point=replace(TARGET, target_fpir=0.5))
    assert len({first.bundle_id, again.bundle_id, laxer.bundle_id}) == 3
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.keep({POINT: pack_points(None, first, replace(before, threshold=before.threshold / 2))}, "calibrate")
        assert measure_gallery(again, gallery, rule="tighten").point == replace(before, threshold=before.threshold / 2)
        assert measure_gallery(laxer, gallery, rule="tighten").point.threshold > before.threshold  # type: ignore[union-attr]
        gallery.keep({POINT: pack_points(None, first, replace(before, threshold=9.0))}, "calibrate")
        assert measure_gallery(again, gallery, rule="tighten").point.threshold == before.threshold  # type: ignore[union-attr]
    run = CliRunner().invoke(
        group, ["index", str(again.path), str(tmp_path / "photos-0-30"), "-o", str(tmp_path / "g")]
    )
    assert f"Threshold before: 9.0000, now: {before.threshold:.4f}." in run.output


def test_rates_after_a_rollback_to_another_bundle_are_of_the_current_gallery(tmp_path: Path, fill: Fill) -> None:
    first, laxer = bundle_of(tmp_path), bundle_of(tmp_path, name="laxer", point=replace(TARGET, target_fpir=0.5))
    before = fill(first, tmp_path, range(25)).point
    fill(laxer, tmp_path, range(25, 60))
    photos = read_catalogue(tmp_path / "photos-25-60")
    report = index_catalogue(first, photos, tmp_path / "g", progress=False)  # no photo changes
    assert threshold_of(report.point) == threshold_of(before)
    assert report.rates is not None
    assert report.point is not None
    expected = report.rates.expected(report.point.threshold)
    assert (report.point.basis.gallery_items, report.point.rates.fpir_expected) == (60, expected)


def test_index_that_keeps_a_threshold_prints_its_rate_in_the_current_gallery(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    run = partial(CliRunner().invoke, group, catch_exceptions=False)
    set_then = fill(bundle, tmp_path, range(30)).point
    now = write_folder(tmp_path / "now", items=range(30, 150))
    told = run(["index", str(bundle.path), str(now), "-o", str(tmp_path / "g")]).output
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert set_then is not None
        rates = as_served(set_then, gallery, bundle.draws_id)[1]
    assert rates is not None
    rate = f"{rates.expected(set_then.threshold):.1%}"
    assert rate != f"{set_then.rates.fpir_expected:.1%}"
    assert "(unchanged)" in told
    assert f"An unknown item now returns a match in {rate} of searches" in told
    assert "estimated from 30 items" not in told


def test_info_of_a_gallery_of_fewer_than_twenty_items_advises_labelled_queries(tmp_path: Path, fill: Fill) -> None:
    fill(bundle_of(tmp_path), tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.remove(item_ids=[f"item-{number:02d}" for number in range(12)])
    told = CliRunner().invoke(group, ["gallery", "info", str(tmp_path / "g")]).output
    assert "--queries LABELLED.csv`, with at least 20 labelled photos of unknown items, sets a threshold" in told


def test_a_certified_threshold_of_another_export_stays_certified_if_it_is_exactly_the_cap(
    tmp_path: Path, fill: Fill
) -> None:
    first, again = bundle_of(tmp_path), bundle_of(tmp_path, name="again", point=replace(TARGET, threshold=0.9))
    fill(first, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        measurement = measure_gallery(first, gallery, rule="set", certify=True)
        measurement.write(gallery)
        certified = measurement.after
        assert certified.status == "certified"
        assert measure_gallery(again, gallery, rule="tighten", cap=certified.threshold).after == certified
        cap = float(np.nextafter(certified.threshold, 0))
        less = measure_gallery(again, gallery, rule="tighten", cap=cap).after
        assert less.threshold < certified.threshold


def test_labelled_queries_are_measured_kept_and_used_again(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(40))
    table = tmp_path / "labelled.csv"
    (tmp_path / "queries").mkdir()
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "item_id"])
        for item in range(30):
            draw(item, 11).save(tmp_path / "queries" / f"{item}.png")
            writer.writerow([f"queries/{item}.png", f"item-{item:02d}"])
    with Gallery.open(tmp_path / "g") as gallery:
        measurement = measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(table))
        point = measurement.point
        assert point is not None
        assert (point.basis.sources, point.rates.tpir_of) == ({OWN: 40, LABELLED: 30}, "labelled queries")
        assert read_queries(gallery) is None
        measurement.write(gallery)
        assert len(read_queries(gallery).ids) == 30  # type: ignore[union-attr]
        again = measure_gallery(bundle, gallery, rule="set").point
        assert again is not None
        assert (again.threshold, again.basis.sources) == (point.threshold, point.basis.sources)
        rates = as_served(point, gallery, bundle.draws_id)[1]
        assert rates is not None
        assert rates.fpir(point.threshold) == point.rates.fpir


def test_labelled_photos_that_are_in_the_gallery_and_copies_are_left_out(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    queries = write_folder(tmp_path / "queries", items=range(30), photos=range(11, 12))
    own = next((tmp_path / "photos-0-30" / "item-03").iterdir())
    shutil.copy(own, queries / "item-03" / "copy.jpg")
    again = next((queries / "item-07").iterdir())
    shutil.copy(again, queries / "item-07" / "~again.jpg")
    with Gallery.open(tmp_path / "g") as gallery:
        measurement = measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(queries))
        assert measurement.refused == [
            ("item-03/copy.jpg", "the photo is in the gallery, so it would find itself"),
            ("item-07/~again.jpg", f"it is the same photo as item-07/{again.name}"),
        ]
        assert measurement.labelled is not None
        assert len(measurement.labelled.ids) == 30
        with pytest.raises(DataError, match=r"none of the labelled photos can be used.* it would find itself"):
            measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(tmp_path / "photos-0-30"))


def test_the_command_says_what_would_change_and_writes_it(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30), photos=range(1))  # nothing is mated, so the greatest threshold serves
    words = ["calibrate", str(bundle.path), str(tmp_path / "g"), "--target-fpir", "0.1"]
    with Gallery.open(tmp_path / "g") as gallery:
        version, before = gallery.version, stored_point(gallery.kept(POINT), bundle)
    dry = CliRunner().invoke(group, [*words, "--dry-run"], catch_exceptions=False)
    assert "Nothing was written" in dry.output
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.version == version
    done = CliRunner().invoke(group, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "The threshold goes down" in done.output
    with Gallery.open(tmp_path / "g") as gallery:
        after = stored_point(gallery.kept(POINT), bundle)
        assert [change.action for change in gallery.changes(1)] == ["calibrate"]
    assert before is not None
    assert after is not None
    assert after.threshold < before.threshold
    assert after.target_fpir == 0.1


def test_stored_searches_that_change_are_listed(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    queries = write_folder(tmp_path / "queries", items=range(30), photos=range(11, 12))
    with Gallery.open(tmp_path / "g") as gallery:
        measurement = measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(queries))
        with Retriever(bundle, gallery) as retriever:
            nearest = {photo.photo_id: retriever.search(photo.read()).nearest for photo in read_catalogue(queries)}
    old, new = (float(np.quantile([found.distance for found in nearest.values()], share)) for share in (0.7, 0.3))
    served, after = (replace(measurement.after, threshold=threshold) for threshold in (old, new))
    moved = Change(served, after, measurement.draws)
    expected = {
        f"{name} no longer finds {found.item_id}, at distance {found.distance:.4f}"
        for name, found in nearest.items()
        if new < found.distance <= old
    }
    assert len(expected) == 12
    ((kind, searched, lines),) = moved.answers()
    assert (kind, searched, set(lines)) == ("labelled queries", 30, expected)
    assert moved.lines()[-1] == "Answers that change: 12 of 30 labelled queries."
    almost = replace(moved, after=replace(after, threshold=old - 1e-7))
    assert almost.lines()[0] == f"The threshold stays at {old:.4f}."
    assert measurement.before is not None
    assert replace(measurement.change, after=measurement.before).answers()[0][2] == []


def test_a_change_between_a_search_and_its_rates_takes_nothing_from_the_answer(
    tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    read, changes = points.read_draws, iter(range(1000))
    photo, boxes = encode(draw(3, 9)), [(0, 0, 40, 40), (4, 4, 40, 40)]
    with Retriever.open(bundle.path, tmp_path / "g") as retriever, Gallery.open(tmp_path / "g") as writer:

        def changed(gallery: Gallery) -> AllDraws | None:
            if next(changes) % 3 == 0:  # another process changes no photo, but the version
                writer.declare({f"c{writer.version}": "text"})
            return read(gallery)

        asked = (lambda: [retriever.search(photo)], lambda: retriever.search_boxes(photo, boxes))
        before = [[(a.decision, a.matches, a.review) for a in ask()] for ask in asked]
        assert before[0][0][1][0].p_value is not None
        monkeypatch.setattr(points, "read_draws", changed)
        for ask, expected in zip(asked, before, strict=True):
            writer.declare({f"c{writer.version}": "text"})  # the first search of a version reads its rates
            assert [(a.decision, a.matches, a.review) for a in ask()] == expected


def test_a_damaged_point_is_found(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        gallery._database._connection.execute("UPDATE kept SET content = x'00' WHERE name = ?", (POINT,))
        assert any("operating point" in problem for problem in gallery.verify())


def test_a_removal_without_the_bundle_leaves_the_rates_unknown(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        with Gallery.open(tmp_path / "g") as gallery:
            gallery.remove(item_ids=["item-03"])
        assert retriever.gallery_point.rates() is None
    fill(bundle, tmp_path, range(30, 31))  # measures them again
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        assert retriever.gallery_point.rates() is not None


def test_draws_of_another_bundle_are_ignored(tmp_path: Path, fill: Fill) -> None:
    bundle, other = bundle_of(tmp_path), bundle_of(tmp_path, "item-01", name="other")
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        point = stored_point(gallery.kept(POINT), bundle)
        assert point is not None
        gallery.keep({Kept.DRAWS: pack_draws(draw_gallery(other, gallery)[1])}, "measure")
        assert as_served(point, gallery, bundle.draws_id)[1] is None


def test_damaged_draws_are_made_again(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        gallery._database._connection.execute("UPDATE kept SET content = 'x' WHERE name = ?", (Kept.DRAWS,))
        assert read_draws(gallery) is None
        assert gallery.verify() != []
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        assert retriever.search(encode(draw(3, 9))).matches[0].p_value is None
    with Gallery.open(tmp_path / "g") as gallery:
        measure_gallery(bundle, gallery, rule="set").write(gallery)
        assert gallery.verify() == []


def test_labelled_photos_of_items_that_are_not_there_are_refused(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    strangers = write_folder(tmp_path / "strangers", items=range(50, 60), photos=range(1))
    with (
        Gallery.open(tmp_path / "g") as gallery,
        pytest.raises(DataError, match=r"not have, of 10 in all: 'item-50' \(1 photo; near 'item-\d\d'\), 'item-51'"),
    ):
        measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(strangers))


def test_labelled_queries_of_fitted_items_set_no_threshold(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path, *(f"item-{i:02d}" for i in range(30)))
    fill(bundle, tmp_path, range(30))
    queries = write_folder(tmp_path / "queries", items=range(30), photos=range(5, 6))
    with Gallery.open(tmp_path / "g") as gallery:
        anchored = measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(queries))
        assert anchored.point is None
        assert "0 items" in anchored.measured.why


def test_gallery_info_shows_what_the_threshold_does_now(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    words = ["gallery", "info", str(tmp_path / "g")]
    fill(bundle, tmp_path, range(15))
    assert "Threshold" not in CliRunner().invoke(group, words, catch_exceptions=False).output
    point = fill(bundle, tmp_path, range(15, 30)).point
    assert point is not None
    told = CliRunner().invoke(group, words, catch_exceptions=False).output
    assert f"Threshold {point.threshold:.4f}" in told
    assert f"{point.rates.fpir_expected:.1%} of searches (at most {point.rates.fpir_upper:.1%}" in told
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.remove(item_ids=["item-03"])
    assert "was not measured" in CliRunner().invoke(group, words, catch_exceptions=False).output


def test_points_of_two_bundles_are_kept(tmp_path: Path) -> None:
    bundles = [bundle_of(tmp_path, name=f"b{i}", point=replace(TARGET, threshold=i / 10)) for i in range(3)]
    content = None
    for bundle in bundles:
        content = pack_points(content, bundle, TARGET)
    assert [stored_point(content, bundle) is None for bundle in bundles] == [True, False, False]
    for bundle in bundles[1:]:
        content = pack_points(content, bundle, None)
    assert content is None
    with pytest.raises(GalleryCorrupt, match="cannot be read"):
        stored_point(b"{}", bundles[0])


def test_added_photos_that_keep_the_promise_leave_the_threshold(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    before = fill(bundle, tmp_path, range(30))
    report = fill(bundle, tmp_path, range(30, 32))
    assert threshold_of(report.point) == threshold_of(before.point)
    assert not report.sets_threshold
    assert report.rates is not None
    with Gallery.open(tmp_path / "g") as gallery:
        assert [change.action for change in gallery.changes(3)] == ["measure the threshold", "keep second looks", "add"]
        new = measure_gallery(bundle, gallery, rule="set").after  # another threshold of these draws tells of rates
        assert report.point is not None
        assert report.point.basis.gallery_items == new.basis.gallery_items == 32
        assert report.point.rates.queries == new.rates.queries == 3 * 32
        assert report.point.rates.fpir == report.rates.fpir(report.point.threshold)
        kept = measure_gallery(bundle, gallery, rule="tighten")
        assert (kept.summary(), kept.is_new) == ("", False)
        gallery.remove(photo_ids=[photo_id for photo_id, _, _ in gallery.photos()][:1])
        assert measure_gallery(bundle, gallery, rule="tighten").is_new


def test_index_reports_a_broken_promise_and_measuring_tightens_but_never_loosens(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    first = fill(bundle, tmp_path, range(24), photos=range(1)).point  # the greatest threshold serves
    report = fill(bundle, tmp_path, range(24, 90), photos=range(1))
    assert first is not None
    assert threshold_of(report.point) == threshold_of(first)
    assert report.rates is not None
    assert report.rates.broken(first)
    assert "sets a new threshold" in warning_of(first, report.rates)
    with Gallery.open(tmp_path / "g") as gallery:
        version = gallery.version
        found = remeasure(bundle, gallery)
        assert not found.is_new  # the draws are those of `index`
        assert gallery.version == version + 1
        assert gallery.changes(1)[0].action == "tighten the threshold"
        tight = found.after
        assert tight is not None
        assert tight.threshold < first.threshold
        assert f"from {first.threshold:.4f} to {tight.threshold:.4f}" in found.summary()
        assert found.measured.rates is not None
        assert not found.measured.rates.broken(tight)
        assert tight.basis.gallery_version == version - 1
        gallery.remove(item_ids=[f"item-{i:02d}" for i in range(30, 90)])
        version = gallery.version
        again = remeasure(bundle, gallery)
        assert threshold_of(again.after) == threshold_of(again.before) == threshold_of(tight)
        assert gallery.version == version + 1
        assert not remeasure(bundle, gallery).is_new
        assert gallery.version == version + 1


def test_a_certified_threshold_is_tightened_even_if_too_few_items_are_left_to_certify_one(
    tmp_path: Path, fill: Fill
) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        certified = Point(1.9, "certified", 0.05, GALLERY)
        gallery.keep({POINT: pack_points(None, bundle, certified)}, "calibrate")
        gallery.remove(item_ids=["item-00"])
        point = remeasure(bundle, gallery).after
        assert point is not None
        assert point == stored_point(gallery.kept(POINT), bundle)
        assert point.threshold < 1.9
        assert point.status == "estimated"  # 29 items cannot certify 5 %
        assert point.target_fpir == 0.05
        rates = as_served(point, gallery, bundle.draws_id)[1]
        assert rates is not None
        assert point.rates.fpir_expected <= max(0.05, rates.drawn.smallest_target) + 1e-9
        assert remeasure(bundle, gallery).after == point  # nothing stricter is supported


def test_a_gallery_that_shrinks_below_the_least_number_of_items_only_ranks_until_it_has_grown_again(
    tmp_path: Path,
    fill: Fill,
) -> None:
    bundle = bundle_of(tmp_path)
    point = fill(bundle, tmp_path, range(30)).point
    assert point is not None
    photo, stranger = encode(draw(3, 9)), encode(draw(77, 1))
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        assert retriever.search(photo).decision == "match"
        with Gallery.open(tmp_path / "g") as gallery:
            gallery.remove(item_ids=[f"item-{i:02d}" for i in range(5, 30)])
            for measured in (False, True):  # draws of before, and of the five items
                assert {retriever.search(each).decision for each in (photo, stranger)} == {"ranked"}
                assert "fewer than 20 items can show" in retriever.gallery_point.warning()
                assert not retriever.gallery_point.unmeasured
                if not measured:
                    assert remeasure(bundle, gallery).summary() == ""
        photos = read_catalogue(tmp_path / "photos-0-30")
        index_catalogue(bundle, photos, tmp_path / "g", progress=False)
        assert retriever.search(photo).decision == "match"
        assert threshold_of(retriever.point) == threshold_of(point)
        assert retriever.point.rates.tpir == point.rates.tpir


def test_a_gallery_of_one_group_ranks_before_it_is_measured_again(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(45)))
    ungrouped = {f"item-{i:02d}" for i in range(22)}
    rows = [replace(photo, group="" if photo.item_id in ungrouped else "all") for photo in photos]
    index_catalogue(bundle, rows, tmp_path / "g", progress=False)
    with Retriever.open(bundle.path, tmp_path / "g") as retriever, Gallery.open(tmp_path / "g") as gallery:
        assert retriever.search(encode(draw(9, 9))).decision != "ranked"
        assert retriever.point.basis.items_drawn == 23
        gallery.remove(item_ids=sorted(ungrouped)[:20])
        assert gallery.items == 25
        assert retriever.search(encode(draw(77, 1))).decision == "ranked"


def test_nothing_is_certified_in_a_gallery_that_has_changed_since(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Retriever.open(bundle.path, tmp_path / "g") as retriever, Gallery.open(tmp_path / "g") as gallery:
        certified = replace(measure_gallery(bundle, gallery, rule="set").after, status="certified")
        gallery.keep({POINT: pack_points(None, bundle, certified)}, "calibrate")
        statuses = [retriever.search(encode(draw(3, 9))).threshold_status]
        gallery.remove(item_ids=["item-00"])
        statuses.append(retriever.search(encode(draw(3, 9))).threshold_status)
    assert statuses == ["certified", "estimated"]


def test_a_gallery_whose_items_all_get_one_group_only_ranks(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    photos = read_catalogue(tmp_path / "photos-0-30")
    one_group = [replace(photo, group="all") for photo in photos]
    report = index_catalogue(bundle, one_group, tmp_path / "g", progress=False)
    assert report.rates is None
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        assert retriever.search(encode(draw(77, 1))).decision == "ranked"
        assert retriever.search(encode(draw(3, 9))).threshold is None


def test_a_point_that_was_set_while_the_gallery_was_measured_is_left_alone(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        loose = Point(1.9, "estimated", 0.05, GALLERY)
        gallery.keep({POINT: pack_points(None, bundle, loose)}, "calibrate")
        found = measure_gallery(bundle, gallery, rule="tighten")
        assert found.after != found.before
        asked = pack_points(None, bundle, replace(loose, threshold=0.01))
        gallery.keep({POINT: asked}, "calibrate")
        found.write(gallery)
        assert gallery.kept(POINT) == asked


def test_a_gallery_that_grows_large_enough_gets_a_threshold_below_the_cap(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    assert fill(bundle, tmp_path, range(15), photos=range(1)).point is None
    photos = read_catalogue(write_folder(tmp_path / "more", items=range(15, 24), photos=range(1)))
    with Gallery.open(tmp_path / "g") as gallery:
        write_batch(gallery, embed_batch(bundle.embedder(), photos, {}))
        free = measure_gallery(bundle, gallery, rule="tighten")
        assert free.before is None
        assert free.after.threshold > 0.05
        found = measure_gallery(bundle, gallery, rule="tighten", cap=0.05)
        found.write(gallery)
        capped = found.after
        assert capped.threshold == 0.05
        assert stored_point(gallery.kept(POINT), bundle) == capped


def test_the_changed_share_counts_photos_since_the_draws(tmp_path: Path, fill: Fill) -> None:
    bundle, other = bundle_of(tmp_path), bundle_of(tmp_path, "item-01", name="other")
    fill(bundle, tmp_path, range(30))
    with Gallery.open(tmp_path / "g") as gallery:
        assert changed_share(bundle, gallery) == 0
        gallery.remove(photo_ids=["item-03/0.png"])
        assert changed_share(bundle, gallery) == pytest.approx(1 / 90)
        assert changed_share(other, gallery) == 0
        gallery.keep({Kept.DRAWS: None}, "forget")
        assert changed_share(bundle, gallery) == 1


def test_all_of_a_gallery_has_changed_once_its_only_photo_is_removed(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(1), photos=range(1))
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.keep({Kept.DRAWS: pack_draws(draw_gallery(bundle, gallery)[1])}, "measure")
        assert changed_share(bundle, gallery) == 0
        gallery.remove(item_ids=["item-00"])
        assert changed_share(bundle, gallery) == 1


def test_rates_hold_for_a_small_change_and_are_unknown_after_a_larger_one(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    fill(bundle, tmp_path, range(40))
    with Retriever.open(bundle.path, tmp_path / "g") as retriever:
        before = retriever.gallery_point.rates()
        assert before is not None
        with Gallery.open(tmp_path / "g") as gallery:
            gallery.add(["new"], ["new"], np.eye(48, dtype=np.float32)[:1])  # 1 of 120 photos
        assert retriever.gallery_point.rates() is not None
        assert retriever.search(encode(draw(3, 9))).matches[0].p_value is not None
        with Gallery.open(tmp_path / "g") as gallery:
            gallery.add(["newer"], ["new"], np.eye(48, dtype=np.float32)[1:2])
        assert retriever.gallery_point.rates() is None
        answer = retriever.search(encode(draw(3, 9)))
        assert (answer.threshold_status, answer.matches[0].p_value) == ("estimated", None)
        with Gallery.open(tmp_path / "g") as gallery:
            remeasure(bundle, gallery)
        assert retriever.gallery_point.rates() is not None


def test_a_promise_is_broken_if_one_source_of_draws_breaks_it(tmp_path: Path, fill: Fill) -> None:
    bundle = bundle_of(tmp_path)
    point = fill(bundle, tmp_path, range(30)).point
    assert point is not None
    with Gallery.open(tmp_path / "g") as gallery:
        draws = draw_gallery(bundle, gallery)[1]
    own = draws.sources[OWN]
    near = replace(own, distances=np.zeros_like(own.distances))
    for sources, kept in (({OWN: own}, True), ({OWN: own, PROBE: near}, False)):
        rates = VersionRates.of(replace(draws, sources=sources), point)
        assert rates is not None
        assert rates.broken(point) != kept
