"""Searches for items that are left out, against searches of galleries without their photos."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index.gallery import Gallery
from index.photos import NONE
from index.search import item_search, left_out
from index.search.item_distance import CANDIDATES, ItemDistance
from index.search.item_search import ItemSearch
from index.search.left_out import LeftOut, Queries, search_without
from index.snapshot import Snapshot

from ..vectors import DIM, unit
from .clusters import clustered, filled
from .fake_verifier import FakeVerifier, pack, verified_gallery

pytestmark = pytest.mark.usefixtures("few_own_queries")

ITEM = ItemDistance()
DETAILS = ItemDistance(details=0.3)


def each(draws: LeftOut) -> list[SimpleNamespace]:
    """Return what each search found."""
    names = [field.name for field in fields(LeftOut)]
    rows = zip(*(getattr(draws, name).tolist() for name in names), strict=True)
    return [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in rows]


def own_queries(now: Snapshot, positions: np.ndarray) -> Queries:
    """Return photos as queries of their own items."""
    return Queries(now.vectors(positions), now.items_at(positions), positions[:, None])


def draws_of(gallery: Gallery) -> dict[str, SimpleNamespace]:
    """Return what the search with each photo finds."""
    now = gallery.snapshot()
    positions = np.flatnonzero(now.live)
    draws = each(search_without(ItemSearch(now, ITEM), own_queries(now, positions)))
    return {now.photo(position)[0]: draw for position, draw in zip(positions.tolist(), draws, strict=True)}


def copy_without(gallery: Gallery, path: Path, *, items: set[str] = frozenset(), photo: str = "") -> Gallery:  # type: ignore[assignment]
    """Return a gallery with the photos of another one, without some."""
    copy = Gallery.create(path, dim=DIM, embedding_id="e")
    kept = [
        stored
        for some in gallery.walk(1000)
        for stored in some
        if stored.item_id not in items and stored.photo_id != photo
    ]
    copy.add(
        [stored.photo_id for stored in kept],
        [stored.item_id for stored in kept],
        np.stack([stored.vector for stored in kept]),
        metadata=[stored.metadata for stored in kept],
    )
    return copy


@pytest.mark.parametrize(
    "groups",
    [{}, {"i1": "g", "i2": "g", "i3": "g"}, {f"i{number}": "g" for number in range(37)}],
    ids=["no groups", "three of a group", "more of a group than the nearest items"],
)
def test_a_draw_is_a_search_of_a_gallery_without_the_item_and_one_without_the_photo(
    tmp_path: Path, groups: dict[str, str]
) -> None:
    with filled(tmp_path / "g", groups=groups) as gallery:
        draws = draws_of(gallery)
        now = gallery.snapshot()
        for number, photo_id in enumerate(("p0", "p1", "p33", "p150", "p201", "p250", "p299")):
            _, item, _ = gallery.photo(photo_id) or ("", "", {})
            vector = now.vectors(np.flatnonzero([now.photo(i)[0] == photo_id for i in range(len(now.seqs))]))
            others = {other for other, group in groups.items() if group == groups.get(item)}
            draw = draws[photo_id]
            with copy_without(gallery, tmp_path / f"a{number}", items={item} | others) as without:
                (answer,) = without.search(vector, 1, item_distance=ITEM)
                assert draw.distances == answer[0].distance
                assert now.photo(draw.nearest)[0] == answer[0].photo_id
                assert draw.plain == without.search(vector, 1)[0][0].distance
            with copy_without(gallery, tmp_path / f"b{number}", items=others - {item}, photo=photo_id) as having:
                (answer,) = having.search(vector, CANDIDATES, item_distance=ITEM)
                mine = [found for found in answer if found.item_id == item]
                if mine:
                    assert draw.own == mine[0].distance
                    assert now.photo(draw.own_nearest)[0] == mine[0].photo_id
                first = answer[0]
                assert draw.wrong == (np.inf if first.item_id == item else first.distance)


def test_a_draw_of_an_unknown_item_leaves_nothing_out(tmp_path: Path) -> None:
    queries = clustered(5, 40, 13)[0]
    with filled(tmp_path / "g") as gallery:
        nobody = np.full((5, 1), NONE)
        draws = search_without(ItemSearch(gallery.snapshot(), ITEM), Queries(queries, nobody[:, 0], nobody))
        answers = gallery.search(queries, 1, item_distance=ITEM)
        assert draws.distances.tolist() == [best[0].distance for best in answers]
        assert {*draws.own.tolist(), *draws.wrong.tolist()} == {np.inf}


def test_a_copy_of_one_of_several_photos_of_a_draw_leaves_its_item_out(tmp_path: Path) -> None:
    vectors = unit(4, 1)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["a0", "b0", "a1", "c0"], ["a", "b", "a", "c"], vectors[[0, 0, 1, 3]])
        now = gallery.snapshot().with_pictures(lambda photo, other: (photo, other) == ("a0", "b0"))
        queries = Queries(vectors[:1], now.items_at(np.array([0])), np.array([[2, 0]]))
        (draw,) = each(search_without(ItemSearch(now, ITEM), queries))
        assert (draw.duplicates, draw.nearest) == (1, 3)


@pytest.mark.parametrize("items", [("own", "other"), ("other", "own")], ids=["own first", "other first"])
def test_of_items_at_one_distance_the_first_is_a_candidate_in_a_draw_as_in_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, items: tuple[str, str]
) -> None:
    monkeypatch.setattr(item_search, "CANDIDATES", 1)
    monkeypatch.setattr(left_out, "CANDIDATES", 1)
    vectors = unit(2, 1)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["p0", "p1"], items, vectors[[1, 1]])
        ((found,),) = gallery.search(vectors[:1], 1, item_distance=ITEM)
        gallery.add(["query"], ["own"], vectors[:1])
        now = gallery.snapshot()
        (draw,) = each(search_without(ItemSearch(now, ITEM), own_queries(now, np.array([2]))))
    assert found.item_id == items[0]
    assert draw.wrong == (np.inf if items[0] == "own" else found.distance)


def test_draws_do_not_depend_on_how_many_are_made_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "g") as gallery:
        together = draws_of(gallery)
        monkeypatch.setattr(left_out, "TOGETHER", 7)
        assert draws_of(gallery) == together


def test_draws_without_a_verifier_read_photos_in_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos on Milvus, which are drawn in the same way, forget what they have read: no other thread may do so."""
    read, threads = Snapshot.photos_of, set[threading.Thread]()

    def noted(self: Snapshot, items: Sequence[int]) -> list[np.ndarray]:
        threads.add(threading.current_thread())
        return read(self, items)

    monkeypatch.setattr(Snapshot, "photos_of", noted)
    with filled(tmp_path / "g", count=20) as gallery:
        draws_of(gallery)
    assert threads == {threading.current_thread()}


