"""Draws that are kept: what an update searches again, what it leaves alone, and how draws are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.contents import POINT
from index.distance import PLAIN
from index.draws import NOBODY, Drawer, Draws, Probes
from index.errors import InvalidParameter
from index.gallery import Gallery
from index.kept_draws import DRAWS, OWN, KeptDraws, update_draws
from index.photo_groups import rows_of
from index.sampling import every_item_once, hashed, sample
from index.snapshot import Snapshot

from .vectors import DIM, filled

CONTENT = "content"
NONE = np.zeros(0, np.int32)
AXES = np.eye(DIM, dtype=np.float32)


def at(angle: float) -> np.ndarray:
    """Return the unit vector in the plane of the first two axes at an angle in degrees."""
    return np.cos(np.radians(angle)) * AXES[0] + np.sin(np.radians(angle)) * AXES[1]


def distance(angle: float) -> float:
    """Return the plain distance between two unit vectors at an angle in degrees."""
    return float(2 * np.sin(np.radians(angle) / 2))


def drawer(gallery: Gallery) -> Drawer:
    return Drawer(gallery.snapshot(), PLAIN, gallery.densities(PLAIN), CONTENT)


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


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Collect how many queries each search has, and whether it is of new photos only."""
    calls: list[tuple[int, bool]] = []
    nearest = Snapshot.nearest

    def noted(self: Snapshot, vectors: np.ndarray, *arguments: Any, only: Any = None, **options: Any) -> Any:
        if len(vectors):
            calls.append((len(vectors), only is not None))
        return nearest(self, vectors, *arguments, only=only, **options)

    monkeypatch.setattr(Snapshot, "nearest", noted)
    return calls


LINE = {"a0": ("a", 0.0), "a1": ("a", 3.0), "b0": ("b", 10.0), "c0": ("c", 24.0), "d0": ("d", 40.0)}


def test_an_update_searches_only_what_a_change_may_affect(tmp_path: Path, searched: list[tuple[int, bool]]) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        first = drawer(gallery).own(None, excluded=NONE)
        assert searched == [(5, False)]
        assert by_id(first, "nearest") == {"a0": 2, "a1": 2, "b0": 1, "c0": 2, "d0": 3}
        searched.clear()
        again = drawer(gallery).own(first, excluded=NONE)  # nothing has changed
        assert searched == []
        assert by_id(again, "distances") == by_id(first, "distances")
        gallery.remove(photo_ids=["c0"])  # only d0 had it as its nearest
        second = drawer(gallery).own(again, excluded=NONE)
        assert searched == [(1, False)]
        assert by_id(second, "nearest") == {"a0": 2, "a1": 2, "b0": 1, "d0": 2}
        assert by_id(second, "distances")["d0"] == pytest.approx(distance(30), abs=1e-6)
        searched.clear()
        put(gallery, {"e0": ("e", 45.0)})
        third = drawer(gallery).own(second, excluded=NONE)
        assert sorted(searched) == [(1, False), (4, True)]  # the new photo asks, and is asked for by all others
        assert by_id(third, "nearest_items") == {"a0": "b", "a1": "b", "b0": "a", "d0": "e", "e0": "d"}
        assert third.until == gallery.snapshot().seqs[-1] + 1 == 6


def test_a_photo_that_is_as_near_does_not_replace_the_one_that_was_there(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"a0": ("a", 0.0), "b0": ("b", 10.0)}) as gallery:
        first = drawer(gallery).own(None, excluded=NONE)
        put(gallery, {"c0": ("c", 10.0)})
        assert by_id(drawer(gallery).own(first, excluded=NONE), "nearest")["a0"] == 1


