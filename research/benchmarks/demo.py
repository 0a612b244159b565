"""Run the demo with several seeds: three trainings, rates of new photos under three thresholds, and the time it takes.

    python -m research.benchmarks.demo --output runs/demo

Each seed draws its own catalogue and trains its own heads; finished seeds in the output folder are not run again. The
figures are those of the tables that `retrieval demo` ends with. Intervals of a seed are of 95 %, by bootstrap over its
items; those of a mean are t intervals over the seeds, of the change to the base loss.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from training.data.synthetic.catalogue import PLACE, UNKNOWN, VARIANT
from training.demo.queries import Rates
from training.demo.run import RUNS, TARGET_FPIR, measure_demo, run_demo
from training.demo.thresholds import BY_HAND
from training.demo.trainings import BASE, HEAD, Found, cells
from training.loop.run import Run

from .tables import NONE, Recorder, parser_of

RATES = ("seed, threshold", "promised FPIR", "realised FPIR", "interval", "TPIR", "precision at 50 % unknown")
MEANS = ("training, items", "R@1", "TPIR", "change of TPIR", "OPIS", "change of OPIS", *HEAD[6:])
KINDS = {UNKNOWN: "unknown item", VARIANT: "unknown variant of a catalogue item", PLACE: "place without an item"}
TIMES = ("seed", "wall clock", "processor")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--output", type=Path, default=Path("runs/demo"))
    arguments = parser.parse_args()
    demos = {seed: arguments.output / str(seed) for seed in arguments.seeds}
    times = {seed: _run(folder, seed) for seed, folder in demos.items()}
    results = {seed: measure_demo(folder) for seed, folder in demos.items()}
    with Recorder("demo", arguments) as record:
        record.table("trainings", ("seed, training, items", *HEAD[1:], "best epoch"))
        for seed, result in results.items():
            for (name, part), found in result.trainings.items():
                epoch = Run.open(demos[seed] / RUNS[name]).progress["best"]["epoch"]
                record.add(f"{seed}, {name}, {part}", *cells(found), f"{epoch}")
        record.table("means", MEANS)
        trainings = [result.trainings for result in results.values()]
        for name, part in trainings[0]:
            record.add(f"{name}, {part}", *_means(trainings, name, part))
        record.table("thresholds", RATES)
        for seed, result in results.items():
            for name, rates in result.rates.items():
                record.add(f"{seed}, {name}", *_cells(rates, promised=name != BY_HAND))
        record.table("kinds", ("query", "queries", *(f"seed {seed}" for seed in results)))
        for kind, name in KINDS.items():
            answers = [result.answers.matched[result.answers.kinds == kind] for result in results.values()]
            shares = (f"{matched.mean():.3f}" for matched in answers)
            numbers = [len(matched) for matched in answers]
            fewest, most = min(numbers), max(numbers)
            queries = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            record.add(f"{name} returns a match", queries, *shares)
        record.table("times", TIMES)
        for seed, (wall, processor) in times.items():
            record.add(f"{seed}", f"{wall:.0f} s", f"{processor:.0f} s")


def _means(trainings: Sequence[Mapping[tuple[str, str], Found]], name: str, part: str) -> list[str]:
    """Return the means over the seeds of what a training finds of a part, and their change to the base loss."""
    own, base = (np.array([_rates(found[each, part]) for found in trainings]) for each in (name, BASE))
    recall, tpir, opis, *others = (f"{mean:.3f}" for mean in own.mean(axis=0))
    of_tpir, of_opis = (NONE if name == BASE else _change(change) for change in (own - base)[:, 1:3].T)
    return [recall, tpir, of_tpir, opis, of_opis, *others]


def _rates(found: Found) -> list[float]:
    alike = found.alike
    return [found.recall, found.tpir, alike.opis, alike.opis_by_chance, alike.worse_half, alike.never_found]


def _change(values: np.ndarray) -> str:
    """Return the mean of a change by seed (s,) with its 95 % interval."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{values.mean():+.3f} [{values.mean() - half:+.3f}, {values.mean() + half:+.3f}]"


def _run(folder: Path, seed: int) -> tuple[float, float]:
    """Run the demo in a folder, unless it is finished; return its seconds of wall clock and of processor."""
    times = folder.with_suffix(".json")
    if not times.exists():
        shutil.rmtree(folder, ignore_errors=True)
        started, before = time.perf_counter(), sum(os.times()[:4])  # with processes that draw
        run_demo(folder, seed=seed)
        times.write_text(json.dumps([time.perf_counter() - started, sum(os.times()[:4]) - before]))
    wall, processor = json.loads(times.read_text())
    return wall, processor


def _cells(rates: Rates, *, promised: bool) -> tuple[str, ...]:
    low, high = rates.interval
    measured = (f"{rates.fpir:.3f}", f"{low:.3f} to {high:.3f}", f"{rates.tpir:.3f}", f"{rates.precision:.3f}")
    return f"{TARGET_FPIR:.3f}" if promised else NONE, *measured


if __name__ == "__main__":
    main()
