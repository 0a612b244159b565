"""Searches with parts of a photo and with several photos: what they return, and that only given boxes decide."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.database import POINT
from index.gallery import Gallery
from index.search.distance import plain_distance
from retrieval.bundle.bundle import FITTED
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import ImageUnreadable, InvalidParameter
from retrieval.galleries.kept import Kept, read_parts
from retrieval.galleries.measured import draw_gallery
from retrieval.indexing import draw_vectors
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.plan import SyncSettings
from retrieval.measuring.draws import WINDOWS
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import Point
from retrieval.measuring.rates import VersionRates
from retrieval.retriever import Retriever

from ...world import draw, encode, make_bundle, write_folder
from .scenes import box_of, scene

BOXES = [box_of(0), box_of(1)]
PHOTO = encode(scene(3, 8), "PNG")


@pytest.fixture(scope="module")
def retriever(world: Path) -> Retriever:
    return Retriever.open(world / "bundle", world / "gallery")


@pytest.fixture(scope="module")
def anchored(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """Return a retriever of 60 items whose gallery has set its own threshold, for an FPIR of 10 %."""
    folder = tmp_path_factory.mktemp("anchored")
    point = Point.uncalibrated(0.1)
    bundle = make_bundle(folder, point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = read_catalogue(write_folder(folder / "photos", items=range(60), photos=range(2)))
    index_catalogue(bundle, photos, folder / "gallery", progress=False)
    return Retriever.open(bundle.path, folder / "gallery")


def test_a_gallery_that_changes_between_a_search_and_its_rates_is_searched_again(
    anchored: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates of the version that was searched are gone then, and without them there are no p-values."""
    place = shutil.copytree(anchored.gallery.path, tmp_path / "gallery")
    with Retriever.open(anchored.bundle.path, place) as retriever:
        search, changes = retriever.gallery.search_version, iter([b"a change"])

        def changing(*arguments: Any, **options: Any) -> Any:
            found, change = search(*arguments, **options), next(changes, None)
            if change is not None:
                with Gallery.open(place) as writer:
                    writer.keep({"note": change}, "note")
            return found

        monkeypatch.setattr(retriever.gallery, "search_version", changing)
        version = retriever.gallery.version
        answer = retriever.search(PHOTO)
    assert answer.gallery_version == version + 1
    assert answer.nearest is not None
    assert answer.nearest.p_value is not None


def test_the_rates_of_the_version_that_was_read_last_stay_known_after_a_change(
    anchored: Retriever, tmp_path: Path
) -> None:
    place = shutil.copytree(anchored.gallery.path, tmp_path / "gallery")
    with Retriever.open(anchored.bundle.path, place) as retriever:
        version, stored = retriever.gallery.version, retriever.gallery.kept(POINT)
        known = retriever.gallery_point.measured_at(version, stored)
        with Gallery.open(place) as writer:
            writer.keep({"note": b"a change"}, "note")
        assert retriever.gallery.version == version + 1
        assert retriever.gallery_point.measured_at(version, stored) == known
        assert known[1] is not None


def test_given_boxes_are_answered_in_their_order_with_their_box(retriever: Retriever) -> None:
    answers = retriever.search_boxes(PHOTO, BOXES)
    assert [answer.box for answer in answers] == BOXES
    assert [answer.nearest and answer.nearest.item_id for answer in answers] == ["item-03", "item-08"]
    alone = [retriever.search(PHOTO, bbox=box) for box in BOXES]
    assert [answer.nearest_distance for answer in answers] == [
        pytest.approx(each.nearest_distance, abs=1e-6) for each in alone
    ]
    assert [each.decision for each in alone] == ["match", "match"]
    assert alone[0].box == BOXES[0]


def test_one_given_box_decides_as_a_search_of_that_part(retriever: Retriever) -> None:
    assert retriever.search_boxes(PHOTO, BOXES[:1]) == [retriever.search(PHOTO, bbox=BOXES[0])]


def test_several_boxes_only_rank_by_a_threshold_that_was_set_elsewhere(retriever: Retriever) -> None:
    for answer in retriever.search_boxes(PHOTO, BOXES):
        assert (answer.decision, answer.threshold, answer.threshold_status) == ("ranked", None, "uncalibrated")
        assert answer.ranked


def test_boxes_share_the_target_of_a_gallery_with_draws(anchored: Retriever) -> None:
    point, rates = anchored.point, anchored.gallery_point.rates()
    assert rates is not None
    one, two = anchored.search(PHOTO, bbox=BOXES[0]), anchored.search_boxes(PHOTO, BOXES)[0]
    assert one.threshold == point.threshold
    assert two.threshold is not None
    assert two.threshold <= point.threshold
    assert rates.fpir(two.threshold) <= point.target_fpir / 2
    assert rates.expected(two.threshold) <= point.target_fpir / 2 + 1e-9
    assert two.threshold_status == "estimated"
    assert two.decision == "match"


