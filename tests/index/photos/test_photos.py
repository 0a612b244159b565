"""Photos in arrays and photos of a gallery answer alike, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from index.errors import GalleryError, InvalidParameter
from index.gallery import Gallery
from index.groups import GROUP
from index.photos import CONTENT, NONE, Photos, hashed, sampled
from index.photos.arrays import ArrayPhotos
from index.search.item_distance import NEAREST_PHOTO, ItemDistance, mean_photo
from index.search.item_search import ItemSearch
from index.search.left_out import Queries, search_without
from index.search.tables import Table
from index.snapshot import Snapshot

from ...world import shuffled
from ..search.fake_verifier import FakeVerifier, some_features
from ..vectors import DIM, unit

COUNT, ITEMS, MOVED = 300, 40, 7
DETAILS = ItemDistance(details=0.3)


class Both(NamedTuple):
    """The same photos in a gallery and in arrays, by the same photo ids, items and groups."""

    gallery: Snapshot
    arrays: ArrayPhotos
    ids: list[str]  # of the arrays' rows
    moved: np.ndarray  # position in the arrays of each position in the gallery, NONE for a removed photo

    def here(self, positions: np.ndarray) -> np.ndarray:
        """Return positions in the arrays, given those in the gallery."""
        return np.where(positions == NONE, NONE, self.moved[positions])


def uneven_items(generator: np.random.Generator) -> list[str]:
    """Return the item of each photo: numeric ids in no order, of which a few have most photos."""
    names = [str(number) for number in generator.permutation(1000)[:ITEMS]]
    sizes = np.r_[np.arange(ITEMS), generator.zipf(1.7, COUNT - ITEMS) % ITEMS]
    return [names[place] for place in generator.permutation(sizes).tolist()]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Return photos in segments of different sizes, with removed and updated ones, three of a kind, and groups.

    The photos of a kind have equal vectors, and so have copies, which are of two items.
    """
    generator = np.random.default_rng(11)
    items = uneven_items(generator)
    centres = unit(ITEMS, 3)[np.unique(items, return_inverse=True)[1]]
    vectors = (centres + 0.7 * unit(COUNT, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    kinds = generator.permutation(COUNT)[:60].reshape(-1, 3)
    vectors[kinds[:, 1:]] = vectors[kinds[:, :1]]
    names = sorted(set(items))
    group_of = dict.fromkeys(shuffled(names)[:5], "red") | dict.fromkeys(shuffled(names, 3)[:4], "blue")
    metadata = [{GROUP: group_of[item]} if item in group_of else {} for item in items]
    shown = np.unique(vectors, axis=0, return_inverse=True)[1].tolist()
    ids, features = [str(number) for number in generator.permutation(5000)[:COUNT]], some_features(COUNT, 6)
    path = tmp_path_factory.mktemp("photos") / "g"
    with Gallery.create(path, dim=DIM, embedding_id="e", features_key="f") as gallery:
        for start, stop in ((0, 200), (200, 203), (203, COUNT)):
            rows = range(start, stop)
            gallery.add(
                [ids[row] for row in rows],
                [items[row] for row in rows],
                vectors[start:stop],
                metadata=[metadata[row] | {CONTENT: f"file {shown[row]}"} for row in rows],
                features=features[start:stop],
            )
        gone = [ids[row] for row in (4, 91, 201, 299)]
        gallery.remove(photo_ids=gone)
        again = [row for row in range(0, COUNT, COUNT // MOVED) if ids[row] not in gone]
        stored = [gallery.photo(ids[row]) for row in again]
        gallery.update(*zip(*((p[0], p[1], p[2] | {"price": 3}) for p in stored if p is not None), strict=True))
        now = gallery.snapshot()
        live = np.flatnonzero(now.live)
        order = [ids.index(photo_id) for photo_id, *_ in now.photos_at(live)]
        moved = np.full(len(now.seqs), NONE)
        moved[live] = np.arange(len(live))
        arrays = ArrayPhotos(
            vectors[order],
            [items[row] for row in order],
            photo_ids=[ids[row] for row in order],
            groups=[group_of.get(items[row], "") for row in order],
            features=[features[row] for row in order],
        )
        yield Both(now, arrays, [ids[row] for row in order], moved)


def queries(count: int = 60) -> np.ndarray:
    """Return vectors near items, some of them nearer to several."""
    return unit(count, 8)


@pytest.mark.parametrize("k", [1, 2, 5, ITEMS, ITEMS + 20])
def test_the_nearest_items_are_those_of_a_loop_over_all_photos(both: Both, k: int) -> None:
    """The smaller position is first where distances are equal, as those of three of a kind are."""
    arrays = both.arrays
    stored = arrays.vectors(np.arange(arrays.size))
    asked = np.concatenate([queries(20), stored[:40]])
    positions, distances = arrays.nearest(asked, k)
    assert positions.shape == distances.shape == (60, k)
    exact = asked.astype(np.float64) / np.linalg.norm(asked.astype(np.float64), axis=1, keepdims=True)
    whole = stored.astype(np.float64) / np.linalg.norm(stored.astype(np.float64), axis=1, keepdims=True)
    for row, vector in enumerate(exact):
        apart = np.sqrt(((vector - whole) ** 2).sum(axis=1))
        apart = np.array([apart[np.flatnonzero((stored == each).all(axis=1))[0]] for each in stored])  # of one kind
        best: dict[int, int] = {}
        for place in np.argsort(apart, kind="stable").tolist():
            best.setdefault(int(arrays.items[place]), place)
        first = list(best.values())[:k]
        assert positions[row, : len(first)].tolist() == first
        assert distances[row, : len(first)] == pytest.approx(apart[first], abs=1e-9)
        assert (positions[row, len(first) :] == NONE).all()
        assert (distances[row, len(first) :] == np.inf).all()


@pytest.mark.parametrize("k", [1, 5, 24, ITEMS + 20])
def test_both_find_the_same_photos_at_the_same_distances(both: Both, k: int) -> None:
    stored = both.gallery.vectors(np.flatnonzero(both.gallery.live))
    for asked in (queries(), stored[::5], stored[:1], stored[:0]):
        (positions, distances), (here, apart) = both.gallery.nearest(asked, k), both.arrays.nearest(asked, k)
        np.testing.assert_array_equal(both.here(positions), here)
        np.testing.assert_array_equal(distances, apart)
        np.testing.assert_array_equal(both.arrays.items_at(here) == NONE, both.gallery.items_at(positions) == NONE)


def test_answers_do_not_depend_on_how_many_queries_are_compared_at_a_time(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = both.arrays.nearest(queries(), 7)
    monkeypatch.setattr("index.photos.arrays.COMPARED", 1000)
    for values, expected in zip(both.arrays.nearest(queries(), 7), together, strict=True):
        np.testing.assert_array_equal(values, expected)
    alone = [both.arrays.nearest(query[None], 7) for query in queries()]
    np.testing.assert_array_equal(np.concatenate([positions for positions, _ in alone]), together[0])
    np.testing.assert_array_equal(np.concatenate([distances for _, distances in alone]), together[1])


def test_a_mask_restricts_a_search_as_a_filter_does(both: Both) -> None:
    size = both.arrays.size
    chosen = np.random.default_rng(3).random(size) < 0.3
    rows = np.flatnonzero(chosen)
    few = ArrayPhotos(both.arrays.vectors(rows), both.arrays.item_ids[both.arrays.items[rows]])
    positions, distances = both.arrays.nearest(queries(), 6, only=chosen)
    expected, apart = few.nearest(queries(), 6)
    np.testing.assert_array_equal(positions, np.where(expected == NONE, NONE, rows[expected]))
    np.testing.assert_array_equal(distances, apart)
    removed = both.gallery.without(np.flatnonzero(both.gallery.live & ~np.isin(both.moved, rows)))
    np.testing.assert_array_equal(both.here(removed.nearest(queries(), 6)[0]), positions)
    nothing, far = both.arrays.nearest(queries(3), 6, only=np.zeros(size, bool))
    assert (nothing == NONE).all()
    assert (far == np.inf).all()


def each(photos: Photos) -> np.ndarray:
    """Return the positions of all photos."""
    return np.flatnonzero(photos.live) if isinstance(photos, Snapshot) else np.arange(photos.size)


def names(photos: Photos, positions: np.ndarray) -> list[str]:
    return [photo_id for photo_id, *_ in photos.photos_at(positions)]


def test_photos_have_their_names_items_groups_and_vectors(both: Both) -> None:
    (stored, own), (here, mine) = ((photos.photos_at(each(photos)), photos) for photos in both[:2])
    assert [photo[:2] for photo in stored] == [photo[:2] for photo in here]
    assert [photo[2].get(GROUP) for photo in stored] == [photo[2].get(GROUP) for photo in here]
    assert sum(GROUP in photo[2] for photo in here) > 20
    np.testing.assert_array_equal(own.vectors(each(own)), mine.vectors(each(mine)))
    assert own.features(each(own)) == mine.features(each(mine))
    assert (own.size, own.item_count) == (mine.size, mine.item_count) == (COUNT - 4, ITEMS)


def test_positions_and_item_numbers_are_found_by_id(both: Both) -> None:
    ids = [*shuffled(both.ids)[:50], "unknown", both.ids[0], both.ids[0], ""]
    items = [*shuffled(both.arrays.item_ids.tolist())[:9], "unknown", "", "zzz"]
    for photos in both[:2]:
        positions = photos.positions(ids)
        assert [NONE if position == NONE else names(photos, np.array([position]))[0] for position in positions] == [
            photo_id if photo_id in both.ids else NONE for photo_id in ids
        ]
        numbers = photos.item_numbers(items)
        assert set(numbers) == set(items[:9])
        for (item, number), own in zip(numbers.items(), photos.photos_of(list(numbers.values())), strict=True):
            assert {name for _, name, _ in photos.photos_at(own)} == {item}
            assert (photos.items_at(own) == number).all()
            assert (np.diff(own) > 0).all()
        assert photos.positions([]).tolist() == []
        assert photos.item_numbers([]) == {}
        table = np.array([[NONE, int(each(photos)[0])], [int(each(photos)[1]), NONE]])
        assert ((photos.items_at(table) == NONE) == (table == NONE)).all()


def test_items_have_the_same_photos_means_and_groups(both: Both) -> None:
    items = shuffled(both.arrays.item_ids.tolist())
    facts, photos_of = [], []
    for photos in both[:2]:
        numbers = np.array(list(photos.item_numbers(items).values()))
        facts.append(photos.facts_of(numbers))
        photos_of.append([names(photos, own) for own in photos.photos_of(numbers.tolist())])
        for own, mean in zip(photos.photos_of(numbers.tolist()), facts[-1].means, strict=True):
            np.testing.assert_array_equal(mean, mean_photo(photos.vectors(own)))
    assert photos_of[0] == photos_of[1]
    assert max(map(len, photos_of[0])) > 20 * min(map(len, photos_of[0]))
    for first, second in zip(*facts, strict=True):
        np.testing.assert_array_equal(first, second)
    assert len(set(facts[0].groups.tolist())) < ITEMS - 5  # two groups of several items
    nothing = both.arrays.facts_of(np.zeros(0, np.int64))
    assert (nothing.means.shape, nothing.groups.shape) == ((0, DIM), (0,))


def test_photos_of_one_file_are_copies_and_those_with_equal_vectors(both: Both) -> None:
    first, second = np.indices((both.arrays.size, both.arrays.size)).reshape(2, -1)
    live = each(both.gallery)
    found, expected = both.gallery.copies(live[first], live[second]), both.arrays.copies(first, second)
    np.testing.assert_array_equal(found, expected)
    assert 100 < (expected & (first != second)).sum() <= 120  # three of each of twenty kinds


@pytest.mark.parametrize("most", [1, 7, ITEMS, 90, 1000])
def test_a_sample_holds_every_item_once_before_any_twice_and_is_the_same_in_both(both: Both, most: int) -> None:
    for gone in ([], both.arrays.item_ids[:3].tolist()):
        samples = []
        for photos in both[:2]:
            excluded = list(photos.item_numbers(gone).values())
            left = each(photos)
            left = left[~np.isin(photos.items_at(left), excluded)]
            item_keys = hashed(item for _, item, _ in photos.photos_at(left))
            order = sampled(photos.items_at(left), item_keys, photos.keys_of(left))
            sample = photos.sample(most, excluded=excluded)
            assert sample.tolist() == left[order][:most].tolist()
            assert len(np.unique(photos.items_at(sample))) == min(most, ITEMS - len(gone))
            samples.append(names(photos, sample))
        assert samples[0] == samples[1]
    np.testing.assert_array_equal(both.gallery.keys_of(each(both.gallery)), hashed(both.ids))
    np.testing.assert_array_equal(both.arrays.keys_of(each(both.arrays)), hashed(both.ids))


def test_photos_that_were_added_or_removed_since_are_counted(both: Both) -> None:
    for photos in both[:2]:
        assert photos.mark[0] == photos.size
        assert photos.changes_since(photos.mark) == 0
    fewer = ArrayPhotos(both.arrays.vectors(np.arange(9)), both.arrays.item_ids[both.arrays.items[:9]])
    assert fewer.changes_since(both.arrays.mark) == both.arrays.changes_since(fewer.mark) == both.arrays.size - 9


@pytest.mark.parametrize("distance", [NEAREST_PHOTO, ItemDistance(), DETAILS], ids=["plain", "items", "details"])
@pytest.mark.parametrize("k", [3, ITEMS])
def test_searches_are_equal_to_the_last_bit(both: Both, distance: ItemDistance, k: int) -> None:
    asked = {"features": some_features(60, 9)} if distance == DETAILS else {}
    verifier = FakeVerifier() if distance == DETAILS else None
    tables = [ItemSearch(photos, distance, verifier).nearest(queries(), k, **asked) for photos in both[:2]]
    assert both.here(tables[0].positions).tolist() == tables[1].positions.tolist()
    for name in (each.name for each in fields(Table)):
        if name not in ("items", "positions"):  # numbers of one implementation
            np.testing.assert_array_equal(getattr(tables[0], name), getattr(tables[1], name), err_msg=name)
    assert (tables[0].inliers > 0).any() == (distance == DETAILS)


@pytest.mark.parametrize("distance", [NEAREST_PHOTO, ItemDistance(), DETAILS], ids=["plain", "items", "details"])
def test_searches_without_an_item_are_equal_to_the_last_bit(both: Both, distance: ItemDistance) -> None:
    verifier, found = FakeVerifier() if distance == DETAILS else None, []
    for photos in both[:2]:
        positions = each(photos)[:: 3 if distance == DETAILS else 1]
        own = Queries(photos.vectors(positions), photos.items_at(positions), positions[:, None])
        found.append(vars(search_without(ItemSearch(photos, distance, verifier), own)))
    for name, values in found[0].items():
        is_position = name in ("nearest", "duplicates", "own_nearest")
        np.testing.assert_array_equal(both.here(values) if is_position else values, found[1][name], err_msg=name)
    assert (found[1]["duplicates"] != NONE).sum() > 5
    assert np.isfinite(found[1]["wrong"]).any()


def test_votes_are_those_of_the_inverted_lists_of_a_gallery(both: Both) -> None:
    verifier = FakeVerifier()
    for features in some_features(20, 12):
        asked = verifier.asked(features)
        (positions, votes), (here, scores) = (photos.votes(verifier, asked) for photos in both[:2])
        np.testing.assert_array_equal(both.here(positions), here)
        np.testing.assert_array_equal(votes, scores)


def test_arrays_without_features_say_so() -> None:
    with pytest.raises(GalleryError, match="these photos have no local features"):
        ArrayPhotos(unit(2), ["a", "b"]).features(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"vectors": 2 * unit(3)}, "vectors must be of length one"),
        ({"vectors": np.full((3, 4), np.nan, np.float32)}, "vectors must be of length one"),
        ({"vectors": unit(3).astype(np.float64)}, "vectors must be float32"),
        ({"vectors": unit(3)[0]}, "vectors must be float32"),
        ({"item_ids": ["a", "b"]}, "item_ids must hold one value for each of the 3 vectors"),
        ({"groups": ["a"]}, "groups must hold one value"),
        ({"photo_ids": ["1", "2", "1"]}, "photo_ids must differ"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidParameter, match=told):
        ArrayPhotos(**{"vectors": unit(3), "item_ids": ["a", "b", "a"], **given})


def test_no_photos_have_no_nearest_one_and_no_sample() -> None:
    nothing = ArrayPhotos(unit(3)[:0], [])
    positions, distances = nothing.nearest(unit(2), 3)
    assert positions.tolist() == [[NONE] * 3] * 2
    assert distances.tolist() == [[np.inf] * 3] * 2
    assert nothing.sample(5).tolist() == []
    assert (nothing.size, nothing.item_count, nothing.positions(["a"]).tolist()) == (0, 0, [NONE])
    assert nothing.item_numbers(["a"]) == {}


def test_photos_of_an_empty_gallery(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        now = gallery.snapshot()
        positions, distances = now.nearest(unit(2), 3)
        assert (positions == NONE).all()
        assert (distances == np.inf).all()
        assert now.sample(5).tolist() == []
        assert (now.size, now.item_count, now.positions(["a"]).tolist()) == (0, 0, [NONE])
        assert now.mark == (0, 0, 0)
