"""The gallery on Milvus answers as brute force does, and its filters mean what SQL's mean; on Milvus Lite, a file."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from index.errors import GalleryError, InvalidParameter
from index.gallery import Gallery
from index.milvus.client import STRONG
from index.milvus.gallery import FACTS, MilvusGallery, exists
from index.search.filters import Where, parse_where, to_milvus

from ..search.test_filters import COLUMNS, holds, trees
from ..vectors import DIM, unit

pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # pymilvus warns of its own dependencies


def test_what_is_kept_and_what_is_refused(address: str) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e", columns={"brand": "text"})
    gallery.add(["a"], ["x"], unit(1), metadata=[{"brand": "b", "none": None}], thumbnails=[b"jpeg"])
    assert gallery.thumbnail("a") == b"jpeg"
    assert gallery.thumbnail("b") is None
    assert gallery.values("brand") == [("a", "x", "b")]
    version, _, ((found,),), _ = gallery.search_version(unit(1), 3)
    assert (version, found.distance, found.metadata) == (1, 0.0, {"brand": "b"})
    with pytest.raises(InvalidParameter, match="not be in the gallery yet"):
        gallery.add(["a"], ["x"], unit(1))
    with pytest.raises(InvalidParameter, match="be a text"):
        gallery.add(["c"], ["x"], unit(1), metadata=[{"brand": 3}])
    with pytest.raises(InvalidParameter, match="at most 512 bytes"):
        gallery.add(["\u4e00" * 200], ["x"], unit(1))
    with pytest.raises(InvalidParameter, match="declared columns"):
        gallery.search(unit(1), 1, where="size = 1")
    gallery.declare({"size": "number"})
    assert gallery.search(unit(1), 1, where="size = 1") == [[]]
    with pytest.raises(InvalidParameter, match="stay number"):
        gallery.declare({"size": "text"})
    with pytest.raises(GalleryError, match="exists"):
        MilvusGallery.create(address, dim=DIM, embedding_id="e")
    gallery.close()
    with pytest.raises(GalleryError, match="is not a gallery"):
        MilvusGallery.open(address.replace("shop", "other"))
    with pytest.raises(InvalidParameter, match="be an address"):
        MilvusGallery.open("milvus+nothing")
    assert exists(address)
    assert not exists(address.replace("shop", "other"))


def test_an_index_is_chosen_after_the_change_that_another_thread_makes(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    write, choosing = gallery._store.write_texts, threading.Thread(target=gallery.choose_index, args=["HNSW"])

    def after_a_choice(texts: dict[str, str]) -> None:
        if FACTS in texts:
            monkeypatch.undo()
            choosing.start()
            choosing.join(2)  # it waits
        write(texts)

    monkeypatch.setattr(gallery._store, "write_texts", after_a_choice)
    gallery.keep({"note": b"kept"}, "keep a note")
    choosing.join()
    assert gallery.kept("note") == b"kept"
    assert gallery._facts(fresh=True)["wanted"] == "HNSW"
    gallery.close()


ROWS = [{}, {"brand": "a"}, {"brand": "b", "price": 1}, {"brand": "it's", "price": 2, "sale": True}, {"sale": False}]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> MilvusGallery:
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    gallery = MilvusGallery.create(
        f"milvus+{tmp_path_factory.mktemp('m')}/lite.db/shop", dim=DIM, embedding_id="e", columns=COLUMNS
    )
    gallery.add([str(i) for i in range(len(ROWS))], ["x"] * len(ROWS), unit(len(ROWS)), metadata=ROWS)
    return gallery


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(tree=trees)
def test_filters_mean_what_the_tree_means(filled: MilvusGallery, tree: Where) -> None:
    found = {row["photo_id"] for row in filled._store._query("shop", to_milvus(tree), ["photo_id"], STRONG)}
    assert found == {str(i) for i, row in enumerate(ROWS) if holds(tree, row) is True}


def test_quotes_do_not_end_a_text(filled: MilvusGallery) -> None:
    tree = parse_where('brand = \'a" or "" == "\'', COLUMNS)
    assert filled._store._query("shop", to_milvus(tree), ["photo_id"], STRONG) == []
    assert len(filled.search(unit(1), 3, where="brand = 'it''s'")[0]) == 1


def test_the_newest_change_says_who_made_it(address: str) -> None:
    gallery = MilvusGallery.create(address, dim=DIM, embedding_id="e")
    gallery.add(["p0"], ["i0"], unit(1), actor="key shop-1")
    assert gallery.changes(1)[0].actor == "key shop-1"
    gallery.remove(photo_ids=["p0"], actor="key shop-2")
    assert gallery.changes(1)[0].actor == "key shop-2"
    gallery.close()


def test_items_are_found_in_the_order_of_a_gallery_on_disk(address: str, tmp_path: Path) -> None:
    items = ["165", "65", "7", "650", "Tea", "3"]
    about = [{"price": 65}, {"name": "rose", "_file": "65"}, {"name": "65"}, {"name": "Bee 65"}, {"name": "ÄPFEL"}, {}]
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e") as local:
        remote = MilvusGallery.create(address, dim=DIM, embedding_id="e")
        for gallery in (local, remote):
            gallery.add([f"p{place}" for place in range(6)], items, unit(6), metadata=about)
        for find in ("65", "6", "tea", "bee", "äpfel", "", "rose", "none"):
            for after in ("", "165", "65", "650", "66"):
                expected = local.item_ids(find=find, after=after, limit=3)
                assert remote.item_ids(find=find, after=after, limit=3) == expected, (find, after)
        remote.close()
