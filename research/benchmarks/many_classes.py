"""Tests of the papers' main claims on sets with 98 to 1,000 training classes, with heads and a small network.

    python -m research.benchmarks.many_classes --output runs/many_classes

Sets: drawn symbols (1,000 classes, `research.claims.symbols`), cars (98), birds (100) and the drawn catalogue of 2,000
items as features of a frozen network, on which each loss trains a linear embedding; and the symbols again with the
whole small network. Hyper-parameters are chosen with seed 0 on validation classes; then every seed is trained, and the
test classes, which nobody trains on, are measured once. Intervals resample test classes and seeds
(`research.claims.intervals`).

Each training is a JSON file under --output and is never made twice: the command continues where it was stopped.
--minutes stops it before the next training once so much time has passed. The tables show the claims whose trainings
are complete.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from research.claims.plan import CLAIMS, CONTEXT, EPOCHS, TCM, VMF, claims_on, run_claim
from research.claims.sets import NAMES, load_set
from research.claims.store import OutOfTime, Runs
from research.claims.verdicts import (
    BETTER_COLUMNS,
    CONTEXT_COLUMNS,
    EPOCH_COLUMNS,
    LOSS_COLUMNS,
    TCM_COLUMNS,
    Comparison,
    Row,
    better_rows,
    context_rows,
    epoch_rows,
    loss_rows,
    tcm_rows,
)

from .tables import Recorder, parser_of

Rows = Callable[[str, Comparison], Iterator[Row]]
TABLES: dict[str, tuple[str, tuple[str, ...], Rows]] = {
    TCM: ("TCM lowers OPIS by 25 % at no loss of R@1", TCM_COLUMNS, tcm_rows),
    VMF: ("EL-nivMF over ProxyNCA", BETTER_COLUMNS, better_rows),
    CONTEXT: ("The contextual loss over multi-similarity", CONTEXT_COLUMNS, context_rows),
    EPOCHS: ("Mean-field losses reach a given R@1 in fewer epochs", EPOCH_COLUMNS, epoch_rows),
}


def train_all(sets: dict[str, Runs], seeds: int) -> set[tuple[str, str]]:
    """Run the trainings of every claim on every set, and return the (set, claim) pairs that are complete."""
    complete = set()
    for name, runs in sets.items():
        for claim in claims_on(name):
            try:
                run_claim(claim, runs, seeds)
            except OutOfTime as stop:
                print(f"{name}, {claim}: {stop}. Run the same command again to continue.", flush=True)
                continue
            complete.add((name, claim))
    return complete


def record_tables(sets: dict[str, Runs], complete: set[tuple[str, str]], arguments: argparse.Namespace) -> None:
    """Record the table of each claim with the sets on which it is complete, and that of every loss."""
    comparisons = {name: Comparison(runs, arguments.seeds) for name, runs in sets.items()}
    with Recorder("many_classes", arguments) as record:
        for claim in CLAIMS:
            title, columns, rows = TABLES[claim]
            on = {name: comparison for name, comparison in comparisons.items() if (name, claim) in complete}
            _add_table(record, title, columns, rows, on)
        on = {name: comparison for name, comparison in comparisons.items() if (name, TCM) in complete}
        _add_table(record, "Losses without and with TCM", LOSS_COLUMNS, loss_rows, on)


def _add_table(record: Recorder, title: str, columns: Row, rows: Rows, on: Mapping[str, Comparison]) -> None:
    """Record the rows of every set, if there are any."""
    if on:
        record.table(title, columns, (row for name, comparison in on.items() for row in rows(name, comparison)))


def main() -> None:
    """Train what is missing, and print and record the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/many_classes"), help="Folder for runs and features.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=NAMES, default=list(NAMES), help="Sets to train on and show.")
    parser.add_argument("--minutes", type=float, help="Start no training after so many minutes.")
    parser.add_argument("--train-only", action="store_true", help="Record no tables.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a head is too small for more threads
    until = float("inf") if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    sets = {
        name: Runs(partial(load_set, name, data, arguments.output), arguments.output / name, until=until)
        for name in arguments.sets
    }
    complete = train_all(sets, arguments.seeds)
    expected = sum(len(claims_on(name)) for name in sets)
    if not arguments.train_only:
        record_tables(sets, complete, arguments)
    sys.exit(0 if len(complete) == expected else 75)  # EX_TEMPFAIL: run it again


if __name__ == "__main__":
    main()
