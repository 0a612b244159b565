"""Compare the target FPIR of anchored thresholds with the FPIR on unknown items, with fine-tuned models.

    python -m research.benchmarks.anchored_training --output runs/anchored-training

Grocery, four rotations of its families and several seeds, with three kinds of gallery. *Untrained*: a random half of
the calibration and test items, searched for the other half. *Trained*: the training items, searched for a quarter of
the items of each training family, which was kept out of training; the draws are probes of the calibration items.
*Mixed*: the training items and half of the untrained ones, searched for the other half and the items kept out. A cell
is one rotation with one seed; its interval is bootstrapped over the unknown items.

Cars, birds and covers: random halves of the untrained items, and galleries of the training items.

The searches are described in `anchored_galleries`, the models in `anchored_models`. An interrupted benchmark continues.
With --trained-only, it uses the models that are trained so far. See `anchoring` for frozen features.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import anchored_galleries as galleries
from .anchored_galleries import EXACT, SERVED, TARGETS, Search
from .anchored_models import Model, is_trained, rotation_model, set_model
from .anchoring import SETS
from .rotation_tables import ROTATIONS
from .tables import NONE, Recorder, parser_of

KINDS = ("untrained", "trained", "mixed")
RESAMPLES = 2000


@dataclass(frozen=True)
class Cell:
    """The searches of one kind of gallery with one model, at one target."""

    searches: Sequence[Search]

    @property
    def rates(self) -> np.ndarray:
        """Return the realised FPIR of each unknown item (n,), as a mean over the searches that it is unknown in."""
        return _by_item(search.rates for search in self.searches)

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the realised FPIR, bootstrapped over items."""
        rates = self.rates
        means = np.random.default_rng(0).choice(rates, (RESAMPLES, len(rates))).mean(axis=1)
        low, high = np.quantile(means, (0.025, 0.975))
        return float(low), float(high)

    def excludes(self, target: float) -> bool:
        """Return whether the interval excludes the target."""
        low, high = self.interval
        return not low <= target <= high

    def mean(self, of: Callable[[Search], float]) -> float:
        """Return a mean over the searches."""
        return float(np.mean([of(search) for search in self.searches]))


def _by_item(rates: Iterable[dict[str, float]]) -> np.ndarray:
    found: dict[str, list[float]] = defaultdict(list)
    for each in rates:
        for item, rate in each.items():
            found[item].append(rate)
    return np.array([np.mean(values) for values in found.values()])


def cells_of(model: Model, splits: int) -> dict[tuple[str, float], Cell]:
    """Return the cells of a rotation's model, by kind of gallery and target."""
    searches = {
        "untrained": galleries.untrained(model, splits),
        "trained": galleries.trained(model),
        "mixed": galleries.mixed(model, splits),
    }
    found = {}
    for kind in KINDS:
        for target, of_target in zip(TARGETS, zip(*searches[kind], strict=True), strict=True):
            found[kind, target] = Cell(of_target)
    return found


def grocery_tables(models: dict[tuple[int, int], Model], splits: int, record: Recorder) -> None:
    """Record the grocery tables: means over cells, and each cell."""
    cells = {key: cells_of(model, splits) for key, model in models.items()}
    columns = ("gallery", "cells", "unknown items", "FPIR realised", "expected from the draws", "cells that exclude it")
    more = ("with siblings in the gallery", "of other families", "TPIR", "of the TPIR at exactly the target")
    record.table("grocery", (*columns, *more, "galleries without a threshold"))
    for kind, target in itertools.product(KINDS, TARGETS):
        record.add(
            f"{kind}, target {target:.2f}", *_grocery_row([each[kind, target] for each in cells.values()], target)
        )
    record.table("grocery, cells", ("cell", *(f"{kind}, {target:.2f}" for kind in KINDS for target in TARGETS)))
    for (rotation, seed), each in cells.items():
        row = [each[kind, target] for kind in KINDS for target in TARGETS]
        record.add(f"rotation {rotation}, seed {seed}", *(_with_interval(cell) for cell in row))


