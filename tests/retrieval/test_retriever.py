from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from index.database import POINT
from index.gallery import Gallery
from index.groups import GROUP
from index.photos import CONTENT
from index.search.item_distance import ItemDistance
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.providers import BATCH
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import BundleMismatch, GalleryError, ImageRefused, InvalidParameter
from retrieval.galleries.points import pack_points
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.point import GALLERY, Basis, Point
from retrieval.retriever import Retriever

from ..gallery_contents import contents
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
    assert stranger.nearest.distance == stranger.nearest_distance > stranger.threshold
    assert (stranger.norm, stranger.to_dict()["norm"]) == (None, None)
    assert stranger.embedding_norm > 0
    assert not {"embedding_norm", "certainty"} & stranger.to_dict().keys()


@pytest.mark.parametrize("settings", [{"loss": "vmf_nca"}, {"loss": "smooth_ap", "regularizer": "vmf_nca"}])
def test_answers_of_a_model_trained_with_vmf_nca_have_its_norm(
    world: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    bundle = make_bundle(tmp_path, evidence={"settings": settings})
    with Gallery.open(world / "gallery", read_only=True) as gallery:
        answer = Retriever(bundle, gallery).search(encode(draw(3, 3)))
    assert answer.norm == answer.embedding_norm == answer.to_dict()["norm"]
    assert answer.norm
    assert answer.norm > 0


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_search_that_leaves_photos_out_is_that_of_a_gallery_without_them(
    world: Path, tmp_path: Path, rebuilt: bool
) -> None:
    shutil.copytree(world / "gallery", tmp_path / "whole")
    bundle = Bundle.open(world / "bundle")
    with Gallery.open(tmp_path / "whole") as whole:
        if rebuilt:
            whole.rebuild(kind="flat")
        names = {item: [name for name, _, _ in whole.photos(item)] for item in ("item-03", "item-05")}
        left_out = [names["item-03"][1], *names["item-05"], "no-such-photo"]
        queries = [encode(draw(item, 4)) for item in (3, 5, 7, 77)]
        before = Retriever(bundle, whole)
        found = [before.search(query, left_out=left_out, explain=True) for query in queries]
        boxes = before.search_boxes(queries[0], left_out=left_out)
        assert "item-05" in [match.item_id for match in before.search(queries[1]).matches]  # others still find it
        whole.remove(photo_ids=left_out[:-1])
        after = Retriever(bundle, whole)
        for query, result in zip(queries, found, strict=True):
            expected = after.search(query, explain=True)
            assert (result.matches, result.review, result.explanation) == (
                expected.matches,
                expected.review,
                expected.explanation,
            )
        assert [box.nearest for box in boxes] == [box.nearest for box in after.search_boxes(queries[0])]


def test_a_filter_and_photos_to_leave_out_exclude_each_other(retriever: Retriever) -> None:
    with pytest.raises(InvalidParameter, match="left_out must be empty in a search with a filter"):
        retriever.search(encode(draw(3, 3)), where="a = 1", left_out=["x"])


def test_exactly_at_the_threshold_is_a_match(retriever: Retriever, world: Path, tmp_path: Path) -> None:
    image = encode(draw(77, 0), "PNG")
    distance = retriever.search(image).nearest_distance
    assert distance is not None
    at = make_bundle(tmp_path / "at", threshold=distance)
    below = make_bundle(tmp_path / "below", threshold=float(np.nextafter(distance, 0)))
    gallery = Gallery.open(world / "gallery", read_only=True)
    assert Retriever(at, gallery).search(image).decision == "match"
    assert Retriever(below, gallery).search(image).decision == "no_match"


def test_a_long_filter_is_not_repeated_in_its_refusal(retriever: Retriever) -> None:
    with pytest.raises(
        InvalidParameter, match=r"where must be a text of at most \d+ characters, got '50000 characters'"
    ):
        retriever.search(encode(draw(3, 3)), where="x" * 50_000)
    with pytest.raises(InvalidParameter, match=r"where must be a text of at most \d+ characters, got 5"):
        retriever.search(encode(draw(3, 3)), where=5)  # type: ignore[arg-type]


def test_a_batch_has_the_answers_of_single_searches_and_a_bad_photo_loses_no_other(retriever: Retriever) -> None:
    images = [encode(draw(3, 3)), b"no image", encode(draw(77, 0)), b"", encode(draw(5, 1))]
    answers = retriever.search_batch(images, top_k=3)
    assert [type(answer).__name__ for answer in answers] == [
        *("SearchResult", "ImageUnreadable", "SearchResult", "ImageUnreadable", "SearchResult")
    ]
    for image, answer in zip(images, answers, strict=True):
        if isinstance(answer, ImageRefused):
            with pytest.raises(type(answer), match=answer.message):
                retriever.search(image)
            continue
        alone = retriever.search(image, top_k=3)
        assert (answer.decision, answer.reason, answer.nearest.photo_id) == (
            *(alone.decision, alone.reason),
            alone.nearest.photo_id,
        )
        assert answer.nearest_distance == pytest.approx(alone.nearest_distance, abs=1e-5)
        assert answer.appearance == alone.appearance
        assert answer.timings_ms.keys() == alone.timings_ms.keys()
    assert retriever.search_batch([]) == []
    assert [type(answer) for answer in retriever.search_batch([b"no image"])] == [type(answers[1])]


def test_a_batch_is_embedded_together(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = retriever.embedder.embed_pixels
    monkeypatch.setattr(retriever.embedder, "embed_pixels", lambda pixels: sizes.append(len(pixels)) or real(pixels))
    retriever.search_batch([encode(draw(item, 3)) for item in range(5)])
    assert sizes == [5]


def test_a_large_batch_is_embedded_in_parts_that_bound_its_memory(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, sizes = retriever.embedder, []
    pixels = embedder.read([draw(item, 3) for item in range(2 * BATCH + 1)])
    each = [embedder.embed_pixels(one[None]) for one in pixels]
    run = embedder._session.run
    session = SimpleNamespace(run=lambda names, fed: sizes.append(len(fed["pixels"])) or run(names, fed))
    monkeypatch.setattr(embedder, "_session", session)
    made = embedder.embed_pixels(pixels)
    assert sizes == [BATCH, BATCH, 1]
    np.testing.assert_allclose(made.vectors, np.concatenate([one.vectors for one in each]), atol=1e-6)
    np.testing.assert_allclose(made.certainties, np.concatenate([one.certainties for one in each]), rtol=1e-5)


def test_a_batch_explains_each_photo_and_filters_for_all(retriever: Retriever) -> None:
    near, far = retriever.search_batch([encode(draw(3, 3)), encode(draw(4, 3))], explain=True)
    assert not isinstance(near, ImageRefused)
    assert not isinstance(far, ImageRefused)
    assert near.explanation is not None
    assert far.explanation is not None
    assert near.explanation.items[0].item_id == "item-03"
    assert far.explanation.items[0].item_id == "item-04"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"top_k": 0}, "top_k must be a whole number between 1 and 100"),
        ({"top_k": 101}, "top_k must be a whole number between 1 and 100"),
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"where": "x" * 2001}, "where must be a text of at most 2000 characters"),
        ({"where": 5}, "where must be a text"),
    ],
)
def test_limits_are_told(retriever: Retriever, options: dict[str, object], told: str) -> None:
    for call in (retriever.search, lambda image, **options: retriever.search_batch([image], **options)):
        with pytest.raises(InvalidParameter, match=told):
            call(encode(draw(0, 0)), **options)
    assert retriever.search(encode(draw(0, 0)), top_k=np.int64(100)).decision == "match"


