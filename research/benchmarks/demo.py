"""Run the demo with several seeds: two trainings, rates of new photos under three thresholds, and the time it takes.

    python -m research.benchmarks.demo --output runs/demo

Each seed draws its own catalogue and trains its own model; finished seeds in the output folder are not run again. The
rates are those of the table that `retrieval demo` ends with. An interval is the 95 % interval of the realised FPIR, by
bootstrap over the unknown items.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np

from retrieval.metrics.consistency import search_curves
from retrieval.metrics.identification import SearchScores, threshold_at_fpir
from training.demo.queries import Rates
from training.demo.run import RUNS, TARGET_FPIR, measure_demo, run_demo
from training.demo.thresholds import BY_HAND
from training.demo.trainings import HEAD

from .tables import NONE, Recorder, parser_of

CURVE = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)  # FPIR
ITEMS = (0.1, 0.5, 0.9)  # quantiles: items that are found worst, in the middle, and best
RATES = ("seed, threshold", "promised FPIR", "realised FPIR", "interval", "TPIR", "precision at 50 % unknown")
TRAININGS = ("seed, training", *HEAD[1:])
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
        record.table("trainings", TRAININGS)
        for seed, result in results.items():
            for name, found in result.trainings.items():
                measured = (found.recall, found.tpir, found.opis, found.plain_opis)
                record.add(f"{seed}, {name}", *(f"{value:.3f}" for value in measured))
        record.table("utility", ("training", "of the items", *(f"FPIR {share:g}" for share in CURVE)))
        for name in RUNS:
            scores = [result.trainings[name].scores for result in results.values()]
            for share, values in zip(ITEMS, np.mean([utilities(each) for each in scores], axis=0), strict=True):
                record.add(name, f"{share:.0%}", *(f"{value:.3f}" for value in values))
        record.table("thresholds", RATES)
        for seed, result in results.items():
            for name, rates in result.rates.items():
                record.add(f"{seed}, {name}", *_cells(rates, promised=name != BY_HAND))
        kinds = [kind_rates(result.answers) for result in results.values()]
        record.table("kinds", ("query", "queries", *(f"seed {seed}" for seed in results)))
        for name, (count, *_) in kinds[0].items():
            shares = (match if right is None else right for _, match, right in (rates[name] for rates in kinds))
            record.add(_asked(name, kinds[0]), f"{count}", *(f"{share:.3f}" for share in shares))
        record.table("times", TIMES)
        for seed, (wall, processor) in times.items():
            record.add(f"{seed}", f"{wall:.0f} s", f"{processor:.0f} s")


def utilities(scores: SearchScores) -> np.ndarray:
    """Return quantiles (3, N) over items of the utility that OPIS compares, at the thresholds of several FPIR."""
    thresholds = [threshold_at_fpir(scores, share) for share in CURVE]
    return np.quantile(search_curves(scores, thresholds).utility, ITEMS, axis=0)


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


def _asked(name: str, rates: dict) -> str:
    return f"{name} returns a match" if rates[name][2] is None else f"{name}, comes first"


if __name__ == "__main__":
    main()
