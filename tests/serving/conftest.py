from __future__ import annotations

import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient

from retrieval.retriever import Retriever
from serving.access.guard import PROBES
from serving.app import create_app

from .live_page import CHROMIUM, FLAGS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ENCRYPTION = ssl.create_default_context()  # unused, and slow to make for every client
# the command itself, in a process of its own, with every address it looks up or connects to in its log
PROGRAM = """
import sys
def watch(event, args):
    if event in ("socket.getaddrinfo", "socket.connect"):
        print("NETWORK", args[0] if event == "socket.getaddrinfo" else args[1], file=sys.stderr, flush=True)
sys.addaudithook(watch)
from retrieval.cli.main import main
main()
"""
# and with each file that it opens, as its own words for them
WATCHED = (
    """
import os, sys
TOUCHING = ("os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.truncate", "subprocess.Popen", "os.system")
def look(event, args):
    if event == "open" or event in TOUCHING:
        os.write(2, f"TOUCHED {event} {args[0]!r}\\n".encode())
sys.addaudithook(look)
"""
    + PROGRAM
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return Chromium, without its window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def watched(browser: Browser, address: str) -> Iterator[Page]:
    """Yield a new page; at the end, nothing was asked of a host but that of the address, and no script failed."""
    hosts, errors = set(), []
    page = browser.new_page()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert {host for host in hosts if host} == {urlsplit(address).netloc}
    assert errors == []


@pytest.fixture(scope="session")
def retriever(world: Path) -> Retriever:
    return Retriever.open(world / "bundle", world / "gallery")


@pytest.fixture(scope="session")
def client(retriever: Retriever) -> Iterator[TestClient]:
    """Return a client of the endpoint alone."""
    with TestClient(create_app(retriever, page=False)) as client:
        yield client


@pytest.fixture(scope="session")
def covers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a `gallery` of printed covers and the `bundle` that verifies them, and other bundles.

    `other` has another vocabulary, and `plain` has no verification.
    """
    from retrieval.catalogue.read import read_catalogue
    from retrieval.indexing.pipeline import index_catalogue

    from ..prints import cover_verifier, verified_bundle, write_covers

    folder = tmp_path_factory.mktemp("covers")
    photos = read_catalogue(write_covers(folder / "photos", items=range(24), photos=range(1)))
    bundle = verified_bundle(folder, verifier=cover_verifier(), target_fpir=0.1)
    verified_bundle(folder, name="other", verifier=cover_verifier(items=range(600, 604)))
    verified_bundle(folder, name="plain")
    index_catalogue(bundle, photos, folder / "gallery", progress=False)
    return folder


@dataclass(frozen=True)
class Served:
    """A running `retrieval serve`."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def strangers(self) -> list[str]:
        """Return the addresses that the server turned to, beside its own machine."""
        lines = [line.split(" ", 1)[1] for line in self.log.read_text().splitlines() if line.startswith("NETWORK")]
        return [line for line in lines if not any(own in line for own in ("127.0.0.1", "localhost", "None"))]

    def touched(self, since: int = 0) -> list[str]:
        """Return what a server that is watched opened since its log had so many bytes."""
        lines = self.log.read_bytes()[since:].decode(errors="replace").splitlines()
        return [line.removeprefix("TOUCHED ") for line in lines if line.startswith("TOUCHED ")]


def start(world: Path, folder: Path, *options: str, program: str = PROGRAM) -> Served:
    """Start `retrieval serve` on a free port, and wait until endpoint and page are ready."""
    served = launch(world, folder, *options, program=program)
    with httpx.Client(base_url=served.address, verify=ENCRYPTION) as client:
        for _ in range(1200):  # two minutes: far more than any machine needs
            try:
                if served.process.poll() is not None:
                    break
                if all(client.get(path).status_code in (200, 401, 404) for path in ("/readyz", "/")):
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.1)
    assert served.process.poll() is None, served.log.read_text()
    return served


def launch(world: Path, folder: Path, *options: str, program: str = PROGRAM, before: Sequence[str] = ()) -> Served:
    """Start `retrieval serve` on a free port, by the words of another command if any, and return at once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *before,
        sys.executable,
        "-c",
        program,
        "serve",
        str(world / "bundle"),
        str(world / "gallery"),
        f"--port={port}",
    ]
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *options], stdout=out, stderr=out)
    return Served(process, f"http://127.0.0.1:{port}", log)


def stop(served: Served, how: signal.Signals = signal.SIGTERM) -> int:
    """Ask the server to end, and return its exit status."""
    served.process.send_signal(how)
    return served.process.wait(timeout=60)


def until(true: Callable[[], bool], seconds: float = 600.0) -> None:
    """Wait until something holds, far longer than it takes."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def connected(served: Served) -> socket.socket:
    """Return a connection to a server, without HTTP."""
    host, port = served.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def received(connection: socket.socket) -> bytes:
    """Return what comes until the server hangs up."""
    answer = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            answer += piece
    return answer


@pytest.fixture
def shop(world: Path, tmp_path: Path) -> Path:
    """Return a copy of the world that may be changed."""
    for name in ("bundle", "gallery"):
        shutil.copytree(world / name, tmp_path / name)
    return tmp_path


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def operations(served: Served, key: str = "") -> list[tuple[str, str]]:
    """Return method and path of every documented operation except the probes."""
    document = httpx.get(f"{served.address}/openapi.json", headers=bearer(key) if key else {}).json()
    found = [(method.upper(), path) for path, known in document["paths"].items() for method in known]
    assert len(found) > 12
    return [(method, re.sub(r"{.*?}", "x", path)) for method, path in found if path not in PROBES]


@pytest.fixture(scope="session")
def served(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = start(world, tmp_path_factory.mktemp("served"))
    yield running
    stop(running)
