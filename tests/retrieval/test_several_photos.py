"""Queries of several photos of the same item: their answer, the threshold that serves, and how a gallery keeps it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from index.contents import POINT
from index.distance import plain_distance
from index.gallery import Gallery
from index.kept_draws import KeptDraws, draws_name
from index.photo_groups import mean_vectors
from retrieval.bundle.bundle import FITTED, Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import pack_points, stored_points
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import ImageRefused, InvalidParameter
from retrieval.indexing.pipeline import index_catalogue
from retrieval.retriever import Retriever
from retrieval.threshold.drawn_distances import GalleryRates
from retrieval.threshold.gallery_anchor import GalleryAnchor
from retrieval.threshold.gallery_calibration import propose

from ..world import draw, encode, make_bundle, write_folder

TARGET = OperatingPoint(0.5, "estimated", 0.2, {"fpir": 0.05})


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("bundle"), point=TARGET, files={FITTED: Fitted.of([], []).pack()})


@pytest.fixture(scope="module")
def built(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a gallery of 30 items with four photos each."""
    folder = tmp_path_factory.mktemp("built")
    place = write_folder(folder / "photos", items=range(30), photos=range(4))
    index_catalogue(bundle, read_catalogue(place), folder / "g", progress=False)
    return folder / "g"


@pytest.fixture
def shop(built: Path, tmp_path: Path) -> Path:
    """Return a copy of the gallery, which a test may change."""
    return shutil.copytree(built, tmp_path / "g")


def photos_of(item: int, *numbers: int) -> list[bytes]:
    return [encode(draw(item, number), "PNG") for number in numbers]


def calibrate(bundle: Bundle, gallery: Path, *counts: int) -> dict[int, OperatingPoint]:
    """Set the thresholds of some numbers of photos per query, and return all that the gallery keeps."""
    with Gallery.open(gallery) as opened:
        propose(bundle, opened, photos_per_query=counts or None).write(opened)
        return stored_points(opened.kept(POINT), bundle)


def test_the_query_is_the_mean_of_the_vectors(bundle: Bundle, shop: Path) -> None:
    images = photos_of(3, 8, 9, 10)
    with Retriever.open(bundle.path, shop) as retriever:
        vectors = retriever.embedder.embed(images).vectors
        (expected,) = retriever.gallery.search(mean_vectors(vectors[None]), 3)
        result = retriever.search_photos(images, top_k=3)
        assert result.nearest is not None
        assert (result.nearest.item_id, result.nearest.distance) == (expected[0].item_id, expected[0].distance)
        assert result.matches[0].item_id == "item-03"
        assert retriever.search_photos(images[::-1], top_k=3) == result  # in any order
        assert result.certainty == pytest.approx(retriever.embedder.embed(images).certainties.mean())


def test_without_a_threshold_of_its_own_the_answer_says_so(bundle: Bundle, shop: Path) -> None:
    with Retriever.open(bundle.path, shop) as retriever:
        single = retriever.search(photos_of(3, 8)[0])
        result = retriever.search_photos(photos_of(3, 8, 9))
    assert single.threshold_status == "estimated"
    assert (result.threshold, result.threshold_status) == (single.threshold, "extrapolated")
    assert (result.photos, result.threshold_photos) == (2, 1)
    assert (single.photos, single.threshold_photos) == (1, 1)
    assert [match.p_value for match in result.matches] == [None] * len(result.matches)
    assert result.review == ()


def test_a_threshold_is_set_for_each_number_of_photos(bundle: Bundle, shop: Path) -> None:
    points = calibrate(bundle, shop, 2, 3)
    assert sorted(points) == [1, 2, 3]
    assert len({point.threshold for point in points.values()}) == 3
    with Retriever.open(bundle.path, shop) as retriever:
        for count in (2, 3):
            result = retriever.search_photos(photos_of(3, *range(8, 8 + count)))
            assert (result.threshold, result.threshold_status) == (points[count].threshold, "estimated")
            assert (result.photos, result.threshold_photos) == (count, count)
            rates = GalleryRates.read(retriever.gallery, points[count], bundle.draws_id, photos_per_query=count)
            assert rates is not None
            assert rates.fpir(points[count].threshold) <= 0.2
            assert result.matches[0].p_value == rates.p_value(result.matches[0].distance)
        four = retriever.search_photos(photos_of(3, 8, 9, 10, 11))
        assert (four.threshold, four.threshold_status) == (points[3].threshold, "extrapolated")
        assert (four.photos, four.threshold_photos) == (4, 3)
        assert four.matches[0].p_value is None
        assert retriever.search(photos_of(3, 8)[0]).threshold == points[1].threshold


