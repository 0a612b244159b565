from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryCorrupt, GalleryError, GalleryLocked, RetrievalError
from index.gallery import Gallery

from .vectors import DIM, filled, unit


def test_the_database_is_durable(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    assert gallery._store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert gallery._store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    with sqlite3.connect(tmp_path / "g" / "gallery.sqlite") as other:
        assert other.execute("SELECT count(*) FROM photos").fetchone() == (40,)
    other.close()


@pytest.mark.parametrize("ending", [".npy", ".rows"])
@pytest.mark.parametrize("position", [0, 9, 200, -1])
def test_verify_finds_a_changed_byte_and_a_missing_file(tmp_path: Path, position: int, ending: str) -> None:
    filled(tmp_path / "g").close()
    segment = next(file for file in (tmp_path / "g" / "segments").iterdir() if file.suffix == ending)
    data = bytearray(segment.read_bytes())
    data[position] ^= 1
    segment.write_bytes(data)
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        assert "sha256" in gallery.verify()[0]
        segment.unlink()
        assert "missing" in gallery.verify()[0]
        with pytest.raises(GalleryCorrupt, match="cannot be read"):
            gallery.search(unit(1), 1)


def test_a_damaged_database_is_an_error_of_ours(tmp_path: Path) -> None:
    """Noise anywhere: opening, verifying and searching work, or raise GalleryError; SQLite's own never passes."""
    filled(tmp_path / "g", count=3000).close()
    database = tmp_path / "g" / "gallery.sqlite"
    good, generator, found = database.read_bytes(), np.random.default_rng(0), 0
    for _ in range(60):
        data = bytearray(good)
        start = int(generator.integers(len(data) - 64))
        data[start : start + 64] = generator.bytes(64)
        database.write_bytes(data)
        for suffix in ("-wal", "-shm"):
            (tmp_path / "g" / f"gallery.sqlite{suffix}").unlink(missing_ok=True)
        try:
            with Gallery.open(tmp_path / "g", read_only=True) as gallery:
                found += bool(gallery.verify())
                gallery.search(unit(1), 3)
        except RetrievalError:
            found += 1
    assert found > 10


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE photos SET seq = 99 WHERE photo_id = 'p3'", "photo number 3 is not in the database"),
        ("UPDATE photos SET item = 99 WHERE photo_id = 'p3'", "photos have no item"),
        ("UPDATE photos SET photo_id = 'other' WHERE photo_id = 'p3'", "photo number 3 is another one"),
        ("UPDATE items SET photos = 9 WHERE item_id = 'i3'", "items count other photos"),
        ("DELETE FROM items WHERE item_id = 'i3'", "photos have no item"),
        ("UPDATE facts SET value = 7 WHERE key = 'photos'", "the facts say 7"),
        ("UPDATE photos SET metadata = '{' WHERE photo_id = 'p3'", "not JSON"),
        ("INSERT INTO thumbnails VALUES ('nobody', 'jpeg')", "thumbnails have no photo"),
    ],
)
def test_verify_finds_rows_that_make_no_sense(tmp_path: Path, damage: str, words: str) -> None:
    gallery = filled(tmp_path / "g")
    with sqlite3.connect(tmp_path / "g" / "gallery.sqlite") as other:
        other.execute(damage)
    other.close()
    assert words in gallery.verify()[0]


def test_an_interrupted_create_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "g" / "segments").mkdir(parents=True)
    (tmp_path / "g" / "gallery.sqlite.partial").write_bytes(b"half")
    with pytest.raises(GalleryError, match="not a gallery"):
        Gallery.open(tmp_path / "g")
    filled(tmp_path / "g").close()
    (tmp_path / "g" / "gallery.sqlite").unlink()  # vectors without a database are not thrown away
    with pytest.raises(GalleryError, match="not empty"):
        Gallery.create(tmp_path / "g", dim=DIM, embedding_id="e")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GalleryError, match="not empty"):
        Gallery.create(tmp_path / "file", dim=DIM, embedding_id="e")


def test_a_failed_commit_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = filled(tmp_path / "g")
    version = gallery.version

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(gallery._store, "log", full)
    with pytest.raises(GalleryError, match="disk is full"):
        gallery.add(["new"], ["item"], unit(1))
    monkeypatch.undo()
    assert (len(gallery), gallery.version) == (40, version)
    gallery.close()
    with Gallery.open(tmp_path / "g") as again:
        again.add(["new"], ["item"], unit(1))  # the next writer clears the vectors that nothing names
        assert len(list((tmp_path / "g" / "segments").iterdir())) == 4


def _write_for_ever(path: str, acknowledge: Connection) -> None:
    gallery = Gallery.open(path)
    batch = 0
    while True:
        names = [f"b{os.getpid()}-{batch}-{i}" for i in range(5)]
        gallery.add(names, names, unit(5, batch), thumbnails=[b"jpeg"] * 5)
        acknowledge.send(names[0])
        if batch % 3 == 2:
            gallery.merge()
        batch += 1


@pytest.mark.slow
def test_killed_at_any_moment_it_keeps_what_was_acknowledged_and_whole_batches(tmp_path: Path) -> None:
    """SIGKILL shows the order of writes; that the disk keeps them (fsync) a power cut alone could show."""
    path = tmp_path / "g"
    filled(path).close()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["index.gallery", "faiss"])
    generator = np.random.default_rng(0)
    acknowledged: set[str] = set()
    for _ in range(20):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_write_for_ever, args=(str(path), sender))
        child.start()
        sender.close()
        acknowledged.add(receiver.recv())  # it writes
        time.sleep(float(generator.uniform(0, 0.1)))
        with pytest.raises(GalleryLocked), Gallery.open(path) as second:
            second.remove(photo_ids=["p0"])
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        try:
            while receiver.poll():
                acknowledged.add(receiver.recv())
        except EOFError:
            pass
        receiver.close()
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)  # opening repairs: look at it once without a writer, once with
        with Gallery.open(copy, read_only=True) as reader, Gallery.open(path) as writer:
            for gallery in (reader, writer):
                assert gallery.verify() == []
                names = gallery.photo_ids()
                assert acknowledged | {f"p{i}" for i in range(40)} <= names
                batches = {name.rsplit("-", 1)[0] for name in names if name.startswith("b")}
                assert len(names) == 40 + 5 * len(batches)
                assert [n.distance for n in gallery.search(unit(1), 1)[0]] == [0.0]
            writer.add(["after"], ["after"], unit(1, 3))  # the next writer clears what was left behind
            writer.remove(photo_ids=["after"])
            named = {segment.name for segment in writer._store.segments()}
            assert {file.stem for file in (path / "segments").iterdir()} == named
        shutil.rmtree(copy)
    assert len(acknowledged) >= 20
