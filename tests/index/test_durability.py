from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from index import folder
from index.errors import GalleryBusy, GalleryCorrupt, GalleryError, GalleryLocked, RetrievalError
from index.gallery import Gallery
from index.segments import _arrays, encode_row
from index.upkeep.verify import _differing_rows

from ..gallery_contents import contents
from .vectors import DIM, features_of, filled, unit, with_features


@pytest.mark.parametrize("ending", [".npy", ".rows", ".features"])
@pytest.mark.parametrize("position", [0, 9, 200, -1])
def test_verify_finds_a_changed_byte_and_a_missing_file(tmp_path: Path, position: int, ending: str) -> None:
    (with_features if ending == ".features" else filled)(tmp_path / "g").close()
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


def test_a_gallery_that_is_removed_while_its_files_are_checked_is_told_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "g") as gallery:
        shutil.rmtree(tmp_path / "g")
        monkeypatch.setattr(Path, "exists", lambda path: path.name == "gallery.sqlite")  # it was there a moment ago
        assert gallery.verify(rows=False) == [f"{tmp_path}/g/gallery.sqlite is gone"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE photos SET seq = 99 WHERE photo_id = 'p3'", "photo number {} is not in the database"),
        ("UPDATE photos SET item = 99 WHERE photo_id = 'p3'", "photos have no item"),
        ("UPDATE photos SET photo_id = 'other' WHERE photo_id = 'p3'", "photo number {} differs"),
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
        ((number,),) = other.execute("SELECT seq FROM photos WHERE photo_id = 'p3'").fetchall()
        other.execute(damage)
    other.close()
    assert words.format(number) in gallery.verify()[0]


def test_a_row_that_fails_its_checksum_is_one_problem_beside_those_of_other_rows() -> None:
    rows = {seq: (f"p{seq}", f"i{seq}", "{}") for seq in (4, 5, 6)}
    texts = [encode_row(*facts) for facts in rows.values()]

    def texts_of(places: np.ndarray) -> list[bytes]:
        if places[0] == 1:
            raise GalleryCorrupt("row 1 is damaged")
        return [texts[place] for place in places]

    def stored(*_: object) -> list[tuple[int, str, str, str]]:
        return [(seq, *facts) for seq, facts in rows.items()]

    segment: Any = SimpleNamespace(seqs=np.array([4, 5, 6]), texts_of=texts_of)
    database: Any = SimpleNamespace(rows=stored)
    assert list(_differing_rows(segment, database, set())) == ["row 1 is damaged"]
    rows[6] = ("p6", "another", "{}")
    found = list(_differing_rows(segment, database, set()))
    assert found == ["row 1 is damaged", "photo number 6 differs from the database"]


def test_a_gallery_that_is_locked_is_not_changed_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "LOCK_S", 0.05)
    with filled(tmp_path / "g") as gallery, Gallery.open(tmp_path / "g") as other:
        before = gallery.version
        gallery.lock()
        with pytest.raises(GalleryLocked):
            other.remove(photo_ids=["p3"])
        with pytest.raises(GalleryLocked):
            other.lock()
        assert gallery.version == before
        gallery.close()
        other.lock()


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

    def full(*_: object, actor: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(gallery._database, "log", full)
    with pytest.raises(GalleryError, match="disk is full"):
        gallery.add(["new"], ["item"], unit(1))
    monkeypatch.undo()
    assert (len(gallery), gallery.version) == (40, version)
    gallery.close()
    with Gallery.open(tmp_path / "g") as again:
        again.add(["new"], ["item"], unit(1))  # the next writer clears the vectors that nothing names
        assert len(list((tmp_path / "g" / "segments").iterdir())) == 4


def _items_of(photos: dict[str, str], item: str) -> set[str]:
    return {photo for photo, its in photos.items() if its == item}


def _add(gallery: Gallery, names: list[str], item: str, seed: int, **more: Any) -> None:
    vectors = unit(len(names), seed)
    features = features_of(vectors) if gallery.features_key else None
    gallery.add(names, [item] * len(names), vectors, features=features, **more)


def _features_are_right(gallery: Gallery) -> bool:
    """Return whether each photo of a gallery with features has those that follow from its vector."""
    photos = [photo for some in gallery.walk(100, whole=True) for photo in some]
    return [photo.features for photo in photos] == features_of(np.array([photo.vector for photo in photos]))


def _change(gallery: Gallery, step: int, photos: dict[str, str]) -> dict[str, str]:
    """Do the change of a step, and return photo_id to item_id afterwards; it depends on nothing else."""
    after, item = dict(photos), f"i{step % 7}"
    if step % 5 in (0, 1):
        names = [f"s{step}-{i}" for i in range(5)]
        _add(gallery, names, item, step, thumbnails=[b"jpeg"] * 5)
        after |= dict.fromkeys(names, item)
    elif step % 5 == 2:
        names = [*sorted(photos)[:3], f"s{step}"]
        _add(gallery, names, item, step, upsert=True)
        after |= dict.fromkeys(names, item)
    elif step % 5 == 3:
        gone = _items_of(photos, item)
        gallery.remove(item_ids=[item])
        after = {photo: its for photo, its in photos.items() if photo not in gone}
    else:
        gallery.rebuild(kind=("flat", "fp16", "ivf")[step // 5 % 3])
    return after


def _write_for_ever(path: str, step: int, photos: dict[str, str], told: Connection) -> None:
    with Gallery.open(path) as gallery:
        while True:
            photos = _change(gallery, step, photos)
            told.send((step, photos))
            step += 1


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_killed_at_any_moment_every_change_is_whole_or_not_at_all(tmp_path: Path) -> None:
    """SIGKILL shows the order of writes; that the disk keeps them (fsync) a power cut alone could show.

    The gallery keeps features.
    """
    path, generator = tmp_path / "g", np.random.default_rng(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["index.gallery", "faiss"])
    Gallery.create(path, dim=DIM, embedding_id="e", features_key="f").close()
    step, photos, undone = 0, dict[str, str](), 0
    for number in range(200):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_write_for_ever, args=(str(path), step, photos, sender))
        child.start()
        sender.close()
        step, photos = receiver.recv()  # it writes
        time.sleep(float(generator.uniform(0, 0.06)))
        if number % 10 == 0:
            with pytest.raises(GalleryLocked), Gallery.open(path) as second:
                second.remove(photo_ids=["nobody"])
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        try:
            while receiver.poll():
                step, photos = receiver.recv()
        except EOFError:
            pass
        receiver.close()
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)  # opening repairs: look at it once without a writer, once with
        with Gallery.open(copy, read_only=True) as reader, Gallery.open(path) as writer:
            for gallery in (reader, writer) if number % 10 == 0 else (writer,):
                assert gallery.verify() == []
            assert _features_are_right(reader)
            held = dict(zip(*contents(reader)[:2], strict=True))
            step += 1
            if held == photos and step % 5 != 4:  # the change under way was lost: do it now
                undone += 1
                photos = _change(writer, step, photos)
            else:  # it was made, all of it
                with Gallery.create(tmp_path / "imagined", dim=DIM, embedding_id="e") as imagined:
                    for item in sorted(set(photos.values())):
                        names = sorted(_items_of(photos, item))
                        imagined.add(names, [item] * len(names), unit(len(names)))
                    photos = _change(imagined, step, photos)
                shutil.rmtree(tmp_path / "imagined")
            assert dict(zip(*contents(writer)[:2], strict=True)) == photos
            assert writer.items == len(set(photos.values()))
            _add(writer, ["after"], "after", 3)  # the next writer clears what was left behind
            assert writer.search(unit(1, 3), 1)[0][0].distance == 0.0
            writer.remove(photo_ids=["after"])
            named = {segment.name for segment in writer._database.segments()}
            assert {file.stem for file in (path / "segments").iterdir()} == named
        shutil.rmtree(copy)
        step += 1
    assert 0 < undone < 200


class _Failing:
    """Lets a number of calls of functions pass, and fails from then on as a full disk does."""

    def __init__(self, passing: int) -> None:
        self.passing = passing
        self.failed = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.passing -= 1
            if self.passing < 0:
                self.failed = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **named)

        return call