def _grocery_row(cells: Sequence[Cell], target: float) -> list[str]:
    realised = np.array([cell.rates.mean() for cell in cells])
    counts = sorted({len(cell.rates) for cell in cells})
    siblings, strangers = (
        [_by_item(getattr(search, name) for search in cell.searches) for cell in cells]
        for name in ("siblings", "strangers")
    )
    tpir = float(np.mean([cell.mean(Search.tpir) for cell in cells]))
    exact = float(np.mean([cell.mean(lambda search: search.tpir(EXACT)) for cell in cells]))
    return [
        str(len(cells)),
        f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0]),
        f"{realised.mean():.3f} ± {realised.std():.3f}",
        f"{np.mean([cell.mean(lambda search: search.expected) for cell in cells]):.3f}",
        str(sum(cell.excludes(target) for cell in cells)),
        _mean_of_means(siblings),
        _mean_of_means(strangers),
        f"{tpir:.3f}",
        _ratio(tpir, exact),
        f"{sum(search.unanchored for cell in cells for search in cell.searches)} of "
        f"{sum(len(cell.searches) for cell in cells)}",
    ]


def _ratio(value: float, reference: float) -> str:
    return f"{value / reference:.2f}" if reference else NONE


def _mean_of_means(rates: Sequence[np.ndarray]) -> str:
    means = [each.mean() for each in rates if len(each)]
    return f"{np.mean(means):.3f}" if means else NONE


def _with_interval(cell: Cell) -> str:
    low, high = cell.interval
    return f"{cell.rates.mean():.3f} [{low:.3f}, {high:.3f}]"


def sources_table(name: str, found: dict[str, list[dict[str, Search]]], record: Recorder) -> None:
    """Record the searches of each data set by what their thresholds were set with."""
    columns = ("data", "gallery items", "set on", "FPIR realised for 0.05", "expected from the draws", "TPIR")
    record.table(name, (*columns, "of the TPIR at exactly 0.05", "galleries without a threshold"))
    for data, by_source in found.items():
        for source in by_source[0]:
            of_source = [each[source] for each in by_source]
            realised = np.array([search.fpir for search in of_source])
            tpir, exact = (float(np.mean([search.tpir(each) for search in of_source])) for each in (SERVED, EXACT))
            record.add(
                data,
                str(len(np.unique(of_source[0].repetition.known.labels))),
                source,
                f"{realised.mean():.3f} ± {realised.std():.3f}",
                f"{np.mean([search.expected for search in of_source]):.3f}",
                f"{tpir:.3f}",
                _ratio(tpir, exact),
                f"{sum(search.unanchored for search in of_source)} of {len(of_source)}",
            )


def spread_table(found: dict[str, list[tuple[float, float]]], record: Recorder) -> None:
    """Record the spread of anchored thresholds and of those set with as many true unknown items."""
    record.table("spread", ("data", "FPIR, own draws", "FPIR, true unknown items", "spread, of that of true items"))
    for name, pairs in found.items():
        own, true = np.array(pairs).T
        cells = (f"{each.mean():.3f} ± {each.std():.3f}" for each in (own, true))
        record.add(name, *cells, _ratio(own.std(), true.std()))


def main() -> None:
    """Train the missing models, measure, and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/anchored-training"), help="Folder of the models.")
    parser.add_argument("--seeds", type=int, default=3, help="Seeds of grocery.")
    parser.add_argument("--set-seeds", type=int, default=1, help="Seeds of the other data sets.")
    parser.add_argument("--splits", type=int, default=10, help="Random halves of each cell.")
    parser.add_argument("--repetitions", type=int, default=20, help="Random divisions of the other data sets.")
    parser.add_argument("--trained-only", action="store_true", help="Leave out models that are not trained yet.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    output: Path = arguments.output
    torch.set_num_threads(1)
    output.mkdir(parents=True, exist_ok=True)
    sets: dict[str, list[Model]] = defaultdict(list)
    for seed, name in itertools.product(range(arguments.set_seeds), SETS):
        if not arguments.trained_only or is_trained(output / f"{name}-{seed}"):
            sets[name].append(set_model(name, seed, output, data))
    rotations = {
        (rotation, seed): rotation_model(rotation, seed, output, data)
        for seed, rotation in itertools.product(range(arguments.seeds), range(ROTATIONS))
        if not arguments.trained_only or is_trained(output / f"grocery-{rotation}-{seed}")
    }
    with Recorder("anchored_training", arguments) as record:
        if rotations:
            grocery_tables(rotations, arguments.splits, record)
        count = arguments.repetitions
        for name, of_model in (("halves", galleries.untrained_sources), ("trained", galleries.trained_sources)):
            found = {
                name: [each for model in models for each in of_model(model, count)] for name, models in sets.items()
            }
            sources_table(name, found, record)
        thirds = {
            name: [pair for model in models for pair in galleries.against_true_items(model, count)]
            for name, models in sets.items()
        }
        spread_table(thirds, record)


if __name__ == "__main__":
    main()
