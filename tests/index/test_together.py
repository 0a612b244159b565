"""Readers and a writer at the same time: every answer is of exactly one version."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from index.errors import GalleryError
from index.gallery import Gallery

from .vectors import filled, unit

READERS = 8
VERSIONS = int(os.environ.get("RETRIEVAL_VERSIONS", "12"))  # that the readers must have seen
PATIENCE = 30.0 * VERSIONS  # seconds; only a deadlock takes as long


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_no_answer_mixes_two_versions(tmp_path: Path, kind: str) -> None:
    vectors = unit(300, 5)
    writer = Gallery.create(tmp_path / "g", dim=vectors.shape[1], embedding_id="e")
    writer.add([f"p{i}" for i in range(300)], [f"i{i}" for i in range(300)], vectors)
    owners, answers, done = {writer.version: "i0"}, list[tuple[int, str, int]](), threading.Event()
    seen: set[int] = set()

    def read() -> None:
        with Gallery.open(tmp_path / "g", read_only=True) as gallery:
            while not done.is_set():
                version, _, (found,), _ = gallery.search_version(vectors[:1], 1)
                answers.append((version, found[0].item_id, found[0].photo_id == "p0"))
                seen.add(version)

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    end, number = time.monotonic() + PATIENCE, 0
    while len(seen) < VERSIONS and time.monotonic() < end:  # as long as it takes on this machine
        number += 1
        owner = f"owner-{number}"
        writer.add(["p0"], [owner], vectors[:1], upsert=True)
        owners[writer.version] = owner
        if number % 5 == 0:
            writer.rebuild(kind=kind, threads=1)
            owners[writer.version] = owner
        time.sleep(0.02)
    done.set()
    for reader in readers:
        reader.join()
    writer.close()
    assert len(seen) >= VERSIONS  # the readers followed
    assert all(owners[version] == item and own for version, item, own in answers)


CLOSED_DURING_SEARCHES = """
import sys, threading, time
from pathlib import Path
from index.errors import GalleryError
from index.gallery import Gallery

def ask():
    try:
        while True:
            asked.append(now.positions(["p0"] * 500))
    except GalleryError as error:
        told.append(error.message)

for _ in range(20):
    gallery, asked, told = Gallery.open(Path(sys.argv[1]), read_only=True), [], []
    now, threads = gallery.snapshot(), [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(asked) < 3:
        time.sleep(0.001)
    gallery.close()
    for thread in threads:
        thread.join()
    assert len(told) == 3 and all(message.endswith("is closed") for message in told), told
"""


def test_a_gallery_that_is_closed_during_queries_of_other_threads_says_so(tmp_path: Path) -> None:
    filled(tmp_path / "g").close()
    command = [sys.executable, "-c", CLOSED_DURING_SEARCHES, tmp_path / "g"]
    made = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (made.returncode, made.stderr) == (0, "")  # SQLite may end the process


def test_a_version_answers_for_itself_after_later_changes(tmp_path: Path) -> None:
    gallery, vectors = filled(tmp_path / "g", 12, 4), unit(12)
    gallery.add(["last"], ["late"], unit(1, 5))
    before = gallery.snapshot()
    positions, late = before.positions(["p3", "last", "new"]), gallery.snapshot().item_numbers(["late"])
    gallery.update(["p3"], ["i3"], [{"price": 5}])
    gallery.remove(photo_ids=["last"])
    gallery.add(["new"], ["other"], vectors[:1])  # its item gets the number of the item that is gone
    assert [*gallery.snapshot().item_numbers(["other"]).values()] == [*late.values()]
    assert before.positions(["p3", "last", "new"]).tolist() == positions.tolist()
    assert before.item_numbers(["i2", "late", "other"]).keys() == {"i2", "late"}
    (found,) = gallery.snapshot().positions(["p3"]).tolist()
    assert found not in positions.tolist()


def test_a_change_that_is_rolled_back_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gallery = filled(tmp_path / "g", 12, 4)
    now, seen, inside, go = gallery.snapshot(), [], threading.Event(), threading.Event()

    def log(*_: object, **__: object) -> None:
        inside.set()
        go.wait(PATIENCE)
        raise GalleryError("the change fails")

    def remove() -> None:
        with pytest.raises(GalleryError, match="the change fails"):
            gallery.remove(item_ids=["i1"])

    def ask() -> None:
        seen.append((now.item_numbers(["i1"]), now.positions(["p1"])))

    monkeypatch.setattr(gallery._database, "log", log)
    removing, asking = threading.Thread(target=remove), threading.Thread(target=ask)
    removing.start()
    inside.wait(PATIENCE)
    asking.start()
    asking.join(0.2)  # the change is under way: it waits
    go.set()
    removing.join()
    asking.join()
    ((numbers, positions),) = seen
    assert list(numbers) == ["i1"]
    assert now.photo(int(positions[0]))[0] == "p1"
    assert gallery.snapshot() is now
    assert gallery.snapshot().item_numbers(["i1"]) == numbers
