"""Latency and throughput of the endpoint, compared with in-process search and a plain FastAPI handler.

    python -m research.benchmarks.endpoint BUNDLE GALLERY PHOTO [PHOTO ...]

Servers use one core and the load generator another. The in-process loop shares
the servers' core in turns, and all other servers are paused meanwhile; other activity of the machine therefore affects
all alike. Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np

from retrieval.retriever import Retriever

from .load import closed_loop
from .peers import INSIDE, OURS, PLAIN, Served, command_of, core_times, free_port
from .tables import COMPARISON, Recorder, Row, ms, parser_of

CLIENTS, MANY = (1, 2, 8), 8
FIGURES = {"p50": "p50", "p99": "p99", "rate": "throughput", "cpu_each": "CPU per photo"}

Turn = tuple[str, int]  # server name and number of clients


@dataclass(frozen=True)
class Phase:
    """Measurements of one turn."""

    latencies: Sequence[float]
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def cpu_each(self) -> float:
        return self.cpu / len(self.latencies)

    @property
    def p50(self) -> float:
        return float(np.percentile(self.latencies, 50))

    @property
    def p99(self) -> float:
        return float(np.percentile(self.latencies, 99))


class Bench:
    """The servers and the load on them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.bundle, self.gallery, self.photos = arguments.bundle, arguments.gallery, arguments.photos
        self.folder, self._stack = folder, stack
        self.images = [photo.read_bytes() for photo in self.photos]
        self.core, own = sorted(os.sched_getaffinity(0))[:2]
        os.sched_setaffinity(0, {own})
        self.servers: dict[str, Served] = {}
        self.turns: dict[Turn, list[Phase]] = {}

    def start(
        self, kind: str, bundle: Path | None = None, *, gallery: Path | None = None, page: bool = False
    ) -> Served:
        """Start a server, or the in-process loop."""
        port = 0 if kind == INSIDE else free_port()
        command = command_of(kind, port, [bundle or self.bundle, gallery or self.gallery], self.photos, page=page)
        server = Served(command, port=port, core=self.core, log=self.folder / f"{len(list(self.folder.iterdir()))}.log")
        self._stack.callback(server.stop)
        return server

    def start_all(self) -> None:
        """Start every compared server and warm it up with a few requests."""
        for kind in (INSIDE, OURS, PLAIN):
            server = self.servers[kind] = self.start(kind)
            if kind == INSIDE:
                server.line()
            else:
                server.wait_for("/v1/search", self.images[0])
            server.pause()
            self.measure((kind, 1), 30)

    def measure(self, turn: Turn, count: int) -> Phase:
        """Run one turn; every server receives the same photos."""
        kind, clients = turn
        server = self.servers[kind]
        with server.awake():
            before = server.cpu()
            if kind == INSIDE:
                latencies = server.search(count)
                return Phase(latencies, sum(latencies), server.cpu() - before)
            latencies, seconds = closed_loop(server.port, self.images, count, concurrency=clients)
            return Phase(latencies, seconds, server.cpu() - before)

    def take_turns(self, rounds: int, count: int) -> None:
        """Run the turns of every server, rotating the order each round."""
        turns = [(INSIDE, 1), *((OURS, clients) for clients in CLIENTS)]
        turns += [(PLAIN, clients) for clients in (1, MANY)]
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            first = number % len(turns)
            for turn in turns[first:] + turns[:first]:
                self.turns.setdefault(turn, []).append(self.measure(turn, count))

    def times(self) -> tuple[float, float, float]:
        """Return the seconds that the servers' core was available, was in use, and was used by the servers."""
        return *core_times(self.core), sum(server.cpu() for server in self.servers.values())

    def median(self, statistic: Callable[[Phase], float], turn: Turn) -> float:
        """Return the median of a metric over the rounds."""
        return float(np.median([statistic(phase) for phase in self.turns[turn]]))

    def paired(self, statistic: Callable[[Phase, Phase], float], one: Turn, other: Turn) -> float:
        """Return the median over the rounds of a function of two turns."""
        return float(np.median([statistic(a, b) for a, b in zip(self.turns[one], self.turns[other], strict=True)]))


