"""Removed photos are held back for a day: they can be restored as they were, and an erasure takes them at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from index.location import AnyGallery, open_gallery
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import InvalidParameter
from retrieval.galleries import held
from retrieval.galleries.erasure import erase, forget
from retrieval.indexing.pipeline import index_catalogue

from ...world import make_bundle, write_folder


@pytest.fixture(params=["sqlite", "milvus"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return a gallery of four items with three photos each."""
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(4)))
    if request.param == "milvus":
        pytest.importorskip("pymilvus")
    place = str(tmp_path / "shop") if request.param == "sqlite" else f"milvus+{tmp_path}/lite.db/shop"
    index_catalogue(make_bundle(tmp_path), photos, place, progress=False)
    return place


def all_of(gallery: AnyGallery) -> dict[str, object]:
    """Return item, metadata, thumbnail and vector of each photo."""
    now = gallery.snapshot()
    rows = list(gallery.photos())
    vectors = now.vectors(now.positions([photo_id for photo_id, *_ in rows]))
    return {
        photo_id: (item, about, gallery.thumbnail(photo_id), vector.tobytes())
        for (photo_id, item, about), vector in zip(rows, vectors, strict=True)
    }


def some(gallery: AnyGallery) -> list[str]:
    """Return photos of two items in no order."""
    ids = {item: [photo_id for photo_id, *_ in gallery.photos(item)] for item in ("item-01", "item-03")}
    return [ids["item-03"][2], ids["item-01"][0], ids["item-03"][0]]


def test_removed_photos_are_restored_as_they_were(place: str) -> None:
    with open_gallery(place) as gallery:
        before, gone = all_of(gallery), some(gallery)
        name = held.remove(gallery, gone, actor="shop")
        assert set(all_of(gallery)) == set(before) - set(gone)
        (removal,) = held.removals(gallery)
        assert (removal.removal, list(removal.photo_ids)) == (name, gone)
        assert list(removal.item_ids) == ["item-03", "item-01", "item-03"]
        assert removal.until - removal.time == timedelta(days=1)
        held.restore(gallery, removal)
        assert all_of(gallery) == before
        assert held.removals(gallery) == []


def test_the_newest_removal_comes_first_and_one_is_restored_without_the_others(place: str) -> None:
    with open_gallery(place) as gallery:
        first, *others = some(gallery)
        held.remove(gallery, [first])
        old = next(iter(held.removals(gallery)))
        new = held.remove(gallery, others)
        names = [each.removal for each in held.removals(gallery)]
        assert set(names) == {old.removal, new}
        held.restore(gallery, old)
        assert gallery.photo(first) is not None
        assert [each.removal for each in held.removals(gallery)] == [new]


def test_a_photo_that_is_there_again_is_not_replaced(place: str) -> None:
    with open_gallery(place) as gallery:
        gone = some(gallery)
        held.remove(gallery, gone)
        (removal,) = held.removals(gallery)
        gallery.add([gone[1]], ["item-00"], np.eye(1, gallery.dim, dtype=np.float32))
        with pytest.raises(InvalidParameter):
            held.restore(gallery, removal)
        assert gallery.photo(gone[0]) is None


def test_after_a_day_removed_photos_are_not_offered_and_are_dropped(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_gallery(place) as gallery:
        held.remove(gallery, some(gallery))
        assert not held.has_old(gallery)
        held.drop(gallery, only_old=True)
        assert len(held.removals(gallery)) == 1

        class Tomorrow(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
                return datetime.now(UTC) + timedelta(days=1, seconds=1)

        monkeypatch.setattr(held, "datetime", Tomorrow)
        assert held.has_old(gallery)
        assert held.removals(gallery) == []
        held.drop(gallery, only_old=True)
        assert held.names(gallery) == []


@pytest.fixture
def local(tmp_path: Path) -> Path:
    photos = read_catalogue(write_folder(tmp_path / "photos", items=range(4)))
    index_catalogue(make_bundle(tmp_path), photos, tmp_path / "shop", progress=False)
    return tmp_path / "shop"


def files_with(place: Path, content: bytes) -> list[str]:
    return [path.name for path in place.rglob("*") if path.is_file() and content in path.read_bytes()]


@pytest.mark.parametrize("way", ["dropped", "rebuilt", "erased"])
def test_nothing_of_photos_that_were_held_back_is_left_in_the_files(local: Path, way: str) -> None:
    with Gallery.open(local) as gallery:
        gone = [photo_id for photo_id, *_ in gallery.photos("item-02")]
        thumbnail, now = gallery.thumbnail(gone[1]) or b"", gallery.snapshot()
        vector = now.vectors(now.positions(gone[1:2])).tobytes()
        del now
        held.remove(gallery, gone[1:])
        assert files_with(local, thumbnail[-64:])  # it can be undone
        if way == "dropped":
            held.drop(gallery)
            assert files_with(local, thumbnail[-64:]) == []
        elif way == "rebuilt":
            gallery.rebuild()
            forget(gallery)
            assert (files_with(local, thumbnail[-64:]), files_with(local, vector[:48])) == ([], [])
        else:
            done = erase(gallery, ["item-02"])
            assert (done.photos, done.is_complete) == (3, True)
            assert (files_with(local, thumbnail[-64:]), files_with(local, vector[:48])) == ([], [])


def test_an_item_all_of_whose_photos_are_held_back_can_be_erased(local: Path) -> None:
    with Gallery.open(local) as gallery:
        gone = [photo_id for photo_id, *_ in gallery.photos("item-02")]
        thumbnail = gallery.thumbnail(gone[0]) or b""
        held.remove(gallery, gone)
        done = erase(gallery, ["item-02"])
        assert (done.photos, done.is_complete) == (3, True)
        assert held.removals(gallery) == []
    assert files_with(local, thumbnail[-64:]) == []
