"""Features of photos: kept with the vectors by every change, checked when they are read, and limited."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index import features
from index.errors import GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.location import open_or_create
from index.upkeep import rebuild

from .vectors import DIM, features_of, filled, unit, with_features


def check(gallery: Gallery, photos: int) -> None:
    """Check that each photo has the features that follow from its vector."""
    found = [photo for some in gallery.walk(7, whole=True) for photo in some]
    assert len(found) == photos
    assert [photo.features for photo in found] == features_of(np.array([photo.vector for photo in found]))
    assert gallery.verify() == []


def test_features_share_the_life_of_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "FEATURES_BLOCK", 3)
    with with_features(tmp_path / "g") as gallery:
        assert (gallery.features_key, gallery._database.facts()["format"]) == ("f", "5")
        check(gallery, 40)
        for step in range(40):  # small segments are combined
            vectors = unit(2, 100 + step)
            gallery.add([f"n{step}", f"p{step}"], ["new", "i0"], vectors, features=features_of(vectors), upsert=True)
        check(gallery, 80)
        gallery.remove(photo_ids=[f"n{step}" for step in range(20)])
        check(gallery, 60)
        gallery.rebuild(kind="fp16")
        gallery.update(["p1", "p2"], ["other", "other"], [{}, {}])
        check(gallery, 60)
        gallery.rebuild()
        (segment,) = gallery.snapshot().segments
        files = sorted(file.name for file in (tmp_path / "g" / "segments").iterdir())
        assert files == [f"{segment.name}{ending}" for ending in (".features", ".npy", ".rows")]
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        check(gallery, 60)
        now = gallery.snapshot()
        order = np.array([5, 2, 5, 0])
        assert now.features(order) == features_of(now.vectors(order))


def test_photos_without_features_and_features_without_bytes(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        gallery.add(["a", "b"], ["x", "y"], unit(2), features=[b"", b""])
        assert gallery.snapshot().features(np.array([1, 0])) == [b"", b""]
        for wrong, words in (
            (None, "got None"),
            ([b"x"], "got 1"),
            (["x", "y"], "hold bytes"),
            ([b"x", None], "bytes"),
        ):
            with pytest.raises(InvalidParameter, match=words):
                gallery.add(["c", "d"], ["x", "y"], unit(2), features=wrong)  # type: ignore[arg-type]
        assert len(gallery) == 2
    with filled(tmp_path / "plain") as gallery:
        assert (gallery.features_key, gallery._database.facts()["format"]) == ("", "5")
        with pytest.raises(InvalidParameter, match=r"be None in a gallery without features.*features_key"):
            gallery.add(["c"], ["x"], unit(1), features=[b"x"])
        with pytest.raises(GalleryError, match="keeps no features"):
            gallery.snapshot().features(np.array([1]))
        assert [photo.features for some in gallery.walk(50, whole=True) for photo in some] == [None] * 40


def test_a_gallery_with_features_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "MOST_PHOTOS", 42)
    new = unit(3, 5)
    with with_features(tmp_path / "g") as gallery:
        with pytest.raises(GalleryError, match=r"at most 42 photos.*would hold 43.*several galleries"):
            gallery.add(["a", "b", "c"], ["x"] * 3, new, features=features_of(new))
        assert len(gallery) == 40
        gallery.add(["a", "b", "p0"], ["x"] * 3, new, features=features_of(new), upsert=True)
        check(gallery, 42)
        monkeypatch.setattr(features, "MOST_PHOTOS", 41)
        with pytest.raises(GalleryError, match="at most 41 photos"):
            gallery.rebuild()
    with filled(tmp_path / "plain", count=43) as gallery:
        assert len(gallery) == 43


@pytest.mark.parametrize("place", [3, -1, -9, -40, -8 * 41])
def test_a_damaged_byte_is_found_at_the_first_use(tmp_path: Path, place: int) -> None:
    with_features(tmp_path / "g").close()
    (file,) = (tmp_path / "g" / "segments").glob("*.features")
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert "sha256" in gallery.verify()[0]
        with pytest.raises(GalleryCorrupt, match=r"features of photo 0|damaged list of the features"):
            gallery.snapshot().features(np.array([0]))


@pytest.mark.parametrize("size", [0, 7, 100, None])
def test_a_short_or_missing_file_is_found(tmp_path: Path, size: int | None) -> None:
    with_features(tmp_path / "g").close()
    (file,) = (tmp_path / "g" / "segments").glob("*.features")
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        with pytest.raises(GalleryCorrupt, match="features"):
            gallery.search(unit(1), 1)
        assert gallery.verify() != []


def test_vectors_of_a_gallery_with_features_are_checked_row_by_row(tmp_path: Path) -> None:
    """A search of all vectors reads no features."""
    with_features(tmp_path / "g").close()
    (file,) = (tmp_path / "g" / "segments").glob("*.features")
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert gallery.search(unit(1), 1)[0][0].photo_id == "p0"
        (file,) = (tmp_path / "g" / "segments").glob("*.npy")
        vectors = bytearray(file.read_bytes())
        vectors[-4 * DIM * 39] ^= 1
        file.write_bytes(vectors)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery, pytest.raises(GalleryCorrupt, match="photo number 1"):
        gallery.search(unit(1), 1)


def test_open_or_create(tmp_path: Path) -> None:
    with open_or_create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="f") as gallery:
        assert gallery.features_key == "f"
    with open_or_create(tmp_path / "g", dim=DIM, embedding_id="e", features_key="other") as gallery:
        assert gallery.features_key == "f"  # an existing gallery stays as it is
    with open_or_create(tmp_path / "plain", dim=DIM, embedding_id="e") as gallery:
        assert gallery.features_key == ""
    with pytest.raises(GalleryError, match=r"Milvus keeps no features.*local gallery"):
        open_or_create(f"milvus+{tmp_path}/lite.db/name", dim=DIM, embedding_id="e", features_key="f")
