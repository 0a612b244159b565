"""Evaluation of a run: metrics as data and as text tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from retrieval.catalogue.read import Photo
from retrieval.files import write_file
from retrieval.images import Preprocessing
from retrieval.text import text_table
from training.data.reader import PhotoReader
from training.loop.run import Run, choose_device
from training.loop.warm_start import model_before
from training.model import EmbeddingModel, PretrainedModel

from .embedding import embed_photos
from .evaluate import evaluate_splits, evaluation_splits, item_labels, make_evaluation_split, photos_of
from .mixed import Comparison, MixedGallery

MIXED = ("R@1", "TPIR", "FPIR", "OPIS")
UNSEEN = (
    ("R@1", "R@1"),
    ("MAP@R", "MAP@R"),
    ("OPIS", "OPIS"),
    ("FPIR", "FPIR"),
    ("TPIR", "TPIR"),
    ("misidentification", "misid."),
    ("TPIR at exactly the target", "TPIR at target"),
    ("queries", "queries"),
    ("items", "items"),
)


def evaluate_run(run: Run, *, target_fpir: float | None = None) -> dict[str, Any]:
    """Evaluate a run's best model and write `evaluation.json`.

    "mixed" compares it with the model that the run started from, in a mixed gallery of fitted items, test items and
    calibration items, by the item distance. "splits" has the test items alone, by the nearest photo, as in papers.
    """
    splits, protocol, photos = run.splits, run.protocol, run.photos()
    target = run.settings.target_fpir if target_fpir is None else target_fpir
    eval_splits = evaluation_splits(photos, unseen=splits.test, protocol=protocol)
    calibration = make_evaluation_split("calibration", photos, splits.calibration, protocol)
    mixed = MixedGallery.of(
        photos, held_out=run.held_out, unfitted=splits.test, calibration=splits.calibration, protocol=protocol
    )
    used, model = photos_of([*eval_splits, calibration]), run.best_model()
    vectors = np.zeros((len(photos), model.dim), dtype=np.float32)
    vectors[used] = _embedded(model, [photos[i] for i in used], run.preprocessing)
    report = evaluate_splits(eval_splits, item_labels(photos), vectors, calibration=calibration, target_fpir=target)
    before, after = (
        mixed.search(_embedded(each, mixed.photos, preprocessing))
        for each, preprocessing in (model_before(run), (model, run.preprocessing))
    )
    report |= {
        "mixed": mixed.compare(before, after, target),
        "before": run.started_from,
        "protocol": protocol.describe(),
    }
    write_file(run.path / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the metrics as text tables: the comparison in the mixed gallery, and the test items alone."""
    target = report["target_fpir"]
    return "\n".join(
        [
            f"New photos in a mixed gallery of fitted and unfitted items, by the item distance: {report['before']} → "
            "this run [95 % interval of the change].",
            *_mixed_table(report["mixed"]),
            "",
            f"The threshold has FPIR {target:g} on calibration items, each of which is left out and searched for. FPIR "
            "and OPIS are those of the test items, the unfitted ones. Items count equally; both: the mean of the two.",
            "",
            f"Test items alone, by the nearest photo, as in papers, one threshold {report['threshold']:.4f}:",
            *_unseen_table(report["splits"]),
            "",
            f"Protocol: {report['protocol']}. The threshold is set for FPIR {target:g} on the calibration items.",
        ]
    )


def _embedded(
    model: EmbeddingModel | PretrainedModel, photos: Sequence[Photo], preprocessing: Preprocessing
) -> np.ndarray:
    model.to(choose_device()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    reader = PhotoReader(photos, preprocessing, cache_bytes=0)
    return embed_photos(model, reader, len(photos), preprocessing, progress=True)


def _mixed_table(mixed: Comparison) -> list[str]:
    head = ["items", "number", "queries", *MIXED]
    rows = [
        [part, str(found["items"]), str(found["queries"]), *(_change(found.get(name)) for name in MIXED)]
        for part, found in mixed.items()
    ]
    return text_table(head, rows)


def _change(values: dict[str, float] | None) -> str:
    if values is None:
        return ""
    return f"{values['before']:.3f} → {values['after']:.3f} [{values['low']:+.3f}, {values['high']:+.3f}]"


def _unseen_table(eval_splits: dict[str, Any]) -> list[str]:
    head = ["gallery and queries", *(title for _, title in UNSEEN)]
    rows = [[name, *(_cell(key, metrics[key]) for key, _ in UNSEEN)] for name, metrics in eval_splits.items()]
    return text_table(head, rows)


def _cell(key: str, value: float) -> str:
    if key in ("queries", "items"):
        return str(int(value))
    return f"{value:.2e}" if key == "OPIS" else f"{value:.3f}"
