"""Every kind of index under changes, filters and rebuilds; and the traps that faiss lays."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from index.ann import recall
from index.ann.faiss_index import Candidates
from index.ann.kinds import FLAT, KINDS, choose_kind, lists_of, memory_of
from index.ann.recall import Recall
from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.search.distance import plain_distance
from index.upkeep import rebuild

from ..vectors import unit

DIM = 16
COUNT = 3000


def products(count: int, seed: int = 0, photos: int = 6) -> tuple[np.ndarray, list[str]]:
    """Return unit vectors (count, DIM) in clusters of `photos`, and the item of each."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(-(-count // photos), DIM))
    rows = centres.repeat(photos, axis=0)[:count] + 0.35 * generator.normal(size=(count, DIM))
    items = [f"i{i // photos}" for i in range(count)]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), items


def gallery_of(path: Path, kind: str, count: int = COUNT) -> tuple[Gallery, np.ndarray, list[str]]:
    vectors, items = products(count)
    gallery = Gallery.create(path, dim=DIM, embedding_id="e", columns={"half": "text", "number": "number"})
    half = [{"half": "ab"[i % 2], "number": i} for i in range(count)]
    gallery.add([f"p{i}" for i in range(count)], items, vectors, metadata=half)
    gallery.rebuild(kind=kind)
    return gallery, vectors, items


@pytest.mark.usefixtures("few_own_queries")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 40)), 300])
def test_every_kind_holds_few_photos(kind: str, count: int, tmp_path: Path) -> None:
    gallery, vectors, _ = gallery_of(tmp_path / "g", kind, count)
    assert gallery.index()["kind"] == kind
    assert [gallery.search(vector[None], 1)[0][0].distance for vector in vectors] == [0.0] * count
    gallery.close()


def test_a_filter_follows_the_version(tmp_path: Path) -> None:
    gallery, vectors, _ = gallery_of(tmp_path / "g", FLAT, 100)
    assert gallery.search(vectors[:1], 1, where="number = 0")[0][0].photo_id == "p0"
    gallery.remove(photo_ids=["p0"])
    assert gallery.search(vectors[:1], 1, where="number = 0") == [[]]
    gallery.declare({"shop": "text"})
    gallery.add(["new"], ["new"], vectors[:1], metadata=[{"shop": "it's"}])
    assert gallery.search(vectors[:1], 1, where="shop = 'it''s'")[0][0].photo_id == "new"
    with pytest.raises(InvalidParameter, match="declared columns"):
        gallery.search(vectors[:1], 1, where="size = 1")
    with pytest.raises(InvalidParameter, match="be a number, as the column is declared"):
        gallery.add(["odd"], ["odd"], vectors[:1], metadata=[{"number": "three"}])
    with pytest.raises(InvalidParameter, match="stay number"):
        gallery.declare({"number": "text"})
    gallery.add(["flag"], ["flag"], vectors[:1], metadata=[{"flag": True, "note": "text"}])
    gallery.declare({"flag": "boolean"})
    with pytest.raises(InvalidParameter, match="be a boolean in every photo, got 'flag'"):
        gallery.declare({"note": "boolean"})
    gallery.close()


@pytest.mark.slow
def test_recall_is_measured_stored_and_refused_where_it_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, _, _ = gallery_of(tmp_path / "g", "ivf")
    kept = gallery.index()
    assert kept["kind"] == "ivf"
    assert kept["recall"]["value"] >= 0.999
    assert kept["recall"]["expected"] > 50
    before = gallery.version
    monkeypatch.setattr(recall, "ENOUGH", 0.0)  # look at eight lists and be content
    monkeypatch.setattr(recall, "LEAST", 0.0)
    with pytest.raises(GalleryError, match=r"less than 0\.9999"):
        gallery.rebuild(kind="ivf", min_recall=0.9999)
    assert gallery.version == before
    assert gallery.index()["kind"] == "ivf"
    gallery.close()


