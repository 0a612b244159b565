"""Searches by item distance against a version that looks at every photo."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.location import open_or_create
from index.search import item_distance, item_search
from index.search.distance import plain_distance
from index.search.item_distance import CANDIDATES, NEAREST_PHOTO, ItemDistance, mean_photo
from index.search.item_search import ItemSearch
from index.search.tables import Table

from ..vectors import DIM, unit
from .clusters import clustered, filled, plainly
from .fake_verifier import FakeVerifier, fill, pack, some_features, verified_gallery

pytestmark = pytest.mark.usefixtures("few_own_queries")

ITEM = ItemDistance()
DETAILS = ItemDistance(details=0.3)


def slow(gallery: Gallery, vector: np.ndarray, distance: ItemDistance, groups: dict[str, str]) -> dict[str, float]:
    """Return the distance of each of the nearest items by the definition."""
    photos = [photo for some in gallery.walk(1000) for photo in some]
    names = list(dict.fromkeys(photo.item_id for photo in photos))
    of = {name: np.array([photo.vector for photo in photos if photo.item_id == name]) for name in names}
    near = {name: float(plain_distance(vector[None], vectors).min()) for name, vectors in of.items()}
    chosen = sorted(names, key=near.__getitem__)[:CANDIDATES]
    means = [float(plain_distance(vector[None], mean_photo(of[name])[None])[0]) for name in chosen]
    own = distance.own(np.array([near[name] for name in chosen]), np.array(means))
    numbers = {name: number for number, name in enumerate(sorted({groups.get(name, name) for name in chosen}))}
    order = np.argsort(own, kind="stable")
    codes = np.array([numbers[groups.get(chosen[place], chosen[place])] for place in order])
    found = distance.with_rivals(own[order][None], codes[None])[0]
    return {chosen[place]: float(value) for place, value in zip(order, found, strict=True)}


@pytest.mark.parametrize(
    "groups",
    [{}, {"i1": "g", "i2": "g", "i3": "g"}, {f"i{number}": "g" for number in range(37)}],
    ids=["no groups", "three of a group", "more of a group than the nearest items"],
)
def test_search_finds_the_items_and_distances_of_the_definition(tmp_path: Path, groups: dict[str, str]) -> None:
    with filled(tmp_path / "g", groups=groups) as gallery:
        for vector in clustered(20, 40, 7)[0]:
            expected = slow(gallery, vector, ITEM, groups)
            (answer,) = gallery.search(vector[None], CANDIDATES, item_distance=ITEM)
            assert {found.item_id: found.distance for found in answer} == pytest.approx(expected, abs=1e-12)
            assert [found.item_id for found in answer] == list(expected)


@pytest.mark.parametrize("kind", ["flat", "fp16", "ivf"])
def test_answers_do_not_depend_on_the_batch_the_index_or_the_number_of_items(tmp_path: Path, kind: str) -> None:
    queries = clustered(30, 40, 8)[0]
    with filled(tmp_path / "g") as gallery:
        together = plainly(gallery.search(queries, 5, item_distance=ITEM))
        assert [plainly(gallery.search(query[None], 5, item_distance=ITEM))[0] for query in queries] == together
        assert [best[:2] for best in together] == plainly(gallery.search(queries, 2, item_distance=ITEM))
        gallery.rebuild(kind=kind, threads=1)
        assert plainly(gallery.search(queries, 5, item_distance=ITEM)) == together
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert plainly(gallery.search(queries, 5, item_distance=ITEM)) == together


def test_answers_follow_photos_that_are_added_moved_and_removed(tmp_path: Path) -> None:
    """What is kept of an item, its mean photo, is that of its photos in the version that is searched."""
    queries = clustered(10, 40, 9)[0]
    with filled(tmp_path / "g") as gallery:
        gallery.search(queries, 3, item_distance=ITEM)  # keeps the means
        gallery.add(["new"], ["i1"], queries[:1])
        gallery.update(["p0"], ["i7"], [{"half": "a"}])
        gallery.remove(item_ids=["i2"])
        for query in queries:
            expected = slow(gallery, query, ITEM, {})
            (answer,) = gallery.search(query[None], CANDIDATES, item_distance=ITEM)
            assert {found.item_id: found.distance for found in answer} == pytest.approx(expected, abs=1e-12)


def test_a_filter_chooses_answers_and_changes_no_distance(tmp_path: Path) -> None:
    queries = clustered(10, 40, 10)[0]
    with filled(tmp_path / "g") as gallery:
        for query in queries:
            (everything,) = gallery.search(query[None], CANDIDATES, item_distance=ITEM)
            (half,) = gallery.search(query[None], CANDIDATES, where="half = 'a'", item_distance=ITEM)
            known = {found.item_id: found.distance for found in everything}
            assert all(found.metadata["half"] == "a" for found in half)
            shown = {found.item_id: found.photo_id for found in everything}
            same = {found.item_id: found.distance for found in half if shown.get(found.item_id) == found.photo_id}
            assert len(same) > 3  # items whose nearest photo passes
            assert same == {item: known[item] for item in same}
            assert all(found.distance >= known.get(found.item_id, 0) for found in half)
            (first,) = gallery.search(query[None], 1, where="half = 'a'", item_distance=ITEM)
            assert first == half[:1]  # not that of the nearest photo alone


def test_items_beyond_the_nearest_come_last(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        for query in clustered(10, 40, 11)[0]:
            (first,) = gallery.search(query[None], CANDIDATES, item_distance=ITEM)
            (more,) = gallery.search(query[None], 100, item_distance=ITEM)
            assert len(more) == 40
            assert more[:CANDIDATES] == first
            assert [found.distance for found in more] == sorted(found.distance for found in more)


def test_nearest_photo_ranks_by_the_plain_distance(tmp_path: Path) -> None:
    queries = clustered(10, 40, 12)[0]
    with filled(tmp_path / "g") as gallery:
        for query, answer in zip(queries, gallery.search(queries, 40), strict=True):
            assert [found.distance for found in answer] == sorted(found.distance for found in answer)
            _, near = gallery.snapshot().nearest(query[None], 40)
            assert [found.distance for found in answer] == near[0].tolist()


def test_a_photo_of_the_gallery_is_at_distance_zero_from_its_item(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        for some in gallery.walk(50):
            answers = gallery.search([photo.vector for photo in some], 1, item_distance=ITEM)
            assert [(best[0].item_id, best[0].distance) for best in answers] == [(p.item_id, 0.0) for p in some]


# details


def searched(gallery: Gallery, verifier: FakeVerifier | None, seed: int, count: int, k: int, **options: Any) -> Any:
    asked = {} if verifier is None else {"verifier": verifier, "features": some_features(count, seed)}
    return plainly(gallery.search(unit(count, seed), k, item_distance=DETAILS, **asked, **options))


@pytest.mark.parametrize("kind", ["flat", "fp16", "ivf"])
def test_answers_with_details_depend_neither_on_the_batch_nor_on_the_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(item_distance, "CHANCE", 0)
    verifier = FakeVerifier()
    with verified_gallery(tmp_path / "g") as gallery:
        together = searched(gallery, verifier, 5, 20, 5)
        assert together != searched(gallery, None, 5, 20, 5)  # details matter here
        for number, (vector, features) in enumerate(zip(unit(20, 5), some_features(20, 5), strict=True)):
            alone = gallery.search(vector[None], 5, item_distance=DETAILS, verifier=verifier, features=[features])
            assert plainly(alone)[0] == together[number]
        gallery.rebuild(kind=kind, threads=1)
        assert searched(gallery, verifier, 5, 20, 5) == together


def test_votes_bring_an_item_that_is_far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_search, "CANDIDATES", 1)
    vectors = np.eye(DIM, dtype=np.float32)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        shown = list(range(50, 80))
        features = [pack([1, 2]), pack(shown[:9]), pack(shown)]
        gallery.add(["near", "far", "more"], ["x", "y", "z"], [vectors[0], vectors[1], -vectors[0]], features=features)
        query = (vectors[:1] + 0.5 * vectors[1:2]) / np.sqrt(1.25)
        found = []
        for voted in (0, 1, 2):
            verifier = FakeVerifier(items=1, photos=1, voted=voted)
            asked: dict[str, Any] = {"verifier": verifier, "features": [pack(shown)]}
            (best,) = gallery.search(query, 1, item_distance=ItemDistance(details=1), **asked)
            found.append(best[0].item_id)
        assert found[0] == "x"  # without votes, the nearest item is all that is looked at
        assert "z" in found[1:]


def test_details_of_the_nearest_items_are_compared_and_of_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_search, "CANDIDATES", 2)
    vectors = np.eye(DIM, dtype=np.float32)
    query, details = vectors[:1] + 0.5 * vectors[1:2], ItemDistance(details=1)
    query /= np.sqrt(1.25)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        places = np.stack([vectors[0], vectors[1], 0.6 * vectors[0] - 0.8 * vectors[1]])
        gallery.add(["near", "next", "far"], ["x", "y", "z"], places, features=[pack([1, 2, 3])] * 3)
        now = gallery.snapshot()
        best = ItemSearch(now, details, FakeVerifier(1, 1, 0)).nearest(query, 2, features=[pack([1, 2, 3])])
        assert [now.photo(position)[0] for position in best.positions[0]] == ["near", "next"]
        assert best.inliers.tolist() == [[3, 0]]
        unlike = [
            ItemSearch(now, details, FakeVerifier(1, 1, voted)).nearest(query, 2, features=[pack([7, 8])])
            for voted in (0, 3)
        ]
        first, second = ([getattr(table, each.name) for each in fields(Table)] for table in unlike)
        np.testing.assert_equal(first, second)  # photos without votes are no candidates


def test_evidence_of_the_nearest_photo_has_no_mean_without_a_verifier_and_inliers_with_one(tmp_path: Path) -> None:
    vectors = unit(2, 1)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        gallery.add(["a", "b"], ["a", "b"], vectors, features=[pack([1, 2, 3]), pack([4, 5])])
        asked: dict[str, Any] = {"verifier": FakeVerifier(), "features": [pack([1, 2, 3])]}
        ((plain,),) = gallery.search(vectors[:1], 1)
        ((compared,),) = gallery.search(vectors[:1], 1, **asked)
    assert (plain.photo_id, plain.distance, plain.mean_distance, plain.inliers) == ("a", 0.0, None, 0)
    assert (compared.photo_id, compared.distance, compared.mean_distance, compared.inliers) == ("a", 0.0, 0.0, 3)


def test_details_never_bring_an_item_farther(tmp_path: Path) -> None:
    only = ItemDistance(nearest=1, mean=0, rival=0, rivals=0, copy=0, details=0.3)
    with verified_gallery(tmp_path / "g") as gallery:
        for vector, features in zip(unit(20, 5), some_features(20, 5), strict=True):
            asked: dict[str, Any] = {"verifier": FakeVerifier(), "features": [features]}
            (plain,) = gallery.search(vector[None], CANDIDATES, item_distance=NEAREST_PHOTO)
            (best,) = gallery.search(vector[None], 40, item_distance=only, **asked)
            lowered = {found.item_id: found.distance for found in best}
            assert all(lowered[found.item_id] <= found.distance for found in plain)


def test_features_that_are_missing_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        for features in (None, [b""]):
            with pytest.raises(InvalidParameter, match="features must have one entry per vector"):
                gallery.search(unit(2), 1, item_distance=DETAILS, verifier=FakeVerifier(), features=features)
        other = FakeVerifier(features_key="other")
        with pytest.raises(GalleryError, match="keeps other features than the bundle compares"):
            gallery.search(unit(1), 1, item_distance=DETAILS, verifier=other, features=[b""])
    with filled(tmp_path / "plain") as gallery, pytest.raises(GalleryError, match="keeps no features"):
        gallery.search(unit(1), 1, item_distance=DETAILS, verifier=FakeVerifier(), features=[b""])


def test_damaged_features_are_remembered(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        searched(gallery, FakeVerifier(), 5, 1, 5)
    (file, *_) = sorted((tmp_path / "g" / "segments").glob("*.features"), key=lambda path: -path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    file.write_bytes(bytes(data))
    with Gallery.open(tmp_path / "g") as gallery:
        with pytest.raises(GalleryCorrupt):
            searched(gallery, FakeVerifier(), 5, 20, 5)
        assert gallery.damage


def test_a_gallery_on_milvus_keeps_no_features(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="keeps no features, which verification needs"):
        open_or_create(f"milvus+{tmp_path}/lite.db/g", dim=DIM, embedding_id="e", features_key="f")


def test_photos_that_are_added_are_compared(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        before = searched(gallery, FakeVerifier(), 5, 20, 5)
        fill(gallery, range(300, 340), 40, 77)
        assert searched(gallery, FakeVerifier(), 5, 20, 5) != before
