from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.distance import accepts, plain_distance
from index.errors import GalleryError, GalleryLocked, InvalidParameter
from index.gallery import Gallery

DIM = 8


def unit(count: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def filled(path: Path, count: int = 40, items: int = 10) -> Gallery:
    gallery = Gallery.create(path, dim=DIM, embedding_id="e")
    gallery.add([f"p{i}" for i in range(count)], [f"i{i % items}" for i in range(count)], unit(count))
    return gallery


def brute_force(photos: dict[str, tuple[str, np.ndarray]], query: np.ndarray, k: int) -> list[tuple[str, float]]:
    """Return (item_id, distance) of the k nearest items, by a loop over photos."""
    best: dict[str, float] = {}
    for item, vector in photos.values():
        a = query.astype(np.float64) / np.linalg.norm(query.astype(np.float64))
        b = vector.astype(np.float64) / np.linalg.norm(vector.astype(np.float64))
        best[item] = min(best.get(item, 9.0), float(np.linalg.norm(a - b)))
    return sorted(best.items(), key=lambda pair: pair[1])[:k]


def test_distance_is_the_papers() -> None:
    a, b = unit(50, 1), unit(50, 2)
    cosines = (a.astype(np.float64) * b).sum(axis=1)
    assert np.allclose(plain_distance(a, b), np.sqrt(2 - 2 * cosines), atol=1e-6)
    assert (plain_distance(a, a) == 0).all()
    assert plain_distance(a[:1], -a[:1])[0] <= 2.0


def test_batch_size_cannot_matter() -> None:
    a, b = unit(64, 1), unit(64, 2)
    whole = plain_distance(a, b)
    for size in (1, 8):
        parts = [plain_distance(a[i : i + size], b[i : i + size]) for i in range(0, 64, size)]
        assert (np.concatenate(parts) == whole).all()


def test_exactly_at_the_threshold_is_a_match(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    found = gallery.search(unit(1, 9), 1)[0][0]
    assert accepts(found.distance, found.distance)
    assert not accepts(np.nextafter(found.distance, 3), found.distance)
    assert not accepts(np.nan, 2.0)


def test_a_photo_finds_itself_at_zero(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    for i, answer in enumerate(gallery.search(unit(40), 1)):
        assert (answer[0].photo_id, answer[0].distance) == (f"p{i}", 0.0)


def test_answers_are_items_by_their_best_photo(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    photos = {f"p{i}": (f"i{i % 10}", vector) for i, vector in enumerate(unit(40))}
    for query in unit(20, 5):
        got = [(n.item_id, n.distance) for n in gallery.search(query[None], 4)[0]]
        want = brute_force(photos, query, 4)
        assert [g[0] for g in got] == [w[0] for w in want]
        assert [g[1] for g in got] == pytest.approx([w[1] for w in want], abs=1e-12)


def test_an_item_with_very_many_photos_does_not_crowd_out_the_others(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    centre = unit(1)
    near = centre + 0.01 * unit(3000, 3)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    gallery.add([f"n{i}" for i in range(3000)], ["crowd"] * 3000, near)
    gallery.add(["a", "b"], ["a", "b"], unit(2, 7))
    assert {n.item_id for n in gallery.search(centre, 3)[0]} == {"crowd", "a", "b"}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove", "item", "reopen", "merge"]), st.integers(0, 29)), max_size=14)
)
def test_any_history_equals_brute_force(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.mktemp("g") / "g"
    gallery = Gallery.create(path, dim=DIM, embedding_id="e")
    photos: dict[str, tuple[str, np.ndarray]] = {}
    pool = unit(30, 11)
    for serial, (step, number) in enumerate(steps):
        photo, item = f"p{number}", f"i{number % 5}"
        if step == "add":
            vector = np.roll(pool[number], serial)
            gallery.add([photo], [item], vector[None], upsert=True)
            photos[photo] = (item, vector)
        elif step == "remove":
            assert gallery.remove(photo_ids=[photo]) == (photos.pop(photo, None) is not None)
        elif step == "item":
            gone = [p for p, (i, _) in photos.items() if i == item]
            assert gallery.remove(item_ids=[item]) == len(gone)
            for p in gone:
                del photos[p]
        elif step == "merge":
            gallery.merge()
        else:
            gallery.close()
            gallery = Gallery.open(path)
    assert gallery.photo_ids() == photos.keys()
    assert gallery.items == len({item for item, _ in photos.values()})
    for query in unit(3, 12):
        got = [(n.item_id, n.distance) for n in gallery.search(query[None], 3)[0]]
        assert [d for _, d in got] == pytest.approx([d for _, d in brute_force(photos, query, 3)], abs=1e-12)
    assert gallery.verify() == []
    gallery.close()


def test_metadata_filters_before_the_cut_and_thumbnails_are_kept(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    colours = ["red", "blue"] * 5
    gallery.add(
        [f"p{i}" for i in range(10)],
        [f"i{i}" for i in range(10)],
        unit(10),
        metadata=[{"colour": colour} for colour in colours],
        thumbnails=[b"jpeg"] + [None] * 9,
    )
    answer = gallery.search(unit(1), 10, where={"colour": "blue"})[0]
    assert [n.metadata for n in answer] == [{"colour": "blue"}] * 5
    assert gallery.thumbnail("p0") == b"jpeg"
    assert gallery.thumbnail("p1") is None
    gallery.merge()
    assert gallery.thumbnail("p0") == b"jpeg"
    gallery.remove(photo_ids=["p0"])
    assert gallery.thumbnail("p0") is None


def test_an_empty_gallery_has_no_neighbours(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    assert gallery.search(unit(2), 5) == [[], []]
    assert len(gallery) == 0


@pytest.mark.parametrize(
    ("vectors", "rule"),
    [
        (np.full((1, DIM), np.nan, np.float32), "finite"),
        (np.zeros((1, DIM), np.float32), "length one"),
        (np.ones((1, DIM), np.float32), "length one"),
        (unit(1)[:, :4], r"\(n, 8\)"),
    ],
)
def test_bad_vectors_are_refused_and_nothing_is_added(tmp_path: Path, vectors: np.ndarray, rule: str) -> None:
    gallery = filled(tmp_path / "g")
    with pytest.raises(InvalidParameter, match=rule):
        gallery.add(["new"], ["item"], vectors)
    with pytest.raises(InvalidParameter, match=rule):
        gallery.search(vectors, 1)
    assert len(gallery) == 40


def test_a_photo_twice_is_refused_and_nothing_is_added(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    for ids in (["new", "new"], ["new", "p3"]):
        with pytest.raises(InvalidParameter, match="photo_ids"):
            gallery.add(ids, ["x", "x"], unit(2, 4))
    assert len(gallery) == 40


def test_one_writer_and_readers_that_follow(tmp_path: Path) -> None:
    writer = filled(tmp_path / "g")
    reader = Gallery.open(tmp_path / "g", read_only=True)
    second = Gallery.open(tmp_path / "g")
    assert len(reader) == 40
    with pytest.raises(GalleryLocked, match="another process is writing"):
        second.remove(photo_ids=["p0"])
    with pytest.raises(GalleryError, match="read only"):
        reader.remove(photo_ids=["p0"])
    writer.remove(photo_ids=["p0"])
    assert len(reader) == 39
    assert "p0" not in {n.photo_id for n in reader.search(unit(1), 10)[0]}
    writer.close()
    assert second.remove(photo_ids=["p1"]) == 1


def test_search_during_add_is_safe(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    stop, errors = threading.Event(), []

    def read() -> None:
        reader = Gallery.open(tmp_path / "g", read_only=True)
        while not stop.is_set():
            answer = reader.search(unit(1), 3)[0]
            if answer[0].photo_id != "p0" or answer[0].distance != 0:
                errors.append(answer)
        reader.close()

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(30):
        gallery.add([f"n{i}"], [f"x{i}"], unit(1, 100 + i))
        if i % 10 == 9:
            gallery.merge()
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_verify_finds_a_changed_byte_and_a_missing_file(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    gallery.close()
    (segment,) = (tmp_path / "g" / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    assert "sha256" in Gallery.open(tmp_path / "g").verify()[0]
    segment.unlink()
    assert "missing" in Gallery.open(tmp_path / "g").verify()[0]


def test_no_gallery_is_an_error_and_an_existing_one_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="not a gallery"):
        Gallery.open(tmp_path / "none")
    filled(tmp_path / "g").close()
    with pytest.raises(GalleryError, match="not empty"):
        Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")


def _write_for_ever(path: str) -> None:
    gallery = Gallery.open(path)
    batch = 0
    while True:
        names = [f"b{os.getpid()}-{batch}-{i}" for i in range(5)]
        gallery.add(names, names, unit(5, batch))
        if batch % 7 == 6:
            gallery.merge()
        batch += 1


@pytest.mark.slow
def test_killed_at_any_moment_it_reopens_with_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "g"
    filled(path).close()
    context = multiprocessing.get_context("spawn")
    generator = np.random.default_rng(0)
    for _ in range(8):
        child = context.Process(target=_write_for_ever, args=(str(path),))
        child.start()
        time.sleep(0.9 + float(generator.uniform(0, 0.5)))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with Gallery.open(path) as gallery:
            assert gallery.verify() == []
            names = gallery.photo_ids()
            assert {f"p{i}" for i in range(40)} <= names
            batches = {name.rsplit("-", 1)[0] for name in names if name.startswith("b")}
            assert len(names) == 40 + 5 * len(batches)
            gallery.add([f"after{len(names)}"], ["x"], unit(1, 3))  # the next writer clears what was left behind
            gallery.remove(item_ids=["x"])
            named = {segment.name for segment in gallery._store.segments()}
            assert {f.name for f in (path / "segments").iterdir()} == named
    assert len(names) > 40


def test_the_database_is_durable(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    assert gallery._store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert gallery._store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    with sqlite3.connect(tmp_path / "g" / "gallery.sqlite") as other:
        assert other.execute("SELECT count(*) FROM photos").fetchone() == (40,)
    other.close()
