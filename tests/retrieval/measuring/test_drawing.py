"""Draws: each item once before any twice, exact distances without the own item, and how draws are stored."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.database import POINT
from index.errors import InvalidParameter
from index.gallery import Gallery
from index.groups import GROUP, group_key, group_number, groups_by_item
from index.photos import NONE, every_item_once, hashed
from index.search import leave_one_out
from index.search.distance import plain_distance
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from index.search.item_search import ItemSearch
from index.search.leave_one_out import DRAWS, evenly_spaced, make_draws, sample
from retrieval.measuring.drawing import Drawing, WindowVectors
from retrieval.measuring.draws import OWN, AllDraws, Draws, Probes
from retrieval.measuring.folds import FoldVectors
from retrieval.measuring.twins import suspected_twins
from tests.index.search.fake_verifier import FakeVerifier
from tests.index.vectors import DIM, filled, unit
from tests.world import shuffled

CONTENT = "content"
AXES = np.eye(DIM, dtype=np.float32)
LINE = {"a0": ("a", 0.0), "a1": ("a", 3.0), "b0": ("b", 10.0), "c0": ("c", 24.0), "d0": ("d", 40.0)}


def drawer(gallery: Gallery) -> Drawing:
    return Drawing(ItemSearch(gallery.snapshot(), NEAREST_PHOTO), CONTENT)


def kept(gallery: Gallery, **options: Any) -> AllDraws:
    values: dict[str, Any] = {
        "model": "m",
        "item_distance": NEAREST_PHOTO,
        "probes": {},
        "content_key": CONTENT,
        **options,
    }
    return make_draws(gallery, **values)


def at(angle: float) -> np.ndarray:
    """Return the unit vector in the plane of the first two axes at an angle in degrees."""
    return np.cos(np.radians(angle)) * AXES[0] + np.sin(np.radians(angle)) * AXES[1]


def distance(angle: float) -> float:
    """Return the plain distance between two unit vectors at an angle in degrees."""
    return float(2 * np.sin(np.radians(angle) / 2))


def shop(path: Path, photos: dict[str, tuple[str, float]], contents: dict[str, str] | None = None) -> Gallery:
    """Return a gallery of photos, each with its item and the angle of its vector."""
    gallery = Gallery.create(path, dim=DIM, embedding_id="e")
    put(gallery, photos, contents)
    return gallery


def put(gallery: Gallery, photos: dict[str, tuple[str, float]], contents: dict[str, str] | None = None) -> None:
    ids, known = list(photos), contents or {}
    metadata = [{CONTENT: known.get(name, name)} for name in ids]
    vectors = np.stack([at(angle) for _, angle in photos.values()])
    gallery.add(ids, [item for item, _ in photos.values()], vectors, metadata=metadata)


def by_id(found: Draws, field: str) -> dict[str, Any]:
    return dict(zip(found.ids.tolist(), getattr(found, field).tolist(), strict=True))


def seqs_of(gallery: Gallery) -> dict[str, int]:
    """Return the seq of each photo of a gallery, from which nothing was removed."""
    now = gallery.snapshot()
    return {now.photo(position)[0]: int(seq) for position, seq in enumerate(now.seqs)}


def test_a_draw_is_the_nearest_photo_of_another_item(tmp_path: Path) -> None:
    vectors, items = unit(40), np.arange(40) % 10
    with filled(tmp_path / "g") as gallery:
        draws = drawer(gallery).own()
        seq = seqs_of(gallery)
    assert sorted(draws.ids) == sorted(f"p{i}" for i in range(40))
    for row, name in enumerate(draws.ids.tolist()):
        photo = int(name[1:])
        apart = plain_distance(vectors[[photo]], vectors)
        others = np.where(items == items[photo], np.inf, apart)
        own = np.where((items != items[photo]) | (np.arange(40) == photo), np.inf, apart)
        assert draws.items[row] == f"i{items[photo]}"
        assert (draws.distances[row], draws.nearest[row]) == (others.min(), seq[f"p{others.argmin()}"])
        assert draws.nearest_items[row] == f"i{items[others.argmin()]}"
        assert (draws.own[row], draws.own_nearest[row]) == (own.min(), seq[f"p{own.argmin()}"])
        assert (draws.plain[row], draws.own_plain[row]) == (others.min(), own.min())
        assert draws.wrong[row] == (np.inf if own.min() < others.min() else others.min())


def test_a_draw_knows_its_distance_without_the_first_item_and_without_each_of_its_rivals(tmp_path: Path) -> None:
    """Each is that of a gallery from which the item was removed, with the other items of its group."""
    item_distance, groups = ItemDistance.default(), {4: "mugs", 7: "mugs", 2: "cups", 9: "cups", 1: "cups"}
    items = np.random.default_rng(5).permutation(np.arange(36) % 12)
    abouts = [{GROUP: groups[item]} if item in groups else {} for item in items.tolist()]
    names, near = [f"i{item}" for item in items.tolist()], unit(12, 3)[items] + unit(36, 4) * 0.4
    vectors = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)

    def drawn(left: np.ndarray) -> Draws:
        rows = np.flatnonzero(left).tolist()
        with Gallery.create(tmp_path / f"{len(rows)}-{left.tobytes().hex()}"[:200], dim=DIM, embedding_id="e") as made:
            ids = [f"p{row}" for row in rows]
            made.add(ids, [names[row] for row in rows], vectors[rows], metadata=[abouts[row] for row in rows])
            return Drawing(ItemSearch(made.snapshot(), item_distance)).own()

    draws, compared = drawn(np.ones(36, bool)), 0
    keys = [group_key(name, groups.get(item, "")) for name, item in zip(names, items.tolist(), strict=True)]
    key_of = dict(zip(names, keys, strict=True))
    for missing in sorted(set(keys)):
        fewer = by_id(drawn(np.array([key != missing for key in keys])), "distances")
        first = np.array([key_of[name] == missing for name in draws.nearest_items.tolist()])
        rows, places = np.column_stack([first, draws.rivals == group_number(missing)]).nonzero()
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            compared += 1
            assert draws.without[row, place] == pytest.approx(fewer[str(draws.ids[row])], abs=1e-9)
            assert place == 0 or draws.without[row, place] <= draws.distances[row]
        for row in set(range(len(draws))) - set(rows.tolist()):
            if str(draws.ids[row]) in fewer:  # the rivals that come after the fifth one decide nothing
                assert fewer[str(draws.ids[row])] == pytest.approx(draws.distances[row], abs=1e-9)
    assert compared == 36 * 6


def test_a_draw_that_finds_one_item_has_no_rival(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"a0": ("a", 0.0), "b0": ("b", 10.0)}) as gallery:
        draws = drawer(gallery).own()
    assert np.isinf(draws.without).all()
    assert (draws.rivals == NONE).all()


def test_a_photo_of_another_item_that_is_as_near_as_the_own_one_comes_first(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"b0": ("b", 10.0), "a0": ("a", 0.0), "a1": ("a", 10.0)}) as gallery:
        draws = drawer(gallery).own()
    assert by_id(draws, "wrong")["a0"] == by_id(draws, "own")["a0"] == pytest.approx(distance(10))


def test_items_of_the_group_of_a_fitted_one_are_not_drawn_but_found(tmp_path: Path) -> None:
    """A new colour of a product that the model was fitted on is as far from other products as that one."""
    groups = {"a": "mug", "c": "mug", "d": "cup", "e": "cup"}
    items = ["c", "a", "b", "e", "d", "c", "b", "a", "f"]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        abouts = [{GROUP: groups[item]} if item in groups else {} for item in items]
        gallery.add([f"p{row}" for row in range(9)], items, unit(9, 8), metadata=abouts)
        made = kept(gallery, is_fitted=lambda item, _: item == "a")
        assert made.fitted == {"a", "c"}
        assert set(made.sources[OWN].items) == {"b", "d", "e", "f"}
        assert {"a", "c"} & set(made.sources[OWN].nearest_items.tolist())
        assert kept(gallery, is_fitted=lambda item, _: item == "b").fitted == {"b"}
        probes = Probes(unit(3, 5), ["x", "y", "z"], ["new mug", "new jar", "a"], groups=["mug", "jar", "mug"])
        asked = kept(gallery, is_fitted=lambda item, _: item == "a", probes={"probe": probes}).sources["probe"]
        assert set(asked.items) == {"new jar", "a"}  # those of fitted items are left out where a threshold is set


def test_variants_of_fitted_items_that_are_gone_are_not_drawn(tmp_path: Path) -> None:
    """A bundle knows the groups of the items that its model was fitted on."""
    groups = {"c": "mug", "b": "jar"}
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        items = ["c", "b", "d", "c", "e", "b"]
        abouts = [{GROUP: groups[item]} if item in groups else {} for item in items]
        gallery.add([f"p{row}" for row in range(6)], items, unit(6, 8), metadata=abouts)
        seen = {group_key("", "mug"), group_key("", "cup"), "gone"}
        probes = Probes(unit(3, 5), ["x", "y", "z"], ["new mug", "new cup", "new jar"], groups=["mug", "cup", "jar"])
        made = kept(gallery, is_fitted=lambda name, _: name in seen, probes={"probe": probes})
    assert made.fitted == {"c"}
    assert set(made.sources[OWN].items) == {"b", "d", "e"}
    assert set(made.sources["probe"].items) == {"new jar"}


def test_the_group_of_an_item_is_that_of_its_first_photo(tmp_path: Path) -> None:
    """Later photos may come from a table that names no groups, or others."""
    photos = [("c", "mug"), ("a", "mug"), ("b", "jar"), ("c", ""), ("b", "mug"), ("d", ""), ("d", "mug")]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        for row, (item, group) in enumerate(photos):
            gallery.add([f"p{9 - row}"], [item], unit(1, row), metadata=[{GROUP: group} if group else {}])
        assert groups_by_item(gallery) == {"c": "mug", "a": "mug", "b": "jar", "d": ""}
        assert kept(gallery, is_fitted=lambda item, _: item == "a").fitted == {"a", "c"}


def test_items_that_the_model_was_fitted_on_are_not_drawn_but_found(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        numbers = gallery.item_numbers(["i0", "i1"])
        draws = drawer(gallery).own(excluded=numbers.values())
        everything = drawer(gallery).own()
    assert set(draws.items) == {f"i{i}" for i in range(2, 10)}
    kept = dict(zip(everything.ids, everything.distances, strict=True))
    assert all(kept[name] == distance for name, distance in zip(draws.ids, draws.distances, strict=True))


def test_a_sample_holds_every_item(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=60, items=20) as gallery:
        draws = drawer(gallery).own(most=25)
    items, counts = np.unique(draws.items, return_counts=True)
    assert (len(items), counts.max(), len(draws)) == (20, 2, 25)


def test_a_sample_of_a_large_gallery_is_that_of_all_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "g", count=400, items=40) as gallery:
        now, excluded = gallery.snapshot(), range(3)
        short = [sample(now, most, excluded=chosen).tolist() for chosen in ((), excluded) for most in (5, 20, 39)]
        monkeypatch.setattr(leave_one_out, "SMALLEST", 400)  # sorts all photos
        full = [sample(now, most, excluded=chosen).tolist() for chosen in ((), excluded) for most in (5, 20, 39)]
    assert short == full


@pytest.mark.parametrize("most", [4, 5, 6])
def test_a_sample_of_as_many_photos_as_are_sorted_is_that_of_all_photos(tmp_path: Path, most: int) -> None:
    with filled(tmp_path / "g", count=5 * leave_one_out.SMALLEST) as gallery:
        now = gallery.snapshot()
        assert sample(now, most).tolist() == sample(now, now.photos)[:most].tolist()


def test_a_sample_holds_every_item_where_the_smallest_keys_belong_to_one(tmp_path: Path) -> None:
    order = np.argsort(hashed(np.arange(80))).tolist()
    items = dict(zip(order[-3:], ["c", "a", "b"], strict=True))
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in shuffled(range(80))], [items.get(i, "many") for i in range(80)], unit(80))
        now = gallery.snapshot()
    assert leave_one_out.SMALLEST * 3 < 80
    assert sample(now, 3).tolist() == [order[0], *order[-3:-1]]


def test_an_only_item_has_no_other(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=1, items=1) as gallery:
        draws = drawer(gallery).own()
        assert (draws.distances[0], draws.nearest[0], draws.own[0], draws.own_nearest[0]) == (
            *(np.inf, NONE),
            *(np.inf, NONE),
        )
        gallery.add(["new"], ["other"], unit(1, 5))
        again = drawer(gallery).own()
        assert np.isfinite(again.distances).all()
        gallery.remove(photo_ids=["p0", "new"])
        assert len(drawer(gallery).own()) == 0


def test_probes_leave_their_own_item_out(tmp_path: Path) -> None:
    vectors = unit(40)
    with filled(tmp_path / "g") as gallery:
        probes = Probes(vectors[:12], [f"q{i}" for i in range(12)], [f"i{i % 10}" for i in range(11)] + ["elsewhere"])
        known = gallery.item_numbers(list(dict.fromkeys(probes.items)))
        draws = drawer(gallery).probes(probes, numbers=[known.get(item, -1) for item in probes.items])
    by_id = dict(zip(draws.ids.tolist(), draws.distances.tolist(), strict=True))
    assert by_id["q11"] == 0  # photo 11 is in the gallery, under another item
    items = np.arange(40) % 10
    for photo in range(11):
        apart = plain_distance(vectors[[photo]], vectors)
        assert by_id[f"q{photo}"] == apart[items != photo % 10].min()
    own = dict(zip(draws.ids.tolist(), draws.own.tolist(), strict=True))
    assert own.pop("q11") == np.inf  # its item is not in the gallery
    assert set(own.values()) == {0.0}  # the photo itself is in the gallery


def test_the_nearest_photo_of_the_own_item_follows_its_photos(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        now = drawer(gallery).own()
        assert by_id(now, "own_nearest") == {"a0": 1, "a1": 0, "b0": NONE, "c0": NONE, "d0": NONE}
        assert by_id(now, "own")["b0"] == np.inf
        assert by_id(now, "own")["a0"] == pytest.approx(distance(3), abs=1e-6)
        put(gallery, {"a2": ("a", 1.0), "b1": ("b", 90.0)})
        now = drawer(gallery).own()
        assert by_id(now, "own_nearest") == {"a0": 5, "a1": 5, "a2": 0, "b0": 6, "b1": 2, "c0": NONE, "d0": NONE}
        gallery.remove(photo_ids=["a2", "b1"])
        now = drawer(gallery).own()
        assert by_id(now, "own_nearest") == {"a0": 1, "a1": 0, "b0": NONE, "c0": NONE, "d0": NONE}


SAME = {
    **{f"{item}0": (item, 0.0) for item in "abcdefghij"},  # one file under ten items
    "k0": ("k", 30.0),
    "a1": ("a", 1.0),
}


def test_the_same_file_under_many_items_is_passed_over(tmp_path: Path) -> None:
    contents = dict.fromkeys([f"{item}0" for item in "abcdefghij"], "one file")
    with shop(tmp_path / "g", SAME, contents) as gallery:
        found = drawer(gallery).own()
        assert by_id(found, "distances")["b0"] == pytest.approx(distance(30), abs=1e-6)  # item a is left out with a1
        assert by_id(found, "distances")["a0"] == pytest.approx(distance(30), abs=1e-6)
        assert by_id(found, "distances")["a1"] == pytest.approx(distance(1), abs=1e-6)  # another file
        assert by_id(found, "nearest_items")["a0"] == "k"
        assert by_id(found, "duplicates")["a0"] == 1
        assert by_id(found, "duplicates")["b0"] == 0
        assert by_id(found, "duplicates")["k0"] == by_id(found, "duplicates")["a1"] == NONE
        gallery.remove(photo_ids=["k0", "a1"])
        alone = drawer(gallery).own()
        assert set(alone.distances.tolist()) == {np.inf}
        assert set(alone.nearest.tolist()) == {NONE}
        assert set(alone.nearest_items.tolist()) == {""}


def test_an_item_counts_again_when_its_copy_is_removed(tmp_path: Path) -> None:
    places = {"a0": ("a", 0.0), "b0": ("b", 0.0), "c0": ("c", 0.0), "c1": ("c", 20.0), "k0": ("k", 30.0)}
    with shop(tmp_path / "g", places, dict.fromkeys(["a0", "b0", "c0"], "one file")) as gallery:
        found = drawer(gallery).own()
        for photo_id in ("c0", "b0"):  # one of them is the duplicate that the draw of a0 keeps
            gallery.remove(photo_ids=[photo_id])
            found = drawer(gallery).own()
        assert by_id(found, "nearest_items")["a0"] == "c"


def test_without_a_key_for_contents_a_copy_counts_as_any_photo(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"a0": ("a", 0.0), "b0": ("b", 0.0)}, {"a0": "x", "b0": "x"}) as gallery:
        plain = Drawing(ItemSearch(gallery.snapshot(), NEAREST_PHOTO)).own()
    assert plain.distances.tolist() == [0, 0]
    assert plain.duplicates.tolist() == [NONE, NONE]


def split_products(path: Path, seed: int, *, groups: bool = False) -> tuple[Gallery, set[tuple[str, str]]]:
    """Return a gallery of 40 products with 2 to 5 photos per id, and the pairs of ids of the ten that have two."""
    generator = np.random.default_rng(seed)
    names, centres = generator.permutation(100)[:50].tolist(), generator.normal(size=(40, DIM))
    centres = np.concatenate([centres, centres[:10]])
    gallery = Gallery.create(path, dim=DIM, embedding_id="e")
    for row in generator.permutation(50).tolist():
        count = int(generator.integers(2, 6))
        vectors = centres[row] + generator.normal(0, 0.2, size=(count, DIM))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        metadata = [{GROUP: f"product {row % 40}"} if groups else {}] * count
        gallery.add(
            [f"{names[row]}/{n}" for n in range(count)], [f"id{names[row]}"] * count, vectors, metadata=metadata
        )
    pairs = [sorted((f"id{names[row]}", f"id{names[row + 40]}")) for row in range(10)]
    return gallery, {(one, other) for one, other in pairs}


def test_most_products_under_two_ids_are_suspected_and_hardly_any_other_pair(tmp_path: Path) -> None:
    found, false = 0, 0
    for seed in range(5):
        gallery, pairs = split_products(tmp_path / f"g{seed}", seed)
        with gallery:
            suspects = suspected_twins(Drawing(ItemSearch(gallery.snapshot(), ItemDistance())).own())
        assert suspects == sorted(suspects)
        found, false = found + len(pairs & set(suspects)), false + len(set(suspects) - pairs)
    assert found >= 40  # of 50
    assert false <= 1


def test_two_ids_of_one_group_are_not_suspected(tmp_path: Path) -> None:
    gallery, pairs = split_products(tmp_path / "g", 0, groups=True)
    with gallery:
        suspects = suspected_twins(Drawing(ItemSearch(gallery.snapshot(), ItemDistance())).own())
    assert not pairs & set(suspects)


def test_items_with_one_photo_are_suspected_only_if_it_is_a_copy(tmp_path: Path) -> None:
    photos = {"b0": ("b", 0.0), "a0": ("a", 5.0), "d0": ("d", 40.0), "c0": ("c", 65.0), "e0": ("e", 120.0)}
    with shop(tmp_path / "g", photos) as gallery:
        assert suspected_twins(drawer(gallery).own()) == [("a", "b")]  # c and d are the nearest of each other, too


def test_the_hash_is_splitmix64() -> None:
    """Galleries keep samples that were drawn by it."""
    assert hashed(np.array([0, 1])).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]


def test_the_order_of_a_sample_by_hand() -> None:
    order = every_item_once(np.array([3, 3, 3, 1, 1, 2, 7]), np.array([5, 1, 9, 4, 2, 8, 3]))
    assert order.tolist() == [1, 4, 6, 5, 3, 0, 2]
    assert every_item_once(np.zeros(0, np.int32), np.zeros(0)).tolist() == []


def test_a_sample_depends_on_the_photos_only(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        gone = seqs_of(gallery)["p3"]
        gallery.remove(photo_ids=["p3"])
        now = gallery.snapshot()
        everything = sample(now, 100)
        assert sorted(everything.tolist()) == [i for i in range(40) if i != gone]
        assert len(set(now.items[everything[:10]].tolist())) == 10
        for most in (1, 2, 3, 7, 39):
            assert sample(now, most).tolist() == everything[:most].tolist()
        two = now.items[[1, 2]].tolist()
        assert sample(now, 100, excluded=two).tolist() == [i for i in everything.tolist() if now.items[i] not in two]
        keys = hashed(now.seqs[everything[:10]])
        assert (keys[1:] > keys[:-1]).all()  # the first photo of each item, by its hash


def test_fitted_items_need_the_key_of_the_hashes(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery, pytest.raises(InvalidParameter, match="content_key must name"):
        kept(gallery, is_fitted=lambda *_: False, content_key="")


def test_a_gallery_keeps_fewer_draws_where_details_are_compared(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        now = gallery.snapshot()
        assert Drawing(ItemSearch(now, NEAREST_PHOTO)).most == leave_one_out.MOST_DRAWS
        assert Drawing(ItemSearch(now, NEAREST_PHOTO, FakeVerifier())).most == leave_one_out.MOST_VERIFIED
    assert leave_one_out.MOST_VERIFIED < leave_one_out.MOST_DRAWS


def test_vectors_by_fold_models_are_unpacked_for_the_photos_that_have_them() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 5, DIM)).astype(np.float16)
    found = FoldVectors.unpacked([vectors[0].tobytes(), None, vectors[1].tobytes()], "key", DIM)
    assert (found.key, found.seqs.tolist()) == ("key", [0, 2])
    np.testing.assert_array_equal(found.vectors, vectors)
    assert FoldVectors.unpacked([None, None], "key", DIM).vectors.size == 0


def test_photos_of_other_sources_come_first_and_then_those_of_known_ones(tmp_path: Path) -> None:
    sources = ["shelf", "shelf", "web", "web", "phone"]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        ids = [f"p{number}" for number in range(5)]
        gallery.add(ids, ["a"] * 5, unit(5), metadata=[{leave_one_out.SOURCE: source} for source in sources])
        found = drawer(gallery)._of_other_sources(0, [1, 2, 3, 4])
    assert [sources[place] for place in found] == ["web", "phone", "shelf", "web"]


def test_of_the_windows_of_a_photo_the_one_counts_whose_first_item_is_closest(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        own = drawer(gallery).own()
    order = np.argsort(own.ids)
    chosen = own.where(np.isin(np.arange(len(own)), order[:2]))
    assert chosen.items.tolist() == ["a", "a"]  # two windows: one finds its item nearer than the other does
    two = replace(chosen, own=np.array([0.3, 0.1]), wrong=np.full(2, np.inf), own_nearest=np.array([4, 5]))
    found = two.closest(np.zeros(2, np.int64), 1)
    assert (found.own.tolist(), found.own_nearest.tolist()) == ([0.1], [5])
    lost = replace(two, own=np.full(2, 0.5), wrong=np.array([0.2, 0.4]))
    assert lost.closest(np.zeros(2, np.int64), 1).wrong.tolist() == [0.2]


def test_a_photo_with_fewer_windows_is_drawn_with_those_that_it_has(tmp_path: Path) -> None:
    angles = {"c0": [17.0, 30.0, 24.0], "a1": [8.0], "d0": [38.0, 33.0]}
    with shop(tmp_path / "g", LINE) as gallery:
        seq = seqs_of(gallery)
        vectors = np.zeros((3, 3, DIM), np.float32)  # zeros where a photo has fewer windows
        for row, windows in enumerate(angles.values()):
            vectors[row, : len(windows)] = [at(angle) for angle in windows]
        found = drawer(gallery).windows(WindowVectors(np.array([seq[name] for name in angles]), vectors))
    assert by_id(found, "nearest_items") == {"c0": "b", "a1": "b", "d0": "c"}
    assert by_id(found, "distances") == pytest.approx(
        {"c0": distance(7), "a1": distance(2), "d0": distance(9)}, abs=1e-6
    )


def test_draws_are_kept_and_read(tmp_path: Path) -> None:
    probes = {"probe": Probes(np.stack([at(8.0), at(9.0)]), ["q0", "q1"], ["b", "stranger"])}
    with shop(tmp_path / "g", LINE) as gallery:
        assert AllDraws.read(gallery) is None
        made = kept(gallery, probes=probes, is_fitted=lambda item, _: item == "c")
        assert (made.photos, made.until) == (5, 5)
        assert made.changed(gallery) == 0
        gallery.keep({DRAWS: made.pack()}, "measure")
        read = AllDraws.read(gallery)
        assert read is not None
        assert (read.model, read.fitted, read.version, read.photos, read.until) == ("m", {"c"}, 1, 5, 5)
        assert set(read.sources) == {OWN, "probe", "2 photos", "3 photos", "4 photos"}
        for name, source in made.sources.items():
            for field, value in source.arrays().items():
                np.testing.assert_array_equal(read.sources[name].arrays()[field], value)
        assert by_id(read.sources["probe"], "nearest_items") == {"q0": "a", "q1": "b"}  # b is left out of q0's search
        assert set(read.sources[OWN].items) == {"a", "b", "d"}
        assert by_id(read.sources[OWN], "nearest_items")["d0"] == "c"  # fitted items are found
        gallery.remove(photo_ids=["a0"])
        assert read.changed(gallery)
        gallery._database._connection.execute("UPDATE kept SET content = 'x' WHERE name = ?", (DRAWS,))
        assert AllDraws.read(gallery) is None


@pytest.mark.parametrize("about", [b"{", b"{}", b'{"model": 1}', b"[" * 100_000], ids=len)
def test_content_that_makes_no_sense_is_none(tmp_path: Path, about: bytes) -> None:
    file = io.BytesIO()
    np.savez(file, about=np.frombuffer(about, np.uint8))
    with shop(tmp_path / "g", LINE) as gallery:
        for content in (about, file.getvalue()):
            gallery.keep({DRAWS: content, POINT: None}, "measure")
            assert AllDraws.read(gallery) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("wrong", np.ones(4)), ("ids", np.arange(5)), ("nearest", np.ones(5)), ("own", np.ones((5, 1)))],
    ids=["one is missing", "numbers for texts", "fractions for numbers of photos", "a column"],
)
def test_draws_with_an_array_of_another_length_or_kind_are_damaged(
    tmp_path: Path, field: str, value: np.ndarray[Any, Any]
) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        made = kept(gallery)
        assert len(made.sources[OWN]) == 5
        damaged = replace(made.sources[OWN], **{field: value})
        gallery.keep({DRAWS: replace(made, sources={OWN: damaged}).pack()}, "measure")
        assert AllDraws.read(gallery) is None


def test_an_update_is_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process removes an item while its number is looked up."""
    probes = {"probe": Probes(np.stack([at(11.0)]), ["q"], ["b"])}
    with shop(tmp_path / "g", LINE) as writer, Gallery.open(tmp_path / "g", read_only=True) as reader:
        numbers = reader.item_numbers

        def removed_meanwhile(items: list[str]) -> dict[str, int]:
            writer.remove(item_ids=["b"])
            return numbers(items)

        monkeypatch.setattr(reader, "item_numbers", removed_meanwhile)
        made = kept(reader, probes=probes)
        assert made.sources["probe"].nearest_items.tolist() == ["a"]
        assert made.changed(reader) == 0  # the version that was read is the one after the removal


