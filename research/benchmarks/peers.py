"""Compared servers: processes pinned to a core, the in-process search loop and the plain handler.

python -m research.benchmarks.peers KIND PORT BUNDLE GALLERY PHOTO [PHOTO ...]
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

INSIDE, OURS, PLAIN = "in process", "ours", "a plain FastAPI handler"
CLI = "from retrieval.cli.main import main; main()"
OWN = "research.benchmarks.peers"
TICKS = os.sysconf("SC_CLK_TCK")


def command_of(kind: str, port: int, places: Sequence[object], photos: Sequence[Path], *, page: bool) -> list[str]:
    """Return the command that starts a server."""
    words: dict[str, list[object]] = {
        OURS: ["-c", CLI, "serve", "--page" if page else "--no-page", "--port", port, *places],
        INSIDE: ["-m", OWN, kind, port, *places, *photos],
        PLAIN: ["-m", OWN, kind, port, *places, *photos],
    }
    return [sys.executable, *map(str, words[kind])]


class Served:
    """A server in its own process group with its output in a log, pinned to a core if one is given."""

    def __init__(self, command: Sequence[str], *, port: int, core: int | None, log: Path) -> None:
        self.port, self.log = port, log
        pipe = subprocess.PIPE if not port else None  # without a port it answers on stdout
        cores = os.sched_getaffinity(0)
        if core is not None:
            os.sched_setaffinity(0, {core})  # inherited by child processes
        try:
            with log.open("wb") as out:
                self.started = time.perf_counter()
                self.process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe or out, stderr=out, start_new_session=True, text=True
                )
        finally:
            os.sched_setaffinity(0, cores)

    def members(self) -> dict[int, list[str]]:
        """Return the fields of /proc/PID/stat, starting with the state, of every living process of the group."""
        found = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = file.read_text().rpartition(")")[2].split()
                if int(fields[2]) == self.process.pid and fields[0] not in "ZX":
                    found[int(file.parent.name)] = fields
        return found

    def cpu(self) -> float:
        """Return the CPU seconds used by the group."""
        return sum(int(fields[11]) + int(fields[12]) for fields in self.members().values()) / TICKS

    def pause(self) -> None:
        """Stop the processes, to leave the core to the server that is measured."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Resume the processes within the context."""
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            if self.process.poll() is None:
                self.pause()

    def line(self) -> str:
        """Return the next line of the output."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit(f"it ended:\n{self.log.read_text()[-2000:]}")
        return str(line)

    def search(self, count: int) -> list[float]:
        """Search photos in process; return the seconds of each."""
        print(count, file=self.process.stdin, flush=True)
        return [float(second) for second in json.loads(self.line())]

    def wait_for(self, path: str, body: bytes | None = None, *, seconds: float = 60) -> float:
        """Return the seconds from the start to the first status 200 of a path."""
        while time.perf_counter() - self.started < seconds:
            if self.process.poll() is not None:
                break
            if status_of(self.port, path, body) == 200:
                return time.perf_counter() - self.started
            time.sleep(0.005)
        raise SystemExit(f"{path} was not answered with 200:\n{self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Terminate all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=15)
        for _ in range(100):
            if not self.members():
                return
            time.sleep(0.05)
        raise SystemExit(f"processes of the group {self.process.pid} are still there")


def status_of(port: int, path: str, body: bytes | None = None) -> int:
    """Return the status of one request; 0 if the connection fails."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        kind = {} if body is None else {"Content-Type": "image/jpeg"}
        connection.request("GET" if body is None else "POST", path, body, kind)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def core_times(core: int) -> tuple[float, float]:
    """Return the seconds that a core was available and in use, including use by other virtual machines."""
    lines = Path("/proc/stat").read_text().splitlines()
    (ticks,) = ([int(word) for word in line.split()[1:9]] for line in lines if line.split()[0] == f"cpu{core}")
    return sum(ticks) / TICKS, (sum(ticks) - ticks[3] - ticks[4]) / TICKS


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def search_inside(images: Sequence[bytes], places: Sequence[str]) -> None:
    """For each line of stdin, search this number of photos and print the seconds of each search."""
    from retrieval.retriever import Retriever

    retriever = Retriever.open(*places)
    retriever.search(images[0])
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for number in range(int(line)):
            started = time.perf_counter()
            retriever.search(images[number % len(images)])
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


def serve_plainly(port: int, places: Sequence[str]) -> None:
    """Serve the search with a minimal FastAPI handler."""
    from concurrent.futures import ThreadPoolExecutor

    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

    from retrieval.retriever import Retriever

    app, pool, retriever = FastAPI(), ThreadPoolExecutor(1), Retriever.open(*places)

    async def search(request: Request) -> JSONResponse:
        image = await request.body()
        result = await asyncio.get_running_loop().run_in_executor(pool, retriever.search, image)
        return JSONResponse(result.to_dict())

    search.__annotations__ = {"request": Request}  # a local name that FastAPI cannot resolve
    app.post("/v1/search", response_model=None)(search)
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    kind, port, *places = sys.argv[1:5]
    if kind == INSIDE:
        search_inside([Path(photo).read_bytes() for photo in sys.argv[5:]], places)
    else:
        serve_plainly(int(port), places)
