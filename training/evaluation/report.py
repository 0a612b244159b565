"""Evaluation of a run: metrics as data and as a text table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from index.search.distance import PLAIN
from retrieval.files import write_file
from retrieval.text import text_table
from training.data.reader import PhotoReader
from training.loop.run import Run, choose_device

from .distance_selection import choose_distance
from .embedding import embed_photos
from .evaluate import evaluate_splits, evaluation_splits, item_labels, make_evaluation_split, photos_of

COLUMNS = (
    ("R@1", "R@1"),
    ("MAP@R", "MAP@R"),
    ("OPIS", "OPIS"),
    ("epsilon-OPIS", "ε-OPIS"),
    ("FPIR", "FPIR"),
    ("TPIR", "TPIR"),
    ("FNIR", "FNIR"),
    ("misidentification", "misid."),
    ("TPIR at exactly the target", "TPIR at target"),
    ("queries", "queries"),
    ("items", "items"),
)


def evaluate_run(run: Run, *, target_fpir: float | None = None) -> dict[str, Any]:
    """Evaluate a run's best model on every evaluation split and write `evaluation.json`.

    Metrics are computed with the plain distance, for comparison with papers, and under "served" with the distance that
    `export` would select. The split "trained" has all items of the training partition, including the validation items
    that chose the checkpoint and the distance.
    """
    settings, splits = run.settings, run.splits
    photos = run.photos()
    trained = [*splits.fit, *splits.validation]
    eval_splits = evaluation_splits(photos, unseen=splits.test, trained=trained, protocol=run.protocol)
    calibration = make_evaluation_split("calibration", photos, splits.calibration, run.protocol)
    model = run.best_model().to(choose_device())
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    used = photos_of([*eval_splits, calibration])
    reader = PhotoReader([photos[i] for i in used], run.preprocessing, cache_bytes=0)
    embedded = embed_photos(model, reader, len(used), run.preprocessing, progress=True)
    vectors = np.zeros((len(photos), embedded.shape[1]), dtype=np.float32)
    vectors[used] = embedded
    target = settings.target_fpir if target_fpir is None else target_fpir
    training = photos_of(eval_splits[1:2])
    choice = choose_distance([photos[i] for i in training], vectors[training], splits, run.protocol, target_fpir=target)
    served = np.zeros_like(vectors)
    served[used] = embedded if choice.whitening is None else choice.whitening(embedded)
    labels = item_labels(photos)
    report, served_report = (
        evaluate_splits(
            eval_splits, labels, each, calibration=calibration, target_fpir=target, distance_form=distance_form
        )
        for each, distance_form in ((vectors, PLAIN), (served, choice.distance_form))
    )
    report |= {"served": served_report, "distance": choice.tried[0], "protocol": run.protocol.describe()}
    write_file(run.path / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the metrics as text tables with one line per split: plain, and as served."""
    served, distance = report["served"], report["distance"]
    form = str(distance["form"]).replace("_", " ") + (f", k = {distance['k']}" if "k" in distance else "")
    form += ", whitened" if distance["whitened"] else ""
    lines = [f"Plain distance, one threshold {report['threshold']:.4f}:", *_table(report["splits"]), ""]
    if form == "plain":
        lines.append("Export keeps the plain distance: no other one is better on the validation items.")
    else:
        lines.append(f"The distance that export selects ({form}), one threshold {served['threshold']:.4f}:")
        lines += [*_table(served["splits"]), ""]
    lines.append(
        f"Protocol: {report['protocol']}. The thresholds are set for FPIR {report['target_fpir']:g} on the calibration "
        "items; FPIR, TPIR, FNIR and misidentification are measured with them."
    )
    return "\n".join(lines)


def _table(eval_splits: dict[str, Any]) -> list[str]:
    head = ["gallery and queries", *(title for _, title in COLUMNS)]
    rows = [[name, *(_cell(key, metrics[key]) for key, _ in COLUMNS)] for name, metrics in eval_splits.items()]
    return text_table(head, rows)


def _cell(key: str, value: float) -> str:
    if key in ("queries", "items"):
        return str(int(value))
    return f"{value:.2e}" if key == "OPIS" else f"{value:.3f}"
