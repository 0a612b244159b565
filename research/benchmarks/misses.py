"""Causes of the misses that remain on cars and grocery, with the plain distance and with the one that export selects.

    python -m research.benchmarks.misses

The runs are those of `research.benchmarks.anchored_training`, which must exist. They search the unseen items. The
causes are those of `retrieval explain`.
"""

from __future__ import annotations

from pathlib import Path

from training.explain.before_after import Before, Comparison
from training.explain.causes import CAUSES
from training.explain.run import PLAIN_DISTANCE, SERVED, ExplainedRun, explain_run
from training.explain.summary import compared, searched
from training.loop.run import Run

from .tables import Recorder, parser_of

RUNS = {"cars": "cars-0", "grocery, rotation 0": "grocery-0-0"}
ALL = "all"
COLUMNS = ("cause", "plain distance", "served distance", "fixed", "new", "remaining")


def main() -> None:
    """Explain each run with both distances, and print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/anchored-training"), help="Folder of the runs.")
    arguments = parser.parse_args()
    with Recorder("misses", arguments) as record:
        for name, folder in RUNS.items():
            run = Run.open(arguments.runs / folder)
            plain, served = (explain_run(run, distance=distance) for distance in (PLAIN_DISTANCE, SERVED))
            record.table(name, COLUMNS, rows(plain, served))
            record.add("searches", *(f"{len(searched(each)):,}" for each in (plain, served)), "", "", "")


def rows(before: ExplainedRun, after: ExplainedRun) -> list[tuple[str, ...]]:
    """Return a row for each cause and one for all: counts, and misses by their cause before (fixed) or after."""
    causes = {before.photos[miss.photo].photo_id: miss.cause for miss in before.misses}
    found = compared(after, Before(before.name, frozenset(searched(before)), causes))
    return [row(cause, before, after, found) for cause in (*CAUSES, ALL)]


def row(cause: str, before: ExplainedRun, after: ExplainedRun, found: Comparison) -> tuple[str, ...]:
    """Return the row of one cause."""
    kinds = (
        [miss.cause for miss in before.misses],
        [miss.cause for miss in after.misses],
        *(list(part.values()) for part in (found.fixed, found.new, found.remaining)),
    )
    return (cause, *(f"{sum(cause in (ALL, one) for one in kind):,}" for kind in kinds))


if __name__ == "__main__":
    main()
