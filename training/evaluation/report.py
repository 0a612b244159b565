"""`retrieval evaluate`: a run's figures, as data and as a table for people."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from retrieval.catalogue.byte_ranges import write_file
from training.data.reader import PhotoReader
from training.loop.run import Run, choose_device

from .distance_selection import choose_distance
from .embedding import embed_photos
from .evaluate import Distance, evaluate_scenes, item_labels, make_scene, photos_of, scenes_of
from .extended import extended_figures

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


def evaluate_run(run: Run, *, target_fpir: float | None = None, extended: bool = False) -> dict[str, Any]:
    """Measure a run's best model on every scene and write `evaluation.json`.

    Figures are given with the plain distance, which compares with papers, and under "served" with the one that
    `export` would choose. "trained" holds all items of the training partition; the validation fifth of them chose the
    checkpoint and the distance but was not seen by the loss. `extended` adds the further figures of the unseen items.
    """
    settings, splits = run.settings, run.splits
    photos = run.photos()
    trained = [*splits.fit, *splits.validation]
    scenes = scenes_of(photos, unseen=splits.test, trained=trained, protocol=run.protocol)
    calibration = make_scene("calibration", photos, splits.calibration, run.protocol)
    model = run.best_model().to(choose_device(settings.device))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    used = photos_of([*scenes, calibration])
    reader = PhotoReader([photos[i] for i in used], run.preprocessing, cache_bytes=0)
    made = embed_photos(model, reader, len(used), run.preprocessing, progress=True)
    vectors = np.zeros((len(photos), made.shape[1]), dtype=np.float32)
    vectors[used] = made
    target = settings.target_fpir if target_fpir is None else target_fpir
    mine = photos_of(scenes[1:2])  # trained items
    choice = choose_distance([photos[i] for i in mine], vectors[mine], splits, run.protocol, target_fpir=target)
    served = np.zeros_like(vectors)
    served[used] = made if choice.whitening is None else choice.whitening(made)
    labels = item_labels(photos)
    report, with_density = (
        evaluate_scenes(scenes, labels, distance, calibration=calibration, target_fpir=target)
        for distance in (Distance(vectors), Distance(served, choice.measure))
    )
    if extended:
        report["extended"] = extended_figures(scenes[0], photos, vectors, labels, seed=settings.seed)
    report |= {"served": with_density, "distance": choice.tried[0], "protocol": run.protocol.describe()}
    write_file(run.path / "evaluation.json", json.dumps(report, indent=2) + "\n")
    return report


def render(report: dict[str, Any]) -> str:
    """Return the figures as aligned tables with one line a scene: plain, and as served."""
    served, distance = report["served"], report["distance"]
    how = str(distance["form"]).replace("_", " ") + (f", k = {distance['k']}" if "k" in distance else "")
    how += ", whitened" if distance["whitened"] else ""
    lines = [f"Plain distance, one threshold {report['threshold']:.4f}:", *_table(report["scenes"]), ""]
    if how == "plain":
        lines.append("Export keeps the plain distance: on the validation items no other one gains anything.")
    else:
        lines.append(f"The distance that export chooses ({how}), one threshold {served['threshold']:.4f}:")
        lines += [*_table(served["scenes"]), ""]
    if "extended" in report:
        values = [f"{name} {value:.3f}" for name, value in report["extended"].items()]
        lines += [f"Unseen items, plain distance: {', '.join(values)}.", ""]
    lines.append(
        f"Protocol: {report['protocol']}. Thresholds are set for FPIR {report['target_fpir']:g} on the calibration "
        "items; FPIR, TPIR, FNIR and misidentification are what they do here."
    )
    return "\n".join(lines)


def _table(scenes: dict[str, Any]) -> list[str]:
    head = ["gallery and queries", *(title for _, title in COLUMNS)]
    rows = [head]
    for name, figures in scenes.items():
        rows.append([name, *(_cell(key, figures[key]) for key, _ in COLUMNS)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def _cell(key: str, value: float) -> str:
    if key in ("queries", "items"):
        return str(int(value))
    return f"{value:.2e}" if key == "OPIS" else f"{value:.3f}"
