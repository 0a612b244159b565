"""Queries of several photos: their vectors, the groups that draws search with, and how galleries keep these draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.contents import POINT
from index.distance import PLAIN, plain_distance
from index.draws import Drawer, Probes
from index.gallery import Gallery
from index.kept_draws import DRAWS, OWN, KeptDraws, draws_name, update_draws
from index.photo_groups import group_rows, mean_vectors, sample_groups
from index.transfer import export_photos, import_photos

from .vectors import DIM, filled, unit

NONE = np.zeros(0, np.int32)


def drawer(gallery: Gallery) -> Drawer:
    return Drawer(gallery.snapshot(), PLAIN, gallery.densities(PLAIN))


def test_the_mean_of_two_axes_lies_between_them() -> None:
    axes = np.eye(3, dtype=np.float32)
    np.testing.assert_allclose(mean_vectors(axes[None, :2]), [[0.5**0.5, 0.5**0.5, 0]], atol=1e-7)


def test_the_mean_does_not_depend_on_the_order() -> None:
    vectors = unit(5 * 200).reshape(200, 5, DIM)
    shuffled = vectors[:, [3, 0, 4, 1, 2]]
    np.testing.assert_array_equal(mean_vectors(vectors), mean_vectors(shuffled))
    np.testing.assert_allclose(np.linalg.norm(mean_vectors(vectors), axis=1), 1, atol=1e-6)


def test_one_photo_keeps_its_vector_exactly() -> None:
    np.testing.assert_array_equal(mean_vectors(unit(20)[:, None]), unit(20))


def test_vectors_that_cancel_out_give_one_of_them() -> None:
    vector = unit(1)[0]
    (mean,) = mean_vectors(np.stack([vector, -vector])[None])
    assert np.array_equal(mean, vector) or np.array_equal(mean, -vector)


def test_groups_by_hand() -> None:
    items, keys = np.array([7, 5, 7, 7, 5, 9]), np.array([3, 1, 2, 1, 0, 0])
    assert group_rows(items, keys, 2).tolist() == [[4, 1], [3, 2]]
    assert group_rows(items, keys, 3).tolist() == [[3, 2, 0]]
    assert group_rows(items, keys, 4).shape == (0, 4)


@pytest.mark.parametrize("photos_per_query", [2, 3])
def test_a_draw_of_several_photos_is_searched_with_their_mean(tmp_path: Path, photos_per_query: int) -> None:
    vectors, items = unit(40), np.arange(40) % 10
    with filled(tmp_path / "g") as gallery:
        draws = drawer(gallery).own(None, excluded=NONE, photos_per_query=photos_per_query)
    assert len(draws) == 10 * (4 // photos_per_query)
    assert draws.seqs.shape == (len(draws), photos_per_query)
    assert len(np.unique(draws.seqs)) == draws.seqs.size  # no photo is in two groups
    for row, photos in enumerate(draws.seqs.tolist()):
        assert len(set(items[photos])) == 1
        apart = plain_distance(mean_vectors(vectors[None, photos]), vectors)
        own = (items == items[photos[0]]) & ~np.isin(np.arange(40), photos)
        others = np.where(items == items[photos[0]], np.inf, apart)
        assert (draws.distances[row], draws.nearest[row]) == (others.min(), others.argmin())
        assert draws.own[row] == (apart[own].min() if own.any() else np.inf)
        assert draws.items[row] == f"i{items[photos[0]]}"


def test_items_with_too_few_photos_are_not_drawn(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=25) as gallery:  # i0 to i4 have three photos, the others two
        assert sorted(drawer(gallery).own(None, excluded=NONE, photos_per_query=3).items) == [f"i{i}" for i in range(5)]
        assert len(drawer(gallery).own(None, excluded=NONE, photos_per_query=4)) == 0


def test_a_sample_of_groups_takes_every_item_once_before_any_twice(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=60, items=10) as gallery:
        now = gallery.snapshot()
        numbers = np.unique(now.items)
        groups = sample_groups(now, numbers[:1], 2, most=12)
        assert groups.shape == (12, 2)
        assert sorted(now.items[groups[:9, 0]].tolist()) == numbers[1:].tolist()
        few = sample_groups(now, NONE, 2, most=4)
        assert len({int(item) for item in now.items[few[:, 0]]}) == 4


def test_probes_are_grouped_by_item() -> None:
    vectors = unit(6)
    probes = Probes(vectors, [f"q{i}" for i in range(6)], ["a", "b", "a", "b", "a", "c"])
    assert probes.grouped(1) is probes
    groups = probes.grouped(2)
    assert sorted(groups.items) == ["a", "b"]
    for name, vector in zip(groups.ids, groups.vectors, strict=True):
        photos = [int(part[1:]) for part in name.split(" + ")]
        np.testing.assert_array_equal(vector, mean_vectors(vectors[None, photos])[0])


def test_a_gallery_keeps_draws_of_several_photos_beside_the_others(tmp_path: Path) -> None:
    probes = {"probe": Probes(unit(6, 3), [f"q{i}" for i in range(6)], ["x", "x", "y", "y", "z", "i1"])}
    with filled(tmp_path / "g") as gallery:
        single = update_draws(gallery, None, model="m", distance_form=PLAIN, probes=probes)
        pairs = update_draws(gallery, None, model="m", distance_form=PLAIN, probes=probes, photos_per_query=2)
        gallery.keep({**single.pack(), **pairs.pack(), POINT: b"point"}, "measure")
        assert [len(single.sources[name]) for name in (OWN, "probe")] == [40, 6]
        assert [len(pairs.sources[name]) for name in (OWN, "probe")] == [20, 2]
        for photos_per_query, made in ((1, single), (2, pairs)):
            read = KeptDraws.read(gallery, photos_per_query=photos_per_query)
            assert read is not None
            assert read.photos_per_query == photos_per_query
            assert read.covers(gallery)
            np.testing.assert_array_equal(read.sources[OWN].seqs, made.sources[OWN].seqs)
        again = update_draws(gallery, single, model="m", distance_form=PLAIN, probes=probes, photos_per_query=2)
        np.testing.assert_array_equal(again.sources[OWN].distances, pairs.sources[OWN].distances)
        export_photos(gallery, tmp_path / "g.parquet")
    import_photos(tmp_path / "g.parquet", tmp_path / "copy")
    with Gallery.open(tmp_path / "copy") as copy:  # its photos have other seqs
        assert (copy.kept(POINT), copy.kept(DRAWS), copy.kept(draws_name(2))) == (b"point", None, None)
