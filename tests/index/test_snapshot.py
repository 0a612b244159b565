"""A search against a loop over all photos: with and without a base, a tail, removed photos and filters."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index import snapshot
from index.ann.faiss_index import Candidates
from index.errors import GalleryCorrupt
from index.gallery import Gallery
from index.groups import group_number
from index.search import exact
from index.search.distance import plain_distance
from index.search.exact import MANY, sweep
from index.snapshot import Proposed, Snapshot

from .vectors import DIM, filled, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")

COUNT, ITEMS = 130, 30
VECTORS = unit(COUNT, 21)
REMOVED = (0, 3, 64, 119, 129)


def numbered(path: Path, kind: str) -> Gallery:
    """Return a gallery of 60 + 60 photos with an index and of 10 later ones, some of which are removed."""
    gallery = Gallery.create(path, dim=DIM, embedding_id="e", columns={"number": "number"})
    for start, stop in ((0, 60), (60, 120), (120, 130)):
        if start == 120:
            gallery.rebuild(kind=kind, purge=False)
        rows = range(start, stop)
        metadata = [{"number": i} for i in rows]
        gallery.add([f"p{i}" for i in rows], [f"i{i % ITEMS}" for i in rows], VECTORS[start:stop], metadata=metadata)
    gallery.remove(photo_ids=[f"p{i}" for i in REMOVED])
    return gallery


def nearest_items(query: np.ndarray, allowed: list[int], k: int) -> list[tuple[str, float]]:
    """Return photo id and distance of the k nearest items."""
    best: dict[int, tuple[float, int]] = {}
    for photo in allowed:
        distance = float(plain_distance(query, VECTORS[photo : photo + 1])[0])
        best[photo % ITEMS] = min(best.get(photo % ITEMS, (9.0, 0)), (distance, photo))
    return [(f"p{photo}", distance) for distance, photo in sorted(best.values())[:k]]


@pytest.mark.parametrize("kind", ["flat", "fp16"])
@pytest.mark.parametrize("scanned", [0, 20_000], ids=["through the index", "scanned"])
@pytest.mark.parametrize("fetch", [1, 16])
def test_answers_are_those_of_a_loop(
    tmp_path: Path, kind: str, scanned: int, fetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "SCANNED", scanned)
    monkeypatch.setattr(snapshot, "BLOCK", 17)  # photos are read in several blocks
    monkeypatch.setattr(exact, "PAIRS", 7)  # candidates are compared in several groups
    monkeypatch.setattr(snapshot, "FIRST_FETCH", fetch)
    live = [i for i in range(COUNT) if i not in REMOVED]
    with numbered(tmp_path / "g", kind) as gallery:
        for where, allowed in (
            (None, live),
            ("number >= 50", [i for i in live if i >= 50]),
            ("number >= 120", [i for i in live if i >= 120]),
            ("number < 2", [1]),
            ("number < 0", []),
        ):
            for k in (1, 4, ITEMS):
                queries = np.concatenate([unit(5, 22), VECTORS[[0, 1, 50, 121]]])
                for query, answer in zip(queries, gallery.search(queries, k, where=where), strict=True):
                    expected = nearest_items(query, allowed, k)
                    assert [found.photo_id for found in answer] == [photo for photo, _ in expected], (where, k)
                    assert [found.distance for found in answer] == pytest.approx([d for _, d in expected], abs=1e-12)


def read(gallery: Gallery, positions: list[int]) -> np.ndarray:
    return gallery.snapshot().vectors(np.array(positions, np.int64))


def test_vectors_and_photos_of_positions(tmp_path: Path) -> None:
    with numbered(tmp_path / "g", "flat") as gallery:
        now: Snapshot = gallery.snapshot()
        assert len(now.segments) == 3
        positions = [129, 0, 59, 60, 119, 120, 59]
        np.testing.assert_array_equal(read(gallery, positions), VECTORS[positions])
        assert [now.photo(position) for position in positions] == [
            (f"p{i}", f"i{i % ITEMS}", {"number": i}) for i in positions
        ]
        blocks = list(now.blocks(np.arange(COUNT)))
        np.testing.assert_array_equal(np.concatenate(blocks), VECTORS)
        for within_one in ([61, 60, 119], [129, 120], []):
            np.testing.assert_array_equal(read(gallery, within_one), VECTORS[within_one].reshape(-1, DIM))
            assert [name for name, _, _ in now.photos_at(np.array(within_one, np.int64))] == [
                f"p{i}" for i in within_one
            ]


@pytest.mark.parametrize("count", [16, 17, 34, 35])
def test_blocks_are_of_one_size_but_the_last(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BLOCK", 17)
    with numbered(tmp_path / "g", "flat") as gallery:
        blocks = list(gallery.snapshot().blocks(np.arange(50, 50 + count)))
    assert [len(block) for block in blocks] == [17] * (count // 17) + [count % 17] * bool(count % 17)
    np.testing.assert_array_equal(np.concatenate(blocks), VECTORS[50 : 50 + count])


def test_a_filter_holds_live_photos_only(tmp_path: Path) -> None:
    with numbered(tmp_path / "g", "fp16") as gallery:
        now = gallery.snapshot()
        chosen = now.filter("some", np.array([2, 3, 64, 128, 129]), ("", []))
        assert np.flatnonzero(chosen.mask).tolist() == [2, 128]
        assert chosen.few.tolist() == [2, 128]
        assert now.known_filter("some") is chosen
        assert now.known_filter("other") is None


def test_an_item_behind_very_many_photos_of_another_one_is_found_beside_a_tail(tmp_path: Path) -> None:
    """The first fetch brings photos of the first item alone, and the tail has none that is near."""
    rows = np.eye(DIM, dtype=np.float32)
    near = rows[:1] + 0.01 * np.random.default_rng(0).normal(size=(120, DIM)).astype(np.float32)
    vectors = np.concatenate([near, rows[:1] + rows[1:2], -rows])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = ["many"] * 120 + ["next"] + [f"far{i}" for i in range(DIM)]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(len(items))], items, vectors)
        gallery.rebuild(kind="fp16")
        gallery.add(["last"], ["last"], -rows[:1])
        (answer,) = gallery.search(rows[:1], 2)
    assert [found.item_id for found in answer] == ["many", "next"]


def test_a_filter_passes_the_first_photo_of_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SCANNED", 0)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", columns={"number": "number"}) as gallery:
        rows = range(20)
        metadata = [{"number": i} for i in rows]
        gallery.add([f"p{i}" for i in rows], [f"i{i}" for i in rows], VECTORS[:20], metadata=metadata)
        gallery.rebuild(kind="fp16")
        (answer,) = gallery.search(VECTORS[:1], 1, where="number < 5")
    assert answer[0].photo_id == "p0"


def test_damage_is_told_before_the_first_of_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors of photos in an index are not read when a gallery is opened."""
    monkeypatch.setattr(snapshot, "BLOCK", 5)
    with filled(tmp_path / "g") as gallery:
        gallery.rebuild(kind="fp16")
        name = gallery.snapshot().segments[0].name
    mapped = np.load(tmp_path / "g" / "segments" / f"{name}.npy", mmap_mode="r+")
    mapped[-1] = -mapped[-1]
    mapped.flush()
    with Gallery.open(tmp_path / "g") as gallery:
        blocks = gallery.snapshot().blocks(np.arange(40))
        with pytest.raises(GalleryCorrupt, match="has changed since it was written"):
            next(blocks)


