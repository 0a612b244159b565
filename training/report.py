"""`retrieval evaluate`: a run's figures, as data and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from retrieval.catalogue import Photo

from .data import PhotoReader
from .evaluation import evaluate_scenes, make_scene, scenes_of
from .run import Run, choose_device
from .trainer import embed_photos

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
    """Measure a run's best model on every scene and write `evaluation.json`.

    "trained" holds all items of the training partition; the validation fifth of them chose the checkpoint but
    was not seen by the loss.
    """
    settings, splits = run.settings, run.splits
    photos = run.photos()
    scenes = scenes_of(photos, unseen=splits.test, trained=[*splits.fit, *splits.validation], protocol=run.protocol)
    calibration = make_scene("calibration", photos, splits.calibration, run.protocol)
    model = run.best_model().to(choose_device(settings.device))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def embed(chosen: Sequence[Photo]) -> np.ndarray:
        reader = PhotoReader(chosen, run.preprocessing, cache_bytes=0)
        return embed_photos(model, reader, len(chosen), run.preprocessing, progress=True)

    target = settings.target_fpir if target_fpir is None else target_fpir
    report = evaluate_scenes(scenes, photos, embed, calibration=calibration, target_fpir=target)
    report["protocol"] = run.protocol.describe()
    (run.path / "evaluation.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the figures as an aligned table with one line a scene."""
    head = ["gallery and queries", *(title for _, title in COLUMNS)]
    rows = [head]
    for name, figures in report["scenes"].items():
        rows.append([name, *(_cell(key, figures[key]) for key, _ in COLUMNS)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    lines.append("")
    lines.append(
        f"Protocol: {report['protocol']}. FPIR, TPIR, FNIR and misidentification at the one threshold "
        f"{report['threshold']:.4f}, set for FPIR {report['target_fpir']:g} on the calibration items."
    )
    return "\n".join(lines)


def _cell(key: str, value: float) -> str:
    if key in ("queries", "items"):
        return str(int(value))
    return f"{value:.2e}" if key == "OPIS" else f"{value:.3f}"
