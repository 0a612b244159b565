"""Real servers of `retrieval serve --workers`."""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from retrieval.threshold.feedback import read_feedback
from serving.launch import METRICS_FOLDER
from serving.workers.folder import PREFIX, remove_left_folders

from ...world import draw, encode
from ..conftest import Served, start, stop
from ..ui.page_client import ask, upload

pytestmark = pytest.mark.slow
MINE = encode(draw(3, 5))
WORKERS = 3


def start_workers(world: Path, folder: Path, *options: str) -> Served:
    """Start a server, and wait until all workers serve."""
    running = start(world, folder, "--workers", str(WORKERS), "--feedback", str(folder / "feedback.jsonl"), *options)
    while metric(running, "workers") < WORKERS:
        time.sleep(0.1)
    return running


@pytest.fixture(scope="module")
def served(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("workers")
    running = start_workers(shutil.copytree(world, folder / "world"), folder)  # the tests change it
    yield running
    stop(running)


def metric(served: Served, name: str) -> float:
    """Return the value of a metric without labels."""
    found = re.search(rf"^retrieval_{name}(?:{{.*}})? (.*)$", httpx.get(f"{served.address}/metrics").text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def counts(served: Served) -> set[str]:
    """Return the files with the counts of all workers."""
    environment = Path(f"/proc/{max(processes(served))}/environ").read_bytes().split(b"\0")
    (folder,) = [line.partition(b"=")[2] for line in environment if line.startswith(METRICS_FOLDER.encode())]
    return {file.name for file in Path(os.fsdecode(folder)).glob("*.db")}


def processes(served: Served) -> set[int]:
    """Return the process ids of the workers, which are forked from a child of the server."""
    found = {
        worker
        for child in children(served.process.pid)
        if b"forkserver" in Path(f"/proc/{child}/cmdline").read_bytes()
        for worker in children(child)
    }
    assert len(found) <= WORKERS
    return found


def children(process: int) -> list[int]:
    """Return the process ids of the children of a process."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def search(served: Served, request_id: str = "any") -> httpx.Response:
    """Search over a connection of its own, which any worker may get."""
    return httpx.post(f"{served.address}/v1/search", content=MINE, headers={"x-request-id": request_id})


def test_workers_serve_as_one(served: Served) -> None:
    for number in range(2 * WORKERS):
        assert search(served, f"search-{number}").json()["decision"] == "match"
    assert metric(served, "decisions_total") == 2 * WORKERS
    for number in range(2 * WORKERS):
        verdict = {"request_id": f"search-{number}", "verdict": "right"}
        assert httpx.post(f"{served.address}/v1/feedback", json=verdict).status_code == 200
    assert len(read_feedback(served.log.with_name("feedback.jsonl"))) == 2 * WORKERS
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # changes wait for each other
        put = [
            pool.submit(httpx.put, f"{served.address}/v1/photos/new-{n}?item_id=new", content=encode(draw(60 + n, 1)))
            for n in range(12)
        ]
        assert {future.result().status_code for future in put} == {200}
    version = max(future.result().json()["gallery_version"] for future in put)
    assert {search(served).json()["gallery_version"] for _ in range(2 * WORKERS)} == {version}
    reloaded = httpx.post(f"{served.address}/v1/admin/reload", timeout=60).json()
    assert reloaded["swapped"] is True
    assert metric(served, "workers") == WORKERS


def test_the_page_keeps_its_sessions(served: Served) -> None:
    for _ in range(WORKERS):
        with httpx.Client(base_url=served.address, timeout=60) as page:
            assert page.get("/config").json()["root"] == served.address  # where the page's script sends requests
            token = upload(page, MINE)
        with httpx.Client(base_url=served.address, timeout=60) as page:  # another connection of the same visitor
            assert "item-03" in ask(page, path=token)


def test_a_killed_worker_is_replaced(served: Served) -> None:
    before, answered = processes(served), metric(served, "decisions_total")
    assert len(before) == WORKERS
    files = counts(served)
    os.kill(max(before), signal.SIGKILL)
    while not processes(served) - before or metric(served, "workers") < WORKERS:
        assert httpx.get(f"{served.address}/healthz").status_code == 200
        time.sleep(0.1)
    assert {search(served).status_code for _ in range(2 * WORKERS)} == {200}
    assert "it is started again" in served.log.read_text()
    assert metric(served, "decisions_total") == answered + 2 * WORKERS  # it continues the counts of the killed one
    assert counts(served) == files


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_workers_end_with_the_main_process(
    world: Path, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary))
    for kill in (False, True):
        served = start_workers(world, tmp_path, "--no-page")
        workers = processes(served)
        assert len(workers) == WORKERS
        if kill:
            served.process.kill()
            served.process.wait()
            while any(Path(f"/proc/{worker}").exists() for worker in workers):  # they notice, and finish
                time.sleep(0.1)
            assert list(temporary.glob(f"{PREFIX}*"))  # the next server removes it
            monkeypatch.setattr("tempfile.tempdir", str(temporary))
            remove_left_folders()
        else:
            assert stop(served) == 0
            assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        assert not list(temporary.glob(f"{PREFIX}*"))


def test_what_cannot_be_served_is_refused(world: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "retrieval", "serve", str(tmp_path / "nothing"), str(world / "gallery")]
    command += ["--workers", "2", "--port", "0"]
    told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert told.returncode == 1
    assert told.stderr.startswith("error: ")
    assert "nothing" in told.stderr
    assert "Search at" not in told.stdout