def test_the_nearest_photo_of_the_own_item_follows_its_photos(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        now = drawer(gallery).own(None, excluded=NONE)
        assert by_id(now, "own_nearest") == {"a0": 1, "a1": 0, "b0": NOBODY, "c0": NOBODY, "d0": NOBODY}
        assert by_id(now, "own")["b0"] == np.inf
        assert by_id(now, "own")["a0"] == pytest.approx(distance(3), abs=1e-6)
        put(gallery, {"a2": ("a", 1.0), "b1": ("b", 90.0)})
        now = drawer(gallery).own(now, excluded=NONE)
        assert by_id(now, "own_nearest") == {"a0": 5, "a1": 5, "a2": 0, "b0": 6, "b1": 2, "c0": NOBODY, "d0": NOBODY}
        gallery.remove(photo_ids=["a2", "b1"])
        now = drawer(gallery).own(now, excluded=NONE)
        assert by_id(now, "own_nearest") == {"a0": 1, "a1": 0, "b0": NOBODY, "c0": NOBODY, "d0": NOBODY}


SAME = {
    **{f"{item}0": (item, 0.0) for item in "abcdefghij"},  # one file under ten items
    "k0": ("k", 30.0),
    "a1": ("a", 1.0),
}


def test_the_same_file_under_many_items_is_passed_over(tmp_path: Path) -> None:
    contents = dict.fromkeys([f"{item}0" for item in "abcdefghij"], "one file")
    with shop(tmp_path / "g", SAME, contents) as gallery:
        found = drawer(gallery).own(None, excluded=NONE)
        assert by_id(found, "distances")["b0"] == pytest.approx(distance(30), abs=1e-6)  # item a is left out with a1
        assert by_id(found, "distances")["a0"] == pytest.approx(distance(30), abs=1e-6)
        assert by_id(found, "distances")["a1"] == pytest.approx(distance(1), abs=1e-6)  # another file
        assert by_id(found, "nearest_items")["a0"] == "k"
        assert by_id(found, "duplicates")["a0"] == 1
        assert by_id(found, "duplicates")["b0"] == 0
        assert by_id(found, "duplicates")["k0"] == by_id(found, "duplicates")["a1"] == NOBODY
        gallery.remove(photo_ids=["k0", "a1"])
        alone = drawer(gallery).own(found, excluded=NONE)
        assert set(alone.distances.tolist()) == {np.inf}
        assert set(alone.nearest.tolist()) == {NOBODY}
        assert set(alone.nearest_items.tolist()) == {""}


def test_an_item_counts_again_when_its_copy_is_removed(tmp_path: Path) -> None:
    places = {"a0": ("a", 0.0), "b0": ("b", 0.0), "c0": ("c", 0.0), "c1": ("c", 20.0), "k0": ("k", 30.0)}
    with shop(tmp_path / "g", places, dict.fromkeys(["a0", "b0", "c0"], "one file")) as gallery:
        found = drawer(gallery).own(None, excluded=NONE)
        for photo_id in ("c0", "b0"):  # one of them is the duplicate that the draw of a0 keeps
            gallery.remove(photo_ids=[photo_id])
            found = drawer(gallery).own(found, excluded=NONE)
            again = drawer(gallery).own(None, excluded=NONE)
            assert by_id(found, "nearest_items") == by_id(again, "nearest_items")
        assert by_id(found, "nearest_items")["a0"] == "c"


def test_without_a_key_for_contents_a_copy_counts_as_any_photo(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"a0": ("a", 0.0), "b0": ("b", 0.0)}, {"a0": "x", "b0": "x"}) as gallery:
        plain = Drawer(gallery.snapshot(), PLAIN, gallery.densities(PLAIN)).own(None, excluded=NONE)
    assert plain.distances.tolist() == [0, 0]
    assert plain.duplicates.tolist() == [NOBODY, NOBODY]