def test_of_photos_at_one_distance_the_first_of_an_item_is_named(tmp_path: Path) -> None:
    """Three items have copies of their photos among others; answers and draws name the first of the copies."""
    vectors = unit(12, 5)
    vectors[[4, 9]], vectors[[7, 10]], vectors[11] = vectors[2], vectors[3], vectors[0]
    items = ["c", "b", "a", "b", "a", "c", "a", "b", "c", "a", "b", "c"]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        names = [f"p{number}" for number in np.random.default_rng(1).permutation(12)]
        gallery.add(names, items, vectors)
        now = gallery.snapshot()
        for copies in ([2, 4, 9], [3, 7, 10], [0, 11]):
            (best,) = gallery.search(vectors[[copies[-1]]], 3, item_distance=ITEM)
            assert (best[0].photo_id, best[0].item_id) == (names[copies[0]], items[copies[0]])
            query = Queries(vectors[copies], now.items[copies], np.array(copies)[:, None])
            draws = search_without(ItemSearch(now, ITEM), query)
            assert draws.own_nearest.tolist() == [copies[1], *[copies[0]] * (len(copies) - 1)]
            assert draws.own_plain.tolist() == [0.0] * len(copies)


def test_a_draw_compares_no_photo_with_itself(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        now, verifier = gallery.snapshot(), FakeVerifier()
        positions = np.flatnonzero(now.live)[:40]
        draws = each(search_without(ItemSearch(now, DETAILS, verifier), own_queries(now, positions)))
        for position, draw in zip(positions.tolist(), draws, strict=True):
            photo_id, item, _ = now.photo(position)
            with_item = Gallery.create(tmp_path / f"c{position}", dim=DIM, embedding_id="e", features_key="f")
            kept = [p for some in gallery.walk(1000, whole=True) for p in some if p.photo_id != photo_id]
            with with_item as copy:
                copy.add(
                    [p.photo_id for p in kept],
                    [p.item_id for p in kept],
                    np.stack([p.vector for p in kept]),
                    features=[p.features or b"" for p in kept],
                )
                asked: dict[str, Any] = {"verifier": FakeVerifier(), "features": now.features(np.array([position]))}
                (answer,) = copy.search(now.vectors(np.array([position])), CANDIDATES, item_distance=DETAILS, **asked)
            mine = [found.distance for found in answer if found.item_id == item]
            assert not mine or draw.own == mine[0]


def far_behind(path: Path, cosines: Sequence[float], others_at: float, *, group: str = "") -> tuple[Snapshot, int]:
    """Return photos of which votes bring some behind 40 other items, and the position of photo "query" of item "a".

    Photos "far 0", "far 1", ... of items of their own have some `cosines` to it and most of its key points. The photos
    of 40 other items have the cosine `others_at`, and none of them.
    """
    generator = np.random.default_rng(7)
    others = unit(40, 3)
    others[:, 0] = others_at / np.sqrt(1 - others_at**2) * np.linalg.norm(others[:, 1:], axis=1)
    far = np.zeros((len(cosines), DIM), np.float32)
    far[:, 0], far[np.arange(len(far)), 1 + np.arange(len(far))] = cosines, np.sqrt(1 - np.square(cosines))
    query = np.eye(1, DIM, dtype=np.float32)
    vectors = np.concatenate([query, far, others / np.linalg.norm(others, axis=1, keepdims=True)])
    ids = ["query", *(f"far {i}" for i in range(len(far))), *(f"other {i}" for i in range(40))]
    features = [pack([1, 2, 3, *range(7, 7 + len(far) - i)]) for i in range(len(far))]  # the first has most votes
    features = [pack([1, 2, 3, *range(7, 7 + len(far))]), *features, *[pack([250])] * 40]
    order = generator.permutation(len(ids)).tolist()
    with Gallery.create(path, dim=DIM, embedding_id="e", features_key="f") as gallery:
        gallery.add(
            [ids[i] for i in order],
            ["a" if ids[i] == "query" else ids[i] for i in order],
            vectors[order].astype(np.float32),
            metadata=[{"group": group} if ids[i] == "query" or ids[i].startswith("far") else {} for i in order],
            features=[features[i] for i in order],
        )
        return gallery.snapshot(), order.index(0)


def drawn(now: Snapshot, query: int, verifier: FakeVerifier | None = None) -> SimpleNamespace:
    search = ItemSearch(now, DETAILS, verifier or FakeVerifier())
    (draw,) = each(search_without(search, own_queries(now, np.array([query]))))
    return draw


@pytest.mark.parametrize("voted", [1, 3])
def test_votes_bring_no_member_of_the_group_of_a_draw(tmp_path: Path, voted: int) -> None:
    now, query = far_behind(tmp_path / "g", [0.5, 0.45, 0.4, 0.35, 0.3], 0.6, group="all")
    draw = drawn(now, query, FakeVerifier(voted=voted))
    assert now.photo(draw.nearest)[1].startswith("other")
    assert draw == drawn(now, query, FakeVerifier(voted=0))
    now, query = far_behind(tmp_path / "no group", [0.5, 0.45, 0.4, 0.35, 0.3], 0.6)
    assert now.photo(drawn(now, query).nearest)[1] == "far 0"


def test_votes_bring_no_copy_of_the_query_of_a_draw(tmp_path: Path) -> None:
    now, query = far_behind(tmp_path / "g", [0.985, 0.983, 0.9], 0.99)
    copies = {"far 0", "far 1"}
    pictures = now.with_pictures(lambda own, other: own == "query" and other in copies)
    draw = drawn(pictures, query, FakeVerifier(voted=1))
    assert draw.duplicates != NONE
    assert now.photo(draw.duplicates)[0] == "far 0"
    assert now.photo(draw.nearest)[0].startswith("other")


@pytest.mark.parametrize(("apart", "compared"), [(0.0, True), (0.15, True), (0.199, True), (0.201, False)])
def test_photos_of_other_items_up_to_0_2_away_are_looked_at_for_copies(
    tmp_path: Path, apart: float, compared: bool
) -> None:
    angle, seen = 2 * np.arcsin(apart / 2), list[tuple[str, ...]]()
    vectors = np.zeros((3, DIM), np.float32)
    vectors[0, 2], vectors[1, 0], vectors[2, :2] = 1, 1, (np.cos(angle), np.sin(angle))
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["c", "a", "b"], ["far", "two", "one"], vectors)
        now = gallery.snapshot().with_pictures(lambda *pair: bool(seen.append(pair)) or True)
        (draw,) = each(search_without(ItemSearch(now, ITEM), own_queries(now, np.array([1]))))
    assert draw.duplicates == (2 if compared else NONE)
    assert draw.nearest == (0 if compared else 2)
    assert seen == ([("a", "b")] if compared else [])
