"""Candidates of a search, the version of its filter, and the files that a rebuild leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.ann.kinds import IVF, KINDS
from index.errors import GalleryError
from index.folder import GalleryFolder
from index.gallery import Gallery
from index.search.distance import plain_distance
from index.upkeep.rebuild import compact

from ..gallery_contents import contents
from .vectors import DIM, filled, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")


def at(distance: np.ndarray | float, around: np.ndarray, seed: int, count: int) -> np.ndarray:
    """Return unit vectors (count, d) at a plain distance from a unit vector, in random directions."""
    side = np.random.default_rng(seed).normal(size=(count, len(around)))
    side -= np.outer(side @ around, around)
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    cosine = 1 - np.broadcast_to(np.asarray(distance, np.float64), count)[:, None] ** 2 / 2
    return (cosine * around + np.sqrt(1 - cosine**2) * side).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_behind_three_hundred_photos_of_another_is_found(tmp_path: Path, kind: str) -> None:
    """Both are within the distance; more candidates are fetched although an item has been found already."""
    query = unit(1, 1, 32)[0].astype(np.float64)
    crowd, second = at(np.linspace(0.2, 0.3, 300), query, 2, 300), at(0.4, query, 3, 1)
    far = unit(800, 4, 32)
    assert plain_distance(query, far).min() > 0.5
    with Gallery.create(tmp_path / "g", dim=32, embedding_id="e") as gallery:
        gallery.add([f"c{i}" for i in range(300)], ["crowd"] * 300, crowd)
        gallery.add(["second"], ["second"], second)
        gallery.add([f"f{i}" for i in range(800)], [f"f{i}" for i in range(800)], far)
        gallery.rebuild(kind=kind)
        assert [found.item_id for found in gallery.search([query], 2)[0]] == ["crowd", "second"]


@pytest.mark.parametrize(
    ("kind", "width", "where"),
    [
        ("flat", 2e-6, None),  # float32 tells them apart no more
        ("flat", 2e-6, "half = 'a'"),
        ("fp16", 8e-4, None),  # nor does fp16
        ("ivf", 5e-5, None),
        ("ivf", 8e-4, None),
        ("ivf", 8e-4, "half = 'a'"),
    ],
)
def test_near_ties_are_told_apart_by_the_exact_distance(
    tmp_path: Path, kind: str, width: float, where: str | None
) -> None:
    """Cosines of an index are off by more than these photos differ: the cut leaves room for it."""
    count, dim, queries = 200, DIM, unit(8, 5)
    with Gallery.create(tmp_path / "g", dim=dim, embedding_id="e", columns={"half": "text"}) as gallery:
        for number, query in enumerate(queries.astype(np.float64)):
            near = at(np.linspace(0.1, 0.1 + width, count)[::-1], query, 100 + number, count)
            names = [f"{number}-{i}" for i in range(count)]
            gallery.add(names, names, near, metadata=[{"half": "ab"[i % 2]} for i in range(count)])
        gallery.rebuild(kind=kind)
        ids, _, vectors = contents(gallery)
        kept = [i for i, name in enumerate(ids) if where is None or int(name.split("-")[1]) % 2 == 0]
        found = expected = 0
        for query in queries:
            order = np.argsort(plain_distance(query, vectors[kept]), kind="stable")[:3]
            want = [ids[kept[i]] for i in order]
            got = [answer.photo_id for answer in gallery.search([query], 3, where=where)[0]]
            found, expected = found + len(set(got) & set(want)), expected + len(want)
            if kind != IVF:
                assert got == want
        assert found >= 0.99 * expected


def test_a_filter_is_of_the_version_that_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process changes the gallery between the reading of the photos and of what passes."""
    writer = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", columns={"brand": "text"})
    vectors = unit(40)
    writer.add([f"p{i}" for i in range(40)], [f"i{i}" for i in range(40)], vectors, metadata=[{"brand": "a"}] * 40)
    reader = Gallery.open(tmp_path / "g", read_only=True)
    current, changes = reader.snapshot, iter(range(2))

    def changed_meanwhile() -> object:
        now = current()
        if next(changes, None) is not None:
            writer.add(["p0"], ["i0"], vectors[:1], metadata=[{"brand": "b"}], upsert=True)
            writer.remove(photo_ids=["p1"])
        return now

    monkeypatch.setattr(reader, "snapshot", changed_meanwhile)
    version, _, (found,), _ = reader.search_version(vectors[:1], 1, where="brand = 'b'")
    assert (found[0].photo_id, found[0].distance, version) == ("p0", 0.0, writer.version)
    monkeypatch.undo()
    assert len(reader.search(vectors[:1], 40, where="brand = 'a'")[0]) == 38
    changes = iter(range(100))
    monkeypatch.setattr(reader, "snapshot", changed_meanwhile)
    monkeypatch.setattr(writer, "remove", lambda **_: writer.declare({f"c{writer.version}": "text"}))
    with pytest.raises(GalleryError, match="changes faster"):
        reader.search(vectors[:1], 1, where="brand = 'c'")


def test_small_additions_then_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sixteenth single addition writes all of them as one segment; a rebuild starts from that one."""
    gallery, vectors = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e"), unit(17)
    other = Gallery.open(tmp_path / "g", read_only=True)

    def read_first(folder: GalleryFolder) -> None:
        assert len(other) == i + 1  # the reader knows the version before its segments are combined
        compact(folder)

    monkeypatch.setattr("index.gallery.compact", read_first)
    for i in range(16):
        gallery.add([f"p{i}"], [f"i{i}"], vectors[i : i + 1])
        assert len(other) == i + 1
        before = gallery._database.number("layout")
    assert len(gallery._database.segments()) == 1
    for reader in (gallery, other):
        assert [segment.id for segment in reader.snapshot().segments] == [s.id for s in gallery._database.segments()]
    gallery.remove(photo_ids=["p3"])
    gallery.rebuild()
    assert gallery._database.number("layout") == before + 1
    assert gallery.verify() == []
    gallery.close()
    with Gallery.open(tmp_path / "g") as again:
        assert again.verify() == []
        assert len(again) == 15
        assert again.search(vectors[4:5], 1)[0][0].photo_id == "p4"
        again.add(["p16"], ["i16"], vectors[16:])
        assert len(other) == 16
        assert other.search(vectors[16:], 1)[0][0].photo_id == "p16"


def test_the_layout_tells_readers_that_files_changed(tmp_path: Path) -> None:
    writer = filled(tmp_path / "g")
    reader = Gallery.open(tmp_path / "g", read_only=True)
    old = reader.snapshot()
    writer.remove(photo_ids=["p0"])
    writer.rebuild()
    new = reader.snapshot()
    assert {segment.name for segment in new.segments}.isdisjoint(segment.name for segment in old.segments)
    assert (len(new.seqs), int(new.live.sum()), new.photos) == (39, 39, 39)