def test_more_boxes_than_the_draws_support_only_rank(anchored: Retriever) -> None:
    answers = anchored.search_boxes(PHOTO, [BOXES[0]] * 8)  # 0.1 / 8 is less than one of 60 draws
    assert {answer.decision for answer in answers} == {"ranked"}
    rates = anchored.gallery_point.rates()
    assert rates is not None
    counts = range(1, 65)
    thresholds = [rates.shared(anchored.point, count).threshold_or_none for count in counts]
    decided = [threshold for threshold in thresholds if threshold is not None]
    assert decided == sorted(decided, reverse=True)
    assert thresholds[len(decided) :] == [None] * (len(thresholds) - len(decided))


@pytest.mark.parametrize(("certified", "status"), [(("own",), "certified"), ((), "estimated")])
def test_a_shared_threshold_keeps_the_divided_target(certified: tuple[str, ...], status: str) -> None:
    distances = np.random.default_rng(5).uniform(0.2, 1, 1000)
    drawn = DrawnDistances.of_items(distances, np.arange(1000))
    limit = drawn.limit(0.1, certified=bool(certified))
    assert limit is not None
    point = Point(limit, status, 0.1, {"certified": certified})
    rates = VersionRates(drawn)
    shared = [rates.shared(point, count) for count in (1, 2, 4, 8)]
    assert shared[0].threshold == point.threshold
    thresholds = [each.threshold for each in shared]
    assert thresholds == sorted(set(thresholds), reverse=True)
    for count, each in zip((1, 2, 4, 8), shared, strict=True):
        assert (each.status, each.target_fpir) == (status, 0.1 / count)
        rate = drawn.fpir_upper(each.threshold) if certified else drawn.expected(each.threshold)
        assert rate <= 0.1 / count + 1e-12
    assert rates.shared(point, 64).status == "estimated"  # 1,000 items certify no FPIR of 0.16 %
    assert not rates.shared(point, 200).decides  # 0.05 % is less than one of them


def test_windows_decide_once_a_gallery_was_indexed_with_windows(tmp_path: Path) -> None:
    point = Point.uncalibrated(0.1)
    bundle = make_bundle(tmp_path, point=point, files={FITTED: Fitted.of([], []).pack()})
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(30), photos=range(2)))
    index_catalogue(bundle, photos, tmp_path / "gallery", progress=False)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        before = retriever.point
        assert {answer.decision for answer in retriever.search_boxes(PHOTO)} == {"ranked"}
    sync = SyncSettings(windows=True)  # no photo changes
    index_catalogue(bundle, photos, tmp_path / "gallery", sync=sync, progress=False)
    with Retriever.open(bundle.path, tmp_path / "gallery") as retriever:
        assert (retriever.point.threshold, retriever.point.status) == (before.threshold, before.status)
        answers = retriever.search_boxes(PHOTO)
        assert {answer.decision for answer in answers} <= {"match", "perhaps", "no_match"}
        assert {answer.threshold for answer in answers} == {answers[0].threshold} != {before.threshold}
        several = retriever.search_photos([encode(draw(100, view), "PNG") for view in range(2)])
        assert several.decision == ("perhaps" if several.nearest.p_value <= 0.25 else "no_match")


def test_photos_whose_metadata_changes_keep_their_windows_and_index_embeds_those_of_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path, point=Point.uncalibrated(0.1), files={FITTED: Fitted.of([], []).pack()})
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(30), photos=range(2)))
    index_catalogue(bundle, photos[:-2], tmp_path / "gallery", sync=SyncSettings(windows=True), progress=False)
    with Gallery.open(tmp_path / "gallery") as gallery:
        before = draw_gallery(bundle, gallery)[1].sources[WINDOWS]
        stored = {photo_id: (item, values) for photo_id, item, values in gallery.photos()}
        changed = [values | {"price": 3} for _, values in stored.values()]
        gallery.update(list(stored), [item for item, _ in stored.values()], changed)
        after = draw_gallery(bundle, gallery)[1].sources[WINDOWS]
    assert sorted(zip(after.ids, after.distances, strict=True)) == sorted(
        zip(before.ids, before.distances, strict=True)
    )
    embedded: list[str] = []
    real = draw_vectors._picture
    monkeypatch.setattr(draw_vectors, "_picture", lambda photo: embedded.append(photo.photo_id) or real(photo))
    for expected in ([photo.photo_id for photo in photos[-2:]], []):
        index_catalogue(bundle, photos, tmp_path / "gallery", progress=False)  # without --windows
        assert sorted(embedded) == sorted(expected)
        embedded.clear()
        with Gallery.open(tmp_path / "gallery") as gallery:
            kept = read_parts(gallery, Kept.WINDOWS)
            assert kept is not None
            assert sorted(kept.ids.tolist()) == sorted(photo_id for photo_id, *_ in gallery.photos())


