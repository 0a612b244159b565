"""Draws and contents of a gallery on Milvus equal those of a local gallery; on Milvus Lite, a file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from index.contents import POINT
from index.distance import PLAIN, DistanceForm
from index.drawable import Drawable
from index.draws import Drawer, Draws, Probes
from index.errors import GalleryCorrupt, GalleryError
from index.gallery import Gallery
from index.kept_draws import OWN, KeptDraws, update_draws
from index.milvus import collection
from index.milvus.contents import PART
from index.milvus.gallery import MilvusGallery
from index.milvus.photos import SCANNED, MilvusPhotos

from .test_draws import CONTENT, NONE, additive
from .vectors import DIM, unit

pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # pymilvus warns of its own dependencies


@pytest.fixture
def address(tmp_path: Path) -> str:
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    return f"milvus+{tmp_path}/lite.db/shop"


def probes() -> dict[str, Probes]:
    return {"probe": Probes(unit(6, 77), [f"q{i}" for i in range(6)], ["i0", "i1", "x", "x", "i2", "y"])}


def updated(gallery: Drawable, known: KeptDraws | None, form: DistanceForm) -> KeptDraws:
    def is_fitted(item: str, content: str | None) -> bool:
        return item == "i3" or content == "fitted"

    return update_draws(
        gallery, known, model="m", distance_form=form, probes=probes(), is_fitted=is_fitted, content_key=CONTENT
    )


def facts(draws: Draws) -> list[tuple[object, ...]]:
    columns = (draws.ids, draws.items, draws.nearest_items, draws.distances, draws.own, draws.duplicates >= 0)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("scanned", [SCANNED, 0])
@pytest.mark.parametrize("form", [PLAIN, additive()], ids=["plain", "additive"])
def test_draws_equal_those_of_a_local_gallery_through_any_history(
    address: str, tmp_path: Path, form: DistanceForm, scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index.milvus.photos.SCANNED", scanned)
    milvus: MilvusGallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    local = Gallery.create(tmp_path / "local", dim=DIM, embedding_id="e")
    generator, known = np.random.default_rng(0), (None, None)
    for step in range(8):
        numbers = generator.choice(40, size=8, replace=False).tolist()
        ids, items = [f"p{n}" for n in numbers], [f"i{n % 9}" for n in numbers]
        contents = [{CONTENT: "fitted" if n == 7 else f"c{n % 11}"} for n in numbers]
        for gallery in (milvus, local):
            if step % 3 < 2:
                gallery.add(ids, items, unit(8, step), metadata=contents, upsert=True)
            else:
                gallery.remove(photo_ids=ids, item_ids=[items[0]])
        if step == 4:
            milvus.close()
            milvus = MilvusGallery.open(address)
        made = updated(milvus, known[0], form), updated(local, known[1], form)
        new = updated(milvus, None, form)
        assert made[0].sources.keys() == {OWN, "probe"}
        for source in made[0].sources:
            assert facts(made[0].sources[source]) == facts(made[1].sources[source]) == facts(new.sources[source])
        assert made[0].fitted == made[1].fitted
        assert made[0].covers(milvus)
        known = made
    assert milvus.items == local.items
    assert milvus.item_numbers(["i0", "nothing"]).keys() == local.item_numbers(["i0", "nothing"]).keys()
    milvus.close()
    local.close()


def test_an_update_searches_what_changed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    gallery.add([f"p{i}" for i in range(30)], [f"i{i}" for i in range(30)], unit(30))
    known = updated(gallery, None, PLAIN)
    reads, searches = [], []
    nearest, read = MilvusPhotos.nearest, MilvusPhotos.read
    monkeypatch.setattr(MilvusPhotos, "read", lambda *a: (reads.append(a), read(*a))[1])

    def counted(self: MilvusPhotos, vectors: np.ndarray, *rest: object, only: object = None) -> object:
        searches.append((len(vectors), only is not None))
        return nearest(self, vectors, *rest, only=only)  # type: ignore[arg-type]

    monkeypatch.setattr(MilvusPhotos, "nearest", counted)
    gallery.add(["far"], ["far"], -unit(30).mean(axis=0, keepdims=True) / np.linalg.norm(unit(30).mean(axis=0)))
    assert updated(gallery, known, PLAIN).covers(gallery)
    assert reads == []
    assert sum(count for count, filtered in searches if not filtered) <= 2  # the new photo, and probes that it is near
    gallery.close()


def test_contents_are_kept_replaced_and_removed_as_one_change(address: str) -> None:
    gallery, other = MilvusGallery.create(address, dim=DIM, embedding_id="e"), MilvusGallery.open(address)
    gallery.add(["a"], ["x"], unit(1))
    large = np.random.default_rng(0).bytes(2 * PART + 17)
    gallery.keep({"large": large, POINT: b"1", "empty": b""}, "calibrate", actor="shop")
    assert (gallery.version, gallery.facts()["changed_by"]) == (2, "shop")
    assert [other.kept(name) for name in ("large", POINT, "empty", "none")] == [large, b"1", b"", None]
    assert other.kept("large") is other.kept("large")  # read once
    gallery.keep({POINT: b"2", "empty": None}, "calibrate")
    assert [other.kept(name) for name in ("large", POINT, "empty")] == [large, b"2", None]
    asked: list[bytes | None] = []

    def within(point: bytes | None) -> float:
        asked.append(point)
        return 0.5

    assert other.search_version(unit(1), 1, within=within)[0] == 3
    assert asked == [b"2"]
    names = {entry[0] for entry in json.loads(gallery.facts()["kept"]).values()}
    written = gallery._collection._client.query("shop" + collection.PARTS, filter="", limit=100, output_fields=["key"])
    assert {row["key"].partition("/")[0] for row in written} == {"change", *names}  # replaced contents are deleted
    gallery._collection.delete_parts([row["key"] for row in written])
    with pytest.raises(GalleryCorrupt, match="operating point of the gallery cannot be read"):
        MilvusGallery.open(address).kept(POINT)
    gallery.close()
    other.close()


def test_a_change_keeps_its_draws_and_a_crash_leaves_them_behind(address: str) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    gallery.add([f"p{i}" for i in range(20)], [f"i{i}" for i in range(20)], unit(20))

    def follow(changed: Drawable) -> Mapping[str, bytes | None]:
        return updated(changed, KeptDraws.read(changed), PLAIN).pack()

    gallery.on_change = follow
    gallery.add(["new"], ["new"], unit(1, 5))
    assert gallery.version == 2
    kept = KeptDraws.read(gallery)
    assert kept is not None
    assert kept.covers(gallery)
    assert "new" in kept.sources[OWN].ids
    gallery.remove(item_ids=["i0"])
    kept = KeptDraws.read(gallery)
    assert kept is not None
    assert kept.covers(gallery)
    assert "p0" not in kept.sources[OWN].ids

    def fail(_: object) -> dict[str, bytes | None]:
        raise RuntimeError("no")

    gallery.on_change = fail
    with pytest.raises(RuntimeError):
        gallery.add(["late"], ["late"], unit(1, 6))
    behind = KeptDraws.read(gallery)
    assert behind is not None
    assert not behind.covers(gallery)
    gallery.keep(updated(gallery, behind, PLAIN).pack(), "measure")
    measured = KeptDraws.read(gallery)
    assert measured is not None
    assert measured.covers(gallery)
    assert measured.covers(MilvusGallery.open(address))
    gallery.close()


def test_numbers_are_not_used_twice_after_a_crash(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    with monkeypatch.context() as patched:

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(MilvusGallery, "_finish", crash)
        with pytest.raises(KeyboardInterrupt):
            gallery.add(["a"], ["x"], unit(1))
    gallery.add(["b", "c"], ["x", "y"], unit(2, 1))
    assert len(set(MilvusGallery.open(address).snapshot().seqs.tolist())) == 3
    draws = updated(gallery, None, PLAIN)
    gallery.keep(draws.pack(), "measure")
    assert draws.covers(gallery)
    gallery.close()


@pytest.mark.parametrize("change", ["add", "remove"])
def test_draws_do_not_cover_photos_of_a_change_that_was_not_finished(
    address: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    gallery.add(["a", "b"], ["x", "y"], unit(2))
    draws = updated(gallery, None, PLAIN)
    gallery.keep(draws.pack(), "measure")
    assert draws.covers(gallery)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MilvusGallery, "_finish", crash)
        with pytest.raises(KeyboardInterrupt):
            gallery.add(["c"], ["z"], unit(1, 5)) if change == "add" else gallery.remove(photo_ids=["b"])
    assert len(gallery.snapshot().seqs) == len(gallery)
    opened = MilvusGallery.open(address)
    assert not draws.covers(opened)
    opened.add(["d"], ["z"], unit(1, 6))
    assert opened.fingerprint() == MilvusGallery.open(address).snapshot().fingerprint
    assert not draws.covers(opened)
    opened.close()


def test_a_gallery_of_an_earlier_version_is_searched_but_keeps_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pymilvus import MilvusClient
    from pymilvus.milvus_client.index import IndexParams

    create_schema, add_index = MilvusClient.create_schema, IndexParams.add_index

    def unnumbered(**options: object) -> object:
        schema = create_schema(**options)
        add_field = schema.add_field
        schema.add_field = lambda name, *a, **k: None if name == "seq" else add_field(name, *a, **k)
        return schema

    with monkeypatch.context() as patched:
        patched.setattr(MilvusClient, "create_schema", unnumbered)
        patched.setattr(
            IndexParams, "add_index", lambda s, name, **k: None if name == "seq" else add_index(s, name, **k)
        )
        MilvusGallery.create(address, dim=DIM, embedding_id="e").close()
    gallery = MilvusGallery.open(address)
    gallery.add(["a", "b"], ["x", "y"], unit(2))
    assert gallery.remove(photo_ids=["b"]) == 1
    assert (len(gallery), gallery.items, gallery.kept(POINT)) == (1, 1, None)
    assert gallery.search(unit(1), 1)[0][0].photo_id == "a"
    assert "an earlier version" in gallery.undrawable()
    with pytest.raises(GalleryError, match="keeps no draws"):
        gallery.snapshot()
    gallery.close()


def test_positions_follow_the_numbers(address: str) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    vectors = unit(6)
    gallery.add([f"p{i}" for i in range(6)], ["x", "y"] * 3, vectors)
    gallery.add(["p2"], ["z"], vectors[2:3], upsert=True)
    photos = gallery.snapshot()
    assert [photos.photo(position)[:2] for position in range(6)] == [
        ("p0", "x"),
        ("p1", "y"),
        ("p3", "y"),
        ("p4", "x"),
        ("p5", "y"),
        ("p2", "z"),
    ]
    np.testing.assert_array_equal(photos.vectors(np.array([5, 0])), vectors[[2, 0]])
    again = MilvusGallery.open(address).snapshot()
    assert again.fingerprint == photos.fingerprint == gallery.fingerprint()
    draws = Drawer(photos, PLAIN, photos.densities(PLAIN)).own(None, excluded=NONE)
    assert sorted(draws.ids) == [f"p{i}" for i in range(6)]
    gallery.close()
