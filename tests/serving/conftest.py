from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from retrieval.retriever import Retriever
from serving.app import create_app

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


@pytest.fixture(scope="session")
def retriever(world: Path) -> Retriever:
    return Retriever.open(world / "bundle", world / "gallery")


@pytest.fixture(scope="session")
def client(retriever: Retriever) -> Iterator[TestClient]:
    """Return a client of the endpoint alone."""
    with TestClient(create_app(retriever, page=False)) as client:
        yield client


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


def start(world: Path, folder: Path, *options: str) -> Served:
    """Start `retrieval serve` on a free port, and wait until endpoint and page are ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "serve",
        str(world / "bundle"),
        str(world / "gallery"),
        "--port",
        str(port),
    ]
    log = folder / "serve.log"
    uploads = {"GRADIO_TEMP_DIR": str(folder / "uploads")}
    with log.open("wb") as out:
        process = subprocess.Popen([*command, *options], stdout=out, stderr=out, env={**os.environ, **uploads})
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            if process.poll() is not None:
                break
            if all(httpx.get(f"{address}{path}").status_code in (200, 401, 404) for path in ("/readyz", "/")):
                break
            time.sleep(0.1)
        except httpx.TransportError:
            time.sleep(0.1)
    assert process.poll() is None, log.read_text()
    return Served(process, address, log)


def stop(served: Served, how: signal.Signals = signal.SIGTERM) -> int:
    """Ask the server to end, and return its exit status."""
    served.process.send_signal(how)
    return served.process.wait(timeout=20)


@pytest.fixture(scope="session")
def served(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = start(world, tmp_path_factory.mktemp("served"))
    yield running
    stop(running)