def test_an_item_that_is_removed_and_added_again_is_another_one(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        probes = Probes(np.stack([at(11.0)]), ["q"], ["b"])
        number = gallery.item_numbers(["b"])["b"]
        known = drawer(gallery).probes(None, probes, numbers=[number])
        assert (known.nearest_items.tolist(), known.own_nearest.tolist()) == (["a"], [2])
        gallery.remove(item_ids=["b"])
        gone = drawer(gallery).probes(known, probes, numbers=[-1])
        assert (gone.own.tolist(), gone.own_nearest.tolist()) == ([np.inf], [NOBODY])
        assert gone.nearest_items.tolist() == ["a"]


def test_lives(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p3"])
        asked = np.array([0, 3, 39, 40, 1000, NOBODY])
        assert drawer(gallery)._lives(asked).tolist() == [True, False, True, False, False, False]
        gallery.remove(item_ids=[f"i{i}" for i in range(10)])
        gallery.rebuild()
        assert drawer(gallery)._lives(asked).tolist() == [False] * 6
        nothing = drawer(gallery).own(None, excluded=NONE)
    assert (len(nothing), nothing.until) == (0, 0)
    assert {name: value.dtype.kind for name, value in nothing.arrays().items()} == {
        name: value.dtype.kind for name, value in Draws.none().arrays().items()
    }


def test_rows_of_known_draws() -> None:
    rows = rows_of(np.array([5, 2, 9]), np.array([9, 1, 5, 10, 2]))
    assert rows.tolist() == [2, -1, 0, -1, 1]
    assert rows_of(np.zeros(0, np.int64), np.array([9, 1])).tolist() == [-1, -1]


def test_the_hash_is_splitmix64() -> None:
    """Galleries keep samples that were drawn by it."""
    assert hashed(np.array([0, 1])).tolist() == [0xE220A8397B1DCDAF, 0x910A2DEC89025CC1]


def test_the_order_of_a_sample_by_hand() -> None:
    order = every_item_once(np.array([3, 3, 3, 1, 1, 2, 7]), np.array([5, 1, 9, 4, 2, 8, 3]))
    assert order.tolist() == [1, 4, 6, 5, 3, 0, 2]
    assert every_item_once(np.zeros(0, np.int32), np.zeros(0)).tolist() == []


def test_a_sample_depends_on_the_photos_only(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p3"])
        now = gallery.snapshot()
        everything = sample(now, NONE, most=100)
        assert sorted(everything.tolist()) == [i for i in range(40) if i != 3]
        assert len(set(now.items[everything[:10]].tolist())) == 10
        for most in (1, 2, 3, 7, 39):
            assert sample(now, NONE, most=most).tolist() == everything[:most].tolist()
        two = now.items[[1, 2]]
        assert sample(now, two, most=100).tolist() == [i for i in everything.tolist() if i % 10 not in (1, 2)]
        keys = hashed(now.seqs[everything[:10]])
        assert (keys[1:] > keys[:-1]).all()  # the first photo of each item, by its hash


# as a gallery keeps them


def kept(gallery: Gallery, known: KeptDraws | None = None, model: str = "m", **options: Any) -> KeptDraws:
    values: dict[str, Any] = {"distance_form": PLAIN, "probes": {}, "content_key": CONTENT, **options}
    return update_draws(gallery, known, model=model, **values)


def test_fitted_items_need_the_key_of_the_hashes(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery, pytest.raises(InvalidParameter, match="content_key must name"):
        kept(gallery, is_fitted=lambda *_: False, content_key="")


def test_draws_are_kept_and_read(tmp_path: Path) -> None:
    probes = {"probe": Probes(np.stack([at(8.0), at(9.0)]), ["q0", "q1"], ["b", "stranger"])}
    with shop(tmp_path / "g", LINE) as gallery:
        assert KeptDraws.read(gallery) is None
        made = kept(gallery, probes=probes, is_fitted=lambda item, _: item == "c")
        assert (made.photos, made.seqs, made.until) == (5, 10, 5)
        assert made.covers(gallery)
        gallery.keep(made.pack(), "measure")
        read = KeptDraws.read(gallery)
        assert read is not None
        assert (read.model, read.fitted, read.photos, read.seqs, read.until) == ("m", {"c"}, 5, 10, 5)
        assert set(read.sources) == {OWN, "probe"}
        for name, source in made.sources.items():
            for field, value in source.arrays().items():
                np.testing.assert_array_equal(read.sources[name].arrays()[field], value)
        assert by_id(read.sources["probe"], "nearest_items") == {"q0": "a", "q1": "b"}  # b is left out of q0's search
        assert set(read.sources[OWN].items) == {"a", "b", "d"}
        assert by_id(read.sources[OWN], "nearest_items")["d0"] == "c"  # fitted items are found
        gallery.remove(photo_ids=["a0"])
        assert not read.covers(gallery)
        gallery._database._connection.execute("UPDATE kept SET content = 'x' WHERE name = ?", (DRAWS,))
        assert KeptDraws.read(gallery) is None


def test_other_photos_are_not_covered_although_they_are_as_many(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        made = kept(gallery)
        gallery.remove(photo_ids=["a0"])
        put(gallery, {"e0": ("e", 80.0)})
        assert gallery.snapshot().photos == made.photos
        assert not made.covers(gallery)


@pytest.mark.parametrize("about", [b"{", b"{}", b'{"model": 1}'])
def test_content_that_makes_no_sense_is_none(tmp_path: Path, about: bytes) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        gallery.keep({DRAWS: about, POINT: None}, "measure")
        assert KeptDraws.read(gallery) is None


def test_draws_of_another_model_are_made_anew(tmp_path: Path, searched: list[tuple[int, bool]]) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        first = kept(gallery, is_fitted=lambda item, _: item == "a")
        assert searched == [(3, False)]
        searched.clear()
        same = kept(gallery, first)  # what was fitted stays so
        assert (same.fitted, searched) == ({"a"}, [])
        other = kept(gallery, first, model="n")
        assert (other.fitted, other.model, searched) == (set(), "n", [(5, False)])


def test_only_new_photos_are_asked_whether_the_model_was_fitted_on_them(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []

    def is_fitted(item: str, content: str | None) -> bool:
        asked.append((item, content))
        return content == "b0"

    with shop(tmp_path / "g", LINE) as gallery:
        first = kept(gallery, is_fitted=is_fitted)
        assert set(asked) == {("a", "a0"), ("a", "a1"), ("b", "b0"), ("c", "c0"), ("d", "d0")}
        assert first.fitted == {"b"}
        asked.clear()
        put(gallery, {"e0": ("e", 80.0)})
        second = kept(gallery, first, is_fitted=is_fitted)
        assert asked == [("e", "e0")]
        assert (second.fitted, set(second.sources[OWN].items)) == ({"b"}, {"a", "c", "d", "e"})
        gallery.remove(item_ids=["b"])
        assert kept(gallery, second, is_fitted=is_fitted).fitted == set()


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
        assert made.photos == 5
        assert made.sources["probe"].nearest_items.tolist() == ["a"]  # its own item is left out
        assert not made.covers(reader)


def test_what_every_source_has_searched() -> None:
    none = Draws.none()
    assert KeptDraws("m", {}, frozenset()).until == 0
    some = Draws(*[getattr(none, name) for name in list(none.arrays())[:-1]], until=7)
    assert KeptDraws("m", {"one": some, "two": none}, frozenset()).until == 0
    assert KeptDraws("m", {"one": some}, frozenset()).until == 7


def test_a_copy_by_its_pixels_is_passed_over_only_if_it_is_close(tmp_path: Path) -> None:
    asked = []

    def is_copy(one: str, other: str) -> bool:
        asked.append({one, other})
        return {one, other} <= {"a0", "b0", "c0"}

    places = {"a0": ("a", 0.0), "b0": ("b", 2.0), "c0": ("c", 40.0), "d0": ("d", 44.0)}
    with shop(tmp_path / "g", places) as gallery:
        found = update_draws(
            gallery, None, model="m", distance_form=PLAIN, probes={}, content_key=CONTENT, is_copy=is_copy
        ).sources[OWN]
    assert by_id(found, "duplicates") == {"a0": 1, "b0": 0, "c0": NOBODY, "d0": NOBODY}
    assert by_id(found, "nearest_items") == {"a0": "c", "b0": "c", "c0": "d", "d0": "c"}
    assert {"a0", "c0"} not in asked  # 40 degrees apart: no copy, whatever the pixels say
