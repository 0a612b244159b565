"""Searches by item distance against a version that looks at every photo, and draws against galleries without photos."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.location import open_or_create
from index.photos import NONE
from index.search import item_distance, item_search
from index.search.distance import plain_distance
from index.search.item_distance import CANDIDATES, NEAREST_PHOTO, ItemDistance, mean_photo
from index.search.item_search import Draw, IsDuplicate, ItemSearch
from index.search.left_out import Queries
from index.snapshot import Neighbour, Snapshot

from ..vectors import DIM, unit
from .fake_verifier import FakeVerifier, fill, pack, some_features, verified_gallery

pytestmark = pytest.mark.usefixtures("few_own_queries")

ITEM = ItemDistance()
DETAILS = ItemDistance(details=0.3)


def clustered(count: int, items: int, seed: int, spread: float = 0.8) -> tuple[np.ndarray, list[str]]:
    """Return unit vectors around the centre of their item, in shuffled order, with items of uneven sizes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, items, count) * generator.integers(0, 2, count)  # half of them in item 0
    labels = np.where(labels == 0, generator.integers(0, items, count), labels)
    vectors = unit(items, 1000)[labels] + spread * unit(count, seed)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), [f"i{label}" for label in labels]


def filled(path: Path, *, count: int = 300, items: int = 40, groups: dict[str, str] | None = None) -> Gallery:
    """Return a gallery in segments of different sizes, with removed photos."""
    vectors, labels = clustered(count, items, 3)
    gallery = Gallery.create(path, dim=DIM, embedding_id="e", columns={"half": "text"})
    metadata = [{"half": "ab"[i % 2], "group": (groups or {}).get(label, "")} for i, label in enumerate(labels)]
    for start, stop in ((0, 200), (200, 203), (203, count)):
        some = range(start, min(stop, count))
        gallery.add(
            [f"p{i}" for i in some], [labels[i] for i in some], vectors[some], metadata=[metadata[i] for i in some]
        )
    gallery.remove(photo_ids=["p5", "p202"])
    return gallery


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


def plainly(answers: list[list[Neighbour]]) -> list[list[tuple[str, str, float]]]:
    return [[(found.item_id, found.photo_id, found.distance) for found in best] for best in answers]


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


def test_of_photos_at_one_distance_the_first_of_an_item_is_named(tmp_path: Path) -> None:
    """Three items have copies of their photos among others; answers and draws name the first of the copies."""
    vectors = unit(12, 5)
    vectors[[4, 9]], vectors[[7, 10]], vectors[11] = vectors[2], vectors[3], vectors[0]
    items = ["c", "b", "a", "b", "a", "c", "a", "b", "c", "a", "b", "c"]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        names = [f"p{number}" for number in np.random.default_rng(1).permutation(12)]
        gallery.add(names, items, vectors)
        now = gallery.snapshot()
        for copies in ([2, 4, 9], [3, 7, 10], [0, 11]):
            (best,) = gallery.search(vectors[[copies[-1]]], 3, item_distance=ITEM)
            assert (best[0].photo_id, best[0].item_id) == (names[copies[0]], items[copies[0]])
            query = Queries(vectors[copies], now.items[copies], np.array(copies)[:, None])
            found = ItemSearch(now, ITEM).draws(query, lambda *_: False)
            assert [draw.own_nearest for draw in found] == [copies[1], *[copies[0]] * (len(copies) - 1)]
            assert [draw.own_plain for draw in found] == [0.0] * len(copies)


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
            near = gallery.snapshot().nearest(query[None], 40)[0]
            assert [found.distance for found in answer] == [apart for _, apart in near]