def test_the_share_of_unknown_items_is_that_of_as_many_photos(bundle: Bundle, shop: Path) -> None:
    """Every gallery item is left out in turn: what the draws measure is what searches then do."""
    points = calibrate(bundle, shop, 2)
    with Gallery.open(shop, read_only=True) as gallery:
        draws = KeptDraws.read(gallery, photos_per_query=2)
        assert draws is not None
        own = draws.sources["own"]
        ids, _, vectors = gallery.contents()
        items = np.array([name.split("/")[0] for name in ids])
    hits = {}
    for item in sorted(set(items)):
        rest = vectors[items != item]
        drawn = own.seqs[own.items == item]
        apart = [plain_distance(mean_vectors(vectors[None, pair]), rest).min() for pair in drawn]
        hits[item] = np.mean(np.array(apart) <= points[2].threshold)
    assert np.mean(list(hits.values())) == pytest.approx(points[2].evidence["fpir"])


def test_photos_that_are_alike_count_once(bundle: Bundle, shop: Path) -> None:
    (image,) = photos_of(3, 8)
    calibrate(bundle, shop, 2)
    with Retriever.open(bundle.path, shop) as retriever:
        assert retriever.search_photos([image, image]) == retriever.search(image)
        assert retriever.search_photos([image, *photos_of(3, 9), image]).photos == 2


def test_queries_that_make_no_sense_are_refused(bundle: Bundle, shop: Path) -> None:
    images = photos_of(3, 8, 9)
    with Retriever.open(bundle.path, shop) as retriever:
        for refused in (images[:1], [], images * 5, images[0]):
            with pytest.raises(InvalidParameter, match="images"):
                retriever.search_photos(refused)  # type: ignore[arg-type]
        with pytest.raises(ImageRefused, match="photo 2: "):
            retriever.search_photos([images[0], b"no photo"])
        with pytest.raises(InvalidParameter, match="top_k"):
            retriever.search_photos(images, top_k=0)
    with Gallery.open(shop) as gallery, pytest.raises(InvalidParameter, match="photos_per_query must be"):
        propose(bundle, gallery, photos_per_query=[9])


def test_a_change_of_photos_updates_the_draws_of_every_number(bundle: Bundle, shop: Path, tmp_path: Path) -> None:
    points = calibrate(bundle, shop, 2)
    more = write_folder(tmp_path / "more", items=range(40, 60), photos=range(4))
    index_catalogue(bundle, read_catalogue(more), shop, progress=False)
    with Gallery.open(shop) as gallery:
        kept = KeptDraws.read(gallery, photos_per_query=2)
        assert kept is not None
        assert kept.covers(gallery)
        gallery.keep({draws_name(2): None}, "forget")
        again = GalleryAnchor(bundle).draws(gallery, photos_per_query=2)
        assert sorted(kept.sources["own"].distances) == sorted(again.sources["own"].distances)
        assert len(again.sources["own"]) == 100
        assert stored_points(gallery.kept(POINT), bundle) == points


def test_draws_of_an_earlier_version_give_no_p_values_until_they_are_measured(bundle: Bundle, shop: Path) -> None:
    calibrate(bundle, shop, 2)
    with Gallery.open(shop) as gallery:
        gallery.remove(photo_ids=["item-07/0.png"])  # nobody follows the change
    with Retriever.open(bundle.path, shop) as retriever:
        result = retriever.search_photos(photos_of(3, 8, 9))
        assert (result.threshold_status, result.matches[0].p_value) == ("estimated", None)
    index_catalogue(bundle, [], shop, progress=False)
    with Retriever.open(bundle.path, shop) as retriever:
        assert retriever.search_photos(photos_of(3, 8, 9)).matches[0].p_value is not None


