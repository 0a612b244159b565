"""Objectives that select the epoch to keep: one half of the held-out items selects, the other half measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from .tables import Recorder

if TYPE_CHECKING:
    from .recipes import Cell, Set

DIVISIONS = 10
FIGURES = ("R@1", "MAP@R", "mean TPIR", "TPIR")
OBJECTIVES: Mapping[str, tuple[str, int]] = {  # metric, and over how many epochs it is averaged
    "TPIR at FPIR 0.05 (`fnir`)": ("TPIR", 1),
    "R@1 (`r@1`)": ("R@1", 1),
    "MAP@R (`map@r`)": ("MAP@R", 1),
    "mean TPIR (`tpir`)": ("mean TPIR", 1),
    "mean of R@1, MAP@R and mean TPIR": ("balanced", 1),
    "the same over 3 epochs (`balanced`)": ("balanced", 3),
    "TPIR at FPIR 0.05 over 3 epochs": ("TPIR", 3),
}

Curve = Mapping[str, Sequence[float]]  # metric: its value before training and after each epoch


def halves(cell: Cell, data: Set, folder: Path) -> list[tuple[Curve, Curve]]:
    """Return the metrics of each epoch on both halves of the held-out items, for each division."""
    path = cell.path(folder).with_suffix(".halves.json")
    if not path.exists():
        held = np.array(data.folds()[cell.fold][1])
        photos, _ = data.of(held.tolist())
        items = np.array([photo.item_id for photo in photos])
        with np.load(cell.path(folder), allow_pickle=False) as file:
            epochs = file["vectors"].astype(np.float32)
        epochs /= np.linalg.norm(epochs, axis=2, keepdims=True)
        divisions = []
        for number in range(DIVISIONS):
            first = np.random.default_rng(number).permutation(held)[: len(held) // 2].tolist()
            parts = (sorted(first), sorted(set(held.tolist()).difference(first)))
            divisions.append([_curve(data, part, epochs[:, np.isin(items, part)]) for part in parts])
        path.write_text(json.dumps(divisions))
    return [(one, other) for one, other in json.loads(path.read_text())]


def _curve(data: Set, items: Sequence[str], epochs: np.ndarray) -> dict[str, list[float]]:
    found = [data.measure(items, vectors) for vectors in epochs]
    return {metric: [each[metric] for each in found] for metric in (*FIGURES, "balanced")}


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each epoch and the trained epochs before it; the first value is before training."""
    trained = values[1:]
    means = [float(np.mean(trained[max(0, end - window) : end])) for end in range(1, len(trained) + 1)]
    return [values[0], *means]


def agreement(metric: str, window: int, divisions: Sequence[tuple[Curve, Curve]]) -> float:
    """Return the mean rank correlation of an objective between the halves, over the divisions."""
    found = []
    for one, other in divisions:
        ranks = stats.spearmanr(smoothed(one[metric], window), smoothed(other[metric], window)).statistic
        found.append(0.0 if np.isnan(ranks) else float(ranks))  # an objective that never changes decides nothing
    return float(np.mean(found))


def gains(metric: str, window: int, divisions: Sequence[tuple[Curve, Curve]]) -> dict[str, float]:
    """Return what the selected epoch gains over the mean epoch on the other half, by metric."""
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for pair in divisions:
        for one, other in (pair, pair[::-1]):
            epoch = int(np.argmax(smoothed(one[metric], window)))
            for name in FIGURES:
                found[name].append(other[name][epoch] - float(np.mean(other[name])))
    return {name: float(np.mean(values)) for name, values in found.items()}


def record_selection(sets: Mapping[str, Set], cells: Sequence[Cell], folder: Path, record: Recorder) -> None:
    """Record the agreement of each objective between halves of the items, and what its selection gains."""
    columns = ("selected by", "rank correlation between halves", *(f"gain in {name}" for name in FIGURES), "runs")
    record.table("selection", columns)
    runs = [halves(cell, sets[cell.data], folder) for cell in cells]
    for title, (metric, window) in OBJECTIVES.items():
        found = [gains(metric, window, divisions) for divisions in runs]
        correlation = np.mean([agreement(metric, window, divisions) for divisions in runs]) if runs else np.nan
        shown = [f"{np.mean([each[name] for each in found]):+.4f}" if runs else "–" for name in FIGURES]
        record.add(title, f"{correlation:.2f}", *shown, str(len(runs)))