def test_a_photo_of_the_gallery_is_at_distance_zero_from_its_item(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        for some in gallery.walk(50):
            answers = gallery.search([photo.vector for photo in some], 1, item_distance=ITEM)
            assert [(best[0].item_id, best[0].distance) for best in answers] == [(p.item_id, 0.0) for p in some]


# draws


def draws_of(gallery: Gallery, distance: ItemDistance = ITEM) -> dict[str, Draw]:
    """Return the own draw of each photo."""
    now = gallery.snapshot()
    positions = np.flatnonzero(now.live)
    queries = Queries(now.vectors(positions), now.items[positions], positions[:, None])
    found = ItemSearch(now, distance).draws(queries, lambda *_: False)
    return {now.photo(position)[0]: draw for position, draw in zip(positions.tolist(), found, strict=True)}


def copy_without(gallery: Gallery, path: Path, *, items: set[str] = frozenset(), photo: str = "") -> Gallery:  # type: ignore[assignment]
    """Return a gallery with the photos of another one, without some."""
    copy = Gallery.create(path, dim=DIM, embedding_id="e")
    kept = [
        stored
        for some in gallery.walk(1000)
        for stored in some
        if stored.item_id not in items and stored.photo_id != photo
    ]
    copy.add(
        [stored.photo_id for stored in kept],
        [stored.item_id for stored in kept],
        np.stack([stored.vector for stored in kept]),
        metadata=[stored.metadata for stored in kept],
    )
    return copy


@pytest.mark.parametrize(
    "groups",
    [{}, {"i1": "g", "i2": "g", "i3": "g"}, {f"i{number}": "g" for number in range(37)}],
    ids=["no groups", "three of a group", "more of a group than the nearest items"],
)
def test_a_draw_is_a_search_of_a_gallery_without_the_item_and_one_without_the_photo(
    tmp_path: Path, groups: dict[str, str]
) -> None:
    with filled(tmp_path / "g", groups=groups) as gallery:
        draws = draws_of(gallery)
        now = gallery.snapshot()
        for number, photo_id in enumerate(("p0", "p1", "p33", "p150", "p201", "p250", "p299")):
            _, item, _ = gallery.photo(photo_id) or ("", "", {})
            vector = now.vectors(np.flatnonzero([now.photo(i)[0] == photo_id for i in range(len(now.seqs))]))
            others = {other for other, group in groups.items() if group == groups.get(item)}
            draw = draws[photo_id]
            with copy_without(gallery, tmp_path / f"a{number}", items={item} | others) as without:
                (answer,) = without.search(vector, 1, item_distance=ITEM)
                assert draw.distance == answer[0].distance
                assert now.photo(draw.nearest)[0] == answer[0].photo_id
                assert draw.plain == without.search(vector, 1)[0][0].distance
            with copy_without(gallery, tmp_path / f"b{number}", items=others - {item}, photo=photo_id) as having:
                (answer,) = having.search(vector, CANDIDATES, item_distance=ITEM)
                mine = [found for found in answer if found.item_id == item]
                if mine:
                    assert draw.own == mine[0].distance
                    assert now.photo(draw.own_nearest)[0] == mine[0].photo_id
                first = answer[0]
                assert draw.wrong == (np.inf if first.item_id == item else first.distance)


def test_a_draw_of_an_unknown_item_leaves_nothing_out(tmp_path: Path) -> None:
    queries = clustered(5, 40, 13)[0]
    with filled(tmp_path / "g") as gallery:
        nobody = np.full((5, 1), NONE)
        found = ItemSearch(gallery.snapshot(), ITEM).draws(Queries(queries, nobody[:, 0], nobody), lambda *_: False)  # type: ignore[arg-type]
        answers = gallery.search(queries, 1, item_distance=ITEM)
        assert [draw.distance for draw in found] == [best[0].distance for best in answers]
        assert {(draw.own, draw.wrong) for draw in found} == {(np.inf, np.inf)}


def test_a_copy_of_one_of_several_photos_of_a_draw_leaves_its_item_out(tmp_path: Path) -> None:
    vectors = unit(4, 1)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["a0", "b0", "a1", "c0"], ["a", "b", "a", "c"], vectors[[0, 0, 1, 3]])
        now = gallery.snapshot()
        queries = Queries(vectors[:1], now.items[[0]], np.array([[2, 0]]))
        (draw,) = ItemSearch(now, ITEM).draws(queries, lambda photo, other: (photo, other) == (0, 1))
        assert (draw.duplicate, draw.nearest) == (1, 3)


@pytest.mark.parametrize("items", [("own", "other"), ("other", "own")], ids=["own first", "other first"])
def test_of_items_at_one_distance_the_first_is_a_candidate_in_a_draw_as_in_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: tuple[str, str]
) -> None:
    monkeypatch.setattr(item_search, "CANDIDATES", 1)
    vectors = unit(2, 1)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["p0", "p1"], items, vectors[[1, 1]])
        ((found,),) = gallery.search(vectors[:1], 1, item_distance=ITEM)
        gallery.add(["query"], ["own"], vectors[:1])
        now = gallery.snapshot()
        (draw,) = ItemSearch(now, ITEM).draws(Queries(vectors[:1], now.items[[2]], np.array([[2]])), lambda *_: False)
    assert found.item_id == items[0]
    assert draw.wrong == (np.inf if items[0] == "own" else found.distance)


