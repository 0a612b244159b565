"""Data is checked when a search first reads it: damage is an error and never a wrong answer."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from index import segments
from index.ann.kinds import KINDS
from index.database import Segment
from index.errors import GalleryCorrupt
from index.gallery import Gallery

from .vectors import DIM, filled, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")

COUNT = 600


def made(path: Path, kind: str) -> np.ndarray:
    """Write a gallery with an index of a kind, and one photo per item; return its vectors."""
    vectors = unit(COUNT, 1)
    with Gallery.create(path, dim=DIM, embedding_id="e") as gallery:
        gallery.add([f"p{i}" for i in range(COUNT)], [f"i{i}" for i in range(COUNT)], vectors)
        gallery.rebuild(kind=kind)
    return vectors


def only(path: Path, pattern: str) -> Path:
    (file,) = path.glob(pattern)
    return file


def overwrite(file: Path, place: int, data: bytes) -> None:
    """Write bytes at a place, counted from the end where it is negative."""
    whole = bytearray(file.read_bytes())
    start = place % len(whole)
    assert whole[start : start + len(data)] != data
    whole[start : start + len(data)] = data
    file.write_bytes(whole)


def change(path: Path, statement: str) -> None:
    """Change the database past the gallery."""
    with sqlite3.connect(path / "gallery.sqlite") as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_vector_does_not_hide_its_photo(tmp_path: Path, kind: str) -> None:
    """The photo that should be the answer is far away by its damaged vector, and another one would be answered."""
    vectors = made(tmp_path / "g", kind)
    overwrite(only(tmp_path / "g", "segments/*.npy"), -4 * DIM * (COUNT - 7), (-vectors[7]).tobytes())
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        with pytest.raises(GalleryCorrupt, match="has changed since it was written"):
            gallery.search(vectors[7:8], 1)
        assert "has changed since it was written" in gallery.damage[0]


@pytest.mark.parametrize("kind", ["flat", "fp16"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:128] + whole[128 : 128 + 4 * DIM] + whole[128:],
        lambda whole: whole[:128].replace(b"False", b"True ") + whole[128:],
        lambda whole: whole + bytes(4 * DIM),
    ],
    ids=["a surplus vector in front", "columns for rows", "a surplus vector behind"],
)
def test_vectors_that_are_elsewhere_than_their_header_says_are_damage(
    tmp_path: Path, kind: str, damage: Callable[[bytes], bytes]
) -> None:
    """Searches read the vectors from the header on, and checks read them from the end of the file."""
    vectors = made(tmp_path / "g", kind)
    for file in (tmp_path / "g").glob("segments/*.npy"):
        if len(file.read_bytes()) == 128 + 4 * DIM * COUNT:  # not the codes of an index
            file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(GalleryCorrupt, match="damaged header"), Gallery.open(tmp_path / "g") as gallery:
        gallery.search(vectors[7:8], 1)


@pytest.mark.parametrize("kind", ["flat", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("fp16", "ivf"))])
@pytest.mark.parametrize("what", ["seqs", "items", "checksums"])
def test_a_damaged_number_of_a_photo_is_an_error(tmp_path: Path, kind: str, what: str) -> None:
    """Photo 7 as a photo of item 8 would take its place."""
    vectors = made(tmp_path / "g", kind)
    place, size = {"checksums": (8 + 4 * COUNT, 4), "items": (8 + 8 * COUNT, 4), "seqs": (16 + 24 * COUNT, 8)}[what]
    file = only(tmp_path / "g", "segments/*.rows")
    overwrite(file, -place + 7 * size, (9).to_bytes(size, "little"))
    with Gallery.open(tmp_path / "g", read_only=True) as gallery, pytest.raises(GalleryCorrupt):
        gallery.search(vectors[8:9], 2)


def test_the_name_of_a_photo_is_checked_even_if_its_vector_was_not_read(tmp_path: Path) -> None:
    made(tmp_path / "g", "flat")
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        (segment,) = gallery.snapshot().segments
        file = only(tmp_path / "g", "segments/*.rows")
        overwrite(file, file.read_bytes().index(b'"p7"'), b'"p8"')
        opened = segments.open_segment(file.parent, gallery._database.segments()[0], dim=DIM)
        assert opened.photos(np.array([6]))[0][0] == segment.photos(np.array([6]))[0][0] == "p6"
        with pytest.raises(GalleryCorrupt, match="photo number 7 has changed since it was written"):
            opened.photos(np.array([7]))


def test_a_segment_without_photos_is_damaged() -> None:
    """None is ever written: a search for its first photo would end in an IndexError."""
    starts = bytes(8)
    raw = starts + (0).to_bytes(4, "little") + zlib.crc32(starts).to_bytes(4, "little")
    with pytest.raises(GalleryCorrupt, match="damaged description of its 0 photos"):
        segments._arrays(np.frombuffer(raw, np.uint8), Segment(1, "s", 0, 0, ""))


@pytest.mark.parametrize("kind", ["fp16", pytest.param("ivf", marks=pytest.mark.slow)])
@pytest.mark.parametrize("ending", [".faiss", ".npy"])
def test_a_damaged_index_is_an_error(tmp_path: Path, kind: str, ending: str) -> None:
    vectors = made(tmp_path / "g", kind)
    file = only(tmp_path / "g", f"indexes/*{ending}")
    overwrite(file, file.stat().st_size // 2, b"\x00\x01\x02\x03")
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        with pytest.raises(GalleryCorrupt, match="its sha256 differs"):
            gallery.search(vectors[:1], 1)
        assert "its sha256 differs" in gallery.damage[0]
        assert "sha256" in gallery.verify()[0]
    file.unlink()
    with Gallery.open(tmp_path / "g") as gallery:
        with pytest.raises(GalleryCorrupt, match="cannot be read"):
            gallery.search(vectors[:1], 1)
        gallery.rebuild(kind=kind)  # the remedy
        assert gallery.search(vectors[7:8], 1)[0][0].photo_id == "p7"
        assert gallery.verify() == []


def test_a_photo_is_read_once_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked data is not hashed again by the next search or the next version."""
    vectors, hashed = made(tmp_path / "g", "flat"), list[int]()
    crc32 = segments.zlib.crc32
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.search(vectors, 1)

        class Counting:
            @staticmethod
            def crc32(data: bytes, start: int = 0) -> int:
                hashed.append(len(data))
                return crc32(data, start)

        gallery.add(["new"], ["new"], unit(1, 9))
        monkeypatch.setattr(segments, "zlib", Counting)
        monkeypatch.setattr(
            segments.OpenSegment, "photos", lambda _, rows: [("p", "i", {})] * len(rows)
        )  # answers are checked each time
        gallery.search(vectors, 1)
    assert len([size for size in hashed if size == 4 * DIM]) <= 1  # the new photo's


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE removed SET seq = 8", "live photos"),  # photo 8 would be hidden, and photo 7 answered again
        ("UPDATE removed SET seq = 100000", "live photos"),
        ("UPDATE indexes SET settings = replace(settings, '0.0', '0.1')", "settings of the index"),
        ("UPDATE indexes SET settings = substr(settings, 5)", "not JSON"),
    ],
)
def test_a_damaged_page_of_the_database_is_an_error(tmp_path: Path, statement: str, words: str) -> None:
    vectors = made(tmp_path / "g", "fp16")
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.remove(photo_ids=["p7"])
        assert gallery.search(vectors[8:9], 1)[0][0].photo_id == "p8"
    change(tmp_path / "g", statement)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery, pytest.raises(GalleryCorrupt, match=words):
        gallery.search(vectors[8:9], 1)