def test_recall_counts_what_is_lost(tmp_path: Path) -> None:
    gallery, _, _ = gallery_of(tmp_path / "g", FLAT, 1000)
    now = gallery.snapshot()
    asked = recall.reference_search(now)
    assert recall.recall_of(now, asked).value == 1.0
    half = Candidates.flat(now.vectors(np.arange(500)))
    _, lost = recall.tune(now, half, np.arange(500), asked)
    assert 0.4 < lost.value < 0.6
    assert lost.lower < lost.value
    assert Recall(0, 0).value == 1.0
    assert Recall(2000, 2000).lower > 0.998 > Recall(1000, 1000).lower
    gallery.close()


def test_the_kind_fits_size_and_memory() -> None:
    chosen = [choose_kind(n, 128).kind for n in (10, 100_000, 100_001, 200_000, 200_001)]
    assert chosen == ["flat", "flat", "fp16", "fp16", "ivf"]
    sizes = {kind: memory_of(kind, 1_000_000, 128) for kind in KINDS}
    assert sizes["fp16"] <= sizes["ivf"] < sizes["flat"]
    flat = choose_kind(100_000, 128, kind="flat").rebuild_bytes
    assert choose_kind(100_000, 128, max_memory=flat).kind == "flat"
    assert choose_kind(100_000, 128, max_memory=flat - 1).kind == "fp16"
    with pytest.raises(InvalidParameter, match="max_memory must be at least"):
        choose_kind(1_000_000, 128, max_memory=2**20)
    with pytest.raises(InvalidParameter, match="for the kind flat"):
        choose_kind(1_000_000, 128, kind="flat", max_memory=2**28)
    assert lists_of(1_000_000) == 2048


def test_a_merge_is_due_when_the_size_asks_for_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from index.ann import kinds

    vectors, items = products(COUNT)
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    gallery.add([f"p{i}" for i in range(COUNT)], items, vectors)
    assert gallery.rebuild_if_due() is None
    monkeypatch.setattr(kinds, "FLAT_UP_TO", 2000)
    assert gallery.rebuild_if_due().choice.kind == "fp16"
    assert gallery.rebuild_if_due() is None
    assert gallery.index()["scanned_photos"] == 0
    gallery.close()


def test_many_small_additions_become_few_segments(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    vectors = unit(200, 1, DIM)
    for i in range(100):
        gallery.add([f"p{i}", f"q{i}"], [f"i{i}"] * 2, vectors[2 * i : 2 * i + 2])
        if i % 5 == 0:
            gallery.remove(photo_ids=[f"p{i}"])
    segments = gallery._database.segments()
    assert len(segments) <= 2 * rebuild.FANOUT
    assert {file.stem for file in (tmp_path / "g" / "segments").iterdir()} == {segment.name for segment in segments}
    assert gallery.verify() == []
    assert len(gallery) == 180
    assert [n.photo_id for n in gallery.search(vectors[2:3], 1)[0]] == ["p1"]
    assert gallery.search(vectors[:1], 1)[0][0].photo_id != "p0"
    assert [change.action for change in gallery.changes(2)] == ["add", "add"]
    gallery.close()


@pytest.mark.usefixtures("few_own_queries")
def test_additions_and_searches_go_on_during_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery, vectors, _ = gallery_of(tmp_path / "g", FLAT)
    started, release = threading.Event(), threading.Event()
    build = rebuild.build_index

    def slow(*arguments: object, **named: object) -> object:
        started.set()
        assert release.wait(30)
        return build(*arguments, **named)

    monkeypatch.setattr("index.upkeep.rebuild.build_index", slow)
    thread = threading.Thread(target=lambda: gallery.rebuild(kind="ivf"))
    thread.start()
    assert started.wait(30)
    for i in range(40):  # more than are written as one outside of a rebuild
        gallery.add([f"n{i}"], [f"n{i}"], unit(1, 50 + i, DIM))
    gallery.remove(photo_ids=["p1", "n3"])
    assert gallery.search(unit(1, 50, DIM), 1)[0][0].photo_id == "n0"
    release.set()
    thread.join()
    assert gallery.index()["kind"] == "ivf"
    assert len(gallery) == COUNT + 38
    assert gallery.verify() == []
    assert gallery.search(unit(1, 50, DIM), 1)[0][0].photo_id == "n0"
    assert gallery.search(vectors[1:2], 1)[0][0].photo_id != "p1"
    gallery.add(["z"], ["z"], unit(1, 99, DIM))
    assert len(gallery._database.segments()) < 20
    gallery.close()


@pytest.mark.usefixtures("few_own_queries")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != FLAT])
def test_a_damaged_row_is_found_when_it_is_answered(tmp_path: Path, kind: str) -> None:
    gallery, vectors, _ = gallery_of(tmp_path / "g", kind, 400)
    gallery.close()
    (file,) = (tmp_path / "g" / "segments").glob("*.rows")
    file.write_bytes(file.read_bytes().replace(b'["p7"', b'["p9"'))
    with Gallery.open(tmp_path / "g", read_only=True) as reader:
        far = int(plain_distance(vectors[7], vectors).argmax())
        assert reader.search(vectors[far : far + 1], 1)[0][0].photo_id == f"p{far}"
        with pytest.raises(GalleryCorrupt, match="photo number 7 has changed since it was written"):
            reader.search(vectors[7:8], 1)