def _row(what: str, pair: Sequence[str], compared: str) -> Row:
    ours, reference = pair
    return Row(what, ours, reference, compared)


def inside_rows(bench: Bench) -> list[Row]:
    """Compare the endpoint with the in-process search."""
    base, one = (INSIDE, 1), (OURS, 1)
    more = bench.paired(lambda a, b: a.p50 - b.p50, one, base)
    tail = bench.paired(lambda a, b: a.p99 / b.p99, one, base)
    p50, p99 = ([ms(bench.median(attrgetter(name), turn)) for turn in (one, base)] for name in ("p50", "p99"))
    rows = [
        _row("p50, 1 client", p50, f"{1e3 * more:+.2f} ms"),
        _row("p99, 1 client", p99, f"{tail:.2f}"),
    ]
    for clients in CLIENTS[1:]:
        rate = bench.paired(lambda a, b: a.rate / b.rate, (OURS, clients), base)
        rates = [f"{bench.median(attrgetter('rate'), turn):.1f}/s" for turn in ((OURS, clients), base)]
        rows.append(_row(f"throughput, {clients} clients", rates, f"{rate:.2f}"))
    for clients in CLIENTS:
        cpu = bench.paired(lambda a, b: a.cpu_each / b.cpu_each, (OURS, clients), base)
        costs = [ms(bench.median(attrgetter("cpu_each"), turn)) for turn in ((OURS, clients), base)]
        rows.append(_row(f"CPU per photo, clients: {clients}", costs, f"{cpu:.2f}"))
    return rows


def peer_rows(bench: Bench) -> list[Row]:
    """Compare the endpoint with other servers for the same search."""
    rows = []
    for clients, name in ((1, "p50"), (1, "p99"), (MANY, "rate"), (MANY, "cpu_each")):
        statistic = attrgetter(name)
        both = [bench.median(statistic, (kind, clients)) for kind in (OURS, PLAIN)]
        ratio = bench.paired(partial(_ratio, statistic), (OURS, clients), (PLAIN, clients))
        shown = [f"{value:.1f}/s" if name == "rate" else ms(value) for value in both]
        rows.append(_row(f"{FIGURES[name]}, clients: {clients}; and {PLAIN}", shown, f"{ratio:.2f}"))
    return rows


def parts(bench: Bench) -> list[tuple[str, str]]:
    """Return the median time of each part of a search over HTTP with one client; HTTP is what the parts leave."""
    with Retriever.open(bench.bundle, bench.gallery) as retriever:
        timed = [retriever.search(image).timings_ms for image in bench.images * 4]
    found = {name: float(np.median([each[name] for each in timed])) for name in timed[0]}
    found["HTTP"] = 1e3 * bench.paired(lambda a, b: a.p50 - b.p50, (OURS, 1), (INSIDE, 1))
    return [(name, f"{value:.2f}") for name, value in found.items()]


def _ratio(statistic: Callable[[Phase], float], one: Phase, other: Phase) -> float:
    return statistic(one) / statistic(other)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=150, help="In each turn.")
    arguments = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        raise SystemExit("one core for the server and one for the load are needed")
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as in `retrieval`, for every server
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack, Recorder("endpoint", arguments) as record:
        bench = Bench(arguments, Path(folder), stack)
        bench.start_all()
        before = bench.times()
        bench.take_turns(arguments.rounds, arguments.requests)
        record.table("search in process", COMPARISON, inside_rows(bench))
        record.table("other servers", COMPARISON, peer_rows(bench))
        record.table("parts", ("part", "ms"), parts(bench))
        there, busy, ours = (after - earlier for after, earlier in zip(bench.times(), before, strict=True))
        print(f"\nOthers than these had the servers' core for {(busy - ours) / there:.0%} of the time.")


if __name__ == "__main__":
    main()