def test_a_photo_that_passes_a_filter_by_damage_is_an_error(tmp_path: Path) -> None:
    vectors = unit(40)
    with Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e", columns={"brand": "text"}) as gallery:
        metadata = [{"brand": "ab"[i % 2], "note": "it's \u00fc"} for i in range(40)]
        gallery.add([f"p{i}" for i in range(40)], [f"i{i}" for i in range(40)], vectors, metadata=metadata)
    change(tmp_path / "g", "UPDATE photos SET metadata = json_set(metadata, '$.brand', 'a') WHERE photo_id = 'p3'")
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert (
            gallery.search(vectors[3:4], 1, where="brand = 'b'")[0][0].photo_id != "p3"
        )  # what a filter hides: verify
        with pytest.raises(GalleryCorrupt, match=r"the metadata of photo p3 in .* differs from its checksum"):
            gallery.search(vectors[3:4], 1, where="brand = 'a'")
        assert "p3" in gallery.damage[0]
        for _ in range(2):
            assert gallery.search(vectors[4:5], 1, where="brand = 'a' and not brand = 'b'")[0][0].photo_id == "p4"


def test_the_background_check_reads_the_database_too(tmp_path: Path) -> None:
    """An index of SQLite's that lost a photo hides it from a filter."""
    gallery = filled(tmp_path / "g", count=400)
    gallery.declare({"brand": "text"})
    gallery.close()
    change(tmp_path / "g", "UPDATE items SET photos = photos + 1 WHERE item_id = 'i3'")
    with Gallery.open(tmp_path / "g", read_only=True) as reader:
        reader.verify(rows=False)
        assert "items count other photos" in reader.damage[0]


def test_damage_that_a_search_met_stays_known(tmp_path: Path) -> None:
    vectors = made(tmp_path / "g", "fp16")
    overwrite(only(tmp_path / "g", "segments/*.npy"), -4, b"\x01\x02\x03\x04")
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert gallery.search(vectors[:1], 1)[0][0].photo_id == "p0"
        for _ in range(2):
            with pytest.raises(GalleryCorrupt):
                gallery.search(vectors[-1:], 1)
        assert len(gallery.damage) == 1
        gallery.verify(rows=False)
        assert len(gallery.damage) == 2


@pytest.mark.parametrize("word", ["photo", "item"])
def test_metadata_that_is_no_json_is_damage(tmp_path: Path, word: str) -> None:
    filled(tmp_path / "g").close()
    change(tmp_path / "g", "UPDATE photos SET metadata = '{' WHERE photo_id = 'p3'")
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        with pytest.raises(GalleryCorrupt, match="not JSON"):
            gallery.photo("p3") if word == "photo" else gallery.photos("i3")
        with pytest.raises(GalleryCorrupt, match="JSON"):
            gallery.values("brand")
