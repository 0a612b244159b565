"""Verified draws: a search of a gallery without the own item, and updates that equal a new start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index import draws as draws_module
from index.ann.kinds import FLAT, FP16, IVF
from index.ann.recall import Probe
from index.distance import PLAIN, DistanceForm
from index.draws import NOBODY, Drawer, Draws, Probes
from index.errors import GalleryError, InvalidParameter
from index.gallery import Gallery
from index.kept_draws import OWN, KeptDraws, update_draws
from index.photo_groups import mean_vectors
from index.verified import Features, VerifiedDistance

from .fake_verifier import FakeVerifier, fill, pack, some_features, verified_gallery
from .test_verified_search import Lifted
from .vectors import DIM, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")

CONTENT = "content"
NONE = np.zeros(0, np.int32)


def drawer(gallery: Gallery, form: VerifiedDistance) -> Drawer:
    return Drawer(gallery.snapshot(), form, gallery.densities(form), CONTENT, gallery.verified_search(form))


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
        made = drawer(gallery, form).own(None, excluded=NONE, most=25)
        asked = drawer(gallery, form).probes(None, probes, numbers=numbers(gallery, probes))
        photos = {photo.photo_id: photo for some in gallery.walk(100, features=True) for photo in some}
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


@pytest.mark.parametrize(
    "verifier",
    [
        *(pytest.param(each, marks=pytest.mark.slow) for each in (FakeVerifier(), FakeVerifier(1, 1, 0))),
        FakeVerifier(3, 1, 8, 0.5),
    ],
)
def test_a_draw_of_several_photos_is_a_search_of_a_gallery_without_its_item(
    tmp_path: Path, verifier: FakeVerifier
) -> None:
    form = VerifiedDistance(Lifted(), verifier)
    with verified_gallery(tmp_path / "g") as gallery:
        probes = probes_of(24, 8, 6).grouped(3)
        assert [len(some) for some in probes.features] == [3] * 6
        made = drawer(gallery, form).own(None, excluded=NONE, most=12, photos_per_query=2)
        asked = drawer(gallery, form).probes(None, probes, numbers=numbers(gallery, probes))
        photos = {photo.photo_id: photo for some in gallery.walk(100, features=True) for photo in some}
        of_seq = {int(seq): gallery.snapshot().photo(place)[0] for place, seq in enumerate(gallery.snapshot().seqs)}
        verified = 0
        for draws in (made, asked):
            for row, name in enumerate(draws.ids.tolist()):
                if draws is made:
                    group = [photos[of_seq[seq]] for seq in draws.seqs[row].tolist()]
                    vector = mean_vectors(np.array([[photo.vector for photo in group]]))
                    features: Features = tuple(photo.features or b"" for photo in group)
                    own_photos = " and ".join(f"not name = '{photo.photo_id}'" for photo in group)
                else:
                    place = list(probes.ids).index(name)
                    vector, features = probes.vectors[[place]], probes.features[place]
                    own_photos = "not name = 'none'"
                options: dict[str, Any] = {"distance_form": form, "features": [features]}
                ((best,),) = gallery.search(vector, 1, where=f"not item = '{draws.items[row]}'", **options)
                assert (best.item_id, best.distance) == (draws.nearest_items[row], draws.distances[row])
                (hits,) = gallery.search(vector, 1000, where=own_photos, **options)
                found = {hit.item_id: hit.distance for hit in hits}
                assert found.get(str(draws.items[row]), np.inf) == draws.own[row]
                (plain,) = gallery.search(vector, 1, where=f"not item = '{draws.items[row]}'", distance_form=form.base)
                verified += best.distance < plain[0].distance
        assert verified > 0


@pytest.mark.parametrize("kind", [FLAT, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (FP16, IVF))])
@pytest.mark.parametrize(
    ("verifier", "photos"),
    [
        (FakeVerifier(), 1),
        pytest.param(FakeVerifier(1, 1, 0), 1, marks=pytest.mark.slow),
        pytest.param(FakeVerifier(3, 1, 8, 0.5), 1, marks=pytest.mark.slow),
        (FakeVerifier(3, 1, 2, 0.5), 2),
        pytest.param(FakeVerifier(60, 3, 2), 1, marks=pytest.mark.slow),
    ],
    ids=["usual", "one", "votes", "two photos", "all"],
)
def test_updates_equal_a_new_start(tmp_path: Path, kind: str, verifier: FakeVerifier, photos: int) -> None:
    form = VerifiedDistance(Lifted(), verifier)
    generator = np.random.default_rng(3)
    probes, saved = probes_of(6 * photos, 8, 45 // photos).grouped(photos), 0
    with verified_gallery(tmp_path / "g", 90, 30) as gallery:
        gallery.rebuild(kind=kind, probe=Probe(np.inf, form), min_recall=0.9, threads=1)
        own, others = Draws.none(), Draws.none()
        for step in range(24):
            present = sorted(gallery.photo_ids())
            gone = generator.choice(present, int(generator.integers(1, 4)), replace=False).tolist()
            count = int(generator.integers(1, 4))
            if step % 4 == 0:
                gallery.remove(photo_ids=gone)
            elif step % 4 in (1, 2):
                names = [f"n{step}-{i}" for i in range(count)] if step % 4 == 1 else gone
                rows = generator.integers(0, 12, len(names))  # some photos are the same, under several items
                labels = [f"i{i}" for i in generator.integers(0, 35, len(names))]
                gallery.add(
                    names,
                    labels,
                    unit(12, 70)[rows],
                    features=[some_features(12, 70)[row] for row in rows],
                    metadata=[{CONTENT: f"file {row}"} for row in rows],
                    upsert=True,
                )
            else:
                fill(gallery, range(1000 + 5 * step, 1000 + 5 * step + count), 35, 200 + step)
            if step == 13:
                gallery.rebuild(kind=kind, probe=Probe(np.inf, form), min_recall=0.9, threads=1)
            if step in (15, 19):
                gallery.update(gone, ["i3"] * len(gone), [{}] * len(gone))
            if step == 17:
                gallery.remove(item_ids=["i1", "i2"])
            excluded = np.array(sorted(gallery.item_numbers(["i4"]).values()), dtype=np.int32)
            now, placed = drawer(gallery, form), numbers(gallery, probes)
            verifier.compared = 0
            own = now.own(own, excluded=excluded, most=8, photos_per_query=photos)
            others = now.probes(others, probes, numbers=placed)
            updated, verifier.compared = verifier.compared, 0
            same(own, now.own(None, excluded=excluded, most=8, photos_per_query=photos))
            same(others, now.probes(None, probes, numbers=placed))
            saved += updated < verifier.compared
            same(Draws.of_arrays(own.arrays()), own)
        assert (own.duplicates != NOBODY).any()
        assert saved > 10 or verifier.items == 60  # there every change matters


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
        first = drawer(gallery, form).own(None, excluded=NONE)
        row = first.ids.tolist().index("a0")
        assert first.nearest_items[row] == "c"
        put(gallery, {"e0": ("e", 12.0, [])})
        verifier.compared = 0
        second = drawer(gallery, form).own(first, excluded=NONE)
        assert verifier.compared == 4 + 2  # each draw with e0 only, and the draw of e0 with two photos
        row = second.ids.tolist().index("a0")
        assert second.nearest_items[row] == "b"
        assert second.distances[row] > first.distances[first.ids.tolist().index("a0")]
        gallery.remove(photo_ids=["e0"])
        third = drawer(gallery, form).own(second, excluded=NONE)
        assert third.distances.tolist() == first.distances.tolist()


def test_votes_alone_can_raise_a_distance(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier(items=1, photos=1, voted=1, factor=0.3))
    with shop(tmp_path / "g", {**LINE, "c0": ("c", 14.0, [1, 2, 3, 50, 80, 90])}) as gallery:
        first = drawer(gallery, form).own(None, excluded=NONE)
        assert first.nearest_items[first.ids.tolist().index("a0")] == "c"
        put(gallery, {"e0": ("e", 90.0, [101, 102, 103])})  # the words of a0, and no shared integer
        second = drawer(gallery, form).own(first, excluded=NONE)
        assert second.nearest_items[second.ids.tolist().index("a0")] == "b"
        same(second, drawer(gallery, form).own(None, excluded=NONE))


def test_what_a_change_does_not_affect_is_not_verified_again(tmp_path: Path) -> None:
    verifier = FakeVerifier(items=1, photos=1, voted=1)
    form = VerifiedDistance(PLAIN, verifier)
    with shop(tmp_path / "g", LINE) as gallery:
        first = drawer(gallery, form).own(None, excluded=NONE)
        assert verifier.compared > 0
        verifier.compared = 0
        same(drawer(gallery, form).own(first, excluded=NONE), first)
        assert verifier.compared == 0
        put(gallery, {"e0": ("e", 170.0, [370, 371])})
        second = drawer(gallery, form).own(first, excluded=NONE)
        assert verifier.compared == 1  # the draw of e0 itself
        gallery.remove(photo_ids=["e0"])
        assert len(drawer(gallery, form).own(second, excluded=NONE)) == 4
        assert verifier.compared == 1


def test_the_own_item_is_verified_where_it_is_on_the_shortlist(tmp_path: Path) -> None:
    photos = {**LINE, "a1": ("a", 20.0, [1, 2, 3])}
    distance = 2 * np.sin(np.radians(10))
    for items, voted, factor in ((2, 0, 1), (3, 0, 0.8**3), (2, 1, 1), (2, 2, 0.8**3)):
        form = VerifiedDistance(PLAIN, FakeVerifier(items=items, photos=1, voted=voted))
        with shop(tmp_path / f"g{items}{voted}", photos) as gallery:
            made = drawer(gallery, form).own(None, excluded=NONE)
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
        made = drawer(gallery, form).own(None, excluded=NONE)
        row = made.ids.tolist().index("a0")
        assert (made.nearest_items[row], made.duplicates[row]) == ("c", 1)
        assert made.distances[row] == pytest.approx(2 * np.sin(np.radians(10)) * 0.8**2, abs=1e-6)
        gallery.remove(photo_ids=["b0"])
        again = drawer(gallery, form).own(made, excluded=NONE)
        assert again.nearest_items[again.ids.tolist().index("a0")] == "b"


def test_draws_of_older_galleries_are_read(tmp_path: Path) -> None:
    """Shortlists of older galleries have no axis for the photos of a query."""
    with verified_gallery(tmp_path / "g") as gallery:
        made = drawer(gallery, VerifiedDistance(PLAIN, FakeVerifier())).own(None, excluded=NONE)
    arrays = made.arrays()
    older = {**arrays, "least_votes": arrays["least_votes"][:, 0], "inliers": arrays["inliers"][..., 0]}
    same(Draws.of_arrays(older), made)


def test_fewer_draws_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws_module, "MOST_VERIFIED", 5)
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        probes = probes_of(9, 8, 45)
        now = drawer(gallery, form)
        assert len(now.own(None, excluded=NONE)) == len(now.probes(None, probes, numbers=[-1] * 9)) == 5
        plain = Drawer(gallery.snapshot(), PLAIN, gallery.densities(PLAIN))
        assert len(plain.own(None, excluded=NONE)) == len(gallery)


def test_kept_draws_are_packed_with_their_shortlists(tmp_path: Path) -> None:
    form = VerifiedDistance(PLAIN, FakeVerifier())
    options: dict[str, Any] = {"model": "m", "distance_form": form, "content_key": CONTENT}
    with verified_gallery(tmp_path / "g", 40, 15) as gallery:
        probes = {"probe": probes_of(9, 8, 45)}
        made = update_draws(gallery, None, probes=probes, **options)
        gallery.keep(made.pack(), "measure")
        read = KeptDraws.read(gallery)
        assert read is not None
        for name, source in made.sources.items():
            same(read.sources[name], source)
        fill(gallery, range(500, 503), 40, 77)
        again = update_draws(gallery, read, probes=probes, **options)
        same(again.sources[OWN], update_draws(gallery, None, probes=probes, **options).sources[OWN])
        bare = Probes(unit(1), ["q"], ["x"])
        with pytest.raises(InvalidParameter, match=r"features must have one entry per vector \(1\)"):
            update_draws(gallery, None, probes={"probe": bare}, **options)
        empty = update_draws(gallery, None, probes={"probe": Probes(unit(0), [], [])}, **options)
        assert len(empty.sources["probe"]) == 0
        other = VerifiedDistance(PLAIN, FakeVerifier(features_key="g"))
        with pytest.raises(GalleryError, match="other features"):
            update_draws(gallery, None, model="m", distance_form=other, probes={})


def test_draws_of_another_form_are_made_anew(tmp_path: Path) -> None:
    """Draws of a plain form have no shortlists."""
    form = VerifiedDistance(PLAIN, FakeVerifier())
    with verified_gallery(tmp_path / "g") as gallery:
        plain = Drawer(gallery.snapshot(), PLAIN, gallery.densities(PLAIN)).own(None, excluded=NONE, most=10)
        assert plain.shortlists is None
        now = drawer(gallery, form)
        same(now.own(plain, excluded=NONE, most=10), now.own(None, excluded=NONE, most=10))
