"""p50 and p99 of `POST /v1/search` beside the same work in process, one client at a time.

    python benchmarks/endpoint.py BUNDLE GALLERY PHOTO [PHOTO ...]

The server is a process of its own; the in-process loop and the requests take turns, photo by photo.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np

from retrieval.retriever import Retriever


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--requests", type=int, default=400)
    arguments = parser.parse_args()
    retriever = Retriever.open(arguments.bundle, arguments.gallery)
    images = [photo.read_bytes() for photo in arguments.photos]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        "from retrieval.cli import main; main()",
        "serve",
        "--no-page",
        "--port",
        str(port),
    ]
    server = subprocess.Popen([*command, str(arguments.bundle), str(arguments.gallery)])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            wait_until_ready(client)
            inside, outside = [], []
            for number in range(arguments.requests + 20):
                image = images[number % len(images)]
                started = time.perf_counter()
                retriever.search(image)
                middle = time.perf_counter()
                client.post("/v1/search", content=image, headers={"Content-Type": "image/jpeg"}).raise_for_status()
                if number >= 20:
                    inside.append(middle - started)
                    outside.append(time.perf_counter() - middle)
    finally:
        server.terminate()
        server.wait(timeout=20)
    print("| one at a time | p50, ms | p99, ms |\n| --- | --- | --- |")
    for name, seconds in (("in process", inside), ("POST /v1/search", outside)):
        p50, p99 = 1e3 * np.percentile(seconds, [50, 99])
        print(f"| {name} | {p50:.1f} | {p99:.1f} |")


def wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become ready within 30 seconds")


if __name__ == "__main__":
    main()
