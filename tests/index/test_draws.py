"""Draws: each item once before any twice, exact distances without the own item, and updates equal to a new start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import index.sampling
from index.ann.kinds import FLAT, FP16, IVF
from index.ann.recall import Probe
from index.distance import PLAIN, DistanceForm, squared_distance
from index.draws import NOBODY, Drawer, Draws, Probes
from index.gallery import Gallery
from index.sampling import every_item_once, sample
from retrieval.bundle.local_density import ADDITIVE, Cohort, LocalDensity

from .vectors import DIM, filled, unit

CONTENT = "content"
NONE = np.zeros(0, np.int32)


def drawer(gallery: Gallery, form: DistanceForm = PLAIN) -> Drawer:
    return Drawer(gallery.snapshot(), form, gallery.densities(form), CONTENT)


def additive() -> LocalDensity:
    return LocalDensity.fit(ADDITIVE, 4, Cohort(unit(60, 9), np.arange(60) // 2))


def same(one: Draws, other: Draws) -> None:
    left, right = np.argsort(one.ids), np.argsort(other.ids)
    for name in ("ids", "items", "seqs", "distances", "nearest", "nearest_items", "own", "own_nearest", "duplicates"):
        np.testing.assert_array_equal(getattr(one, name)[left], getattr(other, name)[right], err_msg=name)
    assert one.until == other.until


def test_every_item_comes_once_before_any_twice() -> None:
    items = np.array([3, 3, 3, 1, 1, 2, 7])
    order = every_item_once(items, np.array([5, 1, 9, 4, 2, 8, 3]))
    assert items[order[:4]].tolist() != sorted(items[order[:4]].tolist()) or len(set(items[order[:4]])) == 4
    assert set(items[order[:4]].tolist()) == {1, 2, 3, 7}
    assert sorted(items[order[4:6]].tolist()) == [1, 3]
    assert sorted(order.tolist()) == list(range(7))


@pytest.mark.parametrize("form", [PLAIN, additive()], ids=["plain", "additive"])
def test_a_draw_is_the_nearest_photo_of_another_item(tmp_path: Path, form: DistanceForm) -> None:
    vectors, items = unit(40), np.arange(40) % 10
    with filled(tmp_path / "g") as gallery:
        draws = drawer(gallery, form).own(None, excluded=NONE)
        around = form.densities(vectors)
    assert sorted(draws.ids) == sorted(f"p{i}" for i in range(40))
    for row, name in enumerate(draws.ids.tolist()):
        photo = int(name[1:])
        squared = squared_distance(vectors[[photo]], vectors)
        apart = form.transform(squared, around[photo], around)
        others = np.where(items == items[photo], np.inf, apart)
        own = np.where((items != items[photo]) | (np.arange(40) == photo), np.inf, apart)
        assert draws.items[row] == f"i{items[photo]}"
        assert (draws.distances[row], draws.nearest[row]) == (others.min(), others.argmin())
        assert draws.nearest_items[row] == f"i{items[others.argmin()]}"
        assert (draws.own[row], draws.own_nearest[row]) == (own.min(), own.argmin())


def test_items_that_the_model_was_fitted_on_are_not_drawn_but_found(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        numbers = gallery.item_numbers(["i0", "i1"])
        draws = drawer(gallery).own(None, excluded=np.array(list(numbers.values()), dtype=np.int32))
        everything = drawer(gallery).own(None, excluded=NONE)
    assert set(draws.items) == {f"i{i}" for i in range(2, 10)}
    kept = dict(zip(everything.ids, everything.distances, strict=True))
    assert all(kept[name] == distance for name, distance in zip(draws.ids, draws.distances, strict=True))


def test_a_sample_holds_every_item(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=60, items=20) as gallery:
        draws = drawer(gallery).own(None, excluded=NONE, most=25)
    items, counts = np.unique(draws.items, return_counts=True)
    assert (len(items), counts.max(), len(draws)) == (20, 2, 25)


def test_a_sample_of_a_large_gallery_is_that_of_all_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "g", count=400, items=40) as gallery:
        now, excluded = gallery.snapshot(), np.arange(3, dtype=np.int32)
        short = [sample(now, chosen, most=most).tolist() for chosen in (NONE, excluded) for most in (5, 20, 39)]
        monkeypatch.setattr(index.sampling, "SMALLEST", 400)  # sorts all photos
        full = [sample(now, chosen, most=most).tolist() for chosen in (NONE, excluded) for most in (5, 20, 39)]
    assert short == full


def test_an_only_item_has_no_other(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=1, items=1) as gallery:
        draws = drawer(gallery).own(None, excluded=NONE)
        assert (draws.distances[0], draws.nearest[0], draws.own[0], draws.own_nearest[0]) == (
            *(np.inf, NOBODY),
            *(np.inf, NOBODY),
        )
        gallery.add(["new"], ["other"], unit(1, 5))
        again = drawer(gallery).own(draws, excluded=NONE)
        assert np.isfinite(again.distances).all()
        gallery.remove(photo_ids=["p0", "new"])
        assert len(drawer(gallery).own(again, excluded=NONE)) == 0


def test_probes_leave_their_own_item_out(tmp_path: Path) -> None:
    vectors = unit(40)
    with filled(tmp_path / "g") as gallery:
        probes = Probes(vectors[:12], [f"q{i}" for i in range(12)], [f"i{i % 10}" for i in range(11)] + ["elsewhere"])
        known = gallery.item_numbers(list(dict.fromkeys(probes.items)))
        draws = drawer(gallery).probes(None, probes, numbers=[known.get(item, -1) for item in probes.items])
    by_id = dict(zip(draws.ids.tolist(), draws.distances.tolist(), strict=True))
    assert by_id["q11"] == 0  # photo 11 is in the gallery, under another item
    items = np.arange(40) % 10
    for photo in range(11):
        squared = squared_distance(vectors[[photo]], vectors)
        assert by_id[f"q{photo}"] == np.sqrt(squared[items != photo % 10].min())
    own = dict(zip(draws.ids.tolist(), draws.own.tolist(), strict=True))
    assert own.pop("q11") == np.inf  # its item is not in the gallery
    assert set(own.values()) == {0.0}  # the photo itself is in the gallery


def test_items_with_the_same_file_are_left_out(tmp_path: Path) -> None:
    vectors = unit(6)
    vectors[3] = vectors[0]  # photo 3 of item b is photo 0 of item a
    vectors[4] = vectors[0]  # close by chance: another file
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        contents = ["x", "y", "z", "x", "other", "w"]
        gallery.add(
            [f"p{i}" for i in range(6)], list("aabbcc"), vectors, metadata=[{CONTENT: content} for content in contents]
        )
        draws = drawer(gallery).own(None, excluded=NONE)
        row = {name: row for row, name in enumerate(draws.ids.tolist())}
        assert draws.duplicates[row["p0"]] == 3
        assert draws.duplicates[row["p3"]] == 0
        assert (draws.distances[row["p0"]], draws.nearest[row["p0"]]) == (0, 4)  # the chance neighbour still counts
        assert draws.duplicates[row["p4"]] == NOBODY
        gallery.add(["p6"], ["d"], vectors[:1], metadata=[{CONTENT: "x"}])
        again = drawer(gallery).own(draws, excluded=NONE)
        same(again, drawer(gallery).own(None, excluded=NONE))
        gallery.remove(photo_ids=["p3", "p6", "p4"])
        same(drawer(gallery).own(again, excluded=NONE), drawer(gallery).own(None, excluded=NONE))


@pytest.mark.parametrize("kind", [FLAT, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (FP16, IVF))])
@pytest.mark.parametrize("form", [PLAIN, additive()], ids=["plain", "additive"])
def test_updates_equal_a_new_start(tmp_path: Path, kind: str, form: DistanceForm) -> None:
    generator = np.random.default_rng(3)
    pool = unit(400, 7)
    probes = Probes(unit(30, 8), [f"q{i}" for i in range(30)], [f"i{i % 40}" for i in range(30)])
    with filled(tmp_path / "g", count=120, items=40) as gallery:
        gallery.rebuild(kind=kind, probe=Probe(np.inf, form), threads=1)
        own, pairs, others = Draws.none(), Draws.none(), Draws.none()
        for step in range(12):
            present = sorted(gallery.photo_ids())
            gone = generator.choice(present, 8, replace=False).tolist()
            if step % 3 == 0:
                gallery.remove(photo_ids=gone)
            if step % 3 == 1:
                names = [f"n{step}-{i}" for i in range(10)]
                rows = generator.integers(0, 400, 10)
                files = [{CONTENT: f"file {row % 100}"} for row in rows]  # some are the same, under several items
                gallery.add(names, [f"i{i}" for i in generator.integers(0, 45, 10)], pool[rows % 100], metadata=files)
            if step % 3 == 2:
                gallery.add(gone, [f"i{i}" for i in generator.integers(0, 45, 8)], pool[:8], upsert=True)
            excluded = np.array(sorted(gallery.item_numbers(["i1", "i2"]).values()), dtype=np.int32)
            numbers = gallery.item_numbers(list(dict.fromkeys(probes.items)))
            placed = [numbers.get(item, -1) for item in probes.items]
            now = drawer(gallery, form)
            own = now.own(own, excluded=excluded, most=60)
            others = now.probes(others, probes, numbers=placed, most=20)
            pairs = now.own(pairs, excluded=excluded, most=60, photos_per_query=2)
            same(own, now.own(None, excluded=excluded, most=60))
            same(pairs, now.own(None, excluded=excluded, most=60, photos_per_query=2))
            same(others, now.probes(None, probes, numbers=placed, most=20))
            same(Draws.of_arrays(own.arrays()), own)
        assert (own.duplicates != NOBODY).any()
        assert (pairs.duplicates != NOBODY).any()


def test_new_probes_are_searched_and_known_ones_kept(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        everything = Probes(unit(12, 5), [f"q{i}" for i in range(12)], [f"x{i}" for i in range(12)])
        some = Probes(everything.vectors[5:], everything.ids[5:], everything.items[5:])
        now = drawer(gallery)
        known = now.probes(None, some, numbers=[-1] * 7)
        same(now.probes(known, everything, numbers=[-1] * 12), now.probes(None, everything, numbers=[-1] * 12))
