"""`index_catalogue` killed at any moment, and started again: nothing twice, nothing missing, little done again."""

from __future__ import annotations

import multiprocessing
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

from ...world import make_bundle, write_folder

BATCH, THREADS, KILLS = 3, 2, 12
MOST = 2  # batches that a child stores before it waits to be killed: there are more than KILLS times that many


def _index(bundle: str, photos: str, gallery: str, log: str) -> None:
    """Index a few batches, and write down every photo that is embedded."""
    embed, numbers = batches.embed_batch, count()

    def noted(*arguments: object) -> object:
        made = embed(*arguments)
        with Path(log).open("a") as file:
            file.write("".join(f"{photo.photo_id}\n" for photo in made.photos))
        if made.photos and next(numbers) >= MOST:
            threading.Event().wait()  # to be killed
        return made

    indexing.embed_batch = noted
    index_catalogue(
        Bundle.open(bundle), read_catalogue(photos), gallery, threads=THREADS, batch_size=BATCH, progress=False
    )


def size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


@pytest.mark.slow
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
        mine, theirs = (dict(zip(g.contents()[0], g.contents()[2].tolist(), strict=True)) for g in (one, other))
        assert mine == theirs
        assert one.values("_content_sha256") == other.values("_content_sha256")
    embedded = len(Path(words[3]).read_text().splitlines()) + report.added
    assert embedded <= 120 + KILLS * (THREADS + 2) * BATCH
