"""Latency and throughput of the endpoint, compared with in-process search, a plain handler and LitServe.

    python -m research.benchmarks.endpoint BUNDLE GALLERY PHOTO [PHOTO ...] [--overload SECONDS] [--swap SECONDS]

It also measures overload and reloads. Servers use one core and the load generator another. The in-process loop shares
the servers' core in turns, and all other servers are paused meanwhile; other activity of the machine therefore affects
all alike. Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
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
import uvloop

from .load import closed_loop, ideal_queue, latencies_of, poisson
from .peers import INSIDE, LITSERVE, OURS, PLAIN, Served, command_of, core_times, free_port
from .stress import overload, starts, swap
from .tables import COMPARISON, NONE, Recorder, Row, ms, parser_of

CLIENTS, MANY = (1, 2, 8), 8
SHARES = (0.5, 0.8)  # arrival rates as shares of the capacity
OPEN_ROUNDS = 3
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


@dataclass(frozen=True)
class OpenPhase:
    """Latencies of Poisson arrivals in one turn, and those of an ideal queue with the same search."""

    rate: float
    met: Phase
    ideal: Phase
    late: float  # p99 of the delay of the load generator itself
    refused: int


class Bench:
    """The servers and the load on them."""

    def __init__(self, arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.bundle, self.gallery, self.photos = arguments.bundle, arguments.gallery, arguments.photos
        self.folder, self._stack = folder, stack
        self.images = [photo.read_bytes() for photo in self.photos]
        self.core, own = sorted(os.sched_getaffinity(0))[:2]
        os.sched_setaffinity(0, {own})
        self.generator = np.random.default_rng(0)
        self.servers: dict[str, Served] = {}
        self.turns: dict[Turn, list[Phase]] = {}
        self.open: dict[float, list[OpenPhase]] = {share: [] for share in SHARES}

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
        kinds = [INSIDE, OURS, PLAIN, *([LITSERVE] if importlib.util.find_spec("litserve") else [])]
        for kind in kinds:
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
            asked = closed_loop(server.port, self.images, range(count), concurrency=clients)
            answers = uvloop.run(asked)
            cpu = server.cpu() - before
        seconds = max(answer.done for answer in answers) - min(answer.sent for answer in answers)
        return Phase(latencies_of(answers), seconds, cpu)

    def take_turns(self, rounds: int, count: int) -> None:
        """Run the turns of every server, rotating the order each round."""
        turns = [(INSIDE, 1), *((OURS, clients) for clients in CLIENTS)]
        turns += [(kind, clients) for kind in self.servers if kind in (PLAIN, LITSERVE) for clients in (1, MANY)]
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            first = number % len(turns)
            for turn in turns[first:] + turns[:first]:
                self.turns.setdefault(turn, []).append(self.measure(turn, count))

    def arrive(self, rounds: int, seconds: float) -> None:
        """Send Poisson arrivals at shares of the capacity, which is measured again beforehand."""
        for number in range(rounds):
            for share in SHARES:
                say(f"arrivals at {share:.0%} of the capacity, round {number + 1} of {rounds}")
                inside = self.measure((INSIDE, 1), 100)
                rate = share * self.measure((OURS, MANY), 150).rate
                server = self.servers[OURS]
                with server.awake():
                    before = server.cpu()
                    coming = poisson(server.port, self.images, rate=rate, seconds=seconds, generator=self.generator)
                    answers = uvloop.run(coming)
                    cpu = server.cpu() - before
                ideal = ideal_queue(answers, inside.latencies, self.generator)
                good = [answer.seconds for answer in answers if answer.status == 200]
                met = Phase(good, seconds, cpu)
                late = float(np.percentile([answer.sent - answer.due for answer in answers], 99))
                refused = len(answers) - len(good)
                self.open[share].append(OpenPhase(rate, met, Phase(ideal, seconds, 0), late, refused))

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
    for peer in (PLAIN, LITSERVE):
        if peer not in bench.servers:
            rows.append(Row(f"{peer}: not installed", NONE))
            continue
        for clients, name in ((1, "p50"), (1, "p99"), (MANY, "rate"), (MANY, "cpu_each")):
            statistic = attrgetter(name)
            both = [bench.median(statistic, (kind, clients)) for kind in (OURS, peer)]
            ratio = bench.paired(partial(_ratio, statistic), (OURS, clients), (peer, clients))
            shown = [f"{value:.1f}/s" if name == "rate" else ms(value) for value in both]
            rows.append(_row(f"{FIGURES[name]}, clients: {clients}; and {peer}", shown, f"{ratio:.2f}"))
    return rows


def _ratio(statistic: Callable[[Phase], float], one: Phase, other: Phase) -> float:
    return statistic(one) / statistic(other)


def open_rows(bench: Bench) -> list[Row]:
    """Return latencies under Poisson arrivals, which closed loops understate."""
    rows = []
    for share in SHARES:
        phases = bench.open[share]
        met, ideal = [phase.met for phase in phases], [phase.ideal for phase in phases]
        rate = np.median([phase.rate for phase in phases])
        what = f"arrivals at {share:.0%} of the capacity, {rate:.0f}/s"
        for name in ("p50", "p99"):
            ours, best = ([getattr(phase, name) for phase in some] for some in (met, ideal))
            ratio = np.median(np.divide(ours, best))
            rows.append(Row(f"{what}: {name}", ms(np.median(ours)), ms(np.median(best)), f"{ratio:.2f}"))
        spread, least = (float(np.median([phase.p99 / phase.p50 for phase in some])) for some in (met, ideal))
        rows.append(Row(f"{what}: p99 / p50", f"{spread:.1f}", f"{least:.1f}", f"{spread / least:.2f}"))
        refused = sum(phase.refused for phase in phases)
        rows.append(Row(f"{what}: not answered 200", f"{refused}"))
        rows.append(Row(f"{what}: the load itself was late, p99", ms(np.median([phase.late for phase in phases]))))
    for clients in CLIENTS:
        p50, p99 = (bench.median(attrgetter(name), (OURS, clients)) for name in ("p50", "p99"))
        rows.append(Row(f"closed loop, clients: {clients}: p50 / p99", f"{ms(p50)} / {ms(p99)}"))
    return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=150, help="In each turn.")
    parser.add_argument("--arrivals", type=float, default=20, help="Seconds of each load; three rounds.")
    parser.add_argument("--overload", type=float, default=0, metavar="SECONDS", help="Ask four times the capacity.")
    parser.add_argument("--swap", type=float, default=0, metavar="SECONDS", help="Reload every two seconds.")
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
        bench.arrive(OPEN_ROUNDS, arguments.arrivals)
        record.table("arrivals", COMPARISON, open_rows(bench))
        there, busy, ours = (after - earlier for after, earlier in zip(bench.times(), before, strict=True))
        print(f"\nOthers than these had the servers' core for {(busy - ours) / there:.0%} of the time.")
        say("starts with a large gallery")
        record.table("start", COMPARISON, starts(bench.start, bench.bundle, bench.folder))
        if arguments.overload:
            say("overload")
            capacity = bench.measure((OURS, MANY), 2 * arguments.requests).rate
            told = overload(bench.servers[OURS], bench.images, capacity=capacity, seconds=arguments.overload)
            record.table("overload", COMPARISON, told)
        if arguments.swap:
            say("reloads")
            start = partial(bench.start, OURS)
            told = swap(start, bench.bundle, bench.gallery, bench.images, bench.folder, arguments.swap)
            record.table("reloads", COMPARISON, told)


if __name__ == "__main__":
    main()
