"""Photos are read together and ahead, as the number of reads in progress shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue import reading
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.reading import READERS, ReadBatch, in_order, read_ahead
from retrieval.errors import ImageUnreadable
from retrieval.indexing.pipeline import index_catalogue

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class SlowPhoto(Photo):
    """A photo whose reading waits for something."""

    wait: Callable[[str], object] = str

    def read(self) -> bytes:
        self.wait(self.photo_id)
        return self.path.read_bytes() if self.path.name else self.photo_id.encode()


def slow(count: int, wait: Callable[[str], object]) -> list[Photo]:
    return [SlowPhoto(f"{number}", Path(), "item", wait=wait) for number in range(count)]


def test_many_photos_are_read_at_the_same_time() -> None:
    together = threading.Barrier(READERS, timeout=PATIENCE_S)
    batches = list(read_ahead(slow(READERS, lambda _: together.wait()), size=8))
    assert [list(batch.contents()) for batch in batches] == [
        [f"{number}".encode() for number in range(start, start + 8)] for start in range(0, READERS, 8)
    ]


def test_the_next_batches_are_read_while_one_is_decoded() -> None:
    begun = threading.Event()  # when photo 4 is being read

    def decode(batch: ReadBatch) -> list[bytes | object]:
        if batch.photos[0].photo_id == "0":
            assert begun.wait(PATIENCE_S)
        return list(batch.contents())

    photos = slow(12, lambda name: begun.set() if name == "4" else None)
    found = list(in_order(decode, read_ahead(photos, size=2), threads=1))
    assert found == [[f"{first}".encode(), f"{first + 1}".encode()] for first in range(0, 12, 2)]


def test_no_more_is_read_than_the_batches_that_wait() -> None:
    read: list[str] = []
    decoded = threading.Event()

    def decode(batch: ReadBatch) -> int:
        assert decoded.wait(PATIENCE_S)
        return len(list(batch.contents()))

    photos = slow(100, read.append)
    results = in_order(decode, read_ahead(photos, size=2), threads=1)
    threading.Timer(0.2, decoded.set).start()
    assert next(results) == 2
    assert len(read) <= 8  # three batches are in progress, and a fourth one is taken for the first result
    assert sum(results) == 98


def test_no_photo_is_read_ahead_while_many_bytes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(reading, "READERS", 1)
    monkeypatch.setattr(reading, "HELD", 2)
    begun = threading.Event()
    photos = slow(6, lambda name: (begun.wait(PATIENCE_S), read.append(name)))
    first, second, third = read_ahead(photos, size=2)
    begun.set()
    for waiting in (*first._reads, *second._reads, *third._reads):
        assert isinstance(waiting, Future)
        waiting.result(PATIENCE_S)
    assert read == ["0", "1"]
    assert [list(batch.contents()) for batch in (first, second, third)] == [[b"0", b"1"], [b"2", b"3"], [b"4", b"5"]]
    assert read == ["0", "1", "2", "3", "4", "5"]
    assert first._held.size == 0


def test_indexing_reads_ahead(world: Path, tmp_path: Path) -> None:
    begun = threading.Event()

    def wait(name: str) -> None:
        if name == names[4]:
            begun.set()
        elif name == names[0]:
            assert begun.wait(PATIENCE_S)

    whole = read_catalogue(world / "photos")[:6]
    names = [photo.photo_id for photo in whole]
    photos = [SlowPhoto(photo.photo_id, photo.path, photo.item_id, wait=wait) for photo in whole]
    bundle = Bundle.open(world / "bundle")
    report = index_catalogue(bundle, photos, tmp_path / "g", threads=1, batch_size=2, progress=False)
    assert report.added == 6
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert [name for name, _, _ in gallery.photos()] == names


def test_a_photo_that_cannot_be_read_gives_its_reason(tmp_path: Path) -> None:
    photo = Photo("a", tmp_path / "none.jpg", "item")
    (found,) = next(read_ahead([photo], size=1)).contents()
    assert isinstance(found, ImageUnreadable)
    assert "none.jpg" in found.message