def test_draws_do_not_depend_on_how_many_are_made_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "g") as gallery:
        together = draws_of(gallery)
        monkeypatch.setattr(item_search, "TOGETHER", 7)
        assert draws_of(gallery) == together


def test_draws_without_a_verifier_read_photos_in_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos on Milvus, which are drawn in the same way, forget what they have read: no other thread may do so."""
    read, threads = Snapshot.photos_of, set[int]()

    def slowly(self: Snapshot, items: Sequence[int]) -> list[np.ndarray]:
        if threading.current_thread() is not threading.main_thread():
            threads.add(threading.get_ident())
            time.sleep(0.005)  # another thread would go on meanwhile
        return read(self, items)

    monkeypatch.setattr(Snapshot, "photos_of", slowly)
    with filled(tmp_path / "g", count=20) as gallery:
        draws_of(gallery)
    assert len(threads) == 1


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
        (best,) = ItemSearch(now, details, FakeVerifier(1, 1, 0)).nearest(query, 2, features=[pack([1, 2, 3])])
        assert [(now.photo(near.position)[0], near.inliers) for near in best] == [("near", 3), ("next", 0)]
        unlike = [
            ItemSearch(now, details, FakeVerifier(1, 1, voted)).nearest(query, 2, features=[pack([7, 8])])
            for voted in (0, 3)
        ]
        assert unlike[0] == unlike[1]  # photos without votes are no candidates


def test_evidence_of_the_nearest_photo_has_no_mean_without_a_verifier_and_inliers_with_one(tmp_path: Path) -> None:
    vectors = unit(2, 1)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        gallery.add(["a", "b"], ["a", "b"], vectors, features=[pack([1, 2, 3]), pack([4, 5])])
        now = gallery.snapshot()
        ((plain,),) = ItemSearch(now, NEAREST_PHOTO).nearest(vectors[:1], 1)
        verified = ItemSearch(now, NEAREST_PHOTO, FakeVerifier())
        ((compared,),) = verified.nearest(vectors[:1], 1, features=[pack([1, 2, 3])])
    assert (plain.position, plain.distance, plain.mean, plain.inliers) == (0, 0.0, None, 0)
    assert (compared.position, compared.distance, compared.mean, compared.inliers) == (0, 0.0, 0.0, 3)


def test_details_never_bring_an_item_farther(tmp_path: Path) -> None:
    only = ItemDistance(nearest=1, mean=0, rival=0, rivals=0, copy=0, details=0.3)
    with verified_gallery(tmp_path / "g") as gallery:
        for vector, features in zip(unit(20, 5), some_features(20, 5), strict=True):
            asked: dict[str, Any] = {"verifier": FakeVerifier(), "features": [features]}
            (plain,) = gallery.search(vector[None], CANDIDATES, item_distance=NEAREST_PHOTO)
            (best,) = gallery.search(vector[None], 40, item_distance=only, **asked)
            lowered = {found.item_id: found.distance for found in best}
            assert all(lowered[found.item_id] <= found.distance for found in plain)


def test_a_draw_compares_no_photo_with_itself(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        now, verifier = gallery.snapshot(), FakeVerifier()
        positions = np.flatnonzero(now.live)[:40]
        queries = Queries(now.vectors(positions), now.items[positions], positions[:, None])
        draws = ItemSearch(now, DETAILS, verifier).draws(queries, lambda *_: False)
        for position, draw in zip(positions.tolist(), draws, strict=True):
            photo_id, item, _ = now.photo(position)
            with_item = Gallery.create(tmp_path / f"c{position}", dim=DIM, embedding_id="e", features_key="f")
            kept = [p for some in gallery.walk(1000, whole=True) for p in some if p.photo_id != photo_id]
            with with_item as copy:
                copy.add(
                    [p.photo_id for p in kept],
                    [p.item_id for p in kept],
                    np.stack([p.vector for p in kept]),
                    features=[p.features or b"" for p in kept],
                )
                asked: dict[str, Any] = {"verifier": FakeVerifier(), "features": now.features(np.array([position]))}
                (answer,) = copy.search(now.vectors(np.array([position])), CANDIDATES, item_distance=DETAILS, **asked)
            mine = [found.distance for found in answer if found.item_id == item]
            assert not mine or draw.own == mine[0]


def far_behind(path: Path, cosines: Sequence[float], others_at: float, *, group: str = "") -> tuple[Snapshot, int]:
    """Return photos of which votes bring some behind 40 other items, and the position of photo "query" of item "a".

    Photos "far 0", "far 1", ... of items of their own have some `cosines` to it and most of its key points. The photos
    of 40 other items have the cosine `others_at`, and none of them.
    """
    generator = np.random.default_rng(7)
    others = unit(40, 3)
    others[:, 0] = others_at / np.sqrt(1 - others_at**2) * np.linalg.norm(others[:, 1:], axis=1)
    far = np.zeros((len(cosines), DIM), np.float32)
    far[:, 0], far[np.arange(len(far)), 1 + np.arange(len(far))] = cosines, np.sqrt(1 - np.square(cosines))
    query = np.eye(1, DIM, dtype=np.float32)
    vectors = np.concatenate([query, far, others / np.linalg.norm(others, axis=1, keepdims=True)])
    ids = ["query", *(f"far {i}" for i in range(len(far))), *(f"other {i}" for i in range(40))]
    features = [pack([1, 2, 3, *range(7, 7 + len(far) - i)]) for i in range(len(far))]  # the first has most votes
    features = [pack([1, 2, 3, *range(7, 7 + len(far))]), *features, *[pack([250])] * 40]
    order = generator.permutation(len(ids)).tolist()
    with Gallery.create(path, dim=DIM, embedding_id="e", features_key="f") as gallery:
        gallery.add(
            [ids[i] for i in order],
            ["a" if ids[i] == "query" else ids[i] for i in order],
            vectors[order].astype(np.float32),
            metadata=[{"group": group} if ids[i] == "query" or ids[i].startswith("far") else {} for i in order],
            features=[features[i] for i in order],
        )
        return gallery.snapshot(), order.index(0)


def drawn(now: Snapshot, query: int, is_duplicate: IsDuplicate, verifier: FakeVerifier | None = None) -> Draw:
    position = np.array([query])
    queries = Queries(now.vectors(position), now.items[position], position[None])
    (draw,) = ItemSearch(now, DETAILS, verifier or FakeVerifier()).draws(queries, is_duplicate)
    return draw


@pytest.mark.parametrize("voted", [1, 3])
def test_votes_bring_no_member_of_the_group_of_a_draw(tmp_path: Path, voted: int) -> None:
    now, query = far_behind(tmp_path / "g", [0.5, 0.45, 0.4, 0.35, 0.3], 0.6, group="all")
    draw = drawn(now, query, lambda *_: False, FakeVerifier(voted=voted))
    assert now.photo(draw.nearest)[1].startswith("other")
    assert draw == drawn(now, query, lambda *_: False, FakeVerifier(voted=0))
    now, query = far_behind(tmp_path / "no group", [0.5, 0.45, 0.4, 0.35, 0.3], 0.6)
    assert now.photo(drawn(now, query, lambda *_: False).nearest)[1] == "far 0"


def test_votes_bring_no_copy_of_the_query_of_a_draw(tmp_path: Path) -> None:
    now, query = far_behind(tmp_path / "g", [0.985, 0.983, 0.9], 0.99)
    copies = {"far 0", "far 1"}
    draw = drawn(now, query, lambda own, other: own == query and now.photo(other)[0] in copies, FakeVerifier(voted=1))
    assert draw.duplicate != NONE
    assert now.photo(draw.duplicate)[0] == "far 0"
    assert now.photo(draw.nearest)[0].startswith("other")


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


@pytest.mark.parametrize(("apart", "compared"), [(0.0, True), (0.15, True), (0.199, True), (0.201, False)])
def test_photos_of_other_items_up_to_0_2_away_are_looked_at_for_copies(
    tmp_path: Path, apart: float, compared: bool
) -> None:
    angle, seen = 2 * np.arcsin(apart / 2), list[tuple[int, int]]()
    vectors = np.zeros((3, DIM), np.float32)
    vectors[0, 2], vectors[1, 0], vectors[2, :2] = 1, 1, (np.cos(angle), np.sin(angle))
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["c", "a", "b"], ["far", "two", "one"], vectors)
        now = gallery.snapshot()
        query = Queries(vectors[[1]], now.items[[1]], np.array([[1]]))
        (found,) = ItemSearch(now, ITEM).draws(query, lambda *pair: bool(seen.append(pair)) or True)
    assert found.duplicate == (2 if compared else NONE)
    assert found.nearest == (0 if compared else 2)
    assert seen == ([(1, 2)] if compared else [])
