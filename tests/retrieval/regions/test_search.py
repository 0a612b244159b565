"""Search for the items in the regions of a photo, and the threshold that a gallery keeps for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from index.contents import POINT
from index.gallery import Gallery
from index.kept_draws import KeptDraws
from index.verified import VerifiedDistance
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import stored_points, stored_regions
from retrieval.catalogue.photos import QUERIES
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import CalibrationError, DataError, InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.regions.boxes import cropped
from retrieval.regions.detector import Detector
from retrieval.regions.windows import AutoRegions
from retrieval.retriever import Retriever
from retrieval.threshold.gallery_anchor import GalleryAnchor
from retrieval.threshold.gallery_calibration import propose
from retrieval.threshold.region_photos import embed_region_photos
from retrieval.threshold.regions import propose_regions

from ...world import encode, make_bundle, write_folder
from .scenes import box_of, scene, write_detector, write_scenes

ITEMS = 30
SCENES = [[item, (7 * item + 1) % ITEMS, (11 * item + 3) % ITEMS] for item in range(ITEMS)]
F = np.float32


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a `bundle`, a `gallery` of 30 items, and `scenes` of three items each."""
    folder = tmp_path_factory.mktemp("shop")
    point = OperatingPoint(0.5, "estimated", 0.2, {"fpir": 0.05})
    bundle = make_bundle(folder, point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = read_catalogue(write_folder(folder / "photos", items=range(ITEMS), photos=range(2)))
    index_catalogue(bundle, photos, folder / "gallery", progress=False)
    write_scenes(folder / "scenes", SCENES)
    return folder


@pytest.fixture(scope="module")
def anchored(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shop with a gallery that has a threshold for regions."""
    folder = tmp_path_factory.mktemp("anchored") / "shop"
    shutil.copytree(shop, folder)
    with Gallery.open(folder / "gallery") as gallery:
        photos = read_catalogue(folder / "scenes" / "scenes.csv", labels=QUERIES)
        propose_regions(Bundle.open(folder / "bundle"), gallery, AutoRegions(), photos=photos).write(gallery)
    return folder


@pytest.fixture
def copied(anchored: Path, tmp_path: Path) -> Path:
    """Return a copy of the anchored shop to change."""
    return Path(shutil.copytree(anchored, tmp_path / "shop"))


@pytest.fixture
def retriever(anchored: Path) -> Iterator[Retriever]:
    with Retriever.open(anchored / "bundle", anchored / "gallery") as opened:
        yield opened


def test_a_part_of_a_photo_is_searched_like_the_cropped_photo(retriever: Retriever) -> None:
    photo = scene(3, 8)
    whole, part = encode(photo, "PNG"), encode(cropped(photo, box_of(1)), "PNG")
    found = retriever.search(whole, bbox=box_of(1))
    assert found == retriever.search(part)
    assert found.matches[0].item_id == "item-08"
    assert retriever.search_batch([whole, whole], bboxes=[None, box_of(1)])[1] == found
    with pytest.raises(InvalidParameter, match="bboxes must have one entry"):
        retriever.search_batch([whole, whole], bboxes=[None])
    with pytest.raises(InvalidParameter, match="100×100 pixels"):
        retriever.search(whole, bbox=(0, 0, 101, 100))


def test_boxes_are_those_of_the_upright_photo(retriever: Retriever) -> None:
    turned = scene(3, 8).transpose(Image.Transpose.ROTATE_90)
    exif = turned.getexif()
    exif[0x0112] = 6  # turn it clockwise
    turned.save(path := Path(str(retriever.bundle.path) + "-turned.png"), exif=exif)
    found = retriever.search_regions(path)
    assert {match.item_id: match.bbox for match in found.matches} == {"item-03": box_of(0), "item-08": box_of(1)}
    assert retriever.search(path, bbox=box_of(1)).matches[0].item_id == "item-08"


def test_windows_find_every_item_with_its_box(retriever: Retriever) -> None:
    result = retriever.search_regions(encode(scene(3, 8, 12, 20), "PNG"))
    assert {match.item_id: match.bbox for match in result.matches} == {
        f"item-{item:02d}": box_of(place) for place, item in enumerate((3, 8, 12, 20))
    }
    distances = [match.distance for match in result.matches]
    assert distances == sorted(distances)
    assert (result.decision, result.reason, result.nearest) == ("match", "", result.matches[0])
    assert (result.regions, result.searched, result.width, result.height) == ("auto", 26, 100, 100)
    assert (result.threshold_status, result.fpir_per) == ("estimated", "photo")
    assert len(retriever.search_regions(encode(scene(3, 8, 12, 20), "PNG"), top_k=2).matches) == 2


def test_each_window_is_seen_like_a_photo_of_its_own(retriever: Retriever) -> None:
    """The distance of a window equals that of a photo of the window, to the last digit."""
    photo = scene(3, 8)
    match = retriever.search_regions(photo).matches[0]
    alone = retriever.search(cropped(photo, match.bbox))
    assert alone.nearest is not None
    assert (alone.nearest.item_id, alone.nearest.distance) == (match.item_id, match.distance)


def test_a_photo_of_unknown_things_has_an_honest_no_match(retriever: Retriever) -> None:
    result = retriever.search_regions(scene(77, 81))
    assert (result.decision, result.reason, result.matches) == ("no_match", "beyond_threshold", ())
    assert result.nearest is not None
    assert result.nearest.p_value is not None
    assert result.threshold is not None
    assert result.nearest.distance > result.threshold
    blank = retriever.search_regions(Image.new("RGB", (60, 40), "gray"))
    assert blank.decision == "no_match"


def test_without_a_threshold_of_its_own_the_answer_says_so(shop: Path) -> None:
    with Retriever.open(shop / "bundle", shop / "gallery") as retriever:
        result = retriever.search_regions(scene(3, 8))
        assert result.threshold_status == "unanchored"
        assert result.threshold == retriever.point.threshold
        assert [match.p_value for match in result.matches] == [None] * len(result.matches)
        assert retriever.region_points == {}


def test_a_policy_of_its_own_is_unanchored(retriever: Retriever) -> None:
    assert retriever.search_regions(scene(3), AutoRegions()).threshold_status == "estimated"
    other = retriever.search_regions(scene(3), AutoRegions(scales=(1, 0.4)))
    assert (other.threshold_status, other.searched) == ("unanchored", 17)


def test_the_threshold_keeps_the_share_of_photos_of_unknown_items(anchored: Path) -> None:
    """A draw leaves out all items of its photo, so the measured FPIR is that of searches for unknown items."""
    bundle = Bundle.open(anchored / "bundle")
    with Gallery.open(anchored / "gallery", read_only=True) as gallery:
        region = stored_regions(gallery.kept(POINT), bundle)["auto"]
        ids, _, vectors = gallery.contents()
    items = np.array([int(name[5:7]) for name in ids])
    embedder, nearest = bundle.embedder(), []
    for shown in SCENES:
        photo = scene(*shown)
        windows = embedder.embed([cropped(photo, r.bbox) for r in AutoRegions().find(photo)]).vectors
        rest = vectors[~np.isin(items, shown)]
        nearest.append(np.sqrt(np.maximum(2 - 2 * (windows.astype(float) @ rest.T), 0)).min())
    with Retriever.open(anchored / "bundle", anchored / "gallery") as retriever:
        rates = retriever.region_rates("auto")
    assert rates is not None
    assert rates.sources["labelled"].distances == pytest.approx(sorted(nearest), abs=1e-6)
    assert region.point.evidence["fpir"] == np.mean(np.array(nearest) <= region.point.threshold) <= 0.2
    assert region.point.evidence["photos"] == ITEMS
    unknown = [[100 + number, 140 + number, 180 + number] for number in range(40)]
    with Retriever.open(anchored / "bundle", anchored / "gallery") as retriever:
        assert np.mean([bool(retriever.search_regions(scene(*items)).matches) for items in unknown]) <= 0.3


def test_the_whole_photos_threshold_would_break_the_promise(anchored: Path) -> None:
    with Retriever.open(anchored / "bundle", anchored / "gallery") as retriever:
        rates = retriever.region_rates("auto")
        assert rates is not None
        region = retriever.region_points["auto"].point
        assert region.threshold < retriever.point.threshold
        assert rates.fpir(retriever.point.threshold) > 2 * rates.fpir(region.threshold)


def test_given_boxes_are_searched_one_by_one(retriever: Retriever) -> None:
    photo = scene(3, 8, 8)
    result = retriever.search_regions(photo, [box_of(0), box_of(1), box_of(2), (41, 41, 59, 59)])
    assert [(match.item_id, match.bbox) for match in result.matches if match.item_id == "item-08"] == [
        ("item-08", box_of(1)),
        ("item-08", box_of(2)),
    ]
    assert (result.regions, result.fpir_per, result.searched) == ("given", "bbox", 4)
    assert (result.threshold, result.threshold_status) == (retriever.point.threshold, "estimated")
    single = retriever.search(photo, bbox=box_of(0))
    assert single.matches[0].distance == next(m.distance for m in result.matches if m.bbox == box_of(0))
    assert single.matches[0].p_value == next(m.p_value for m in result.matches if m.bbox == box_of(0))


def test_searches_that_make_no_sense_are_refused(retriever: Retriever) -> None:
    for regions in ("windows", [], [(0, 0, 4, 4)], [(0, 0, 500, 500)], [(0, 0, 50, 50)] * 65, 3):
        with pytest.raises(InvalidParameter, match=r"regions|bbox"):
            retriever.search_regions(scene(3), regions)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="without a detector"):
        retriever.search_regions(scene(3), "detector")
    with pytest.raises(InvalidParameter, match="top_k"):
        retriever.search_regions(scene(3), top_k=0)


def test_a_detector_finds_the_regions(copied: Path, tmp_path: Path) -> None:
    boxes = F([box_of(0), box_of(1)])
    path = write_detector(tmp_path / "two.onnx", boxes, F([0.9, 0.6]))
    with Retriever.open(copied / "bundle", copied / "gallery", detector=path) as retriever:
        result = retriever.search_regions(scene(3, 8, 12), "detector")
        found = {match.item_id: (match.bbox, round(match.score or 0, 4)) for match in result.matches}
        assert found == {"item-03": (box_of(0), 0.9), "item-08": (box_of(1), 0.6)}
        assert (result.threshold_status, result.searched, result.regions) == ("unanchored", 2, "detector")
    table = str(copied / "scenes" / "scenes.csv")
    options = ["--regions", "detector", "--detector", str(path), "--min-score", "0.5", "--queries", table]
    done = CliRunner().invoke(group, ["calibrate", str(copied / "bundle"), str(copied / "gallery"), *options])
    assert done.exit_code == 0, done.output
    with Retriever.open(copied / "bundle", copied / "gallery", detector=path) as retriever:
        result = retriever.search_regions(scene(3, 8, 12), "detector")
        assert result.threshold_status == "estimated"
        assert {"auto", "detector"} == set(retriever.region_points)
        retriever.detector = Detector(write_detector(tmp_path / "other.onnx", boxes[:1], F([0.9])))
        assert retriever.search_regions(scene(3), "detector").threshold_status == "unanchored"
        retriever.detector = Detector(write_detector(tmp_path / "none.onnx", np.zeros((0, 4), F), np.zeros(0, F)))
        nothing = retriever.search_regions(scene(3), "detector")
        assert (nothing.decision, nothing.reason, nothing.searched) == ("no_match", "no_region", 0)


def test_bundles_that_verify_matches_take_given_boxes_only(retriever: Retriever) -> None:
    form, _ = retriever.bundle.distance_form, retriever.bundle.draws_id  # which is cached
    retriever.bundle.distance_form = VerifiedDistance(retriever.bundle.base_form, None)  # type: ignore[arg-type]
    try:
        with pytest.raises(InvalidParameter, match="be bounding boxes with a bundle that verifies"):
            retriever.search_regions(scene(3))
        with pytest.raises(InvalidParameter, match="be bounding boxes"):
            propose_regions(retriever.bundle, retriever.gallery, AutoRegions())
        assert retriever.search_regions(scene(3), [box_of(0)]).matches[0].item_id == "item-03"
    finally:
        retriever.bundle.distance_form = form


Change = Callable[[Gallery], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda gallery: gallery.remove(item_ids=["item-07", "item-20"]),
        lambda gallery: gallery.add(["new"], ["new"], gallery.contents()[2][[5]] * F(-1)),
    ],
)
def test_a_change_of_photos_updates_the_draws(copied: Path, change: Change) -> None:
    bundle = Bundle.open(copied / "bundle")
    with Gallery.open(copied / "gallery") as gallery:
        anchor = GalleryAnchor(bundle)
        assert anchor.follow(gallery)
        change(gallery)
        kept = KeptDraws.read(gallery, regions="auto")
        assert kept is not None
        assert kept.covers(gallery)
        again = propose_regions(bundle, gallery, AutoRegions())
        fresh = read_catalogue(copied / "scenes" / "scenes.csv", labels=QUERIES)
        if "new" in gallery.item_ids(limit=100):
            made = propose_regions(bundle, gallery, AutoRegions(), photos=fresh)
            for name in ("distances", "nearest", "own", "own_nearest"):
                expected = getattr(made.draws.sources["labelled"], name)
                assert np.array_equal(getattr(again.draws.sources["labelled"], name), expected)
                assert np.array_equal(getattr(kept.sources["labelled"], name), expected)
    with Retriever.open(copied / "bundle", copied / "gallery") as retriever:
        assert retriever.search_regions(scene(3)).matches[0].p_value is not None


def test_tightening_lowers_a_threshold_that_misses_its_target(copied: Path) -> None:
    bundle = Bundle.open(copied / "bundle")
    with Gallery.open(copied / "gallery") as gallery:
        before = stored_regions(gallery.kept(POINT), bundle)["auto"].point
        GalleryAnchor(bundle, tighten=True).follow(gallery)
        windows = [cropped(scene(*items, number=12), box_of(2)) for items in SCENES[:12]]
        vectors = bundle.embedder().embed(windows).vectors
        names = [f"near-{number}" for number in range(len(vectors))]
        gallery.add(names, names, vectors)  # strangers that look like parts of the photos
        after = stored_regions(gallery.kept(POINT), bundle)["auto"].point
        assert after.threshold < before.threshold


def test_whole_photos_are_calibrated_without_losing_the_regions(copied: Path) -> None:
    bundle = Bundle.open(copied / "bundle")
    with Gallery.open(copied / "gallery") as gallery:
        before = stored_regions(gallery.kept(POINT), bundle)
        propose(bundle, gallery, target_fpir=0.1).write(gallery)
        assert stored_regions(gallery.kept(POINT), bundle) == before
        assert stored_points(gallery.kept(POINT), bundle)[1].target_fpir == 0.1
        again = propose_regions(bundle, gallery, AutoRegions())  # with the photos that the gallery keeps
        assert again.after.target_fpir == 0.1
        assert again.after.threshold <= before["auto"].point.threshold
        with pytest.raises(InvalidParameter, match="keeps no photos for these regions"):
            propose_regions(bundle, gallery, AutoRegions(scales=(1.0,)))


def test_photos_of_unknown_items_and_of_the_catalogue_set_a_threshold(copied: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(copied / "bundle")
    unknown = write_scenes(tmp_path / "unknown", [[100 + n, 140 + n] for n in range(25)], known=range(ITEMS))
    with Gallery.open(copied / "gallery") as gallery:
        of_unknown = propose_regions(bundle, gallery, AutoRegions(), photos=read_catalogue(unknown, labels=QUERIES))
        assert list(of_unknown.draws.sources) == ["unknown"]
        assert of_unknown.after.evidence["tpir"] is None
        own = propose_regions(bundle, gallery, AutoRegions(), photos=read_catalogue(copied / "photos"))
        assert len(own.photos.indexed) == 2 * ITEMS
        assert own.after.evidence["tpir"] is None  # a photo of the gallery would find itself
        strangers = read_catalogue(write_scenes(tmp_path / "strangers", [[200, 201], [202, 3]]), labels=QUERIES)
        with pytest.raises(DataError, match="items of the photos are not in the gallery"):
            propose_regions(bundle, gallery, AutoRegions(), photos=strangers)


def test_photos_beyond_the_limit_are_refused(anchored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(anchored / "bundle")
    monkeypatch.setattr("retrieval.threshold.region_photos.MOST_BYTES", 10 * 32 * 4 * bundle.dim)
    photos = read_catalogue(anchored / "scenes" / "scenes.csv", labels=QUERIES)
    kept, refused = embed_region_photos(bundle, photos, AutoRegions(), ())
    assert len(kept.probes.ids) == ITEMS - len(refused) == 12  # of 26 regions each
    assert "about 320 regions" in refused[0][1]


def test_galleries_without_a_threshold_of_whole_photos_are_refused(shop: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(shop / "bundle")
    few = read_catalogue(write_folder(tmp_path / "few", items=range(4), photos=range(1)))
    index_catalogue(bundle, few, tmp_path / "g", progress=False)
    expected = pytest.raises(CalibrationError, match="no threshold of its own for whole photos")
    with Gallery.open(tmp_path / "g") as gallery, expected:
        propose_regions(bundle, gallery, AutoRegions())


def test_the_commands_calibrate_and_search(copied: Path, tmp_path: Path) -> None:
    places = [str(copied / "bundle"), str(copied / "gallery")]
    photo = tmp_path / "photo.png"
    scene(3, 8).save(photo)

    def run(*words: str) -> str:
        done = CliRunner().invoke(group, [words[0], *places, *words[1:]], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    found = json.loads(run("search", str(photo), "--regions", "auto", "--json"))
    assert {match["item_id"] for match in found["matches"]} == {"item-03", "item-08"}
    assert found["threshold_status"] == "estimated"
    assert "item-08  at 60 0 100 40" in run("search", str(photo), "--regions", "auto")
    narrow = run("search", str(photo), "--regions", "auto", "--scale", "0.4", "--scale", "1")
    assert "Note: the threshold was set for whole photos" in narrow
    assert "--regions auto --queries PHOTOS`" in narrow
    part = json.loads(run("search", str(photo), "--bbox", "60 0 100 40", "--json"))
    assert (part["matches"][0]["item_id"], part["photos"]) == ("item-08", 1)
    both = json.loads(run("search", str(photo), "--bbox", "60 0 100 40", "--bbox", "0,0,40,40", "--json"))
    assert {match["item_id"] for match in both["matches"]} == {"item-03", "item-08"}
    table = str(copied / "scenes" / "scenes.csv")
    dry = run("calibrate", "--regions", "auto", "--queries", table, "--max-windows", "20", "--dry-run")
    assert "A photo of unknown items returns a match in about" in dry
    assert "Nothing was written" in dry
    told = json.loads(run("calibrate", "--regions", "auto", "--target-fpir", "0.1", "--json"))
    assert told["after"]["target_fpir"] == 0.1
    assert "regions (auto)" in CliRunner().invoke(group, ["gallery", "info", places[1]]).output


@pytest.mark.parametrize(
    "words",
    [
        ["search", "--scale", "0.5"],
        ["search", "--regions", "auto", "--bbox", "0 0 40 40"],
        ["search", "--regions", "detector"],
        ["search", "--regions", "auto", "--combine"],
        ["search", "--regions", "auto", "--explain"],
        ["search", "--bbox", "0 0 40"],
        ["calibrate", "--max-windows", "20"],
        ["calibrate", "--regions", "auto", "--photos-per-query", "2"],
        ["calibrate", "--regions", "auto", "--scale", "0.5"],
    ],
    ids=" ".join,
)
def test_options_that_do_not_go_together_are_refused(anchored: Path, words: list[str]) -> None:
    photos = [str(anchored / "scenes" / "0.png")] if words[0] == "search" else []
    places = [str(anchored / "bundle"), str(anchored / "gallery"), *photos]
    done = CliRunner().invoke(group, [words[0], *places, *words[1:]])
    assert isinstance(done.exception, InvalidParameter), done.output
