from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index import snapshot
from index.database import Database, Segment
from index.errors import GalleryCorrupt, GalleryError, GalleryLocked, InvalidParameter
from index.files import load_array, take_lock
from index.gallery import FIND_ITEMS, Gallery
from index.search.distance import accepts, plain_distance
from index.segments import OpenSegment, open_segment

from .vectors import DIM, filled, unit


def test_metadata_filters_before_the_cut_and_thumbnails_are_kept(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", columns={"colour": "text"})
    colours = ["red", "blue"] * 5
    gallery.add(
        [f"p{i}" for i in range(10)],
        [f"i{i}" for i in range(10)],
        unit(10),
        metadata=[{"colour": colour} for colour in colours],
        thumbnails=[b"jpeg"] + [None] * 9,
    )
    answer = gallery.search(unit(1), 10, where="colour = 'blue'")[0]
    assert [n.metadata for n in answer] == [{"colour": "blue"}] * 5
    assert gallery.thumbnail("p0") == b"jpeg"
    assert gallery.thumbnail("p1") is None
    gallery.rebuild()
    assert gallery.thumbnail("p0") == b"jpeg"
    gallery.remove(photo_ids=["p0"])
    assert gallery.thumbnail("p0") is None


def test_items_are_found_by_a_part_of_their_id_or_metadata_in_any_case_page_by_page(tmp_path: Path) -> None:
    names = ["Café au lait", "Green TEA", "100% juice", "cup", "Teapot", "ÄPFEL_b"]
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    gallery.add(
        [f"p{i}" for i in range(6)],
        ["s5", "s3", "tea-1", "s2", "s4", "s1"],
        unit(6),
        metadata=[{"name": name, "price": place} for place, name in enumerate(names)],
    )
    assert gallery.item_ids(find="tea") == ["s4", "tea-1", "s3"]  # names and ids that begin with it are first
    assert gallery.item_ids(find="tea", after="s4", limit=1) == ["tea-1"]
    assert gallery.item_ids(find="tea", after="tea-1") == ["s3"]
    assert gallery.item_ids(find="CAFÉ") == ["s5"]
    assert gallery.item_ids(find="äpfel") == ["s1"]
    assert gallery.item_ids(find="%") == ["tea-1"]
    assert gallery.item_ids(find="_") == ["s1"]
    assert gallery.item_ids(find="name") == gallery.item_ids(find="'") == []  # keys are no text of an item
    assert len(gallery.item_ids()) == 6


def test_an_item_is_found_by_its_number_and_not_by_what_its_photos_hide(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    items = ["165", "65", "7", "650", "12", "3"]
    hidden = [{"_file": f"65{place} 1650000065", "_content_sha256": "bee65fade"} for place in range(6)]
    shown = [{"price": 65}, {"name": "rose"}, {"name": "65"}, {"name": "bee"}, {"name": "no. 65"}, {"name": "tulip"}]
    gallery.add(
        [f"p{place}" for place in range(6)],
        items,
        unit(6),
        metadata=[one | other for one, other in zip(hidden, shown, strict=True)],
    )
    found = ["65", "7", "650", "12", "165"]  # exact id and name, begins with it, holds it
    assert gallery.item_ids(find="65") == found
    pages = [gallery.item_ids(find="65", after=after, limit=1) for after in ("", *found)]
    assert pages == [[item] for item in found] + [[]]
    assert gallery.item_ids(find="bee") == ["650"]
    assert gallery.item_ids(find="fade") == []
    gallery.remove(photo_ids=["p2"])  # while somebody reads the pages: no item is left out
    assert set(gallery.item_ids(find="65", after="7")) >= {"650", "12", "165"}


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
        (unit(1).astype(complex), r"be numbers \(n, 8\)"),
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
    with pytest.raises(GalleryLocked, match="another process is writing"):
        second.keep({"name": b"content"}, "keep")
    with pytest.raises(GalleryError, match="read-only"):
        reader.remove(photo_ids=["p0"])
    writer.remove(photo_ids=["p0"])
    assert len(reader) == 39
    assert "p0" not in {n.photo_id for n in reader.search(unit(1), 10)[0]}
    writer.close()
    assert second.remove(photo_ids=["p1"]) == 1


def test_headers_of_arrays_are_read_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 can raise SystemError where two threads parse them at once."""
    np.save(tmp_path / "a.npy", np.arange(3))
    load, meeting, met = np.load, threading.Barrier(2), []

    def meet(*arguments: object, **options: object) -> np.ndarray:
        with suppress(threading.BrokenBarrierError):
            met.append(meeting.wait(timeout=0.2))
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", meet)
    with ThreadPoolExecutor(2) as pool:
        arrays = list(pool.map(load_array, [tmp_path / "a.npy"] * 2))
    assert [array.tolist() for array in arrays] == [[0, 1, 2]] * 2
    assert met == []


def test_a_lock_is_readable_by_all_and_a_refused_one_leaves_no_open_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        lock = take_lock(tmp_path / "lock")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o644
    files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(GalleryLocked):
            take_lock(tmp_path / "lock")
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    os.close(lock)
    os.close(take_lock(tmp_path / "lock"))


def test_a_scan_for_items_keeps_no_search_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = filled(tmp_path / "g", 4, 2)
    rows, answered = Database.rows, []

    def while_scanning(self: Database, query: str, values: Sequence[object] = ()) -> list[Any]:
        if query == FIND_ITEMS:
            searching = threading.Thread(target=lambda: answered.append(gallery.photo("p0")), daemon=True)
            searching.start()
            searching.join(20)
        return rows(self, query, values)

    monkeypatch.setattr(Database, "rows", while_scanning)
    assert len(gallery.item_ids(find="i")) == 2
    assert len(answered) == 1


def test_a_closed_gallery_says_so_and_is_not_called_damaged(tmp_path: Path) -> None:
    with filled(tmp_path / "g", 4, 2) as gallery:
        assert len(gallery) == 4
    search = partial(gallery.search, unit(1), 1)
    for use in (gallery.item_ids, gallery.__len__, search, lambda: gallery.photo("p0"), lambda: gallery.values("name")):
        with pytest.raises(GalleryError, match=r"is closed\. Open it again") as caught:
            use()
        assert not isinstance(caught.value, GalleryCorrupt)


def test_a_photo_exactly_at_the_threshold_is_found_and_accepted(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=4, embedding_id="e")
    gallery.add(["half"], ["item"], [[0.5, 0.5, 0.5, 0.5]])
    (found,) = gallery.search([[1, 0, 0, 0]], 3)[0]
    assert found.distance == 1.0
    assert accepts(found.distance, 1.0)
    assert not accepts(found.distance, np.nextafter(1.0, 0))


def test_a_batch_answers_as_its_queries_do_alone(tmp_path: Path) -> None:
    gallery, queries = filled(tmp_path / "g"), unit(64, 5)
    whole = gallery.search(queries, 3)
    for size in (1, 8):
        parts = [answer for i in range(0, 64, size) for answer in gallery.search(queries[i : i + size], 3)]
        assert parts == whole


def test_distances_are_those_of_the_vectors_that_were_given(tmp_path: Path) -> None:
    gallery, queries = filled(tmp_path / "g"), unit(20, 5)
    for query, (best,) in zip(queries, gallery.search(queries, 1), strict=True):
        assert best.distance == plain_distance(query[None], unit(40)).min()  # to the bit, as when calibrating


def test_vectors_nearly_of_length_one_do_not_hide_the_nearest(tmp_path: Path) -> None:
    """Sixty photos near the query and too long would outrank the one that is equal to it and too short."""
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    cosines = np.linspace(0.9998, 0.9990, 60)
    side = np.concatenate([np.zeros((60, 1)), unit(60, dim=DIM - 1)], axis=1)
    near = np.sqrt(1 - cosines**2)[:, None] * side
    near[:, 0] = cosines
    query = 0.9991 * np.eye(1, DIM)
    gallery.add([f"n{i}" for i in range(60)], [f"n{i}" for i in range(60)], 1.0009 * near)
    gallery.add(["same"], ["same"], query)
    (best,) = gallery.search(query, 1)[0]
    assert (best.photo_id, best.distance) == ("same", 0.0)


def test_many_equal_photos_are_all_compared(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    gallery.add([f"p{i}" for i in range(500)], [f"i{i:03}" for i in range(500)], np.repeat(unit(1), 500, axis=0))
    assert [n.item_id for n in gallery.search(unit(1), 3)[0]] == ["i000", "i001", "i002"]  # in the order of adding


def test_a_reader_whose_files_are_replaced_meanwhile_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = filled(tmp_path / "g")
    reader, rebuilds = Gallery.open(tmp_path / "g", read_only=True), 3

    def rebuild_first(folder: Path, segment: Segment, *, dim: int, features: bool) -> OpenSegment:
        nonlocal rebuilds
        if rebuilds:
            rebuilds -= 1
            monkeypatch.setattr(snapshot, "open_segment", open_segment)
            writer.add([f"n{rebuilds}"], ["new"], unit(1, rebuilds))
            writer.rebuild()
            monkeypatch.setattr(snapshot, "open_segment", rebuild_first)
        return open_segment(folder, segment, dim=dim, features=features)

    monkeypatch.setattr(snapshot, "open_segment", rebuild_first)
    assert len(reader) == 43
    assert rebuilds == 0


@pytest.mark.parametrize("ids", ["p1", ["p1", ""], [1, 2], ["\udcff", "x"]])
def test_ids_are_sequences_of_text(tmp_path: Path, ids: list[str]) -> None:
    gallery = filled(tmp_path / "g")
    with pytest.raises(InvalidParameter, match="photo_ids"):
        gallery.add(ids, ["a", "b"], unit(2))
    with pytest.raises(InvalidParameter, match="item_ids"):
        gallery.add(["a", "b"], ids, unit(2))
    with pytest.raises(InvalidParameter, match="photo_ids"):
        gallery.remove(photo_ids=ids)
    assert len(gallery) == 40


@pytest.mark.parametrize("thumbnail", ["text", 7, [b"jpeg"]])
def test_a_thumbnail_is_bytes(tmp_path: Path, thumbnail: object) -> None:
    gallery = filled(tmp_path / "g")
    with pytest.raises(InvalidParameter, match="thumbnails must hold bytes or None"):
        gallery.add(["new"], ["item"], unit(1), thumbnails=[thumbnail])  # type: ignore[list-item]
    assert len(gallery) == 40


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_metadata_is_json(tmp_path: Path, value: object) -> None:
    gallery = filled(tmp_path / "g")
    with pytest.raises(InvalidParameter, match="metadata must hold JSON") as error:
        gallery.add(["new"], ["item"], unit(1), metadata=[{"key": value, "_content_sha256": "0"}])
    assert "_content_sha256" not in error.value.message
    assert len(gallery) == 40


def test_a_null_character_in_metadata_is_refused_since_filters_would_cut_the_text_there(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    with pytest.raises(InvalidParameter, match=r"metadata brand must have no null character.* Remove it"):
        gallery.add(["new"], ["item"], unit(1), metadata=[{"brand": "a\0b"}])
    assert len(gallery) == 40


def test_a_merge_of_nothing_live_leaves_nothing_behind(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    assert gallery.remove(item_ids=[f"i{i}" for i in range(10)]) == 40
    gallery.rebuild()
    assert list((tmp_path / "g" / "segments").iterdir()) == []
    assert gallery.search(unit(1), 1) == [[]]
    gallery.add(["p"], ["i"], unit(1))
    assert len(gallery) == 1
    assert gallery.verify() == []


def test_a_version_is_whole_while_others_read_the_same_gallery(tmp_path: Path) -> None:
    """Photos come and go in pairs, in one object that several threads share: nobody sees half a pair."""
    gallery = filled(tmp_path / "g")
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            pairs = [p for p in {photo[0] for photo in gallery.photos()} if p[0] == "n"]
            found = gallery.search(unit(1, 77), 2)[0]
            if len(pairs) % 2 or len({n.distance for n in found if n.photo_id[0] == "n"}) > 1:
                wrong.append((pairs, found))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(20):
        gallery.add([f"n{i}a", f"n{i}b"], [f"n{i}a", f"n{i}b"], unit(1, 77).repeat(2, axis=0))
        if i % 2:
            gallery.remove(item_ids=[f"n{i - 1}a", f"n{i - 1}b"])
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_log_says_who_made_each_change(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", actor="indexer") as gallery:
        gallery.add(["p0", "p1"], ["i0", "i1"], unit(2))
        gallery.add(["p2"], ["i2"], unit(1, 2), actor="key shop-1")
        gallery.declare({"brand": "text"}, actor="key shop-2")
        gallery.remove(photo_ids=["p0"], actor="key shop-3")
        gallery.rebuild(actor="key shop-4")
    with Gallery.open(tmp_path / "g", actor="cleaner") as gallery:
        gallery.remove(item_ids=["i1"])
        assert [(change.actor, change.action) for change in gallery.changes()] == [
            ("cleaner", "remove"),
            ("key shop-4", "rebuild as flat"),
            ("key shop-3", "remove"),
            ("key shop-2", "declare brand"),
            ("key shop-1", "add"),
            ("indexer", "add"),
        ]


@pytest.mark.parametrize("actor", ["", "  ", "two\nlines", "x" * 201, 7])
def test_an_actor_is_one_line_of_text(tmp_path: Path, actor: str) -> None:
    gallery = filled(tmp_path / "g")
    with pytest.raises(InvalidParameter, match="actor must be 1 to 200 printable characters"):
        gallery.add(["new"], ["item"], unit(1), actor=actor)
    with pytest.raises(InvalidParameter, match="actor"):
        Gallery.open(tmp_path / "g", actor=actor)
    assert len(gallery) == 40


def test_lists_have_the_lengths_of_the_documentation_unless_others_are_asked_for(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=1, embedding_id="e") as gallery:
        names = [f"{number:03d}" for number in np.random.default_rng(0).permutation(101)]
        gallery.add(names, names, np.ones((101, 1), np.float32))
        assert gallery.item_ids() == sorted(names)[:100]
        for name in names[:22]:
            gallery.remove(photo_ids=[name])
        assert [change.version for change in gallery.changes()] == list(range(23, 3, -1))
    with pytest.raises(InvalidParameter, match="dim must be at least 1"):
        Gallery.create(tmp_path / "none", dim=0, embedding_id="e")


@pytest.mark.parametrize("columns", [{"a b": "text"}, {"and": "text"}, {"price": "float"}])
def test_columns_that_no_filter_can_use_are_never_declared(tmp_path: Path, columns: dict[str, str | None]) -> None:
    with Gallery.create(tmp_path / "g", dim=2, embedding_id="e") as gallery:
        with pytest.raises(InvalidParameter, match="column"):
            gallery.declare(columns)
        assert gallery.columns() == {}