def test_a_batch_is_a_sequence_of_64_images_at_most(retriever: Retriever) -> None:
    image = encode(draw(0, 0))
    assert len(retriever.search_batch([image] * 64)) == 64
    with pytest.raises(InvalidParameter, match="images must be at most 64 in a batch, got 65"):
        retriever.search_batch([image] * 65)
    for wrong in ("query.jpg", image, None, draw(0, 0)):
        with pytest.raises(InvalidParameter, match="images must be a sequence of images"):
            retriever.search_batch(wrong)  # type: ignore[arg-type]


def test_a_retriever_is_closed_with_the_gallery_that_it_opened(world: Path) -> None:
    place = world / "gallery"
    with Retriever.open(world / "bundle", place) as retriever:
        assert repr(retriever) == f"<Retriever {world / 'bundle'} on {place}, threshold 0.5000>"
        assert retriever.search(encode(draw(3, 3))).decision == "match"
    assert repr(retriever).endswith(", closed>")
    with pytest.raises(GalleryError, match=r"Retriever\.open"):
        retriever.search(encode(draw(3, 3)))
    with pytest.raises(GalleryError, match="closed"):
        retriever.gallery.columns()
    retriever.close()
    with Gallery.open(place, read_only=True) as gallery:
        Retriever(Bundle.open(world / "bundle"), gallery).close()
        assert gallery.columns() is not None  # somebody else opened it


