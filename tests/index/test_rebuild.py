"""Rebuilds with few segments and photos: what is combined, dropped and written."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

from index.ann.kinds import choose_kind
from index.database import Segment
from index.errors import GalleryError, InvalidParameter
from index.files import load_array, remove_unused, sha256
from index.folder import INDEX_ENDINGS
from index.gallery import Gallery
from index.upkeep import rebuild

from .vectors import DIM, filled, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")


def segments(*rows: int) -> list[Segment]:
    return [Segment(number, f"s{number}", count, 0, "") for number, count in enumerate(rows)]


@pytest.mark.parametrize(
    ("rows", "combined"),
    [
        ([], 0),
        ([1] * 15, 0),
        ([1] * 16, 16),
        ([255] * 16, 16),
        ([256] + [255] * 15, 0),
        ([1, 256] + [1] * 15, 0),  # only the newest, without a gap
        ([300] * 14 + [1] * 16, 16),
        ([300] * 15 + [1] * 16, 31),  # the sixteenth of the next size is the one that they make
        ([4096] + [300] * 15 + [1] * 16, 31),
        ([4096] * 14 + [300] * 15 + [1] * 16, 31),
        ([4096] * 15 + [300] * 15 + [1] * 16, 46),
        ([300] * 15 + [1] * 15, 0),
    ],
)
def test_sixteen_newest_segments_of_a_size_are_combined(rows: list[int], combined: int) -> None:
    everything = segments(*rows)
    assert rebuild.segments_to_combine(everything) == everything[len(rows) - combined :]


def three(path: Path) -> Gallery:
    """Return a gallery with segments of 40, 20 and 10 photos."""
    gallery, start = Gallery.create(path, dim=DIM, embedding_id="e"), 0
    for count in (40, 20, 10):
        names = [f"p{i}" for i in range(start, start + count)]
        gallery.add(names, names, unit(70)[start : start + count])
        start += count
    return gallery


@pytest.mark.parametrize(
    ("removed", "purge", "rewritten"),
    [
        ([], True, set()),
        ([65], True, {3}),  # the older ones are larger than all that follow
        ([45], True, {2, 3}),
        ([0], True, {1, 2, 3}),
        ([0, 1, 2, 3], False, set()),  # a tenth
        ([0, 1, 2, 3, 4], False, {1, 2, 3}),
        ([40, 41], False, set()),
        ([40, 41, 42], False, {2, 3}),
    ],
)
def test_a_rebuild_starts_at_the_first_segment_that_is_worth_it(
    tmp_path: Path, removed: list[int], purge: bool, rewritten: set[int]
) -> None:
    with three(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=[f"p{i}" for i in removed])
        assert rebuild.segments_to_rewrite(gallery.snapshot(), purge=purge) == rewritten


def test_segments_that_are_smaller_than_what_follows_are_rewritten(tmp_path: Path) -> None:
    with three(tmp_path / "g") as gallery:
        gallery.add([f"n{i}" for i in range(10)], ["n"] * 10, unit(10, 9))
        assert rebuild.segments_to_rewrite(gallery.snapshot(), purge=True) == set()  # 10, 20 and 40 follow as many
        gallery.add(["last"], ["n"], unit(1, 10))
        assert rebuild.segments_to_rewrite(gallery.snapshot(), purge=True) == {1, 2, 3, 4, 5}


def test_rewriting_keeps_live_photos_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "BLOCK", 7)
    with three(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=[f"p{i}" for i in (*range(40, 60), 60, 63)])
        now = gallery.snapshot()
        done = rebuild.rewrite(now, {2, 3}, tmp_path / "g" / "segments")
        assert (done.replaced, done.dropped) == ([2, 3], [*range(40, 60), 60, 63])
        files = [tmp_path / "g" / "segments" / f"{done.segment.name}{ending}" for ending in (".npy", ".rows")]
        assert (done.segment.rows, done.segment.first, done.segment.sha256) == (8, 61, sha256(*files))
        kept = [61, 62, 64, 65, 66, 67, 68, 69]
        np.testing.assert_array_equal(np.load(files[0]), unit(70)[kept])
        gone = rebuild.rewrite(now, {2}, tmp_path / "g" / "segments")
        assert (gone.replaced, gone.segment, gone.dropped) == ([2], None, list(range(40, 60)))


def built(gallery: Gallery, kind: str, folder: Path) -> rebuild.IndexFile | None:
    now = gallery.snapshot()
    choice = choose_kind(now.photos, DIM, kind=kind)
    index, recall = rebuild.build_index(choice, folder, now, min_recall=0.9, threads=1)
    assert (recall is not None) == (kind == "ivf")
    return index


def test_an_index_is_written_over_the_live_photos(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p0", "p5"])
        now = gallery.snapshot()
        for kind in ("fp16", "ivf"):
            index = built(gallery, kind, tmp_path / "indexes")
            files = [tmp_path / "indexes" / f"{index.name}{ending}" for ending in (".faiss", ".npy")]
            assert index.sha256 == sha256(*files)
            assert index.kind == kind
            assert load_array(files[1]).tolist() == now.seqs[now.live].tolist()
            assert ("recall" in index.settings) == (kind == "ivf")
        assert len(list((tmp_path / "indexes").iterdir())) == 4  # nothing is left over
        remove_unused(tmp_path / "indexes", {index.name}, INDEX_ENDINGS)
        assert sorted((tmp_path / "indexes").iterdir()) == sorted(files)
        remove_unused(tmp_path / "indexes", set(), INDEX_ENDINGS)
        assert list((tmp_path / "indexes").iterdir()) == []


def test_a_rebuild_forgets_the_removed_photos_whose_vectors_are_gone(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p0", "p5"])
        rows = "SELECT COUNT(*) FROM removed"
        assert list(gallery._database.rows(rows)) == [(2,)]
        gallery.rebuild(purge=True)
        assert list(gallery._database.rows(rows)) == [(0,)]
        assert len(gallery) == 38


@pytest.mark.parametrize("kind", ["fp16", "ivf"])
def test_searches_during_a_rebuild_use_the_index_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queries = unit(5, seed=1)
    with filled(tmp_path / "g", 600, 60) as gallery:
        gallery.rebuild(kind=kind)
        answers, opened = gallery.search(queries, 3), gallery.snapshot().base
        during = []

        def refused(*_: object, **__: object) -> None:
            during.extend(gallery.search(queries, 3))
            assert gallery.snapshot().base is not opened
            raise GalleryError("refused")

        with monkeypatch.context() as patch:
            patch.setattr("index.upkeep.rebuild.build_index", refused)
            with pytest.raises(GalleryError, match="refused"):
                gallery.rebuild(kind=kind)
        assert during == answers
        assert gallery.search(queries, 3) == answers
        gallery.rebuild(kind=kind)
        assert gallery.search(queries, 3) == answers


def test_additions_and_rebuilds_do_not_load_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(tmp_path / "g", 600, 60) as gallery:
        gallery.rebuild(kind="fp16")
    with Gallery.open(tmp_path / "g") as gallery, monkeypatch.context() as patch:
        patch.setattr("index.ann.faiss_index.Candidates.read", None)
        for number in range(20):  # more than one segment combines
            gallery.add([f"new-{number}"], ["new"], unit(1, seed=number))
        gallery.rebuild(kind="fp16")
    with Gallery.open(tmp_path / "g") as gallery:
        assert len(gallery) == 620
        assert gallery.verify() == []


def test_the_memory_of_the_old_index_is_returned_before_a_new_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    build = rebuild.build_index
    monkeypatch.setattr(
        rebuild, "build_index", lambda *given, **more: (events.append("build"), build(*given, **more))[1]
    )
    with filled(tmp_path / "g") as gallery:
        gallery.rebuild(kind="fp16")
        gallery.search(unit(1), 1)
        old = weakref.ref(gallery.snapshot().base.candidates)
        monkeypatch.setattr(rebuild, "release_memory", lambda: events.append("kept" if old() else "released"))
        gallery.rebuild(kind="fp16")
    assert events == ["build", "released", "build"]


def test_a_rebuild_is_due_when_more_than_a_fifth_of_the_photos_are_outside_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "TAIL", 3)
    with filled(tmp_path / "g", count=80) as gallery:
        gallery.rebuild(kind="fp16")
        gallery.add([f"n{i}" for i in range(20)], [f"n{i}" for i in range(20)], unit(20, 9))
        assert gallery.rebuild_if_due() is None
        gallery.add(["last"], ["last"], unit(1, 10))
        assert gallery.rebuild_if_due() is not None
        assert gallery.snapshot().scanned_photos == 0


@pytest.mark.parametrize("least", [-0.1, 1.1, np.nan])
def test_a_recall_below_which_an_index_is_refused_lies_between_0_and_1(tmp_path: Path, least: float) -> None:
    with filled(tmp_path / "g") as gallery:
        with pytest.raises(InvalidParameter, match="min_recall must be between 0 and 1"):
            gallery.rebuild(min_recall=least)
        for allowed in (0, 1):
            assert gallery.rebuild(min_recall=allowed).recall is None  # a flat index is exact