def test_tightening_lowers_the_threshold_of_each_number_that_misses_its_target(bundle: Bundle, shop: Path) -> None:
    points = calibrate(bundle, shop, 2)
    loose = replace(points[2], threshold=1.9)
    with Gallery.open(shop) as gallery:
        gallery.keep({POINT: pack_points(None, bundle, points[1], {2: loose})}, "calibrate")
        GalleryAnchor(bundle, tighten=True).follow(gallery)
        gallery.remove(photo_ids=["item-07/0.png"])
        after = stored_points(gallery.kept(POINT), bundle)
        assert after[1] == points[1]
        assert after[2].threshold < loose.threshold
        rates = GalleryRates.read(gallery, after[2], bundle.draws_id, photos_per_query=2)
        assert rates is not None
        assert rates.fpir(after[2].threshold) <= 0.2


def test_calibrating_again_measures_the_numbers_that_have_a_threshold(bundle: Bundle, shop: Path) -> None:
    points = calibrate(bundle, shop, 2, 3)
    assert calibrate(bundle, shop) == points
    assert sorted(calibrate(bundle, shop, 2)) == [1, 2]
    with Gallery.open(shop, read_only=True) as gallery:
        assert [gallery.kept(draws_name(count)) is None for count in (1, 2, 3)] == [False, False, True]
    assert sorted(calibrate(bundle, shop, 1)) == [1]


def test_items_with_too_few_photos_set_no_threshold(bundle: Bundle, shop: Path) -> None:
    """With four photos an item there is no draw of five."""
    result = CliRunner().invoke(
        group, ["calibrate", str(bundle.path), str(shop), "--photos-per-query", "5", "--photos-per-query", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "Queries of 5 photos: no threshold, because 0 items" in result.output
    assert "on and that have 5 photos are too few" in result.output
    assert "Queries of 2 photos: threshold" in result.output
    with Gallery.open(shop, read_only=True) as gallery:
        assert sorted(stored_points(gallery.kept(POINT), bundle)) == [1, 2]


def test_the_proposal_as_json_has_every_point(bundle: Bundle, shop: Path) -> None:
    options = ["--photos-per-query", "2", "--photos-per-query", "5", "--json", "--dry-run"]
    result = CliRunner().invoke(group, ["calibrate", str(bundle.path), str(shop), *options])
    points = json.loads(result.output)["several_photos"]
    assert points["2"]["status"] == "estimated"
    assert points["5"] is None
    with Gallery.open(shop, read_only=True) as gallery:
        assert sorted(stored_points(gallery.kept(POINT), bundle)) == [1]


def test_the_bundles_threshold_is_one_of_single_photos(bundle: Bundle, tmp_path: Path) -> None:
    place = write_folder(tmp_path / "few", items=range(5), photos=range(2))
    index_catalogue(bundle, read_catalogue(place), tmp_path / "small", progress=False)
    with Retriever.open(bundle.path, tmp_path / "small") as retriever:
        assert retriever.search(photos_of(3, 8)[0]).threshold_status == "unanchored"
        result = retriever.search_photos(photos_of(3, 8, 9))
        assert (result.threshold, result.threshold_status) == (0.5, "extrapolated")


def test_the_command_searches_with_several_photos(bundle: Bundle, shop: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "front.png", tmp_path / "back.png"]
    for path, photo in zip(paths, photos_of(3, 8, 9), strict=True):
        path.write_bytes(photo)
    places = [str(bundle.path), str(shop)]
    arguments = ["search", *places, *map(str, paths)]
    refused = CliRunner().invoke(group, arguments)
    assert isinstance(refused.exception, InvalidParameter)
    found = CliRunner().invoke(group, [*arguments, "--combine"])
    assert found.exit_code == 0, found.output
    assert "item-03" in found.output
    assert "queries of 1 photo;" in found.output
    assert "--photos-per-query 2`" in found.output
    calibrate(bundle, shop, 2)
    again = CliRunner().invoke(group, [*arguments, "--combine"])
    assert "Note" not in again.output
    as_json = CliRunner().invoke(group, [*arguments, "--combine", "--json"])
    assert json.loads(as_json.output)["photos"] == 2
