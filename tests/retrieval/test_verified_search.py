"""Searches of a bundle that verifies matches: index, search, refuse, replace, and galleries without features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from PIL import Image

from index.gallery import Gallery
from index.search.item_distance import mean_photo
from index.upkeep.transfer import copy_gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import BundleMismatch, GalleryError, ImageRefused, InvalidParameter
from retrieval.galleries.kept import read_draws, read_queries
from retrieval.galleries.measured import draw_gallery, measure_gallery
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.worker import Batch, embed_batch, write_batch
from retrieval.inspect.audit import audit, summary
from retrieval.measuring.draws import OWN
from retrieval.retriever import Retriever
from retrieval.verification.features import LocalFeatures, PackedFeatures

from ..prints import BY_DETAILS, SIDE, cover_verifier, draw_cover, verified_bundle, write_covers
from ..world import DIM, encode

ITEMS = range(24)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `photos`, `bundle` and `gallery` of covers, and a bundle `plain` without verification."""
    folder = tmp_path_factory.mktemp("covers")
    photos = read_catalogue(write_covers(folder / "photos", items=ITEMS, photos=range(2)))
    verified_bundle(folder, name="plain")
    bundle = verified_bundle(folder, verifier=cover_verifier())
    report = index_catalogue(bundle, photos, folder / "gallery", progress=False)
    assert report.point is not None
    return folder


@pytest.fixture(scope="module")
def retriever(shop: Path) -> Retriever:
    return Retriever.open(shop / "bundle", shop / "gallery")


def test_a_cover_is_found_by_its_print_and_an_unknown_one_is_not(shop: Path, retriever: Retriever) -> None:
    asked = [encode(draw_cover(item, 5)) for item in ITEMS[:8]]
    found = [retriever.search(image) for image in asked]
    assert [result.matches[0].item_id for result in found] == [f"cover-{item:02d}" for item in ITEMS[:8]]
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        vectors = retriever.embedder.embed(asked).vectors
        plain = [items[0].distance for items in gallery.search(vectors, 1)]
    threshold = found[0].threshold
    assert threshold is not None
    assert all(result.nearest_distance <= threshold for result in found if result.nearest_distance is not None)
    assert sum(distance <= threshold for distance in plain) < len(plain)  # without their print they were not found
    unknown = [retriever.search(encode(draw_cover(item, 5))) for item in range(200, 206)]
    assert [result.decision for result in unknown] == ["no_match"] * 6
    assert all(result.threshold_status == "estimated" for result in (*found, *unknown))


def test_an_explanation_counts_the_details_that_agree(retriever: Retriever) -> None:
    told = retriever.search(encode(draw_cover(3, 5)), explain=True).explanation
    assert told is not None
    first, second, *_ = told.items
    assert first.item_id == "cover-03"
    assert first.inliers > 10 > second.inliers
    assert 0 < first.photo_distance < 2
    found = retriever.search(encode(draw_cover(3, 5))).nearest_distance
    nearest, mean = (np.array([each]) for each in (first.photo_distance, first.mean_distance))
    assert found == max(0, float(BY_DETAILS.own(nearest, mean, np.array([first.inliers]))[0])) < first.photo_distance


def test_an_explanation_tells_where_details_agree(retriever: Retriever) -> None:
    catalogue = draw_cover(3, 0)
    moved = Image.new("RGB", (2 * catalogue.width, catalogue.height), "gray")
    moved.paste(catalogue, (catalogue.width, 0))
    told = retriever.search(encode(moved), explain=True)
    assert told.explanation is not None
    assert told.nearest is not None
    assert told.nearest.item_id == "cover-03"
    assert len(told.explanation.places) > 10
    x, y, u, v = np.array(told.explanation.places).T
    assert np.abs(x - (0.5 + u / 2)).max() < 0.05  # the compared photo may be the one that is turned a little
    assert np.abs(y - v).max() < 0.05


def test_a_search_of_a_part_tells_no_places_of_the_whole(retriever: Retriever) -> None:
    told = retriever.search(encode(draw_cover(3, 5)), bbox=(0, 0, 150, 150), explain=True)
    assert told.explanation is not None
    assert told.explanation.places == ()


