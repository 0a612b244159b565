"""Readers and a writer at the same time: every answer is of exactly one version."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from index.gallery import Gallery

from .vectors import unit

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
                version, _, (found,) = gallery.search_version(vectors[:1], 1)
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
