"""`index_catalogue` killed at any moment, and started again: nothing twice, nothing missing, little done again."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import threading
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing import pipeline as indexing
from retrieval.indexing import worker as batches
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.plan import SyncSettings

from ...gallery_contents import contents as photos_of
from ...world import make_bundle, write_folder

BATCH, THREADS, KILLS = 3, 2, 12
MOST = 2  # batches that a child stores before it waits to be killed: there are more than KILLS times that many


def _index(bundle: str, photos: str, gallery: str, log: str) -> None:
    """Index a few batches, and write down every photo that is embedded."""
    embed, numbers = batches.embed_batch, count()

    def noted(*arguments: object, **options: object) -> object:
        made = embed(*arguments, **options)
        with Path(log).open("a") as file:
            file.write("".join(f"{photo.photo_id}\n" for photo in made.photos))
        if made.photos and next(numbers) >= MOST:
            threading.Event().wait()  # to be killed
        return made

    indexing.embed_batch, indexing.WRITE_S = noted, 0.0  # write each batch at once
    index_catalogue(
        Bundle.open(bundle), read_catalogue(photos), gallery, threads=THREADS, batch_size=BATCH, progress=False
    )


def _sync(bundle: str, table: str, gallery: str, started: str) -> None:
    """Synchronize a gallery with a table, after saying so."""
    opened, photos = Bundle.open(bundle), read_catalogue(table)
    Path(started).touch()
    index_catalogue(opened, photos, gallery, batch_size=BATCH, progress=False, sync=SyncSettings(prune=True))


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


@pytest.mark.end_to_end
def test_killed_and_started_again_it_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    make_bundle(tmp_path)
    folder = write_folder(tmp_path / "photos", items=range(30), photos=range(4))
    (folder / "item-03" / "bad.jpg").write_bytes(b"no image")
    words = [str(tmp_path / name) for name in ("bundle", "photos", "gallery", "log")]
    context, generator = multiprocessing.get_context("spawn"), np.random.default_rng(0)
    for _ in range(KILLS):
        child = context.Process(target=_index, args=words)
        child.start()
        log = Path(words[3])
        before, until = size(log), time.monotonic() + 120
        try:
            while size(log) == before:
                assert child.is_alive()
                assert time.monotonic() < until
                time.sleep(0.005)
            time.sleep(float(generator.uniform(0, 0.1)))  # to any moment of what follows
        finally:
            child.kill()
            child.join()
        assert child.exitcode == -signal.SIGKILL
        if Path(words[2]).exists() and (Path(words[2]) / "gallery.sqlite").exists():
            with Gallery.open(words[2], read_only=True) as gallery:
                assert gallery.verify() == []
                assert len(gallery) % BATCH in (
                    0,
                    len(read_catalogue(folder)) % BATCH,
                    2,
                )  # the bad one's batch has two
    report = index_catalogue(Bundle.open(words[0]), read_catalogue(folder), words[2], batch_size=BATCH, progress=False)
    assert [photo_id for photo_id, _ in report.refused] == ["item-03/bad.jpg"]
    index_catalogue(Bundle.open(words[0]), read_catalogue(folder), tmp_path / "whole", progress=False)
    with Gallery.open(words[2]) as one, Gallery.open(tmp_path / "whole") as other:
        read = [photos_of(gallery) for gallery in (one, other)]
        mine, theirs = (dict(zip(ids, vectors.tolist(), strict=True)) for ids, _, vectors in read)
        assert mine == theirs
        assert sorted(one.values("_content_sha256")) == sorted(other.values("_content_sha256"))
    embedded = len(Path(words[3]).read_text().splitlines()) + report.added
    assert embedded <= 120 + KILLS * (THREADS + 2) * BATCH


@pytest.mark.slow
def test_a_killed_synchronization_ends_in_the_same_gallery_when_run_again(tmp_path: Path) -> None:
    bundle, folder = make_bundle(tmp_path), write_folder(tmp_path / "photos", items=range(12), photos=range(4))
    photos = read_catalogue(folder)
    index_catalogue(bundle, photos[:40], tmp_path / "before", progress=False)
    lines = ["path,photo_id,item_id,bbox,price"]
    for number, photo in enumerate(photos[4:], 4):  # the first four are gone, the last eight are new
        item = "other" if number % 5 == 0 else photo.item_id
        lines.append(f"{photo.path},{photo.photo_id},{item},{'0 0 30 30' if number % 7 == 0 else ''},{number}")
    table = tmp_path / "t.csv"
    table.write_text("\n".join(lines) + "\n")
    words = [str(tmp_path / name) for name in ("bundle", "t.csv", "gallery", "started")]

    shutil.copytree(tmp_path / "before", tmp_path / "whole")
    began = time.monotonic()
    _sync(words[0], words[1], str(tmp_path / "whole"), words[3])
    longest, expected = time.monotonic() - began, contents(tmp_path / "whole")
    assert len(expected) == 44

    context, generator = multiprocessing.get_context("spawn"), np.random.default_rng(1)
    for _ in range(KILLS):
        Path(words[3]).unlink()
        shutil.rmtree(words[2], ignore_errors=True)
        shutil.copytree(tmp_path / "before", words[2])
        child = context.Process(target=_sync, args=words)
        child.start()
        until = time.monotonic() + 120
        try:
            while not Path(words[3]).exists():
                assert child.is_alive()
                assert time.monotonic() < until
                time.sleep(0.002)
            child.join(float(generator.uniform(0, longest)))  # it is killed at any moment of its work
        finally:
            child.kill()
            child.join()
        with Gallery.open(words[2], read_only=True) as gallery:
            assert gallery.verify() == []
        _sync(*words)
        assert contents(Path(words[2])) == expected


def contents(place: Path) -> dict[str, tuple[str, dict[str, object], bytes, bytes | None]]:
    """Return item, metadata, vector and thumbnail of each photo of a gallery."""
    with Gallery.open(place, read_only=True) as gallery:
        vectors = dict(zip(photos_of(gallery)[0], photos_of(gallery)[2], strict=True))
        return {
            name: (item, facts, vectors[name].tobytes(), gallery.thumbnail(name))
            for name, item, facts in gallery.photos()
        }