def test_a_refused_gallery_is_not_left_open(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Gallery.create(tmp_path / "g", dim=48, embedding_id="another").close()
    closed = []
    real = Gallery.close
    monkeypatch.setattr(Gallery, "close", lambda self: (closed.append(self.path), real(self))[1])
    with pytest.raises(BundleMismatch):
        Retriever.open(world / "bundle", tmp_path / "g")
    assert tmp_path / "g" in closed


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
        assert all(gallery.thumbnail(photo_id) for photo_id in {photo[0] for photo in gallery.photos()})
        assert all(digest for *_, digest in gallery.values(CONTENT))


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


def test_a_no_match_says_why(world: Path, tmp_path: Path) -> None:
    gallery, image = Gallery.open(world / "gallery", read_only=True), encode(draw(3, 3))
    retriever = Retriever(make_bundle(tmp_path / "plain"), gallery)
    assert retriever.search(image).reason == ""
    assert retriever.search(encode(draw(77, 0))).reason == "beyond_threshold"
    bundle = retriever.bundle
    with Gallery.create(tmp_path / "empty", dim=bundle.dim, embedding_id=bundle.embedding_id) as empty:
        assert Retriever(bundle, empty).search(image).reason == "gallery_empty"


def test_a_filter_that_leaves_nothing_is_told(world: Path, tmp_path: Path) -> None:
    bundle, image = Bundle.open(world / "bundle"), encode(draw(3, 3))
    with Gallery.create(tmp_path / "g", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        retriever = Retriever(bundle, gallery)
        gallery.declare({"brand": "text"})
        assert retriever.search(image, where="brand = 'b'").reason == "gallery_empty"
        vectors = bundle.embedder().embed([image]).vectors
        gallery.add(["p"], ["item-03"], vectors, metadata=[{"brand": "a"}])
        assert retriever.search(image, where="brand = 'b'").reason == "filtered_out"
        found = retriever.search(image, where="brand = 'a'")
    assert (found.reason, found.matches[0].photo_id, found.matches[0].metadata) == ("", "p", {"brand": "a"})


def test_a_threshold_that_another_process_sets_decides_the_next_search(filled_copy: Path) -> None:
    image, bundle, place = encode(draw(3, 3)), Bundle.open(filled_copy / "bundle"), filled_copy / "gallery"
    with Retriever.open(bundle.path, place) as retriever, Gallery.open(place) as writer:
        for threshold, count in ((0.001, 0), (2.0, 10), (0.5, 1)):
            point = Point(threshold, "estimated", 0.05, GALLERY)
            writer.keep({POINT: pack_points(writer.kept(POINT), bundle, point)}, "calibrate")
            result = retriever.search(image)
            assert (result.threshold, result.gallery_version, len(result.matches)) == (threshold, writer.version, count)
            assert result.threshold_status == "estimated"


def test_an_answer_says_what_gave_it(retriever: Retriever) -> None:
    result = retriever.search(encode(draw(3, 3)))
    assert result.bundle_id == retriever.bundle.bundle_id
    assert result.gallery_version == retriever.gallery.version
    assert result.threshold == retriever.bundle.threshold
    assert set(result.timings_ms) == {"decode", "embed", "search"}
    assert all(value >= 0 for value in result.timings_ms.values())
    assert result.nearest == result.matches[0]
    assert result.nearest_distance == result.nearest.distance
    assert result.explanation is None


def test_an_explanation_has_the_evidence_of_the_nearest_items(world: Path, tmp_path: Path) -> None:
    image, bundle = encode(draw(3, 3)), make_bundle(tmp_path, item_distance=ItemDistance())
    retriever = Retriever(bundle, Gallery.open(world / "gallery", read_only=True))
    result = retriever.search(image, explain=True)
    told = result.explanation
    assert told is not None
    assert len(told.items) == 5
    _, items, vectors = contents(retriever.gallery)
    query = bundle.embedder().embed([image]).vectors[0].astype(float)
    for evidence in told.items:
        own = vectors[np.array(items) == evidence.item_id].astype(float)
        mean = own.mean(axis=0) / np.linalg.norm(own.mean(axis=0))
        assert evidence.photo_distance == pytest.approx(np.linalg.norm(own - query, axis=1).min(), abs=1e-6)
        assert evidence.mean_distance == pytest.approx(np.linalg.norm(mean - query), abs=1e-6)
        assert evidence.inliers == 0
    assert told.items[0].item_id == "item-03" == result.matches[0].item_id
    with Gallery.create(tmp_path / "empty", dim=bundle.dim, embedding_id=bundle.embedding_id) as empty:
        nothing = Retriever(bundle, empty).search(image, explain=True)
    assert nothing.explanation is not None
    assert nothing.explanation.items == ()
    assert (nothing.nearest, nothing.nearest_distance, nothing.matches) == (None, None, ())


def test_a_gallery_photo_matches_its_item_at_distance_zero_by_the_default_item_distance(tmp_path: Path) -> None:
    """Also where the item has unlike photos, and where a rival is as near as another photo of the item."""
    bundle = make_bundle(tmp_path, item_distance=ItemDistance(), threshold=1e-6)
    files = {f"photo-{number}": encode(draw(number % 9, number), "PNG") for number in range(40)}
    items = [f"item-{number * 7 % 13}" for number in range(40)]  # each item has photos of several patterns
    with Gallery.create(tmp_path / "g", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        gallery.add(list(files), items, bundle.embedder().embed(list(files.values())).vectors)
        retriever = Retriever(bundle, gallery)
        for (photo_id, file), item in zip(files.items(), items, strict=True):
            first = retriever.search(file).matches[0]
            assert (first.item_id, first.photo_id, first.distance) == (item, photo_id, 0)


def test_as_many_items_are_answered_as_asked_for(retriever: Retriever, world: Path, tmp_path: Path) -> None:
    image = encode(draw(3, 3))
    wide = Retriever(make_bundle(tmp_path / "wide", threshold=2.0), Gallery.open(world / "gallery", read_only=True))
    assert [len(wide.search(image, top_k=count).matches) for count in (1, 3, 10, 100)] == [1, 3, 10, 10]
    assert len(wide.search(image).matches) == 10
    for count in (0, -1, 101, 2.0):
        with pytest.raises(InvalidParameter, match="top_k must be a whole number between 1 and 100"):
            retriever.search(image, top_k=count)


def test_a_gallery_with_more_items_than_the_bundle_was_calibrated_on_is_outgrown(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, point=Point(0.5, "estimated", 0.05, basis=Basis(gallery_items=1)))
    with Gallery.create(tmp_path / "g", dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        retriever = Retriever(bundle, gallery)
        for number in range(2):
            assert (retriever.gallery_point.outgrown, retriever.gallery_point.warning()) == (False, "")
            gallery.add([f"p{number}"], [f"i{number}"], np.eye(bundle.dim, dtype=np.float32)[[number]])
        assert retriever.gallery_point.outgrown
        assert "2 items and the threshold was set for 1" in retriever.gallery_point.warning()


def test_a_bundle_with_a_threshold_for_all_catalogues_ranks_below_its_least_number_of_items(
    world: Path, tmp_path: Path
) -> None:
    point = Point(0.5, "estimated", 0.05, basis=Basis(least_items=11))
    bundle, photo = make_bundle(tmp_path, point=point), encode(draw(3, 3))
    shutil.copytree(world / "gallery", tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        retriever = Retriever(bundle, gallery)
        ranked = retriever.search(photo)
        assert (ranked.decision, ranked.threshold, ranked.threshold_status) == ("ranked", None, "uncalibrated")
        assert ranked.ranked[0].item_id == "item-03"
        gallery.add(["new"], ["eleventh"], bundle.embedder().embed([encode(draw(50, 0))]).vectors)
        found = retriever.search(photo)
        assert (found.decision, found.threshold, found.threshold_status) == ("match", 0.5, "unanchored")
        rows = list(gallery.photos())
        grouped = [{**metadata, GROUP: "all" if item_id < "item-08" else ""} for _, item_id, metadata in rows]
        gallery.update([row[0] for row in rows], [row[1] for row in rows], grouped)
        assert retriever.search(photo).decision == "ranked"  # items of one group are no rivals
        gallery.update([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
        assert retriever.search(photo).decision == "match"
        gallery.remove(item_ids=["eleventh"])
        assert retriever.search(photo).decision == "ranked"
