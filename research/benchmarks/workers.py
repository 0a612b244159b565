"""Throughput, latency, CPU time and memory of `retrieval serve --workers`, compared with searches in as many processes.

    python -m research.benchmarks.workers BUNDLE GALLERY PHOTO [PHOTO ...]

Searches in N processes without a server and a server with N workers take turns; the other one is stopped meanwhile.
Each process searches with as many threads as a worker has. Both are measured with the photos as they are, and enlarged
to 12 megapixels. The load generator runs on the same cores as the server, and its CPU time is stated. Figures are
medians over rounds. After each of the first rounds, photos arrive independently of the answers, at 80 % of the rate of
that round. The rate is measured again afterwards: if it has fallen below that of the arrivals, the machine was
overloaded.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import uvloop

from .load import closed_loop, ideal_queue, latencies_of, poisson
from .peers import INSIDE, OURS, Served, command_of, free_port
from .photo_sizes import SIZES, enlarged
from .tables import Recorder, parser_of

WORKERS = (1, 2)
CLIENTS = 4  # per worker
Cells = tuple[str, ...]
LARGE_COUNT, LARGE_SHARE = 4, 0.2  # enlarged photos, and their share of the requests
COLUMNS = (
    *("photos", "workers", "in processes, photos/s", "server, photos/s", "ratio"),
    *("CPU in processes, ms", "CPU of the server, ms", "ratio of CPU", "CPU of the load, ms"),
)
SHARE, OPEN_ROUNDS = 0.8, 3  # arrivals as a share of the capacity, and the rounds with them
OPEN_COLUMNS = (
    *("photos", "workers", "arrivals, photos/s", "share of the rate afterwards", "p50, ms", "p99, ms"),
    *("p99 / p50", "p99 / p50 of an ideal queue", "p99 / p50 of one per worker", "not answered 200"),
    *("load late, p99, ms", "load late, most, ms"),
)


@dataclass(frozen=True)
class Turn:
    """Photos per second, and CPU seconds per photo of the processes and of the load generator."""

    rate: float
    cpu: float
    load: float = 0.0


@dataclass(frozen=True)
class Arrivals:
    """Latencies of photos that arrived at a rate, in seconds, and what ideal queues and the load took."""

    rate: float
    share: float  # of the server's rate afterwards
    p50: float
    p99: float
    ideal_ratio: float  # p99 / p50 of one ideal queue
    split_ratio: float  # p99 / p50 of one queue per worker
    late: float  # lateness of the load, p99
    latest: float  # the greatest lateness
    count: int
    refused: int

    @property
    def ratio(self) -> float:
        """Return p99 / p50."""
        return self.p99 / self.p50


def large(photo: Path, folder: Path) -> Path:
    """Write a photo of 12 megapixels, with the noise of a sensor, and return its path."""
    path = folder / f"{photo.stem}-large.jpg"
    enlarged(photo, SIZES["12 MP"]).save(path, quality=88)
    return path


class Bench:
    """Servers and processes of one bundle and gallery, and the load on them."""

    def __init__(self, places: Sequence[Path], photos: Sequence[Path], folder: Path, stack: ExitStack) -> None:
        self._places, self._photos, self._folder, self._stack = places, photos, folder, stack
        self._images = [photo.read_bytes() for photo in photos]
        self._generator = np.random.default_rng(0)

    def start(self, kind: str, *, workers: int = 1) -> Served:
        """Start a server, or a process that searches."""
        port = 0 if kind == INSIDE else free_port()
        command = command_of(kind, port, self._places, self._photos, page=False, workers=workers)
        log = self._folder / f"{len(list(self._folder.glob('*.log')))}.log"
        served = Served(command, port=port, core=None, log=log)
        self._stack.callback(served.stop)
        if kind == INSIDE:
            served.line()
        else:
            self._wait(served, workers)
        served.pause()
        return served

    def inside(self, processes: Sequence[Served], count: int) -> Turn:
        """Search `count` photos in each process at the same time, with as many threads as a worker has."""
        threads = max(1, len(os.sched_getaffinity(0)) // len(processes))
        before, started = sum(each.cpu() for each in processes), time.perf_counter()
        with ExitStack() as awake:
            for each in processes:
                awake.enter_context(each.awake())
                print(count, threads, file=each.process.stdin, flush=True)
            for each in processes:
                each.line()
            seconds = time.perf_counter() - started
            cpu = sum(each.cpu() for each in processes) - before
        searched = count * len(processes)
        return Turn(searched / seconds, cpu / searched)

    def over_http(self, server: Served, count: int, *, clients: int) -> Turn:
        """Send `count` photos from a number of clients."""
        with server.awake():
            before, own = server.cpu(), time.process_time()
            answers = uvloop.run(closed_loop(server.port, self._images, range(count), concurrency=clients))
            load = time.process_time() - own
            cpu = server.cpu() - before
        latencies_of(answers)  # all must be 200
        seconds = max(answer.done for answer in answers) - min(answer.sent for answer in answers)
        return Turn(count / seconds, cpu / count, load / count)

    def arrive(self, server: Served, capacity: float, seconds: float, *, workers: int, count: int) -> Arrivals:
        """Send photos at a share of the capacity, without waiting for answers; then measure the capacity again."""
        rate = SHARE * capacity
        with server.awake():
            coming = poisson(
                server.port, self._images, rate=rate, seconds=seconds, generator=self._generator, spin_s=0.0
            )
            answers = uvloop.run(coming)
        good = [answer.seconds for answer in answers if answer.status == 200]
        places = len(os.sched_getaffinity(0))
        one, split = (
            ideal_queue(answers, [places / capacity], self._generator, places=max(1, places // queues), queues=queues)
            for queues in (1, workers)
        )
        after = self.over_http(server, count * workers, clients=CLIENTS * workers).rate
        p50, p99 = np.percentile(good, (50, 99)).tolist()
        late, latest = np.percentile([answer.sent - answer.due for answer in answers], (99, 100)).tolist()
        return Arrivals(
            rate,
            share=rate / after,
            p50=p50,
            p99=p99,
            ideal_ratio=tail_ratio(one),
            split_ratio=tail_ratio(split),
            late=late,
            latest=latest,
            count=len(answers),
            refused=len(answers) - len(good),
        )

    def _wait(self, server: Served, workers: int) -> None:
        server.wait_for("/v1/search", self._images[0])
        while len(memory_of(server)) < workers:
            time.sleep(0.1)
        self.over_http(server, 20 * workers, clients=CLIENTS * workers)


def tail_ratio(latencies: Sequence[float]) -> float:
    """Return p99 / p50."""
    p50, p99 = np.percentile(latencies, (50, 99))
    return float(p99 / p50)


def memory_of(server: Served) -> list[float]:
    """Return the memory of each process of a server that has opened the bundle, in MiB, largest first.

    Shared memory counts in equal parts for those who share it (PSS).
    """
    found = []
    for process in server.members():
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        maps = Path(f"/proc/{process}/maps").read_text()
        if "onnxruntime" in maps:
            found.append(sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024)
    return sorted(found, reverse=True)


def measure(bench: Bench, workers: int, rounds: int, count: int, seconds: float) -> tuple[Cells, Cells, Cells]:
    """Return the cells of speed, of arrivals and of memory with a number of workers."""
    processes, server = [bench.start(INSIDE) for _ in range(workers)], bench.start(OURS, workers=workers)
    turns, arrivals = [], []
    for number in range(rounds):
        inside = bench.inside(processes, count)
        over = bench.over_http(server, count * workers, clients=CLIENTS * workers)
        turns.append((inside, over))
        if number < OPEN_ROUNDS and seconds:
            arrivals.append(bench.arrive(server, over.rate, seconds, workers=workers, count=count))
    sizes = memory_of(server)
    for each in (*processes, server):
        each.stop()
    memory = f"{sizes[0]:.0f}", ", ".join(f"{size:.0f}" for size in sizes[1:]) or "–"
    return speed_cells(turns), arrival_cells(arrivals) if arrivals else (), memory


def speed_cells(turns: Sequence[tuple[Turn, Turn]]) -> Cells:
    """Return rates and CPU times in processes and over HTTP, medians over the rounds."""
    ratio, cpu = (
        float(np.median([getattr(over, name) / getattr(inside, name) for inside, over in turns]))
        for name in ("rate", "cpu")
    )
    inside_rate, over_rate = (np.median([turn[side].rate for turn in turns]) for side in (0, 1))
    inside_cpu, over_cpu = (1e3 * np.median([turn[side].cpu for turn in turns]) for side in (0, 1))
    load = 1e3 * np.median([over.load for _, over in turns])
    rates = (f"{inside_rate:.1f}", f"{over_rate:.1f}", f"{ratio:.2f}")
    return (*rates, f"{inside_cpu:.1f}", f"{over_cpu:.1f}", f"{cpu:.2f}", f"{load:.2f}")


def arrival_cells(arrivals: Sequence[Arrivals]) -> Cells:
    """Return latencies of arrivals, medians over the rounds, and how many were not answered 200."""
    names = ("rate", "p50", "p99", "ratio", "ideal_ratio", "split_ratio", "late", "latest")
    rate, p50, p99, *ratios, late, latest = (np.median([getattr(each, name) for each in arrivals]) for name in names)
    shares = ", ".join(f"{each.share:.2f}" for each in arrivals)
    refused, count = (sum(getattr(each, name) for each in arrivals) for name in ("refused", "count"))
    latencies = (f"{1e3 * p50:.1f}", f"{1e3 * p99:.1f}", *(f"{ratio:.1f}" for ratio in ratios))
    return (f"{rate:.1f}", shares, *latencies, f"{refused} of {count:,}", f"{1e3 * late:.1f}", f"{1e3 * latest:.1f}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300, help="Searches of each process and turn.")
    parser.add_argument("--arrivals", type=float, default=12, help="Seconds of arrivals in each of three rounds.")
    arguments = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as in `retrieval`, for every process
    places = [arguments.bundle, arguments.gallery]
    with tempfile.TemporaryDirectory() as name, Recorder("workers", arguments) as record:
        folder = Path(name)
        large_photos = [large(photo, folder) for photo in arguments.photos[:LARGE_COUNT]]
        kinds = (("as they are", arguments.photos, 1.0), ("12 megapixels", large_photos, LARGE_SHARE))
        arrivals: list[Cells] = []
        memory: dict[str, Cells] = {}
        record.table("speed", COLUMNS)
        for kind, photos, share in kinds:
            for workers in WORKERS:
                with ExitStack() as stack:
                    bench, count = Bench(places, photos, folder, stack), round(share * arguments.requests)
                    speed, arrival, memory[str(workers)] = measure(
                        bench, workers, arguments.rounds, count, arguments.arrivals
                    )
                record.add(kind, str(workers), *speed)
                arrivals.append((kind, str(workers), *arrival))
        if arguments.arrivals:
            record.table("arrivals", OPEN_COLUMNS, arrivals)
        record.table("memory", ("workers", "first, MiB", "others, MiB"))
        for number, cells in memory.items():
            record.add(number, *cells)


if __name__ == "__main__":
    main()
