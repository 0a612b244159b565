"""Updates: other items and metadata for photos whose vectors, features and thumbnails stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.errors import InvalidParameter
from index.gallery import Gallery

from .vectors import filled, unit, with_features

IDS = ["p3", "p1"]


def test_an_update_changes_item_and_metadata_and_nothing_else(tmp_path: Path) -> None:
    with with_features(tmp_path / "g") as gallery:
        gallery.add(["p1"], ["i1"], unit(1, 5), thumbnails=[b"jpeg"], features=[b"f" * 8], upsert=True)
        before = {photo.photo_id: photo for block in gallery.walk(100, whole=True) for photo in block}
        assert gallery.update(IDS, ["new", "i2"], [{"price": 3}, {}], actor="ann") == 2
        after = {photo.photo_id: photo for block in gallery.walk(100, whole=True) for photo in block}
        assert gallery.photo("p3") == ("p3", "new", {"price": 3})
        assert gallery.photo("p1") == ("p1", "i2", {})
        assert gallery.thumbnail("p1") == b"jpeg"
        assert before.keys() == after.keys()
        for name, photo in after.items():
            assert np.array_equal(photo.vector, before[name].vector)
            assert photo.features == before[name].features
            assert name in IDS or photo.item_id == before[name].item_id
        change = gallery.changes(1)[0]
        assert (change.action, change.photos, change.actor) == ("update", 2, "ann")
        assert gallery.search(after["p3"].vector[None], 1)[0][0].item_id == "new"
        assert gallery.verify() == []


def test_an_update_of_a_photo_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        version = gallery.version
        with pytest.raises(InvalidParameter, match="photo_ids must be in the gallery, got 'p99'"):
            gallery.update(["p1", "p99"], ["x", "y"], [{}, {}])
        with pytest.raises(InvalidParameter, match="photo_ids must not repeat an id, got 'p1'"):
            gallery.update(["p1", "p1"], ["x", "y"], [{}, {}])
        assert gallery.update([], [], []) == 0
        assert gallery.version == version
        assert gallery.photo("p1") == ("p1", "i1", {})


def test_photos_lists_what_photo_returns(tmp_path: Path) -> None:
    with filled(tmp_path / "g", count=6, items=3) as gallery:
        before = [row[0] for row in gallery.photos()]
        gallery.update(["p2"], ["i0"], [{"a": None, "b": 1.5}])
        listed = gallery.photos()
        assert [row[0] for row in listed] == [*(name for name in before if name != "p2"), "p2"]
        assert listed == [gallery.photo(row[0]) for row in listed]


def test_a_withdrawn_column_may_be_declared_with_another_kind(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=8, embedding_id="e", columns={"price": "text", "brand": "text"}) as gallery:
        gallery.add(["a"], ["x"], unit(1), metadata=[{"price": "3"}])
        gallery.declare({"price": None, "unknown": None}, actor="ann")
        assert (gallery.changes(1)[0].action, gallery.changes(1)[0].actor) == ("undeclare price", "ann")
        gallery.update(["a"], ["x"], [{"price": 3}])
        gallery.declare({"price": "number"})
        assert gallery.columns() == {"brand": "text", "price": "number"}
        assert gallery.search(unit(1), 1, where="price < 10")[0][0].photo_id == "a"
        version = gallery.version
        gallery.declare({"unknown": None})
        assert gallery.version == version
