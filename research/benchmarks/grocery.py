"""Backbones fine-tuned on grocery photos with the losses that the docs recommend, with several seeds each.

    python -m research.benchmarks.grocery --output runs/grocery-benchmark

The benchmark trains the runs that are missing under --output (an interrupted benchmark continues), evaluates every run
in a mixed gallery of fitted and test items whose threshold comes from the calibration items, and prints tables of mean
± standard deviation over seeds. The photos and weights come from RETRIEVAL_TEST_DATA.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from training.config import Settings
from training.evaluation.report import evaluate_run
from training.loop.run import Run
from training.loop.train import train

from .tables import NONE, Recorder, parser_of

START: dict[str, Any] = {"dim": 128, "head_start": "random"}  # of the embedding layer
RECIPES: dict[str, dict[str, Any]] = {
    "Recall@k + TCM": {"loss": "recall_at_k", "regularizer": "tcm"},
    "Smooth-AP + TCM": {"loss": "smooth_ap", "regularizer": "tcm"},
    "ProxyAnchor": {"loss": "proxy_anchor", "regularizer": ""},
    "EL-nivMF + ProxyAnchor": {
        "loss": "vmf_nca",
        "loss_arguments": {"anchor_weight": 0.3},
        "head_learning_rate": 1e-2,  # the head is ten times as large
    },
}
METRICS = ("R@1", "TPIR", "FPIR")
COMPARED = {  # columns of each row's own TPIR, which the model before training reaches too: metric, and of which model
    "equal TPIR": ("equal TPIR", "after"),
    "OPIS": ("OPIS", "after"),
    "OPIS before training": ("OPIS", "before"),
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/grocery-benchmark"))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--only", choices=RECIPES, action="append", help="Train only this; for two calls at once.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")).resolve()
    chosen = arguments.only or list(RECIPES)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    for seed in range(arguments.seeds):
        for name in chosen:
            settings = Settings(
                catalogue=str(data / "data/grocery/grocery.csv"),
                backbone=str(data / "weights/mobilenet_v1_0.75_224"),
                epochs=arguments.epochs,
                precision=arguments.precision,
                seed=seed,
                **START,
                **RECIPES[name],
            )
            path = arguments.output / f"{name.replace(' ', '')}-{seed}"
            print(f"== {name}, seed {seed}", flush=True)
            results[name].append(report_of(settings, path))
    if arguments.only:
        return
    (arguments.output / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    with Recorder("grocery", arguments) as record:
        tables(results, record)


def report_of(settings: Settings, path: Path) -> dict[str, Any]:
    """Train and evaluate a run, or read the report of an earlier call."""
    report = path / "evaluation.json"
    if report.exists():
        return dict(json.loads(report.read_text()))
    started = (path / "settings.json").exists()
    run = Run.open(path) if started else None
    if run is None or run.progress.get("epoch") != settings.epochs:
        run = train(settings, path, resume=started)
    return evaluate_run(run)


def tables(results: dict[str, list[dict[str, Any]]], record: Recorder) -> None:
    """Record a table per part of the mixed gallery: mean ± standard deviation over seeds, and before training.

    OPIS is at the TPIR that a run and the model before training both reach. That TPIR differs from run to run, so each
    row has the OPIS before training at the TPIR of its own runs.
    """
    for part, first in results[next(iter(results))][0]["mixed"].items():
        names = [name for name in METRICS if name in first]
        compared = {title: cell for title, cell in COMPARED.items() if cell[0] in first}
        record.table(part, ("loss", *names, *compared))
        record.add("before training", *(f"{first[name]['before']:.4f}" for name in names), *(NONE for _ in compared))
        for recipe, reports in results.items():
            runs = [report["mixed"][part] for report in reports]
            cells = [(name, "after") for name in names] + list(compared.values())
            record.add(recipe, *(_mean([run[name][when] for run in runs]) for name, when in cells))


def _mean(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


if __name__ == "__main__":
    main()