@pytest.mark.parametrize("features_key", [pytest.param("", marks=pytest.mark.slow), "f"], ids=["plain", "features"])
@pytest.mark.parametrize("what", ["fsync", "replace", "open"])
def test_a_failing_disk_ends_in_a_clear_error_and_an_intact_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, features_key: str
) -> None:
    """Every write, sync and rename of five changes fails in turn."""
    failures, messages = 0, set[str]()
    before: dict[str, str] = {}
    with Gallery.create(tmp_path / "before", dim=DIM, embedding_id="e", features_key=features_key) as gallery:
        for step in range(5):
            before = _change(gallery, step, before)
    for passing in range(100):
        path, photos = tmp_path / f"g{passing}", before
        shutil.copytree(tmp_path / "before", path)
        gallery, disk = Gallery.open(path), _Failing(passing)
        with monkeypatch.context() as patch:
            if what == "fsync":
                patch.setattr(os, "fsync", disk.wrap(os.fsync))
            else:
                patch.setattr(Path, what, disk.wrap(getattr(Path, what)))
            for step in range(5, 10):
                try:
                    photos = _change(gallery, step, photos)
                except GalleryError as error:
                    messages.add(error.message)
                    break
        failures += disk.failed
        gallery.close()
        with Gallery.open(path) as again:
            assert dict(zip(*contents(again)[:2], strict=True)) == photos
            assert again.verify() == []
            assert not features_key or _features_are_right(again)
            _add(again, ["after"], "after", 3)
        shutil.rmtree(path)
        if not disk.failed:
            break
    assert failures >= 5
    assert failures == passing
    assert all("No space left on device; nothing was changed" in message for message in messages)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk, in a process of its own."""
    code = f"""
