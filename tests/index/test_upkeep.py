"""Maintenance of a changing gallery: bases in memory, files, settings, and rebuilds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from index import snapshot
from index.ann.recall import Recall
from index.errors import GalleryCorrupt, GalleryError
from index.gallery import Gallery
from index.search.distance import plain_distance
from index.upkeep import rebuild

from ..gallery_contents import contents
from .vectors import DIM, filled, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")


def nearest(ids: list[str], vectors: np.ndarray, query: np.ndarray) -> str:
    return ids[int(plain_distance(query, vectors).argmin())]


def test_a_base_in_memory_follows_what_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos beyond the tail are searched through an exact base, of live ones only, that is renewed as it wears out."""
    monkeypatch.setattr(snapshot, "TAIL", 100)
    gallery, queries = filled(tmp_path / "g", count=400, items=400), unit(40, 3)
    gallery.remove(photo_ids=[f"p{i}" for i in range(0, 400, 9)])
    for step in range(8):
        ids, _, vectors = contents(gallery)
        for query in queries:
            (found,) = gallery.search(query[None], 1)[0]
            assert found.photo_id == nearest(ids, vectors, query)
        now = gallery.snapshot()
        assert now.base.name == ""
        assert len(now.seqs) - now.tail_start <= 100
        assert now.live[now.base_positions[now.base_positions >= 0]].sum() >= 3 / 4 * len(now.base.seqs)
        if step % 2:
            gallery.close()
            gallery = Gallery.open(tmp_path / "g")
        gallery.add([f"n{step}-{i}" for i in range(60)], [f"n{step}-{i}" for i in range(60)], unit(60, 10 + step))
        gallery.remove(photo_ids=ids[step : 60 + step])


def test_a_merge_remembers_the_kind_and_the_memory(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g", count=300)
    gallery.rebuild(kind="fp16", max_memory=10**9)
    assert gallery.rebuild().choice.kind == "fp16"
    assert gallery._database.facts()["max_memory"] == str(10**9)
    assert gallery.rebuild(kind="auto").choice.kind == "flat"
    assert gallery.rebuild().choice.kind == "flat"


def test_a_merge_forgets_what_it_dropped(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    for i in range(15):
        gallery.add([f"p{i}"], [f"i{i}"], unit(1, i))
    gallery.remove(photo_ids=["p3", "p14"])
    assert snapshot.removed_seqs(gallery._database).tolist() == [3, 14]
    gallery.add(["p15"], ["i15"], unit(1, 15))  # small segments are written as one
    assert len(gallery._database.segments()) == 1
    assert snapshot.removed_seqs(gallery._database).tolist() == []
    gallery.remove(photo_ids=["p5"])
    assert gallery.rebuild().dropped == 1
    assert snapshot.removed_seqs(gallery._database).tolist() == []
    assert len(gallery) == 13
    assert gallery.verify() == []


@pytest.mark.parametrize(
    ("recall", "least", "accepted"),
    [
        (Recall(999, 1000), 0.998, False),  # the share is enough, its lower bound is not
        (Recall(999, 1000), 0.99, True),
        (Recall(1000, 1000), 0.999, True),  # nothing is lost, however few were asked
        (Recall(0, 0), 0.999, True),
    ],
)
def test_an_index_is_refused_by_the_lower_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recall: Recall, least: float, accepted: bool
) -> None:
    gallery = filled(tmp_path / "g", count=300)
    monkeypatch.setattr(rebuild, "tune", lambda _snapshot, candidates, *_: (candidates, recall))
    if accepted:
        assert gallery.rebuild(kind="ivf", min_recall=least).recall == recall
    else:
        with pytest.raises(GalleryError, match="less than"):
            gallery.rebuild(kind="ivf", min_recall=least)


def test_damage_that_a_compaction_meets_is_told(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    for i in range(15):
        gallery.add([f"p{i}"], [f"i{i}"], unit(1, i))
    gallery.search(unit(1), 1)
    name = gallery._database.segments()[7].name
    mapped = np.load(tmp_path / "g" / "segments" / f"{name}.npy", mmap_mode="r+")
    mapped[0] = -mapped[0]
    mapped.flush()
    with pytest.raises(GalleryCorrupt, match="photo number 7"):
        gallery.add(["p15"], ["i15"], unit(1, 15))


def test_a_full_disk_during_a_compaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    for i in range(15):
        gallery.add([f"p{i}"], [f"i{i}"], unit(1, i))
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "rewrite", full)
        assert gallery.add(["p15"], ["i15"], unit(1, 15)) == 1
    assert len(gallery) == len(gallery._database.segments()) == 16
    gallery.add(["p16"], ["i16"], unit(1, 16))
    assert len(gallery._database.segments()) == 1
    assert gallery.verify() == []


@pytest.mark.parametrize(
    ("found", "told"),
    [*((old, f"has format {old}, this program reads format 5") for old in ("1", "4", "two")), ("6", "a later version")],
)
def test_a_gallery_of_another_format_is_refused(tmp_path: Path, found: str, told: str) -> None:
    filled(tmp_path / "g").close()
    with sqlite3.connect(tmp_path / "g" / "gallery.sqlite") as connection:
        connection.execute("UPDATE facts SET value = ? WHERE key = 'format'", (found,))
    connection.close()
    with pytest.raises(GalleryError, match=told) as caught:
        Gallery.open(tmp_path / "g")
    assert not isinstance(caught.value, GalleryCorrupt)
