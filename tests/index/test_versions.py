"""Versions of a gallery: what the base covers, when it is outdated, and what a reload keeps open."""

from __future__ import annotations

import sqlite3
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index import snapshot
from index.ann.faiss_index import Candidates
from index.errors import GalleryCorrupt
from index.gallery import Gallery
from index.snapshot import Base

from .vectors import filled, unit


def base_of(*seqs: int) -> Base:
    return Base(Candidates.flat(unit(len(seqs))), np.array(seqs, np.int64), "")


@pytest.mark.parametrize(
    ("newer", "removed", "outdated"), [(30, 0, False), (31, 0, True), (0, 30, False), (0, 31, True), (30, 30, False)]
)
def test_a_base_is_outdated_by_a_quarter(
    newer: int, removed: int, outdated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 120 photos; those that were removed after it count, those of the tail do not."""
    monkeypatch.setattr(snapshot, "TAIL", 10)
    live = np.ones(120 + newer, bool)
    live[:removed] = False
    live[121:] = False
    assert snapshot._is_outdated(base_of(*range(120)), np.arange(120 + newer), live) is outdated


def test_a_base_in_memory_holds_live_photos_only_and_small_galleries_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "TAIL", 30)
    monkeypatch.setattr(snapshot, "BLOCK", 7)
    with filled(tmp_path / "g", count=30) as gallery:
        assert gallery.snapshot().base is None
        gallery.add(["last"], ["last"], unit(1, 9))
        added = [gallery.snapshot().photo(position)[0] for position in range(31)]
        gallery.remove(photo_ids=["p2", "p20"])
    with Gallery.open(tmp_path / "g") as gallery:
        base, live = gallery.snapshot().base, [i for i in range(31) if added[i] not in ("p2", "p20")]
        assert base.seqs.tolist() == live
        assert base.candidates.search(unit(1, 9), 1)[0].tolist() == [[28]]
        assert base.candidates.search(unit(30)[21:22], 1)[0].tolist() == [[live.index(added.index("p21"))]]
        assert gallery.search(unit(1, 9), 1)[0][0].photo_id == "last"


def test_a_reload_keeps_open_what_did_not_change(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        first = gallery.snapshot()
        gone = [first.photo(position)[0] == "p0" for position in range(40)]
        gallery.remove(photo_ids=["p0"])
        second = gallery.snapshot()
        assert (second.version, second.photos, second.item_count) == (2, 39, 10)
        assert second.seqs is first.seqs
        assert second.items is first.items
        assert second.tail is first.tail
        assert (~second.live).tolist() == gone
        assert first.live.all()
        gallery.add(["new"], ["new"], unit(1, 9))
        third = gallery.snapshot()
        assert third.segments[0] is first.segments[0]
        assert third.seqs.tolist() == list(range(41))
        assert third.tail is not first.tail
        assert (len(third.tail), third.tail_start, third.base) == (41, 0, None)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE facts SET value = 38 WHERE key = 'photos'",
        "INSERT INTO removed VALUES (7)",
        "UPDATE facts SET value = 778 WHERE key = 'live_seqs'",
        "DELETE FROM removed; INSERT INTO removed VALUES (4)",  # as many, but another one
    ],
)
def test_segments_and_database_must_agree_on_the_live_photos(tmp_path: Path, damage: str) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p3"])
        assert len(gallery.snapshot().seqs) == 40
    connection = sqlite3.connect(tmp_path / "g" / "gallery.sqlite")
    connection.executescript(damage)
    connection.close()
    with Gallery.open(tmp_path / "g") as gallery, pytest.raises(GalleryCorrupt, match="live photos, the database"):
        gallery.search(unit(1), 1)


def test_removed_seqs_that_no_segment_holds_are_passed_over(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        now = gallery.snapshot()
        place = next(position for position in range(40) if now.photo(position)[0] == "p3")
        gallery.remove(photo_ids=["p3"])
    connection = sqlite3.connect(tmp_path / "g" / "gallery.sqlite")
    connection.executescript("INSERT INTO removed VALUES (41), (1000)")
    connection.close()
    with Gallery.open(tmp_path / "g") as gallery:
        assert np.flatnonzero(~gallery.snapshot().live).tolist() == [place]


def test_a_search_goes_on_with_the_open_index_while_its_photos_change(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.rebuild(kind="fp16")
        first = gallery.snapshot()
        assert first.base is not None
        assert isinstance(first.base.seqs, np.memmap)  # they take no memory
        gallery.add(["new"], ["new"], unit(1, 9))
        second = gallery.snapshot()
        assert second.base is first.base
        assert (second.tail_start, len(second.tail)) == (40, 1)
        gallery.rebuild(kind="flat")  # which keeps no file
        third = gallery.snapshot()
        assert third.base is None
        assert (third.tail_start, len(third.tail)) == (0, 41)


def test_a_replaced_index_is_closed_before_the_new_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "g") as gallery, Gallery.open(tmp_path / "g", read_only=True) as reader:
        gallery.rebuild(kind="fp16")
        answers = reader.search(unit(3, 2), 4)
        base = reader.snapshot().base
        old = weakref.ref(base.candidates)
        del base
        open_at_read: list[bool] = []
        read = Candidates.read

        def counting(*args: Any, **options: Any) -> Candidates:
            open_at_read.append(old() is not None)
            return read(*args, **options)

        gallery.rebuild(kind="ivf")
        monkeypatch.setattr(Candidates, "read", counting)
        assert reader.search(unit(3, 2), 4) == answers
        assert open_at_read == [False]
