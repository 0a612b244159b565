"""Verified draws: a search of a gallery without the own item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.errors import GalleryError, InvalidParameter
from index.gallery import Gallery
from index.search import leave_one_out
from index.search.distance import PLAIN, DistanceForm
from index.search.leave_one_out import Drawer, Draws, Probes, make_draws
from index.search.verified import VerifiedDistance

from ..vectors import DIM, unit
from .fake_verifier import FakeVerifier, pack, some_features, verified_gallery
from .test_verified_search import Lifted

pytestmark = pytest.mark.usefixtures("few_own_queries")

CONTENT = "content"
NONE = np.zeros(0, np.int32)


def drawer(gallery: Gallery, form: VerifiedDistance) -> Drawer:
    return Drawer(gallery.snapshot(), form, CONTENT)


def same(some: Draws, other: Draws) -> None:
    assert some.arrays().keys() == other.arrays().keys()
    for name, value in other.arrays().items():
        np.testing.assert_array_equal(some.arrays()[name], value, err_msg=name)


def probes_of(count: int, seed: int, items: int) -> Probes:
    ids, labels = [f"q{i}" for i in range(count)], [f"i{i % items}" for i in range(count)]
    return Probes(unit(count, seed), ids, labels, some_features(count, seed))


def numbers(gallery: Gallery, probes: Probes) -> list[int]:
    known = gallery.item_numbers(list(dict.fromkeys(probes.items)))
    return [known.get(item, -1) for item in probes.items]


@pytest.mark.parametrize("base", [pytest.param(PLAIN, marks=pytest.mark.slow), Lifted()], ids=["plain", "lifted"])
@pytest.mark.parametrize("verifier", [FakeVerifier(), FakeVerifier(1, 1, 0, 0.5), FakeVerifier(60, 3, 2)])
def test_a_draw_is_a_search_of_a_gallery_without_its_item(
    tmp_path: Path, base: DistanceForm, verifier: FakeVerifier
) -> None:
    """Filters leave the item out, or only the photo: the distances are exactly the same."""
    form = VerifiedDistance(base, verifier)
    with verified_gallery(tmp_path / "g") as gallery:
        probes = probes_of(12, 8, 50)
        made = drawer(gallery, form).own(excluded=NONE, most=25)
        asked = drawer(gallery, form).probes(probes, numbers=numbers(gallery, probes))
        photos = {photo.photo_id: photo for some in gallery.walk(100, whole=True) for photo in some}
        finite = 0
        for draws, some in ((made, 25), (asked, 12)):
            for row, name in enumerate(draws.ids.tolist()[:some]):
                stored = photos.get(name)
                place = None if stored else list(probes.ids).index(name)
                vector = probes.vectors[place] if stored is None else stored.vector
                features = (probes.features[place] if stored is None else stored.features) or b""
                options: dict[str, Any] = {"distance_form": form, "features": [features]}
                ((best,),) = gallery.search(vector[None], 1, where=f"not item = '{draws.items[row]}'", **options)
                assert (best.item_id, best.distance) == (draws.nearest_items[row], draws.distances[row])
                (hits,) = gallery.search(vector[None], 1000, where=f"not name = '{name}'", **options)
                found = {hit.item_id: hit.distance for hit in hits}
                assert found.get(str(draws.items[row]), np.inf) == draws.own[row]
                finite += bool(np.isfinite(draws.own[row]))
        assert 10 < finite < 37


def shop(path: Path, photos: dict[str, tuple[str, float, list[int]]]) -> Gallery:
    """Return a gallery of photos, each with its item, the angle of its vector, and its features."""
    gallery = Gallery.create(path, dim=DIM, embedding_id="e", features_key="f")
    put(gallery, photos)
    return gallery


def put(gallery: Gallery, photos: dict[str, tuple[str, float, list[int]]]) -> None:
    angles = np.radians([angle for _, angle, _ in photos.values()])
    vectors = np.zeros((len(photos), DIM))
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    items, features = [item for item, _, _ in photos.values()], [pack(some) for _, _, some in photos.values()]
    gallery.add(list(photos), items, vectors, features=features)


LINE = {
    "a0": ("a", 0.0, [1, 2, 3]),
    "b0": ("b", 10.0, [50, 51]),
    "c0": ("c", 14.0, [1, 2, 3]),
    "d0": ("d", 40.0, [80, 81]),
}


def test_an_added_photo_can_raise_a_distance_and_its_removal_restores_it(tmp_path: Path) -> None:
    """The shortlist of photo a0 has room for two items: b and c, of which c shares features."""
    verifier = FakeVerifier(items=2, photos=1, voted=0)
    form = VerifiedDistance(PLAIN, verifier)
    with shop(tmp_path / "g", LINE) as gallery:
        first = drawer(gallery, form).own(excluded=NONE)
        row = first.ids.tolist().index("a0")
        assert first.nearest_items[row] == "c"
        put(gallery, {"e0": ("e", 12.0, [])})
        second = drawer(gallery, form).own(excluded=NONE)
        row = second.ids.tolist().index("a0")
        assert second.nearest_items[row] == "b"
        assert second.distances[row] > first.distances[first.ids.tolist().index("a0")]
        gallery.remove(photo_ids=["e0"])
        third = drawer(gallery, form).own(excluded=NONE)
        assert third.distances.tolist() == first.distances.tolist()


def test_votes_alone_can_raise_a_distance(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier(items=1, photos=1, voted=1, factor=0.3))
    with shop(tmp_path / "g", {**LINE, "c0": ("c", 14.0, [1, 2, 3, 50, 80, 90])}) as gallery:
        first = drawer(gallery, form).own(excluded=NONE)
        assert first.nearest_items[first.ids.tolist().index("a0")] == "c"
        put(gallery, {"e0": ("e", 90.0, [101, 102, 103])})  # the words of a0, and no shared integer
        second = drawer(gallery, form).own(excluded=NONE)
        assert second.nearest_items[second.ids.tolist().index("a0")] == "b"


def test_the_own_item_is_verified_where_it_is_on_the_shortlist(tmp_path: Path) -> None:
    photos = {**LINE, "a1": ("a", 20.0, [1, 2, 3])}
    distance = 2 * np.sin(np.radians(10))
    for items, voted, factor in ((2, 0, 1), (3, 0, 0.8**3), (2, 1, 1), (2, 2, 0.8**3)):
        form = VerifiedDistance(PLAIN, FakeVerifier(items=items, photos=1, voted=voted))
        with shop(tmp_path / f"g{items}{voted}", photos) as gallery:
            made = drawer(gallery, form).own(excluded=NONE)
            own = dict(zip(made.ids.tolist(), made.own.tolist(), strict=True))
            assert own["a0"] == pytest.approx(distance * factor, abs=1e-6)
            assert own["b0"] == np.inf


def test_items_with_the_same_file_are_left_out(tmp_path: Path) -> None:
    """Item b has the file of photo a0: it is neither near nor voted for, and takes no place on the shortlist."""
    form = VerifiedDistance(PLAIN, FakeVerifier(items=1, photos=1, voted=1))
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        angles = np.radians([0, 0, 5, 20, 40])
        vectors = np.pad(np.stack([np.cos(angles), np.sin(angles)], axis=1), ((0, 0), (0, DIM - 2)))
        features = [pack(some) for some in ([1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2], [9])]
        metadata = [{CONTENT: name} for name in ("x", "x", "b1", "c0", "d0")]
        gallery.add(["a0", "b0", "b1", "c0", "d0"], list("abbcd"), vectors, features=features, metadata=metadata)
        made = drawer(gallery, form).own(excluded=NONE)
        row = made.ids.tolist().index("a0")
        assert (made.nearest_items[row], made.duplicates[row]) == ("c", 1)
        assert made.distances[row] == pytest.approx(2 * np.sin(np.radians(10)) * 0.8**2, abs=1e-6)
        gallery.remove(photo_ids=["b0"])
        again = drawer(gallery, form).own(excluded=NONE)
        assert again.nearest_items[again.ids.tolist().index("a0")] == "b"


def test_fewer_draws_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_one_out, "MOST_VERIFIED", 5)
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        probes = probes_of(9, 8, 45)
        now = drawer(gallery, form)
        assert len(now.own(excluded=NONE)) == len(now.probes(probes, numbers=[-1] * 9)) == 5
        plain = Drawer(gallery.snapshot(), PLAIN)
        assert len(plain.own(excluded=NONE)) == len(gallery)


def test_probes_without_features_and_galleries_with_others_are_refused(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    options: dict[str, Any] = {"model": "m", "distance_form": form, "content_key": CONTENT}
    with verified_gallery(tmp_path / "g", 40, 15) as gallery:
        bare = Probes(unit(1), ["q"], ["x"])
        with pytest.raises(InvalidParameter, match=r"features must have one entry per vector \(1\)"):
            make_draws(gallery, probes={"probe": bare}, **options)
        empty = make_draws(gallery, probes={"probe": Probes(unit(0), [], [])}, **options)
        assert len(empty.sources["probe"]) == 0
        other = VerifiedDistance(PLAIN, FakeVerifier(features_key="g"))
        with pytest.raises(GalleryError, match="other features"):
            make_draws(gallery, model="m", distance_form=other, probes={})
