"""Draws and contents of a gallery on Milvus equal those of a local gallery; on Milvus Lite, a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.database import POINT
from index.errors import GalleryCorrupt
from index.gallery import Gallery
from index.location import AnyGallery
from index.milvus.client import STRONG, Access
from index.milvus.collections import TEXTS
from index.milvus.gallery import PART, MilvusGallery
from index.photos import CONTENT
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.galleries.kept import Kept, pack_draws, read_draws
from retrieval.measuring.draws import OWN, AllDraws, Draws, Probes
from retrieval.measuring.measure import Material, draw

from ..vectors import DIM, unit

pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # pymilvus warns of its own dependencies


def probes() -> dict[str, Probes]:
    return {"probe": Probes(unit(6, 77), [f"q{i}" for i in range(6)], ["i0", "i1", "x", "x", "i2", "y"])}


def made_from(gallery: AnyGallery, distance: ItemDistance) -> AllDraws:
    fitted = {item for _, item, content in gallery.values(CONTENT) if item == "i3" or content == "fitted"}
    material = Material(probes=probes(), fitted=frozenset(fitted), model="m", version=gallery.version)
    return draw(gallery.snapshot(), distance, material)


def facts(draws: Draws) -> list[tuple[object, ...]]:
    distances = (draws.distances.round(12), draws.own.round(12))  # densities are computed in blocks of another size
    columns = (draws.ids, draws.items, draws.nearest, draws.nearest_items, *distances, draws.duplicates)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("distance", [NEAREST_PHOTO, ItemDistance()], ids=["nearest photo", "item"])
def test_draws_equal_those_of_a_local_gallery_through_any_history(
    address: str, tmp_path: Path, distance: ItemDistance
) -> None:
    milvus: MilvusGallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    local = Gallery.create(tmp_path / "local", dim=DIM, embedding_id="e")
    generator = np.random.default_rng(0)
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
        made = made_from(milvus, distance), made_from(local, distance)
        for source in (OWN, "probe"):
            assert facts(made[0].sources[source]) == facts(made[1].sources[source])
        assert made[0].fitted == made[1].fitted
        assert milvus.snapshot().changes_since(made[0].mark) == 0
    assert milvus.items == local.items
    known = [gallery.snapshot().item_numbers(["i0", "nothing"]).keys() for gallery in (milvus, local)]
    assert known[0] == known[1]
    milvus.close()
    local.close()


def test_contents_are_kept_replaced_and_removed_as_one_change(address: str) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    other = MilvusGallery.open(address, access=Access(age_s=0))
    gallery.add(["a"], ["x"], unit(1))
    large = np.random.default_rng(0).bytes(2 * PART + 17)
    gallery.keep({"large": large, POINT: b"1", "empty": b""}, "calibrate", actor="shop")
    assert (gallery.version, gallery.changes(1)[0].actor) == (2, "shop")
    assert [other.kept(name) for name in ("large", POINT, "empty", "none")] == [large, b"1", b"", None]
    assert other.kept("large") is other.kept("large")  # read once
    gallery.keep({POINT: b"2", "empty": None}, "calibrate")
    assert [other.kept(name) for name in ("large", POINT, "empty")] == [large, b"2", None]
    assert other.search_version(unit(1), 1)[:2] == (3, b"2")
    names = {entry[0] for entry in gallery._facts()["kept"].values()}
    written = gallery._store._query("shop" + TEXTS, "", ["key"], STRONG, 100)
    keys = {row["key"] for row in written} - {"facts"}
    assert {key.partition("/")[0] for key in keys} == {"change", *names}  # replaced contents are deleted
    gallery._store.delete(gallery._store.texts, sorted(keys))
    with pytest.raises(GalleryCorrupt, match="operating point of the gallery cannot be read"):
        MilvusGallery.open(address).kept(POINT)
    gallery.close()
    other.close()


@pytest.mark.parametrize("change", ["add", "remove"])
def test_draws_do_not_cover_photos_of_a_change_that_was_not_finished(
    address: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    gallery.add(["a", "b"], ["x", "y"], unit(2))
    draws = made_from(gallery, NEAREST_PHOTO)
    gallery.keep({Kept.DRAWS: pack_draws(draws)}, "measure")
    assert gallery.snapshot().changes_since(draws.mark) == 0

    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MilvusGallery, "_finish", crash)
        with pytest.raises(KeyboardInterrupt):
            gallery.add(["c"], ["z"], unit(1, 5)) if change == "add" else gallery.remove(photo_ids=["b"])
    opened = MilvusGallery.open(address)
    assert getattr(read_draws(opened), "mark", None) == draws.mark
    assert opened.snapshot().changes_since(draws.mark)
    opened.add(["d"], ["z"], unit(1, 6))
    assert opened.snapshot().mark == MilvusGallery.open(address).snapshot().mark
    assert opened.snapshot().changes_since(draws.mark)
    opened.close()
