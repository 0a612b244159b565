"""Samples: every item once before any twice, in the order of the hashes of ids."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from index.photos import hashed, sampled
from index.photos.arrays import ArrayPhotos

from ..vectors import DIM, filled, unit


def keys(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint64)


def test_the_hash_of_an_id_is_the_same_on_every_machine() -> None:
    """Galleries keep vectors of photos that were chosen by this hash."""
    expected = [int.from_bytes(blake2b(text, digest_size=8).digest(), "little") for text in (b"a", "ä".encode(), b"")]
    assert hashed(["a", "ä", ""]).tolist() == expected
    assert len(hashed(["\ud800", "b"])) == 2  # a name of a file that is no text
    assert hashed([]).tolist() == []


def test_the_order_of_a_sample_by_hand() -> None:
    """Of items 3, 1, 2 and 7, in the order of their hashes, the photos with the smallest hashes come first."""
    items = np.array([3, 3, 3, 1, 1, 2, 7])
    of_items = keys(10, 10, 10, 40, 40, 20, 30)
    order = sampled(items, of_items, keys(5, 1, 9, 4, 2, 8, 3))
    assert order.tolist() == [1, 5, 6, 4, 0, 3, 2]
    assert sampled(np.zeros(0, np.int32), keys(), keys()).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_every_item_comes_once_before_any_comes_twice(seed: int) -> None:
    generator = np.random.default_rng(seed)
    items, photo_keys = generator.integers(0, 9, 40), generator.permutation(40).astype(np.uint64)
    item_keys = generator.permutation(9).astype(np.uint64)
    left = {item: sorted(photo_keys[items == item].tolist()) for item in set(items.tolist())}
    expected: list[int] = []
    while any(left.values()):
        turn = sorted((item for item in left if left[item]), key=item_keys.__getitem__)
        expected += [left[item].pop(0) for item in turn]
    assert photo_keys[sampled(items, item_keys[items], photo_keys)].tolist() == expected


def test_a_sample_depends_on_the_photos_only(tmp_path: Path) -> None:
    """The order of the photos, segments and removed photos make no difference."""
    with filled(tmp_path / "g") as gallery, Gallery.create(tmp_path / "h", dim=DIM, embedding_id="e") as other:
        gallery.remove(photo_ids=["p3"])
        stored = [photo for photo in gallery.photos() if photo[0] != "p5"]
        for some in (stored[20:], stored[:20]):
            other.add([name for name, *_ in some], [item for _, item, _ in some], unit(len(some)))
        gallery.remove(photo_ids=["p5"])
        now, then = gallery.snapshot(), other.snapshot()
        everything = [name for name, *_ in now.photos_at(now.sample(100))]
        assert sorted(everything) == sorted(name for name, *_ in stored)
        assert len({item for _, item, _ in now.photos_at(now.sample(10))}) == 10
        for most in (1, 2, 3, 7, 38, 100):
            for photos in (now, then):
                assert [name for name, *_ in photos.photos_at(photos.sample(most))] == everything[:most]
        two = list(now.item_numbers(["i1", "i2"]).values())
        left = [name for name in everything if now.items_at(now.positions([name]))[0] not in two]
        assert [name for name, *_ in now.photos_at(now.sample(100, excluded=two))] == left


def test_photos_of_arrays_without_ids_are_named_by_their_rows() -> None:
    photos = ArrayPhotos(unit(3), ["a", "b", "a"])
    assert photos.keys_of(np.array([2, 0])).tolist() == hashed(["2", "0"]).tolist()