def test_windows_rank_and_name_each_item_once_nearest_first(retriever: Retriever, anchored: Retriever) -> None:
    for opened in (retriever, anchored):
        answers = opened.search_boxes(encode(scene(3, 8, 5, 1), "PNG"))
        items = [answer.nearest.item_id for answer in answers if answer.nearest is not None]
        assert len(set(items)) == len(items) == len(answers)
        distances = [answer.nearest_distance or 0 for answer in answers]
        assert distances == sorted(distances)
        assert {answer.decision for answer in answers} == {"ranked"}
        assert all(answer.threshold is None and not answer.matches and not answer.review for answer in answers)
        assert all(match.p_value is None for answer in answers for match in answer.ranked)


@pytest.mark.parametrize("boxes", ["auto", "detector", [], [(0, 0, 1000, 1000)], [(0, 0, 3, 3)], 5])
def test_boxes_that_cannot_be_searched_are_refused(retriever: Retriever, boxes: object) -> None:
    with pytest.raises(InvalidParameter, match="box"):
        retriever.search_boxes(PHOTO, boxes)  # type: ignore[arg-type]


def test_several_photos_rank_by_their_mean_vector_in_any_order(retriever: Retriever, anchored: Retriever) -> None:
    images = [encode(draw(3, number), "PNG") for number in (5, 6, 7)]
    for opened in (retriever, anchored):
        result = opened.search_photos(images, top_k=3)
        assert (result.decision, result.threshold, result.threshold_status) == ("ranked", None, "uncalibrated")
        assert result.ranked[0].item_id == "item-03"
        assert opened.search_photos(images[::-1], top_k=3) == result
        mean = opened.embedder.embed(images).vectors.mean(axis=0)
        photo_ids, _, vectors = _contents(opened)
        nearest = vectors[photo_ids.index(result.ranked[0].photo_id)]
        assert result.nearest_distance == pytest.approx(float(plain_distance(mean[None], nearest[None])[0]), abs=1e-6)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """Return a retriever whose gallery has draws of queries with 2 and 3 photos: 24 items of 3 to 5 photos."""
    folder = tmp_path_factory.mktemp("several")
    bundle = make_bundle(folder, point=Point.uncalibrated(0.2), files={FITTED: Fitted.of([], []).pack()})
    for item in np.random.default_rng(1).permutation(24).tolist():
        write_folder(folder / "photos", items=range(item, item + 1), photos=range(3 + item % 3))
    index_catalogue(bundle, read_catalogue(folder / "photos"), folder / "gallery", progress=False)
    return Retriever.open(bundle.path, folder / "gallery")


def test_a_photo_that_is_given_twice_counts_once(several: Retriever) -> None:
    a, b, c = (encode(draw(3, number), "PNG") for number in (5, 6, 7))
    rates = several.gallery_point.rates()
    assert rates is not None
    assert {"2 photos", "3 photos"} <= rates.kinds.keys()
    two, three = several.search_photos([a, b]), several.search_photos([a, b, c])
    assert two.threshold == rates.kinds["2 photos"][1].threshold != three.threshold
    for repeated in ([a, a, b], [a, b, a], [b, a, b, a]):
        again = several.search_photos(repeated)
        assert (again.threshold, again.nearest_distance) == (two.threshold, pytest.approx(two.nearest_distance))
        assert [match.item_id for match in again.matches] == [match.item_id for match in two.matches] == ["item-03"]
    alone = several.search(a)
    again = several.search_photos([a, a])
    assert (again.threshold, again.nearest_distance) == (alone.threshold, alone.nearest_distance)


def test_boxes_have_the_candidates_for_review_that_are_asked_for(anchored: Retriever) -> None:
    strange = encode(scene(77, 78), "PNG")
    for review in (0.0, 1.0):
        (answer,) = anchored.search_boxes(strange, BOXES[:1], review=review)
        assert answer.review == anchored.search(strange, bbox=BOXES[0], review=review).review
        assert all(match.p_value is not None and match.p_value <= review for match in answer.review)
        assert bool(answer.review) == (review == 1)


def _contents(retriever: Retriever) -> tuple[list[str], list[str], np.ndarray]:
    photos = [photo for block in retriever.gallery.walk(100) for photo in block]
    vectors = np.array([photo.vector for photo in photos])
    return [photo.photo_id for photo in photos], [photo.item_id for photo in photos], vectors


def test_other_numbers_of_photos_are_refused_and_a_bad_one_is_named(retriever: Retriever) -> None:
    photo = encode(draw(3, 5))
    for images in ([], [photo], [photo] * 5, photo):
        with pytest.raises(InvalidParameter, match="images must be"):
            retriever.search_photos(images)  # type: ignore[arg-type]
    with pytest.raises(ImageUnreadable, match="photo 2: "):
        retriever.search_photos([photo, b"no image"])
