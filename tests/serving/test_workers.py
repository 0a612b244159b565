"""Servers of several processes: uvicorn's workers, and replicas behind the nginx of deploy/."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from retrieval.feedback import read_feedback

from ..conftest import ROOT
from ..world import draw, encode, make_bundle
from .conftest import Served, launch, stop, until

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
PATIENCE = 60.0
MINE, STRANGER = encode(draw(3, 5)), encode(draw(77, 0))
JPEG = {"content-type": "image/jpeg"}


@pytest.fixture
def shop(world: Path, tmp_path: Path) -> Path:
    """Return a folder whose `bundle` and `gallery` are links, with another bundle `strict`."""
    shutil.copytree(world / "bundle", tmp_path / "first")
    shutil.copytree(world / "gallery", tmp_path / "photos")
    make_bundle(tmp_path, threshold=0.01, name="strict")
    (tmp_path / "bundle").symlink_to("first")
    (tmp_path / "gallery").symlink_to("photos")
    return tmp_path


def lead(link: Path, to: str) -> None:
    """Let a link lead elsewhere, at once."""
    link.with_name("next").symlink_to(to)
    link.with_name("next").replace(link)


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=PATIENCE).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Served]:
    served = launch(folder, folder, "--no-page", *options)
    try:
        until(lambda: is_ready(served.address) or served.process.poll() is not None)
        assert served.process.poll() is None, served.log.read_text()
        yield served
    finally:
        if served.process.poll() is None:
            stop(served)


def children(served: Served) -> list[int]:
    """Return the ids of the worker processes."""
    words = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(served.process.pid)]
    listed = subprocess.run(words, capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "spawn_main" in line]


def search(address: str, image: bytes = MINE) -> httpx.Response:
    """Search on a connection of its own: the system chooses the process."""
    return httpx.post(f"{address}/v1/search", content=image, headers=JPEG, timeout=PATIENCE)


@contextmanager
def load(address: str) -> Iterator[Counter[int]]:
    """Search again and again; count the statuses."""
    statuses, ended = Counter[int](), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            statuses[search(address).status_code] += 1

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.end_to_end
def test_workers_are_one_server(shop: Path) -> None:
    with running(shop, "--workers", "2") as served:
        address = served.address
        until(lambda: len(children(served)) == 2)
        put = f"{address}/v1/photos/new?item_id=new"
        assert httpx.put(put, content=STRANGER, headers=JPEG, timeout=PATIENCE).status_code == 200
        answers = [search(address, STRANGER).json() for _ in range(20)]  # of either process
        assert {answer["matches"][0]["item_id"] for answer in answers} == {"new"}
        for answer in answers:
            verdict = {"request_id": answer["request_id"], "verdict": "right"}
            assert httpx.post(f"{address}/v1/feedback", json=verdict, timeout=PATIENCE).status_code == 200
        assert len(read_feedback(shop / "gallery.feedback.jsonl")) == 20
        told = httpx.get(f"{address}/metrics").text
        assert 'retrieval_requests_total{route="/v1/feedback",status="200"} 20.0' in told  # of both
        with load(address) as statuses:
            lead(shop / "bundle", "strict")
            end = time.monotonic() + 5
            while time.monotonic() < end:
                time.sleep(0.1)
            assert {search(address).json()["threshold"] for _ in range(20)} == {0.01}
        assert set(statuses) == {200}
        first = children(served)[0]
        os.kill(first, signal.SIGKILL)
        until(lambda: len(children(served)) == 2 and first not in children(served))
        until(lambda: is_ready(address))
        workers = children(served)
        assert stop(served) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.slow
def test_workers_end_with_a_killed_main_process_and_an_unusable_bundle_starts_none(shop: Path) -> None:
    with running(shop, "--workers", "2") as served:
        until(lambda: len(children(served)) == 2)
        workers = children(served)
        served.process.kill()
        served.process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    (shop / "bundle").unlink()
    refused = launch(shop, shop, "--workers", "2")
    assert refused.process.wait(timeout=PATIENCE) != 0
    assert "bundle" in refused.log.read_text()


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="no nginx (Debian: apt install nginx-light)")
def test_replicas_behind_nginx_are_one_server_that_a_restart_does_not_interrupt(shop: Path, tmp_path: Path) -> None:
    replicas = [tmp_path / name for name in ("one", "two")]
    options = ("--no-page", "--feedback", str(shop / "feedback.jsonl"))
    for place in replicas:
        place.mkdir()
    served = [launch(shop, place, *options) for place in replicas]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    settings = (ROOT / "deploy" / "nginx.conf").read_text().replace("127.0.0.1:7860;", f"127.0.0.1:{port};")
    settings = settings.replace("rate=20r/s", "rate=10000r/s").replace("burst=40", "burst=10000")
    for number, each in enumerate(served):
        settings = settings.replace(f"127.0.0.1:786{number + 1}", each.address.removeprefix("http://"))
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.log;\n{settings}")
    temporary = [
        f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    ]
    text = (tmp_path / "nginx.conf").read_text().replace("http {", "http { access_log off; " + " ".join(temporary))
    (tmp_path / "nginx.conf").write_text(text)
    proxy = subprocess.Popen([str(NGINX), "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"])
    try:
        for each in served:
            until(lambda each=each: is_ready(each.address))  # type: ignore[misc]
        until(lambda: is_ready(address))
        put = f"{served[0].address}/v1/photos/a%2Fnew?item_id=new"
        assert httpx.put(put, content=STRANGER, headers=JPEG, timeout=PATIENCE).status_code == 200
        assert httpx.get(f"{address}/v1/photos/a%2Fnew").json()["item_id"] == "new"  # the path arrives as it is
        answers = [search(address, STRANGER).json() for _ in range(10)]
        assert {answer["matches"][0]["item_id"] for answer in answers} == {"new"}
        with load(address) as statuses:
            assert stop(served[0]) == 0
            time.sleep(1)
            served[0] = _again(shop, replicas[0], served[0].address, options)
            until(lambda: is_ready(served[0].address))
            lead(shop / "bundle", "strict")
            time.sleep(5)
        assert set(statuses) == {200}
        for each in served:
            assert search(each.address).json()["threshold"] == 0.01
        verdict = {"request_id": search(served[0].address).json()["request_id"], "verdict": "unknown"}
        assert httpx.post(f"{served[1].address}/v1/feedback", json=verdict).status_code == 200
        assert httpx.get(f"{address}/metrics").status_code == 404
    finally:
        proxy.terminate()
        proxy.wait()
        for each in served:
            if each.process.poll() is None:
                stop(each)
    assert re.search(r"\[(emerg|alert|crit)\]", (tmp_path / "nginx.log").read_text()) is None


def _again(shop: Path, place: Path, address: str, options: tuple[str, ...]) -> Served:
    """Start a replica again on its port."""
    port = address.rpartition(":")[2]
    fresh = launch(shop, place, *options, "--port", port)  # the last --port counts
    return Served(fresh.process, address, fresh.log)
