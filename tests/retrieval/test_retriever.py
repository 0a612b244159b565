from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import retrieval
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.local_density import LOCAL_SCALING, Cohort, LocalDensity
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import BundleMismatch, ImageRefused, InvalidParameter
from retrieval.indexing.pipeline import CONTENT, index_catalogue
from retrieval.retriever import Retriever
from retrieval.threshold.calibrate import OperatingPoint

from ..world import draw, encode, make_bundle, write_folder


@pytest.fixture(scope="module")
def retriever(world: Path) -> Retriever:
    return Retriever.open(world / "bundle", world / "gallery")


def test_a_photo_in_the_gallery_matches_itself(retriever: Retriever, world: Path) -> None:
    for photo in read_catalogue(world / "photos"):
        result = retriever.search(photo.path)
        assert (result.matches[0].item_id, result.matches[0].distance) == (photo.item_id, pytest.approx(0, abs=1e-6))


def test_another_photo_of_an_item_matches_and_a_stranger_does_not(retriever: Retriever) -> None:
    known = retriever.search(encode(draw(3, 3)))
    assert (known.decision, known.matches[0].item_id) == ("match", "item-03")
    stranger = retriever.search(encode(draw(77, 0)))
    assert (stranger.decision, stranger.matches) == ("no_match", ())
    assert stranger.nearest is not None
    assert stranger.nearest.distance == stranger.nearest_distance > stranger.threshold
    assert stranger.certainty > 0


def test_exactly_at_the_threshold_is_a_match(retriever: Retriever, world: Path, tmp_path: Path) -> None:
    image = encode(draw(77, 0), "PNG")
    distance = retriever.search(image).nearest_distance
    assert distance is not None
    at = make_bundle(tmp_path / "at", threshold=distance)
    below = make_bundle(tmp_path / "below", threshold=float(np.nextafter(distance, 0)))
    gallery = Gallery.open(world / "gallery", read_only=True)
    assert Retriever(at, gallery).search(image).decision == "match"
    assert Retriever(below, gallery).search(image).decision == "no_match"


def test_answers_hold_one_match_an_item_best_first(retriever: Retriever) -> None:
    wide = retriever.search(encode(draw(3, 3)), top_k=5)
    items = [match.item_id for match in wide.matches]
    assert len(items) == len(set(items))
    distances = [match.distance for match in wide.matches]
    assert distances == sorted(distances)
    assert all(d <= wide.threshold for d in distances)


def test_the_gallery_of_another_model_is_refused(world: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "g", dim=48, embedding_id="another").close()
    with pytest.raises(BundleMismatch, match="retrieval index"):
        Retriever.open(world / "bundle", tmp_path / "g")


def test_bad_input_is_refused(retriever: Retriever) -> None:
    with pytest.raises(ImageRefused):
        retriever.search(b"no image")
    with pytest.raises(InvalidParameter, match="top_k"):
        retriever.search(encode(draw(0, 0)), top_k=0)


def test_batch_size_and_threads_change_no_decision(world: Path) -> None:
    bundle = Bundle.open(world / "bundle")
    photos = [encode(draw(i, 5)) for i in range(16)]
    alone = np.concatenate([bundle.embedder().embed([photo]).vectors for photo in photos])
    for threads in (1, 2):
        together = bundle.embedder(threads=threads).embed(photos).vectors
        assert np.abs(together - alone).max() < 1e-5


def test_indexing_reports_bad_photos_and_continues_where_it_stopped(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    folder = write_folder(tmp_path / "c", items=range(4))
    (folder / "item-00/bad.jpg").write_bytes(b"no image")
    photos = read_catalogue(folder)
    first = index_catalogue(bundle, photos[:5], tmp_path / "g", batch_size=2, progress=False)
    assert (first.added, [photo_id for photo_id, _ in first.refused]) == (4, ["item-00/bad.jpg"])
    second = index_catalogue(bundle, photos, tmp_path / "g", batch_size=2, progress=False)
    assert (second.added, second.skipped, len(second.refused)) == (8, 4, 1)
    draw(50, 0).save(folder / "item-01/1.png")
    third = index_catalogue(bundle, photos, tmp_path / "g", threads=3, progress=False)
    assert (third.added, third.replaced, third.skipped) == (1, 1, 11)
    with Gallery.open(tmp_path / "g") as gallery:
        assert len(gallery) == 12
        assert gallery.items == 4
        assert all(gallery.thumbnail(photo_id) for photo_id in gallery.photo_ids())
        assert gallery.values(CONTENT).keys() == gallery.photo_ids()


def test_a_whole_index_equals_one_in_pieces(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    photos = read_catalogue(write_folder(tmp_path / "c", items=range(4)))
    index_catalogue(bundle, photos, tmp_path / "whole", batch_size=5, progress=False)
    for photo in photos:
        index_catalogue(bundle, [photo], tmp_path / "pieces", progress=False)
    query = encode(draw(2, 6))
    answers = [Retriever(bundle, Gallery.open(tmp_path / n)).search(query).to_dict() for n in ("whole", "pieces")]
    for answer in answers:
        del answer["gallery_version"], answer["timings_ms"]
    assert answers[0] == answers[1]
    shutil.rmtree(tmp_path / "pieces")


def test_the_public_names_are_what_they_say() -> None:
    assert sorted(retrieval.__all__) == retrieval.__all__
    for name in retrieval.__all__:
        assert getattr(retrieval, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = retrieval.nonsense


def test_a_no_match_says_why(world: Path, tmp_path: Path) -> None:
    gallery, image = Gallery.open(world / "gallery", read_only=True), encode(draw(3, 3))
    certainty = Retriever(make_bundle(tmp_path / "plain"), gallery).search(image).certainty
    point = OperatingPoint(0.5, "estimated", 0.05, {}, min_certainty=1.01 * certainty)
    unsure = Retriever(make_bundle(tmp_path / "unsure", point=point), gallery).search(image)
    assert (unsure.decision, unsure.reason, unsure.matches) == ("no_match", "low_certainty", ())
    assert unsure.nearest is not None
    sure = Retriever(make_bundle(tmp_path / "sure"), gallery)
    assert sure.search(image).reason == ""
    assert sure.search(encode(draw(77, 0))).reason == "no_match"
    with Gallery.create(tmp_path / "empty", dim=sure.bundle.dim, embedding_id=sure.bundle.embedding_id) as empty:
        assert Retriever(sure.bundle, empty).search(image).reason == "gallery_empty"


def test_another_domain_is_told_where_density_tells(world: Path, tmp_path: Path) -> None:
    plain = make_bundle(tmp_path / "plain")
    photos = [encode(draw(item, 0)) for item in range(20)]
    cohort = Cohort.of(plain.embedder().embed(photos).vectors, np.arange(20))
    bundle = make_bundle(tmp_path / "density", measure=LocalDensity.fit(LOCAL_SCALING, 4, cohort), threshold=0.05)
    retriever = Retriever(bundle, Gallery.open(world / "gallery", read_only=True))
    assert retriever.search(encode(draw(40, 1))).reason == "no_match"
    lines = Image.fromarray(np.kron([[0, 255] * 2, [0, 255] * 2] * 2, np.ones((10, 10))).astype(np.uint8))
    assert retriever.search(encode(lines.convert("RGB"), "PNG")).reason == "out_of_domain"