def test_several_photos_and_windows_are_compared_without_their_details(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [encode(draw_cover(3, number)) for number in (5, 6)]
    point, rates = retriever.gallery_point.measured()
    assert rates is not None
    apart = point, replace(rates, same_item=0.0)  # no photo counts as a repetition
    monkeypatch.setattr(retriever.gallery_point, "measured", lambda: apart)
    result = retriever.search_photos(images)
    mean = mean_photo(retriever.embedder.embed(images).vectors)[None].astype(np.float32)
    ((nearest,),) = retriever.gallery.search(mean, 1, item_distance=retriever.bundle.item_distance)
    assert result.nearest_distance == nearest.distance
    assert (result.decision, result.threshold) != ("match", retriever.point.threshold)
    assert {answer.decision for answer in retriever.search_boxes(images[0])} == {"ranked"}


def test_photos_that_repeat_the_first_are_searched_as_the_first_with_its_details(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = encode(draw_cover(3, 5)), encode(draw_cover(200, 5))
    point, rates = retriever.gallery_point.measured()
    assert rates is not None
    alike = point, replace(rates, same_item=9.0)  # every photo is a repetition
    monkeypatch.setattr(retriever.gallery_point, "measured", lambda: alike)
    alone, together = retriever.search(first), retriever.search_photos([first, other])
    assert (together.decision, together.nearest_distance) == ("match", alone.nearest_distance)
    assert together.matches == alone.matches


def test_a_batch_has_the_answers_of_single_searches(retriever: Retriever) -> None:
    images = [encode(draw_cover(1, 5)), b"no image", encode(draw_cover(200, 5))]
    answers = retriever.search_batch(images)
    assert isinstance(answers[1], ImageRefused)
    for image, answer in zip(images[::2], answers[::2], strict=True):
        assert not isinstance(answer, ImageRefused)
        alone = retriever.search(image)
        assert (answer.decision, answer.nearest_distance) == (alone.decision, pytest.approx(alone.nearest_distance))


def test_a_photo_without_key_points_is_searched_by_its_vector(shop: Path, retriever: Retriever) -> None:
    blank = encode(Image.new("RGB", (SIDE, SIDE), (200, 200, 200)))
    plain = Retriever(Bundle.open(shop / "plain"), retriever.gallery)
    result = retriever.search(blank)
    assert result.nearest_distance == pytest.approx(plain.search(blank).nearest_distance)


def test_a_gallery_without_features_is_refused_and_says_how_to_make_one(shop: Path, tmp_path: Path) -> None:
    photos = read_catalogue(shop / "photos")[:4]
    index_catalogue(Bundle.open(shop / "plain"), photos, tmp_path / "gallery", progress=False)
    with pytest.raises(BundleMismatch, match=r"keeps other local features.*retrieval index"):
        Retriever.open(shop / "bundle", tmp_path / "gallery")
    with pytest.raises(BundleMismatch, match="keeps other local features"):
        index_catalogue(Bundle.open(shop / "bundle"), photos, tmp_path / "gallery", progress=False)


def test_a_bundle_without_verification_searches_a_gallery_with_features_but_adds_nothing(shop: Path) -> None:
    plain = Bundle.open(shop / "plain")
    with Retriever.open(plain.path, shop / "gallery") as retriever:
        assert retriever.search(encode(draw_cover(3, 0), "PNG")).nearest_distance == pytest.approx(0, abs=1e-6)
    with pytest.raises(BundleMismatch, match="keeps other local features"):
        index_catalogue(plain, read_catalogue(shop / "photos"), shop / "gallery", progress=False)


def test_another_vocabulary_needs_another_gallery(shop: Path, tmp_path: Path) -> None:
    photos = read_catalogue(shop / "photos")[:1]
    batch = embed_batch(Bundle.open(shop / "bundle").embedder(), photos, {})
    embedding_id = Bundle.open(shop / "bundle").embedding_id
    with Gallery.create(tmp_path / "g", dim=48, embedding_id=embedding_id, features_key="another") as gallery:
        assert batch.vectors is not None
        gallery.add(["p"], ["i"], batch.vectors, features=batch.features)
    with pytest.raises(BundleMismatch, match="keeps other local features"):
        Retriever.open(shop / "bundle", tmp_path / "g")


def test_an_interrupted_index_continues_and_a_replaced_photo_gets_new_features(shop: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(shop / "bundle")
    folder = write_covers(tmp_path / "photos", items=range(3), photos=range(1))
    index_catalogue(bundle, read_catalogue(folder)[:2], tmp_path / "gallery", progress=False)
    assert index_catalogue(bundle, read_catalogue(folder), tmp_path / "gallery", progress=False).skipped == 2
    draw_cover(77, 0).save(folder / "cover-01" / "0.png")
    assert index_catalogue(bundle, read_catalogue(folder), tmp_path / "gallery", progress=False).replaced == 1
    with Gallery.open(tmp_path / "gallery", read_only=True) as gallery:
        stored = {photo.item_id: photo.features for some in gallery.walk(10, whole=True) for photo in some}
    embedder = bundle.embedder()
    for item, drawn in (("cover-00", 0), ("cover-01", 77), ("cover-02", 2)):
        assert stored[item] == embedder.describe(draw_cover(drawn, 0))


def test_the_features_of_a_batch_stay_with_their_photos(shop: Path) -> None:
    embedder, photos = Bundle.open(shop / "bundle").embedder(), read_catalogue(shop / "photos")[:3]
    whole = Batch.of([embed_batch(embedder, some, {}) for some in (photos[:1], photos[1:])])
    assert whole.features == [embedder.describe(Image.open(photo.path).convert("RGB")) for photo in photos]
    assert embed_batch(Bundle.open(shop / "plain").embedder(), photos, {}).features == []
    assert np.array_equal(whole.vectors, embed_batch(embedder, photos, {}).vectors)


def test_features_that_the_bundle_cannot_read_are_not_added(shop: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(shop / "bundle")
    whole = bundle.verifier.describe(draw_cover(3, 0))
    local = LocalFeatures.unpack(whole)
    words = len(bundle.verifier.vocabulary.weights)
    last, beyond = (local.with_words(np.full(len(local), word, np.uint16)).pack() for word in (words - 1, words))
    refused = {
        b"": r"\(0 bytes\) are damaged",
        whole[:-1]: "are damaged",
        whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]: "are damaged",
        beyond: f"have the visual word {words}, but the words of the vocabulary are 0 to {words - 1}",
        bytes(2**20 + 1): "at most 1,048,576 bytes",
    }
    vector = np.eye(1, DIM)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key=bundle.features_key) as gallery:
        gallery.feature_format = bundle.feature_format
        for features, message in refused.items():
            with pytest.raises(InvalidParameter, match=message):
                gallery.add(["good", "bad"], ["i", "i"], vector.repeat(2, axis=0), features=[whole, features])
        assert (len(gallery), gallery.version) == (0, 0)
        gallery.add(["p", "q"], ["i", "j"], vector.repeat(2, axis=0), features=[whole, last])
        gallery.feature_format = None
        gallery.add(["bad"], ["i"], vector, features=[beyond])
        gallery.feature_format = bundle.feature_format
        assert gallery.update(["p", "bad"], ["k", "k"], [{}, {}]) == 2  # stored features are not judged again
    assert Bundle.open(shop / "plain").feature_format is None
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        Gallery.create(tmp_path / "copy", dim=DIM, embedding_id="e", features_key=bundle.features_key).close()
        with pytest.raises(InvalidParameter, match="for bad: they have the visual word"):
            copy_gallery(gallery, tmp_path / "copy", feature_format=PackedFeatures(words))
        assert copy_gallery(gallery, tmp_path / "copy", feature_format=PackedFeatures()) == 3


def test_milvus_keeps_no_features(shop: Path) -> None:
    with pytest.raises(GalleryError, match="keeps no features"):
        index_catalogue(Bundle.open(shop / "bundle"), [], "milvus+http://localhost:1/none", progress=False)


def test_own_draws_are_verified_searches_without_the_own_item(shop: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(shop / "bundle")
    with Gallery.open(shop / "gallery", read_only=True) as gallery:
        draws = draw_gallery(bundle, gallery)[1].sources[OWN]
        photos = {photo.photo_id: photo for some in gallery.walk(10, whole=True) for photo in some}
    asked = photos[str(draws.ids[0])]
    others = [photo for photo in photos.values() if photo.item_id != asked.item_id]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key=bundle.features_key) as rest:
        rest.add(
            [photo.photo_id for photo in others],
            [photo.item_id for photo in others],
            np.stack([photo.vector for photo in others]),
            features=[photo.features or b"" for photo in others],
        )
        ((nearest,),) = rest.search(
            asked.vector[None],
            1,
            item_distance=bundle.item_distance,
            verifier=bundle.verifier,
            features=[asked.features or b""],
        )
    assert draws.distances[0] == pytest.approx(nearest.distance, abs=1e-9)
    assert draws.nearest_items[0] == nearest.item_id
    assert np.median(draws.own[np.isfinite(draws.own)]) < np.median(draws.distances) / 2  # the print is found


@pytest.mark.slow
def test_labelled_queries_are_kept_with_their_features(shop: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(shop / "bundle")
    copytree(shop / "gallery", tmp_path / "gallery")
    labelled = write_covers(tmp_path / "labelled", items=ITEMS, photos=range(7, 8))
    with Gallery.open(tmp_path / "gallery") as gallery:
        proposal = measure_gallery(bundle, gallery, rule="set", photos=read_catalogue(labelled))
        assert proposal.after.rates.tpir > 0.9
        proposal.write(gallery)
        kept = read_queries(gallery, bundle.features_key)
        assert list(kept.features) == [bundle.embedder().describe(draw_cover(item, 7)) for item in ITEMS]
        assert measure_gallery(bundle, gallery, rule="set").after.threshold == proposal.after.threshold
        assert read_queries(gallery, "another vocabulary") is None
        plain = read_queries(gallery)
        assert not plain.features


def test_an_audit_finds_collisions_and_strays_by_details_that_agree(shop: Path, tmp_path: Path) -> None:
    copytree(shop / "gallery", tmp_path / "gallery")
    bundle = Bundle.open(shop / "bundle")
    with Gallery.open(tmp_path / "gallery") as gallery:
        found = audit(bundle, gallery)
        own = read_draws(gallery).get(OWN)  # type: ignore[union-attr]
        assert found.sampled == len(own) == 48
        assert len(found.strays) == int((own.own > found.threshold).sum()) < 10  # a second photo shows the same print
        assert summary(found).endswith("for photos that miss their item: 48 photos.")
        copy = read_catalogue(write_covers(tmp_path / "more", items=range(3, 4), photos=range(7, 8)))
        write_batch(gallery, embed_batch(bundle.embedder(), [replace(copy[0], item_id="second-id")], {}))
        pairs = {(pair.item_id, pair.other_item_id) for pair in audit(bundle, gallery).collisions}
        assert ("cover-03", "second-id") in pairs
