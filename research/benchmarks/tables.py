"""Benchmark tables: printed as Markdown and stored as JSON in `research/results`."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from research.markdown import markdown_row, markdown_table
from research.results import RESULTS, Record, Table

ROOT = Path(__file__).resolve().parents[2]
NONE = "–"
COMPARISON = ("what", "ours", "reference", "ratio or difference")


class Row(NamedTuple):
    """One row of a comparison."""

    what: str
    ours: str
    reference: str = NONE
    compared: str = NONE


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options common to all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, help="JSON file that the tables are written to; by default in research/results."
    )
    return parser


class Recorder:
    """Print tables as Markdown, and write them as JSON after the benchmark has finished without an error."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        given = {key: value for key, value in vars(arguments).items() if isinstance(value, str | int | float)}
        self._path: Path = arguments.results or RESULTS / f"{name}.json"
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        on = machine(getattr(arguments, "device", None))
        self._record = Record(name, command(), today, commit(), on, given)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._record.write(self._path)
            print(f"\nWrote {self._path}.")

    def table(self, name: str, columns: Iterable[str], rows: Iterable[Iterable[str]] = ()) -> None:
        """Begin a table, with the rows known so far."""
        table = Table(name, tuple(columns))
        self._record.tables.append(table)
        print(f"\n### {name}\n", *markdown_table(table.columns), sep="\n", flush=True)
        for row in rows:
            self.add(*row)

    def add(self, *cells: str) -> None:
        """Add a row to the last table."""
        self._record.tables[-1].add(*cells)
        print(markdown_row(cells), flush=True)


def commit() -> str:
    """Return the short name of the commit that is checked out, with a + if files other than the figures differ."""
    changes = _git("status", "--porcelain", "--", ":!research/results/*.json", ":!docs")
    return (_git("rev-parse", "--short", "HEAD").strip() or "unknown") + ("+" if changes else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout


def command() -> str:
    """Return the command line of this process without local folders."""
    module = f"research.benchmarks.{Path(sys.argv[0]).stem}"
    return shlex.join(["python", "-m", module, *(_plain(word) for word in sys.argv[1:])])


def _plain(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def machine(device: str | None = None) -> dict[str, object]:
    """Return the number and kind of CPU cores available to this process, and the GPU if it is measured."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kind = models[0] if models else platform.machine()
    return {"cores": cores, "kind": f"{kind}, {gpu_name()}" if device == "cuda" else kind}


def gpu_name() -> str:
    """Return the name of the GPU."""
    import torch

    return str(torch.cuda.get_device_name())


def ms(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return f"{1e3 * seconds:.1f} ms"