@pytest.mark.parametrize("queries", [1, 70])
def test_a_gallery_whose_only_photo_was_removed_has_no_neighbours(tmp_path: Path, queries: int) -> None:
    """Its index still finds the photo: for many queries, its place is looked up among the items."""
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as gallery:
        gallery.add(["p"], ["i"], VECTORS[:1])
        gallery.rebuild(kind="fp16")
        gallery.remove(photo_ids=["p"])
        assert gallery.search(unit(queries, 22), 1) == [[]] * queries


def test_the_bounds_of_squared_distances_are_twice_the_error_of_the_cosines_away() -> None:
    cosines = np.array([[1.0, 0.5, -1.0]], np.float32)
    least, most = Proposed(np.arange(3)[None], cosines, 0.01, [-np.inf]).bounds()
    np.testing.assert_allclose(least, [[0, 0.98, 3.98]])
    np.testing.assert_allclose(most, [[0.02, 1.02, 4]])


@pytest.mark.parametrize(("k", "most", "fetched"), [(1, 4096, 22), (3, 4096, 34), (3, 30, 30)])
def test_as_many_candidates_are_fetched_as_the_items_have_on_average_and_a_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int, most: int, fetched: int
) -> None:
    """Forty photos of ten items: sixteen candidates, and six for each item."""
    monkeypatch.setattr(snapshot, "MOST_FETCHED", most)
    asked: list[int] = []
    search = Candidates.search

    def noted(self: Candidates, vectors: np.ndarray, count: int, selection: Any = None) -> Any:
        asked.append(count)
        return search(self, vectors, count, selection)

    monkeypatch.setattr(Candidates, "search", noted)
    with filled(tmp_path / "g") as gallery:
        gallery.snapshot().nearest(unit(1, 22), k)
    assert asked[0] == fetched


def test_photos_of_an_item_are_not_read_again_when_others_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "g") as gallery:
        numbers = np.array(list(gallery.snapshot().item_numbers(["i0", "i1"]).values()))
        before = gallery.snapshot().facts_of(numbers)
        gallery.add(["new"], ["i1"], unit(1, 9))
        read: list[int] = []
        vectors = Snapshot.vectors

        def noted(self: Snapshot, positions: np.ndarray) -> np.ndarray:
            read.append(len(positions))
            return vectors(self, positions)

        monkeypatch.setattr(Snapshot, "vectors", noted)
        after = gallery.snapshot().facts_of(numbers)
    assert after.groups.tolist() == before.groups.tolist()
    assert (after.means == before.means).all(axis=1).tolist() == [True, False]
    assert read == [5]  # of the changed item


@pytest.mark.parametrize(("queries", "in_threads"), [(MANY - 1, False), (MANY, True)])
def test_many_queries_are_compared_in_threads_and_few_in_that_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, queries: int, in_threads: bool
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    readers: list[threading.Thread] = []

    def read(rows: np.ndarray) -> np.ndarray:
        readers.append(threading.current_thread())
        return np.asarray(VECTORS[rows])

    sweep(unit(queries, 22), 1, read, np.arange(COUNT))
    assert [reader is not threading.current_thread() for reader in readers] == [in_threads]


def test_the_number_of_a_group_is_the_first_eight_bytes_of_its_hash_with_a_sign() -> None:
    """Draws keep these numbers as int64."""
    assert (group_number("a"), group_number("b")) == (-3848465438864589366, 4477677635727087946)