import resource, signal
import numpy as np
from index.errors import GalleryError
from index.gallery import Gallery
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
gallery = Gallery.create({str(tmp_path / "g")!r}, dim=64, embedding_id="e")
vectors = np.tile(np.eye(1, 64), (2000, 1))
gallery.add([f"a{{i}}" for i in range(100)], ["x"] * 100, vectors[:100])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    gallery.add([f"b{{i}}" for i in range(2000)], ["y"] * 2000, vectors)
except GalleryError as error:
    print(error.message)
print(len(gallery), gallery.items)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "nothing was changed" in lines[0] or "cannot be used" in lines[0]
    assert lines[1] == "100 1"
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.verify() == []
        assert len(gallery) == 100


def test_every_byte_of_the_description_of_a_segment_is_checked(tmp_path: Path) -> None:
    with filled(tmp_path / "g") as gallery:
        (segment,) = gallery._database.segments()
    (file,) = (tmp_path / "g").rglob("*.rows")
    raw = np.frombuffer(file.read_bytes(), np.uint8)
    arrays = _arrays(raw, segment)
    assert arrays["seqs"].tolist() == list(range(40))
    text = len(arrays["text"])
    for place in [*range(text, len(raw), 7), *range(len(raw) - 8, len(raw))]:
        damaged = raw.copy()
        damaged[place] ^= 1
        with pytest.raises(GalleryCorrupt, match="damaged description of its 40 photos"):
            _arrays(damaged, segment)
    for wrong in (raw[8:], raw[:-8], raw[-8:], replace(segment, first=1), replace(segment, rows=39)):
        with pytest.raises(GalleryCorrupt, match="damaged description"):
            _arrays(*((wrong, segment) if isinstance(wrong, np.ndarray) else (raw, wrong)))


def test_a_lack_of_open_files_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "g").close()

    def exhausted(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        for name in ("index.upkeep.verify.sha256", "index.segments.load_array"):
            with monkeypatch.context() as patch:
                patch.setattr(name, exhausted)
                with pytest.raises(GalleryBusy, match="cannot be opened now: Too many open files"):
                    gallery.verify(rows=False) if name.endswith("sha256") else gallery.search(unit(1), 1)
        assert gallery.damage == []
        assert gallery.verify(rows=False) == []


def test_a_closed_gallery_takes_no_write_lock(tmp_path: Path) -> None:
    closed = filled(tmp_path / "g")
    closed.close()
    with pytest.raises(GalleryError, match="is closed"):
        closed.remove(photo_ids=["p1"])
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.remove(photo_ids=["p1"]) == 1
