"""Draws: each item once before any twice, exact distances without the own item, and how draws are stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.gallery import Gallery
from index.groups import GROUP, group_key, group_number
from index.photos import CONTENT, NONE
from index.search.distance import plain_distance
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.measuring.drawing import MOST_DRAWS, MOST_VERIFIED, SOURCE, Drawing, PartVectors
from retrieval.measuring.draws import AllDraws, Draws, Probes
from retrieval.measuring.measure import Material, draw
from tests.index.search.fake_verifier import FakeVerifier
from tests.index.vectors import DIM, filled, unit

AXES = np.eye(DIM, dtype=np.float32)
LINE = {"a0": ("a", 0.0), "a1": ("a", 3.0), "b0": ("b", 10.0), "c0": ("c", 24.0), "d0": ("d", 40.0)}


def drawing(gallery: Gallery) -> Drawing:
    """Return what draws by the plain distance to the nearest photo."""
    return Drawing(gallery.snapshot(), NEAREST_PHOTO)


def draws_of(
    gallery: Gallery, probes: dict[str, Probes] | None = None, fitted: Collection[str] = (), **options: Any
) -> AllDraws:
    """Return the draws of a gallery."""
    material = Material(probes=probes or {}, fitted=frozenset(fitted), model="m", version=gallery.version, **options)
    return draw(gallery.snapshot(), NEAREST_PHOTO, material)


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
    """Add photos, each with its item and the angle of its vector; those of equal contents are copies."""
    ids, known = list(photos), contents or {}
    metadata = [{CONTENT: known.get(name, name)} for name in ids]
    vectors = np.stack([at(angle) for _, angle in photos.values()])
    gallery.add(ids, [item for item, _ in photos.values()], vectors, metadata=metadata)


def by_id(found: Draws, field: str) -> dict[str, Any]:
    return dict(zip(found.ids.tolist(), getattr(found, field).tolist(), strict=True))


def test_a_draw_is_the_nearest_photo_of_another_item(tmp_path: Path) -> None:
    vectors, items = unit(40), np.arange(40) % 10
    with filled(tmp_path / "g") as gallery:
        draws = drawing(gallery).own()
    assert sorted(draws.ids) == sorted(f"p{i}" for i in range(40))
    for row, name in enumerate(draws.ids.tolist()):
        photo = int(name[1:])
        apart = plain_distance(vectors[[photo]], vectors)
        others = np.where(items == items[photo], np.inf, apart)
        own = np.where((items != items[photo]) | (np.arange(40) == photo), np.inf, apart)
        assert draws.items[row] == f"i{items[photo]}"
        assert (draws.distances[row], draws.nearest[row]) == (others.min(), f"p{others.argmin()}")
        assert draws.nearest_items[row] == f"i{items[others.argmin()]}"
        assert (draws.plain[row], draws.own[row], draws.own_plain[row]) == (others.min(), own.min(), own.min())
        assert draws.wrong[row] == (np.inf if own.min() < others.min() else others.min())


def test_a_draw_knows_its_distance_without_the_first_item_and_without_each_of_its_rivals(tmp_path: Path) -> None:
    """Each distance is that in a gallery from which the item and the other items of its group were removed."""
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
            return Drawing(made.snapshot(), item_distance).own()

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
        draws = drawing(gallery).own()
    assert np.isinf(draws.without).all()
    assert (draws.rivals == NONE).all()


def test_a_photo_of_another_item_that_is_as_near_as_the_own_one_comes_first(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"b0": ("b", 10.0), "a0": ("a", 0.0), "a1": ("a", 10.0)}) as gallery:
        draws = drawing(gallery).own()
    assert by_id(draws, "wrong")["a0"] == by_id(draws, "own")["a0"] == pytest.approx(distance(10))


def test_items_that_the_model_was_fitted_on_are_not_drawn_but_found(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        numbers = gallery.snapshot().item_numbers(["i0", "i1"])
        draws = drawing(gallery).own(excluded=numbers.values())
        everything = drawing(gallery).own()
    assert set(draws.items) == {f"i{i}" for i in range(2, 10)}
    kept = dict(zip(everything.ids, everything.distances, strict=True))
    assert all(kept[name] == distance for name, distance in zip(draws.ids, draws.distances, strict=True))


def test_a_sample_holds_every_item(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=60, items=20) as gallery:
        draws = drawing(gallery).own(most=25)
    items, counts = np.unique(draws.items, return_counts=True)
    assert (len(items), counts.max(), len(draws)) == (20, 2, 25)


def test_an_only_item_has_no_other(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=1, items=1) as gallery:
        draws = drawing(gallery).own()
        assert (draws.distances[0], draws.nearest[0], draws.own[0]) == (np.inf, "", np.inf)
        gallery.add(["new"], ["other"], unit(1, 5))
        again = drawing(gallery).own()
        assert np.isfinite(again.distances).all()
        gallery.remove(photo_ids=["p0", "new"])
        assert len(drawing(gallery).own()) == 0


def test_probes_leave_their_own_item_out(tmp_path: Path) -> None:
    vectors = unit(40)
    with filled(tmp_path / "g") as gallery:
        probes = Probes(vectors[:12], [f"q{i}" for i in range(12)], [f"i{i % 10}" for i in range(11)] + ["elsewhere"])
        draws = drawing(gallery).probes(probes)
    by_id = dict(zip(draws.ids.tolist(), draws.distances.tolist(), strict=True))
    assert by_id["q11"] == 0  # photo 11 is in the gallery, under another item
    items = np.arange(40) % 10
    for photo in range(11):
        apart = plain_distance(vectors[[photo]], vectors)
        assert by_id[f"q{photo}"] == apart[items != photo % 10].min()
    own = dict(zip(draws.ids.tolist(), draws.own.tolist(), strict=True))
    assert own.pop("q11") == np.inf  # its item is not in the gallery
    assert set(own.values()) == {0.0}  # the photo itself is in the gallery


def test_the_distance_to_the_own_item_follows_its_photos(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        alone = {**dict.fromkeys(("a0", "a1"), distance(3)), **dict.fromkeys(("b0", "c0", "d0"), np.inf)}
        assert by_id(drawing(gallery).own(), "own_plain") == pytest.approx(alone, abs=1e-6)
        put(gallery, {"a2": ("a", 1.0), "b1": ("b", 90.0)})
        more = {"a0": distance(1), "a1": distance(2), "a2": distance(1), "b0": distance(80), "b1": distance(80)}
        assert by_id(drawing(gallery).own(), "own") == pytest.approx(alone | more, abs=1e-6)
        gallery.remove(photo_ids=["a2", "b1"])
        assert by_id(drawing(gallery).own(), "own") == pytest.approx(alone, abs=1e-6)


SAME = {
    **{f"{item}0": (item, 0.0) for item in "abcdefghij"},  # one file under ten items
    "k0": ("k", 30.0),
    "a1": ("a", 1.0),
}


def test_the_same_file_under_many_items_is_passed_over(tmp_path: Path) -> None:
    contents = dict.fromkeys([f"{item}0" for item in "abcdefghij"], "one file")
    with shop(tmp_path / "g", SAME, contents) as gallery:
        found = drawing(gallery).own()
        assert by_id(found, "distances")["b0"] == pytest.approx(distance(30), abs=1e-6)  # item a is left out with a1
        assert by_id(found, "distances")["a0"] == pytest.approx(distance(30), abs=1e-6)
        assert by_id(found, "distances")["a1"] == pytest.approx(distance(1), abs=1e-6)  # another file
        assert by_id(found, "nearest_items")["a0"] == "k"
        assert by_id(found, "duplicates")["a0"] == "b0"
        assert by_id(found, "duplicates")["b0"] == "a0"
        assert by_id(found, "duplicates")["k0"] == by_id(found, "duplicates")["a1"] == ""
        gallery.remove(photo_ids=["k0", "a1"])
        alone = drawing(gallery).own()
        assert set(alone.distances.tolist()) == {np.inf}
        assert set(alone.nearest.tolist()) == {""}
        assert set(alone.nearest_items.tolist()) == {""}


def test_an_item_counts_again_when_its_copy_is_removed(tmp_path: Path) -> None:
    places = {"a0": ("a", 0.0), "b0": ("b", 0.0), "c0": ("c", 0.0), "c1": ("c", 20.0), "k0": ("k", 30.0)}
    with shop(tmp_path / "g", places, dict.fromkeys(["a0", "b0", "c0"], "one file")) as gallery:
        found = drawing(gallery).own()
        for photo_id in ("c0", "b0"):  # one of them is the duplicate that the draw of a0 keeps
            gallery.remove(photo_ids=[photo_id])
            found = drawing(gallery).own()
        assert by_id(found, "nearest_items")["a0"] == "c"


def test_where_copies_are_not_asked_for_a_copy_counts_as_any_photo(tmp_path: Path) -> None:
    with shop(tmp_path / "g", {"a0": ("a", 0.0), "b0": ("b", 0.0)}, {"a0": "x", "b0": "x"}) as gallery:
        plain = Drawing(gallery.snapshot(), NEAREST_PHOTO, find_copies=False).own()
    assert plain.distances.tolist() == [0, 0]
    assert plain.duplicates.tolist() == ["", ""]


def test_a_gallery_keeps_fewer_draws_where_details_are_compared(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        now = gallery.snapshot()
        assert Drawing(now, NEAREST_PHOTO).most == MOST_DRAWS
        assert Drawing(now, NEAREST_PHOTO, FakeVerifier()).most == MOST_VERIFIED
    assert MOST_VERIFIED < MOST_DRAWS


def test_photos_of_other_sources_come_first_and_then_those_of_known_ones(tmp_path: Path) -> None:
    sources = ["shelf", "shelf", "web", "web", "phone"]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        ids = [f"p{number}" for number in range(5)]
        gallery.add(ids, ["a"] * 5, unit(5), metadata=[{SOURCE: source} for source in sources])
        found = drawing(gallery)._of_other_sources(0, [1, 2, 3, 4])
    assert [sources[place] for place in found] == ["web", "phone", "shelf", "web"]


def test_of_the_windows_of_a_photo_the_one_counts_whose_first_item_is_closest(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        own = drawing(gallery).own()
    order = np.argsort(own.ids)
    chosen = own.where(np.isin(np.arange(len(own)), order[:2]))
    assert chosen.items.tolist() == ["a", "a"]  # two windows: one finds its item nearer than the other does
    two = replace(chosen, own=np.array([0.3, 0.1]), wrong=np.full(2, np.inf), own_plain=np.array([0.4, 0.5]))
    found = two.closest(np.zeros(2, np.int64), 1)
    assert (found.own.tolist(), found.own_plain.tolist()) == ([0.1], [0.5])
    lost = replace(two, own=np.full(2, 0.5), wrong=np.array([0.2, 0.4]))
    assert lost.closest(np.zeros(2, np.int64), 1).wrong.tolist() == [0.2]


def test_a_photo_with_fewer_windows_is_drawn_with_those_that_it_has(tmp_path: Path) -> None:
    angles = {"c0": [17.0, 30.0, 24.0], "a1": [8.0], "d0": [38.0, 33.0]}
    with shop(tmp_path / "g", LINE) as gallery:
        vectors = np.zeros((3, 3, DIM), np.float32)  # zeros where a photo has fewer windows
        for row, windows in enumerate(angles.values()):
            vectors[row, : len(windows)] = [at(angle) for angle in windows]
        found = drawing(gallery).windows(PartVectors(np.array(list(angles)), vectors))
    assert by_id(found, "nearest_items") == {"c0": "b", "a1": "b", "d0": "c"}
    assert by_id(found, "distances") == pytest.approx(
        {"c0": distance(7), "a1": distance(2), "d0": distance(9)}, abs=1e-6
    )


def test_a_copy_by_its_pixels_is_passed_over_only_if_it_is_close(tmp_path: Path) -> None:
    asked = []

    def same_picture(first: str, second: str) -> bool:
        asked.append({first, second})
        return {first, second} <= {"a0", "b0", "c0"}

    places = {"a0": ("a", 0.0), "b0": ("b", 2.0), "c0": ("c", 40.0), "d0": ("d", 44.0)}
    with shop(tmp_path / "g", places) as gallery:
        found = Drawing(gallery.snapshot().with_pictures(same_picture), NEAREST_PHOTO).own()
    assert by_id(found, "duplicates") == {"a0": "b0", "b0": "a0", "c0": "", "d0": ""}
    assert by_id(found, "nearest_items") == {"a0": "c", "b0": "c", "c0": "d", "d0": "c"}
    assert {"a0", "c0"} not in asked  # 40 degrees apart: no copy, whatever the pixels say


def test_changed_counts_added_and_removed_photos(tmp_path: Path) -> None:
    with shop(tmp_path / "g", LINE) as gallery:
        made = draws_of(gallery)
        assert gallery.snapshot().changes_since(made.mark) == 0
        gallery.remove(photo_ids=["a0"])
        put(gallery, {"e0": ("e", 80.0)})
        assert gallery.snapshot().photos == made.photos
        assert gallery.snapshot().changes_since(made.mark) == 2
        gallery.remove(photo_ids=["e0"])
        assert gallery.snapshot().changes_since(made.mark) == 1


def test_changed_counts_all_photos_of_a_gallery_that_was_empty(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        made = draws_of(gallery)
        assert (made.photos, gallery.snapshot().changes_since(made.mark)) == (0, 0)
        put(gallery, LINE)
        assert gallery.snapshot().changes_since(made.mark) == len(LINE)


def test_no_samples_are_joined_to_an_empty_one() -> None:
    assert len(Draws.joined([])) == 0