def test_what_was_read_of_one_version_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process would remove an item during the last of the readings."""
    probes, asked = {"probe": Probes(np.stack([at(11.0)]), ["q"], ["b"])}, []
    with shop(tmp_path / "g", LINE) as writer, Gallery.open(tmp_path / "g", read_only=True) as reader:
        numbers = reader.item_numbers

        def removed_at_last(items: list[str]) -> dict[str, int]:
            asked.append(items)
            if len(asked) == leave_one_out.TRIES:
                writer.remove(item_ids=["b"])
            return numbers(items)

        monkeypatch.setattr(reader, "item_numbers", removed_at_last)
        made = kept(reader, probes=probes)
        assert made.sources["probe"].nearest_items.tolist() == ["a"]  # b is left out of the search for it
        assert made.changed(reader) == 0


def test_a_copy_by_its_pixels_is_passed_over_only_if_it_is_close(tmp_path: Path) -> None:
    asked = []

    def is_copy(one: str, other: str) -> bool:
        asked.append({one, other})
        return {one, other} <= {"a0", "b0", "c0"}

    places = {"a0": ("a", 0.0), "b0": ("b", 2.0), "c0": ("c", 40.0), "d0": ("d", 44.0)}
    with shop(tmp_path / "g", places) as gallery:
        found = kept(gallery, is_copy=is_copy).sources[OWN]
    assert by_id(found, "duplicates") == {"a0": 1, "b0": 0, "c0": NONE, "d0": NONE}
    assert by_id(found, "nearest_items") == {"a0": "c", "b0": "c", "c0": "d", "d0": "c"}
    assert {"a0", "c0"} not in asked  # 40 degrees apart: no copy, whatever the pixels say


def test_changed_counts_added_and_removed_photos(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        made = kept(gallery)
        assert made.changed(gallery) == 0
        gallery.remove(photo_ids=["a0"])
        put(gallery, {"e0": ("e", 80.0)})
        assert gallery.snapshot().photos == made.photos
        assert made.changed(gallery) == 2
        assert made.changed(gallery)
        gallery.remove(photo_ids=["e0"])
        assert made.changed(gallery) == 1


def test_changed_counts_all_photos_of_a_gallery_that_was_empty(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        made = kept(gallery)
        assert (made.photos, made.changed(gallery)) == (0, 0)
        put(gallery, LINE)
        assert made.changed(gallery) == len(LINE)


def test_no_samples_are_joined_to_an_empty_one() -> None:
    assert len(Draws.joined([])) == 0


def test_all_photos_are_asked_whether_the_model_was_fitted_on_them(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def is_fitted(item: str, content: str | None) -> bool:
        asked.append((item, content))
        return content == "b0"

    with shop(tmp_path / "g", LINE) as gallery:
        assert kept(gallery, is_fitted=is_fitted).fitted == {"b"}
        assert set(asked) == {("a", "a0"), ("a", "a1"), ("b", "b0"), ("c", "c0"), ("d", "d0")}
        gallery.remove(item_ids=["b"])
        assert kept(gallery, is_fitted=is_fitted).fitted == set()


@pytest.mark.parametrize("count", [1, 2, 5, 7, 36, 37, 100])
def test_photos_that_are_evenly_spaced_lie_in_the_middles_of_equal_parts(tmp_path: Path, count: int) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p3", "p17", "p30"])
        now = gallery.snapshot()
    live, parts = np.flatnonzero(now.live), min(count, 37)
    assert evenly_spaced(now, count).tolist() == [int(live[int((part + 0.5) * 37 / parts)]) for part in range(parts)]


def test_no_photos_of_an_empty_gallery_are_evenly_spaced(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=2, embedding_id="e") as gallery:
        assert evenly_spaced(gallery.snapshot(), 3).tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_every_item_comes_once_before_any_comes_twice(seed: int) -> None:
    generator = np.random.default_rng(seed)
    items, keys = generator.integers(0, 9, 40), generator.permutation(40)
    left = {item: sorted(keys[items == item].tolist()) for item in set(items.tolist())}
    expected: list[int] = []
    while any(left.values()):
        expected += sorted(of_item.pop(0) for of_item in left.values() if of_item)
    assert keys[every_item_once(items, keys)].tolist() == expected


@pytest.mark.parametrize(
    ("count", "found", "before", "suspected"),
    [(8, 6, 3, True), (8, 8, 3, True), (8, 5, 5, False), (8, 6, 2, False), (8, 8, 8, True), (20, 15, 6, True)],
)
def test_two_items_are_suspected_by_three_quarters_and_three_tenths_of_their_draws(
    count: int, found: int, before: int, suspected: bool
) -> None:
    """Of the draws of `b` and as many of `a`, some find the other item, and some of these before their own one."""
    order = np.random.default_rng(found).permutation(count)
    items = np.array(["b", "a"] * (count // 2))
    other = np.where(np.arange(count) < found, np.array(["a", "b"] * (count // 2)), [f"x{i}" for i in range(count)])
    wrong = np.where(np.arange(count) < before, 0.3, np.inf)
    nobody, near = np.full(count, NONE), np.full(count, 0.4)
    made = Draws(items, items, nobody, near, nobody, other, near, near, nobody, near, wrong, nobody)
    chosen = Draws(**{name: values[order] for name, values in made.arrays().items()})
    assert suspected_twins(chosen) == ([("a", "b")] if suspected else [])
