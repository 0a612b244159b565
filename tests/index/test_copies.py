"""Backups and restored galleries: whole, of one version, verified, and nothing half-written under the final name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from index.database import POINT
from index.errors import DataError, GalleryCorrupt, GalleryError, InvalidParameter
from index.gallery import Gallery
from index.location import open_gallery
from index.upkeep import transfer
from index.upkeep.transfer import copy_gallery, export_gallery, open_backup
from retrieval.galleries.kept import Kept

from ..gallery_contents import contents
from .vectors import DIM, filled, unit, with_features

KEPT = {POINT: b"point", "labelled queries": bytes(range(256)), Kept.DRAWS: b"draws"}


def files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder that a gallery consists of, without the database and its locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def restored(backup: Path, place: Path | str) -> int:
    with open_backup(backup, beside=None) as opened:
        return copy_gallery(opened, place, (POINT, "labelled queries"))


@pytest.mark.usefixtures("few_own_queries")
def test_a_backup_is_a_gallery_and_its_restored_copy_is_the_original_to_the_last_bit(tmp_path: Path) -> None:
    with with_features(tmp_path / "g", count=300) as gallery:
        gallery.rebuild(kind="fp16")
        gallery.remove(photo_ids=["p3"])
        gallery.add(["new"], ["i1"], unit(1, 9), features=[b"f"], thumbnails=[b"jpeg"], metadata=[{"price": 3}])
        gallery.declare({"price": "number"})
        gallery.keep(KEPT, "calibrate")
        assert export_gallery(gallery, tmp_path / "backup") == 300
        assert restored(tmp_path / "backup", tmp_path / "shop" / "restored") == 300
        for place in (tmp_path / "backup", tmp_path / "shop" / "restored"):
            assert files(place) == files(tmp_path / "g")
            with Gallery.open(place) as copy:
                assert copy.verify() == []
                assert (copy.version, copy.index(), copy.changes()) == (
                    gallery.version,
                    gallery.index(),
                    gallery.changes(),
                )
                assert {name: copy.kept(name) for name in KEPT} == KEPT
                assert copy.search(unit(5, 1), 3, where="price = 3") == gallery.search(unit(5, 1), 3, where="price = 3")
                assert copy.snapshot().seqs.tolist() == gallery.snapshot().seqs.tolist()
                assert copy.thumbnail("new") == b"jpeg"
                copy.add(["later"], ["i"], unit(1), features=[b"f"])
        assert len(gallery) == 300  # a copy shares nothing with the original


def test_a_backup_survives_damage_and_deletion_of_the_original(tmp_path: Path) -> None:
    gallery = filled(tmp_path / "g")
    export_gallery(gallery, tmp_path / "backup")
    gallery.close()
    for path in (tmp_path / "g" / "segments").iterdir():
        path.write_bytes(bytes(path.stat().st_size))  # in place
    with Gallery.open(tmp_path / "backup") as copy:
        assert copy.verify() == []
    shutil.rmtree(tmp_path / "g")
    with Gallery.open(tmp_path / "backup") as copy:
        assert (len(copy), copy.verify()) == (40, [])


def test_a_backup_is_of_one_version_while_another_connection_adds_removes_and_rebuilds(tmp_path: Path) -> None:
    """One photo moves to another item, with another vector, in each version."""
    filled(tmp_path / "g").close()
    done = threading.Event()

    def write() -> None:
        with Gallery.open(tmp_path / "g") as gallery:
            number = 0
            while not done.is_set():
                gallery.add(["moving"], [f"m{number}"], unit(1, number), upsert=True)
                number += 1
                if number % 7 == 0:
                    gallery.rebuild(kind="fp16")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        versions = set()
        with Gallery.open(tmp_path / "g", read_only=True) as gallery:
            while gallery.photo("moving") is None:
                time.sleep(0.01)
            for number in range(15):
                assert export_gallery(gallery, tmp_path / f"b{number}") == 41
                with Gallery.open(tmp_path / f"b{number}") as copy:
                    assert copy.verify() == []
                    ids, items, vectors = contents(copy)
                    (item,) = [item for photo, item in zip(ids, items, strict=True) if photo == "moving"]
                    assert np.array_equal(vectors[list(ids).index("moving")], unit(1, int(item[1:]))[0])
                    versions.add(copy.version)
    finally:
        done.set()
        writer.join()
    assert len(versions) > 1


def test_a_file_that_a_rebuild_removes_before_it_is_open_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, listed = filled(tmp_path / "g"), transfer.files_in_use

    def overtaken(path: Path, database: object) -> list[object]:
        monkeypatch.setattr(transfer, "files_in_use", listed)
        found = list(listed(path, database))
        gallery.remove(photo_ids=["p0"])
        gallery.rebuild()
        return found

    monkeypatch.setattr(transfer, "files_in_use", overtaken)
    assert export_gallery(gallery, tmp_path / "backup") == 39
    with Gallery.open(tmp_path / "backup") as copy:
        assert copy.verify() == []


@pytest.mark.parametrize("ending", [".npy", ".rows", ".features"])
@pytest.mark.parametrize("damage", ["a bit", "gone"])
def test_a_damaged_gallery_is_neither_backed_up_nor_restored(tmp_path: Path, ending: str, damage: str) -> None:
    with with_features(tmp_path / "g") as gallery:
        export_gallery(gallery, tmp_path / "backup")
    for place in (tmp_path / "g", tmp_path / "backup"):
        (file,) = (place / "segments").glob(f"*{ending}")
        if damage == "gone":
            file.unlink()
        else:
            content = bytearray(file.read_bytes())
            content[-9] ^= 1
            file.write_bytes(content)
        with Gallery.open(place, read_only=True) as source:
            with pytest.raises(GalleryCorrupt, match="sha256" if damage == "a bit" else "missing") as caught:
                copy_gallery(source, tmp_path / "new")
            assert str(place) in caught.value.message
    assert {path.name for path in tmp_path.iterdir()} == {"g", "backup"}


KILLED = """
import os, signal, sys, time
from pathlib import Path
from index.gallery import Gallery
from index.upkeep.transfer import export_gallery
with Gallery.open(sys.argv[1], read_only=True) as gallery:
    print("ready", flush=True)
    for number in range(10_000):
        export_gallery(gallery, Path(sys.argv[2]) / str(number))
