"""A Milvus server that is killed, hangs and comes back, and processes that are killed as they write to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryUnavailable
from index.milvus.client import Access
from index.milvus.gallery import UNFINISHED, MilvusGallery
from index.search.item_distance import ItemDistance
from tools.milvus_server import Server, running

from ..vectors import DIM, unit

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # pymilvus warns of its own dependencies
ROUNDS = int(os.environ.get("RETRIEVAL_KILLS", "20"))
WRITER = """
import sys, warnings
warnings.simplefilter("ignore")
from index.milvus.gallery import MilvusGallery
from tests.index.vectors import unit
with MilvusGallery.open(sys.argv[1]) as gallery:
    for step in range(int(sys.argv[2]), 10_000):
        print("begin", step, flush=True)
        ids = [f"{step} {row}" for row in range(30)]
        gallery.add(ids, [f"i{(step + row) % 50}" for row in range(30)], unit(30, step), upsert=True)
        print("done", step, flush=True)
"""


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """Return a server of our own."""
    pytest.importorskip("milvus", reason="milvus, the server, is not installed")
    with running() as server:
        yield server


def ids_of(step: int) -> list[str]:
    return [f"{step} {row}" for row in range(30)]


def check(address: str, acknowledged: int) -> int:
    """Check that acknowledged steps are there; repeat the one that was interrupted, and return the next step."""
    with MilvusGallery.open(address, access=Access(timeout_s=30)) as gallery:
        present = {photo_id for photo_id, *_ in gallery.photos()}
        assert all({*ids_of(step)} <= present for step in range(acknowledged + 1))
        problems, step = gallery.verify(), acknowledged + 1
        some = {*ids_of(step)} & present
        assert problems == [UNFINISHED] or len(some) in (0, 30)
        items = [f"i{(step + row) % 50}" for row in range(30)]
        gallery.add(ids_of(step), items, unit(30, step), upsert=True)
        assert gallery.verify() == []
        stored = gallery.photos()
        assert len(gallery) == len(stored) == 30 * (step + 1)
        counts = dict(zip(*np.unique([item for _, item, _ in stored], return_counts=True), strict=True))
        rows = gallery._store.item_rows(sorted(counts), {"consistency_level": "Strong"})
        assert {item: row["photos"] for item, row in rows.items()} == counts
        return step + 1


def write_for(address: str, step: int, seconds: float) -> subprocess.Popen[str]:
    """Start a process that writes, and wait until it has written for a while."""
    root = Path(__file__).parents[3]
    words = [sys.executable, "-c", WRITER, address, str(step)]
    writer = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(seconds)
    return writer


def acknowledged_by(writer: subprocess.Popen[str], step: int) -> int:
    """Return the last step that a process finished."""
    told = writer.communicate()[0]
    return max([step - 1, *(int(line.split()[1]) for line in told.splitlines() if line.startswith("done"))])


@pytest.mark.timeout(3600)
def test_no_acknowledged_change_is_lost_when_we_are_killed_and_each_interrupted_one_is_named(mortal: Server) -> None:
    address = f"{mortal.address}/ours"
    MilvusGallery.create(address, dim=DIM, embedding_id="e").close()
    step, random = 0, np.random.default_rng(0)
    for _ in range(ROUNDS):
        writer = write_for(address, step, random.uniform(0.2, 2.0))
        writer.kill()
        step = check(address, acknowledged_by(writer, step))


@pytest.mark.timeout(7200)
def test_no_acknowledged_change_is_lost_when_the_server_is_killed(mortal: Server) -> None:
    address = f"{mortal.address}/theirs"
    MilvusGallery.create(address, dim=DIM, embedding_id="e").close()
    step, random = 0, np.random.default_rng(1)
    for _ in range(ROUNDS):
        writer = write_for(address, step, random.uniform(0.2, 2.0))
        mortal.kill()
        writer.wait(120)
        mortal.start()
        step = check(address, acknowledged_by(writer, step))


def test_a_server_that_hangs_is_told_in_time_and_answers_again_when_it_goes_on(mortal: Server) -> None:
    address = f"{mortal.address}/hanging"
    with MilvusGallery.create(address, dim=DIM, embedding_id="e", access=Access(timeout_s=3, age_s=0)) as gallery:
        gallery.add(["a", "b"], ["x", "y"], unit(2))
        mortal.signal(signal.SIGSTOP)
        try:
            for work in (
                lambda: gallery.search(unit(1), 1, item_distance=ItemDistance()),
                lambda: len(gallery),
                lambda: gallery.add(["c"], ["z"], unit(1, 4)),
            ):
                started = time.monotonic()
                with pytest.raises(GalleryUnavailable, match="does not answer"):
                    work()
                assert time.monotonic() - started < 12
        finally:
            mortal.signal(signal.SIGCONT)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                found = gallery.search(unit(1), 1)
                break
            except GalleryUnavailable:
                time.sleep(1)
        assert found[0][0].photo_id == "a"
