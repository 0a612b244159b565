"""Evaluation of a run: metrics as data and as a text table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.files import write_file
from retrieval.text import text_table
from training.data.reader import PhotoReader
from training.loop.run import Run, choose_device

from .embedding import embed_photos
from .evaluate import evaluate_splits, evaluation_splits, item_labels, make_evaluation_split, photos_of

COLUMNS = (
    ("R@1", "R@1"),
    ("MAP@R", "MAP@R"),
    ("OPIS", "OPIS"),
    ("epsilon-OPIS", "ε-OPIS"),
    ("search OPIS", "search OPIS"),
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

    Metrics are computed by the nearest photo, for comparison with papers, and under "served" by the item distance. The
    split "trained" has all items of the training partition, including the validation items that chose the checkpoint.
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
    labels = item_labels(photos)
    report, served = (
        evaluate_splits(
            eval_splits, labels, vectors, calibration=calibration, target_fpir=target, item_distance=distance
        )
        for distance in (NEAREST_PHOTO, ItemDistance())
    )
    report |= {"served": served, "protocol": run.protocol.describe()}
    write_file(run.path / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the metrics as text tables with one line per split: as served, and by the nearest photo."""
    served = report["served"]
    lines = []
    for told, values in (("By the item distance, as served", served), ("By the nearest photo alone", report)):
        lines += [f"{told}, one threshold {values['threshold']:.4f}:", *_table(values["splits"]), ""]
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
    return f"{value:.2e}" if key in ("OPIS", "search OPIS") else f"{value:.3f}"