"""


@pytest.mark.end_to_end
def test_a_kill_during_a_backup_leaves_nothing_half_under_its_final_name(tmp_path: Path) -> None:
    with with_features(tmp_path / "g", count=2000) as gallery:
        gallery.rebuild(kind="fp16")
        expected = files(tmp_path / "g")
    generator, interrupted = np.random.default_rng(0), 0
    for number in range(12):
        out = tmp_path / str(number)
        out.mkdir()
        child = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "g", out], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        time.sleep(float(generator.uniform(0, 0.3)))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        for place in out.iterdir():
            if place.name.startswith("."):  # the folder that was worked in
                interrupted += 1
                continue
            assert files(place) == expected
            with Gallery.open(place) as copy:
                assert (len(copy), copy.verify()) == (2000, [])
        with Gallery.open(tmp_path / "g", read_only=True) as gallery:
            for name in {place.name.split(".")[1] for place in out.iterdir() if place.name.startswith(".")}:
                shutil.rmtree(out / name, ignore_errors=True)  # if the kill came after it had its name
                export_gallery(gallery, out / name)  # the next one of this name deletes what was left
        assert not [place for place in out.iterdir() if place.name.startswith(".")]
        shutil.rmtree(out)
    assert interrupted > 3


def test_photos_are_added_to_an_existing_gallery_which_keeps_its_own_contents(tmp_path: Path) -> None:
    with with_features(tmp_path / "g") as gallery, with_features(tmp_path / "other", count=3) as other:
        gallery.remove(photo_ids=["p3"])
        gallery.keep(KEPT, "calibrate")
        other.keep({POINT: b"own"}, "calibrate")
        other.close()
        for _ in range(2):  # again changes nothing
            assert copy_gallery(gallery, tmp_path / "other", tuple(KEPT)) == 39
            with Gallery.open(tmp_path / "other") as copy:
                assert (len(copy), copy.kept(POINT), copy.kept(Kept.DRAWS)) == (39, b"own", None)
                assert copy.verify() == []
        filled(tmp_path / "plain").close()
        with pytest.raises(GalleryError, match="vectors or features of another model"):
            copy_gallery(gallery, tmp_path / "plain")


def test_what_only_the_other_gallery_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "BATCH", 10)
    with filled(tmp_path / "g") as gallery, filled(tmp_path / "other", count=3) as other:
        gallery.add(["last"], ["i"], unit(1), metadata=[{"brand": 3}])
        other.declare({"brand": "text"})
        version = other.version
        other.close()
        with pytest.raises(InvalidParameter, match="brand must be a text"):
            copy_gallery(gallery, tmp_path / "other")
    with Gallery.open(tmp_path / "other", read_only=True) as other:
        assert (other.version, len(other)) == (version, 3)


@pytest.mark.filterwarnings("ignore")  # pymilvus warns of its own dependencies
def test_a_gallery_moves_to_milvus_and_back(tmp_path: Path, address: str) -> None:
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    with filled(tmp_path / "g") as gallery:
        gallery.add(["new"], ["i1"], unit(1, 9), thumbnails=[b"jpeg"], metadata=[{"price": 3}])
        gallery.declare({"price": "number"})
        gallery.keep(KEPT, "calibrate")
        export_gallery(gallery, tmp_path / "backup")
        expected = sorted(zip(*map(list, contents(gallery)[:2]), strict=True))
    assert restored(tmp_path / "backup", address) == 41
    with open_gallery(address) as cluster:
        assert export_gallery(cluster, tmp_path / "back", (POINT, "labelled queries")) == 41
    with Gallery.open(tmp_path / "back") as back:
        assert back.verify() == []
        assert sorted(zip(*map(list, contents(back)[:2]), strict=True)) == expected
        assert (back.columns(), back.thumbnail("new")) == ({"price": "number"}, b"jpeg")
        assert {name: back.kept(name) for name in KEPT} == {**KEPT, Kept.DRAWS: None}
        assert back.dim == DIM


def test_what_is_no_backup_or_no_place_for_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for name, told in {"folder": "not an exported", "file": "not an exported", "none": "does not exist"}.items():
        with pytest.raises(DataError, match=told):
            restored(tmp_path / name, tmp_path / "new")
    with filled(tmp_path / "g") as gallery:
        with pytest.raises(InvalidParameter, match=r"name a new folder.*Backups are folders since"):
            export_gallery(gallery, tmp_path / "g.parquet")
        with pytest.raises(GalleryError, match="cannot be written"):
            export_gallery(gallery, tmp_path / "file" / "backup")
        for name in ("folder", "file"):
            with pytest.raises(GalleryError, match="exists"):
                export_gallery(gallery, tmp_path / name)
        (tmp_path / "folder" / "note").write_text("x")
        with pytest.raises(GalleryError, match="not empty"):
            copy_gallery(gallery, tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "g"}
