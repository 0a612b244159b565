"""Causes of the misses that remain on grocery and cars, before and after training a head.

    python -m research.benchmarks.misses

Two heads on the features of a frozen EfficientNet-Lite0, trained for one and for several epochs, search the unseen
items. The causes are those of `retrieval explain`. The photos come from RETRIEVAL_TEST_DATA.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from training.config import Settings
from training.explain.before_after import Before, Comparison
from training.explain.causes import CAUSES
from training.explain.run import ExplainedRun, explain_run
from training.explain.summary import compared, searched
from training.loop.run import Run
from training.loop.train import train

from .tables import Recorder, parser_of

SETS = ("grocery", "cars")
ALL = "all"


def main() -> None:
    """Train what is missing under --output, explain it, and print a table for each data set."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/misses"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--views", type=int, default=1)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve() / "data"
    columns = ("cause", "1 epoch", f"{arguments.epochs} epochs", "mended", "new", "remaining")
    with Recorder("misses", arguments) as record:
        for name in SETS:
            before, after = (
                explained(data / name / f"{name}.csv", arguments.output / f"{name}-{epochs}", epochs, arguments.views)
                for epochs in (1, arguments.epochs)
            )
            record.table(name, columns, rows(before, after))


def explained(catalogue: Path, path: Path, epochs: int, views: int) -> ExplainedRun:
    """Return the explanation of a run, which is trained if it is missing."""
    if not (path / "splits.json").exists():
        train(Settings.from_dict(settings(catalogue, epochs, views)), path)
    return explain_run(Run.open(path))


def settings(catalogue: Path, epochs: int, views: int) -> dict[str, Any]:
    """Return the settings of a head on a frozen backbone."""
    return {
        "catalogue": str(catalogue),
        "backbone": "efficientnet-lite0",
        "precompute": views,
        "epochs": epochs,
        "select": "last",
        "device": "cpu",
    }


def rows(before: ExplainedRun, after: ExplainedRun) -> list[tuple[str, ...]]:
    """Return a row for each cause and one for all: counts, and misses by their cause before (mended) or after."""
    causes = {before.photos[miss.photo].photo_id: miss.cause for miss in before.misses}
    found = compared(after, Before(before.name, frozenset(searched(before)), causes))
    return [row(cause, before, after, found) for cause in (*CAUSES, ALL)]


def row(cause: str, before: ExplainedRun, after: ExplainedRun, found: Comparison) -> tuple[str, ...]:
    """Return the row of one cause."""
    kinds = (
        [miss.cause for miss in before.misses],
        [miss.cause for miss in after.misses],
        *(list(part.values()) for part in (found.mended, found.new, found.remaining)),
    )
    return (cause, *(f"{sum(cause in (ALL, one) for one in kind):,}" for kind in kinds))


if __name__ == "__main__":
    main()
