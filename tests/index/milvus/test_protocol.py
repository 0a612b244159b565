"""Photos in arrays, in a local gallery, on Milvus Lite and on a Milvus server answer alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from index.gallery import Gallery
from index.groups import GROUP
from index.location import AnyGallery
from index.milvus.gallery import MilvusGallery
from index.photos import CONTENT, NONE, Photos
from index.photos.arrays import ArrayPhotos
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.measuring.drawing import Drawing

from ...world import shuffled
from ..vectors import unit

pytestmark = pytest.mark.filterwarnings("ignore")  # pymilvus warns of its own dependencies
ITEMS, DIM = 60, 16
COLUMNS = {"brand": "text", "price": "number", "sale": "boolean"}
WHERE = (
    *("brand = 'it''s'", "brand != 'b'", "not brand = 'b'", "price < 3", "price >= 2 and sale = true", "sale is null"),
    *("sale is not null", "brand in ('b', 'it''s')", "brand not in ('b')", "not (price > 1 or brand = 'b')"),
    "brand = 'b' or sale = false and price <= 4",
)


@dataclass(frozen=True)
class World:
    """Photos of items of uneven size with shuffled ids, of which three items show the same things."""

    ids: list[str]
    items: list[str]
    vectors: np.ndarray
    metadata: list[dict[str, object]]

    @classmethod
    def make(cls) -> World:
        sizes = [1 + (7 * item) % 9 for item in range(ITEMS - 1)] + [90]  # one with more photos than a mean takes
        of = shuffled(np.repeat(np.arange(ITEMS), sizes).tolist())
        generator, centres = np.random.default_rng(5), unit(ITEMS, 3, DIM)
        centres[1:3] = centres[0]
        vectors = centres[of] + 0.6 * unit(len(of), 4, DIM)
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        twins = generator.permutation(len(of))[:12].reshape(-1, 2)
        vectors[twins[:, 1]] = vectors[twins[:, 0]]
        shown = np.unique(vectors, axis=0, return_inverse=True)[1].tolist()
        group = dict.fromkeys(range(0, ITEMS, 11), "red") | dict.fromkeys(range(1, ITEMS, 13), "blue")
        metadata: list[dict[str, object]] = []
        for row, item in enumerate(of):
            about: dict[str, object] = {CONTENT: f"file {shown[row]}"}
            about |= {GROUP: group[item]} if item in group else {}
            about |= {} if row % 3 == 0 else {"brand": ("a", "b", "it's")[row % 7 % 3], "price": row % 6}
            about |= {} if row % 4 else {"sale": row % 8 == 0}
            metadata.append(about)
        numbers = generator.permutation(9000)[: len(of)]
        return cls([str(n) for n in numbers], [f"{37 * item % 1000}" for item in of], vectors, metadata)

    def add_to(self, gallery: AnyGallery) -> None:
        """Add the photos in batches that divide items, with a replacement, a removal and an update."""
        rows = range(len(self.ids))
        for start in range(0, len(self.ids), 130):
            some = rows[start : start + 130]
            gallery.add(
                [self.ids[row] for row in some],
                [self.items[row] for row in some],
                -self.vectors[some.start : some.stop],
                metadata=[{} for _ in some],
            )
        gallery.add(self.ids, self.items, self.vectors, metadata=self.metadata, upsert=True)
        gone, moved = [self.ids[row] for row in (3, 50, 77)], self.ids[9]
        gallery.add(["extra"], [self.items[9]], self.vectors[:1], metadata=[{}])
        gallery.update([moved], ["elsewhere"], [self.metadata[9]])
        gallery.update([moved], [self.items[9]], [self.metadata[9]])
        gallery.remove(photo_ids=[*gone, "extra"])
        rows_gone = [self.vectors[row] for row in (3, 50, 77)]
        gallery.add(
            gone,
            [self.items[row] for row in (3, 50, 77)],
            np.array(rows_gone),
            metadata=[self.metadata[row] for row in (3, 50, 77)],
        )


@pytest.fixture(scope="module")
def world() -> World:
    return World.make()


@pytest.fixture(scope="module")
def local(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    with Gallery.create(tmp_path_factory.mktemp("g") / "g", dim=DIM, embedding_id="e", columns=COLUMNS) as gallery:
        world.add_to(gallery)
        yield gallery


@pytest.fixture(scope="module", params=[pytest.param("lite", marks=pytest.mark.slow), "server"])
def gallery(
    request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MilvusGallery]:
    if request.param == "lite":
        pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
        place = f"milvus+{tmp_path_factory.mktemp('m')}/lite.db"
    else:
        place = request.getfixturevalue("server").address
    with MilvusGallery.create(f"{place}/protocol", dim=DIM, embedding_id="e", columns=COLUMNS) as gallery:
        world.add_to(gallery)
        yield gallery


def queries(world: World) -> np.ndarray:
    asked = np.concatenate([world.vectors[:30] + 0.3 * unit(30, 8, DIM), unit(10, 9, DIM), world.vectors[30:34]])
    return (asked / np.linalg.norm(asked, axis=1, keepdims=True)).astype(np.float32)


def named(photos: Photos, positions: np.ndarray) -> list[list[str]]:
    """Return the item ids at positions (n, k); items at one distance may be in any order."""
    return [[item for _, item, _ in photos.photos_at(row[row != NONE])] for row in positions]


def test_counts_ids_and_metadata_are_those_of_a_local_gallery(gallery: MilvusGallery, local: Gallery) -> None:
    assert (len(gallery), gallery.items) == (len(local), local.items)
    assert sorted(gallery.photos()) == sorted(local.photos())
    assert gallery.values("brand") == sorted(local.values("brand"), key=lambda row: row[0])
    assert gallery.item_ids(after="2", limit=7) == local.item_ids(after="2", limit=7)
    assert gallery.item_ids(find="IT'S", limit=500) == local.item_ids(find="IT'S", limit=500)
    assert gallery.verify() == []


def test_photos_and_items_are_found_by_id_with_means_and_groups(
    gallery: MilvusGallery, local: Gallery, world: World
) -> None:
    arrays = ArrayPhotos(
        world.vectors,
        world.items,
        photo_ids=world.ids,
        groups=[str(about.get(GROUP, "")) for about in world.metadata],
    )
    names = [*sorted({*world.items}), "nothing"]
    facts, sets = [], []
    for photos in (gallery.snapshot(), local.snapshot(), arrays):
        assert photos.size == len(world.ids)
        assert photos.item_count == ITEMS
        numbers = photos.item_numbers(names)
        assert numbers.keys() == {*world.items}
        facts.append(photos.facts_of(np.array([numbers[item] for item in names[:-1]])))
        sets.append(
            [
                sorted(photo_id for photo_id, *_ in photos.photos_at(own))
                for own in photos.photos_of([numbers[item] for item in names[:-1]])
            ]
        )
        positions = photos.positions([*world.ids[:9], "nothing"])
        assert positions[-1] == NONE
        assert (photos.vectors(positions[:-1]) == world.vectors[:9]).all()
    assert sets[0] == sets[1] == sets[2]
    for means, groups in facts[1:]:
        assert (facts[0].means == means).all()
        assert facts[0].groups.tolist() == groups.tolist()


@pytest.mark.parametrize("most", [1, 7, ITEMS, 110, 1000])
def test_a_sample_is_that_of_a_local_gallery(gallery: MilvusGallery, local: Gallery, most: int) -> None:
    one, other = gallery.snapshot(), local.snapshot()
    for gone in ([], ["37", "74"]):
        samples = [
            [photo_id for photo_id, *_ in photos.photos_at(photos.sample(most, excluded=[*numbers.values()]))]
            for photos in (one, other)
            for numbers in [photos.item_numbers(gone)]
        ]
        assert samples[0] == samples[1]


@pytest.mark.parametrize("k", [1, 5, 24, 100])
def test_the_nearest_items_are_those_of_a_local_gallery(
    gallery: MilvusGallery, local: Gallery, world: World, k: int
) -> None:
    one, other = gallery.snapshot(), local.snapshot()
    (found, apart), (expected, distances) = (photos.nearest(queries(world), k) for photos in (one, other))
    assert (apart == distances).all()
    ties = distances[:, 1:] == distances[:, :-1]
    for row, (names, right) in enumerate(zip(named(one, found), named(other, expected), strict=True)):
        assert names == right or ties[row].any()


@pytest.mark.parametrize("distance", [NEAREST_PHOTO, ItemDistance()], ids=["nearest photo", "items"])
def test_searches_are_equal_where_the_hits_hold_enough_items_and_else_never_nearer(
    gallery: MilvusGallery, local: Gallery, world: World, distance: ItemDistance
) -> None:
    asked = queries(world)
    found, expected = (each.search(asked, 5, item_distance=distance) for each in (gallery, local))
    hits = [
        {hit["entity"]["item_id"] for hit in hits}
        for hits in gallery._store.nearest(gallery._store.photos, asked, 130, "FLAT", {"consistency_level": "Strong"})
    ]
    assert min(map(len, hits)) < 24 <= max(map(len, hits))
    for seen, one, other in zip(hits, found, expected, strict=True):
        right = {near.item_id: near.distance for near in other}
        assert all(near.distance >= right.get(near.item_id, 0) - 1e-12 for near in one)
        if len(seen) >= 24 or distance.is_plain:
            assert [near.distance for near in one] == [near.distance for near in other]


@pytest.mark.parametrize("where", WHERE)
def test_a_filter_passes_the_same_photos(gallery: MilvusGallery, local: Gallery, world: World, where: str) -> None:
    asked = queries(world)[:4]
    found, expected = (each.search(asked, 80, where=where) for each in (gallery, local))
    for one, other in zip(found, expected, strict=True):
        assert [near.distance for near in one] == [near.distance for near in other]
        assert {(near.item_id, near.photo_id) for near in one if near.distance} == {
            (near.item_id, near.photo_id) for near in other if near.distance
        }


def test_draws_are_equal_to_the_last_bit(gallery: MilvusGallery, local: Gallery) -> None:
    sources = [Drawing(each.snapshot(), ItemDistance()).every({}) for each in (gallery, local)]
    for name in sources[1]:
        one, other = (each[name] for each in sources)
        order = [np.argsort(draws.ids, kind="stable") for draws in (one, other)]
        for field in ("ids", "items", "distances", "own", "plain", "own_plain", "without", "duplicates"):
            first, second = (getattr(draws, field)[rows] for draws, rows in zip((one, other), order, strict=True))
            assert (first == second).all(), (name, field)


def test_photos_walk_in_batches_with_thumbnails(gallery: MilvusGallery, world: World) -> None:
    for count in (1000, 70):
        blocks = list(gallery.walk(count))
        assert [len(block) for block in blocks[:-1]] == [count] * (len(blocks) - 1)
        assert sorted(photo.photo_id for block in blocks for photo in block) == sorted(world.ids)