class TestTraps:
    """Behaviour of faiss that the code relies on, to notice a version that changes it."""

    def test_a_range_is_strict_and_squared(self) -> None:
        import faiss

        vectors = np.array([[1, 0], [0, 1]], dtype=np.float32)
        inner, euclidean = faiss.IndexFlatIP(2), faiss.IndexFlatL2(2)
        for index in (inner, euclidean):
            index.add(vectors)
        assert len(inner.range_search(vectors[:1], 1.0)[2]) == 0  # its own cosine is 1, not more
        assert len(euclidean.range_search(vectors[:1], 2.0)[2]) == 1  # sqrt(2) squared is 2, not less
        assert euclidean.search(vectors[:1], 2)[0][0, 1] == 2.0

    def test_missing_neighbours_are_minus_one(self) -> None:
        import faiss

        index = faiss.IndexFlatIP(2)
        index.add(np.eye(2, dtype=np.float32))
        assert index.search(np.eye(2, dtype=np.float32)[:1], 4)[1].tolist() == [[0, 1, -1, -1]]

    def test_what_is_searched_is_never_added_to(self, tmp_path: Path) -> None:
        """Adding during a search crashes faiss: a change makes a new index beside the one that is being searched."""
        gallery, vectors, _ = gallery_of(tmp_path / "g", "fp16", 200)
        before = gallery.snapshot()
        gallery.add(["new"], ["new"], vectors[:1])
        after = gallery.snapshot()
        assert after.base.candidates is before.base.candidates
        assert after.tail is not before.tail
        assert len(before.tail) == 0
        assert len(after.tail) == 1
        gallery.close()


def test_the_page_on_scaling_has_the_memory_that_a_limit_is_compared_with() -> None:
    page = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text()
    (table,) = [part for part in page.split("\n\n") if part.startswith("| photos, d = 128 |")]
    for line, photos in zip(table.splitlines()[2:6], (10**5, 10**6, 10**7, 10**8), strict=True):
        _, kind, serving, rebuilding, _ = (cell.strip() for cell in line.strip("|").split("|"))
        choice = choose_kind(photos, 128)
        assert kind.split(",")[0] == choice.kind
        for told, memory in ((serving, choice.bytes), (rebuilding, choice.rebuild_bytes)):
            assert float(told.removesuffix(" GB")) == pytest.approx(memory / 1e9, rel=0.1), line
