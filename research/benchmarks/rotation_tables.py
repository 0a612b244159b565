"""Tables of the rotations benchmark: the chosen distance by gallery and rotation, every distance, and a summary."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .tables import NONE, Recorder

ROTATIONS = 4
EVAL_SPLITS = ("unseen", "trained", "mixed")
CHOSEN = ("gallery", "rotation", "realised FPIR [families]", "TPIR", "TPIR at exactly 5 %", "misidentification")
EVERY = ("distance", "R@1", "FPIR by rotation", "TPIR", "TPIR at exactly 5 %", "misidentification", "OPIS of pairs")
SUMMARY = (
    "recipe",
    "TPIR at the chosen threshold",
    "TPIR at exactly 5 %",
    "best distance for that",
    "its TPIR at exactly 5 %",
    "ratio",
    "runs whose FPIR lies where `export` says",
)


def interval(families: Sequence[Sequence[Sequence[float]]]) -> str:
    """Return the 95 % bootstrap interval of FPIR over families; the seeds of a family are resampled together."""
    counts = np.array(families).sum(axis=0)  # (families, 2), summed over seeds
    generator = np.random.default_rng(0)
    drawn = counts[generator.integers(len(counts), size=(2000, len(counts)))].sum(axis=1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], [0.025, 0.975])
    return f"[{low:.3f}, {high:.3f}]"


def summary(runs: dict[tuple[int, int], dict[str, Any]]) -> tuple[str, ...]:
    """Return the chosen distance compared with the best distance and with the interval printed by `export`."""
    chosen = [run["distances"][run["chosen"]]["unseen"] for run in runs.values()]
    oracles: dict[str, list[float]] = {}
    for run in runs.values():
        for name, metrics in run["distances"].items():
            oracles.setdefault(name, []).append(metrics["unseen"]["TPIR at 5 %"])
    best = max(oracles, key=lambda name: float(np.mean(oracles[name])))
    reached, oracle = np.mean([metrics["TPIR"] for metrics in chosen]), np.mean(oracles[best])
    exactly = np.mean([metrics["TPIR at 5 %"] for metrics in chosen])
    ranges = [run["told"] for run in runs.values() if run.get("told")]
    inside = NONE
    if len(ranges) == len(chosen):
        held = sum(low <= metrics["FPIR"] <= high for (low, high), metrics in zip(ranges, chosen, strict=True))
        inside = f"{held} of {len(ranges)}"
    return f"{reached:.3f}", f"{exactly:.3f}", best, f"{oracle:.3f}", f"{reached / oracle:.2f}", inside


def report(results: dict[str, dict[str, Any]], recipes: Sequence[str], seeds: int, record: Recorder) -> None:
    """Record the chosen distance and every distance of each recipe, and a summary of all."""
    runs_of = {
        recipe: {(r, s): results[f"{recipe}/{r}/{s}"] for r in range(ROTATIONS) for s in range(seeds)}
        for recipe in recipes
    }
    for recipe, runs in runs_of.items():
        record.table(f"{recipe}: chosen distance", CHOSEN)
        for split, rotation in itertools.product(EVAL_SPLITS, range(ROTATIONS)):
            record.add(split, f"{rotation}", *chosen_cells([runs[rotation, s] for s in range(seeds)], split))
        record.table(f"{recipe}: every distance", EVERY)
        for name in next(iter(runs.values()))["distances"]:
            rows = {key: run["distances"][name] for key, run in runs.items() if name in run["distances"]}
            record.add(name, *distance_cells(rows))
    record.table("summary", SUMMARY)
    for recipe, runs in runs_of.items():
        record.add(recipe, *summary(runs))


def chosen_cells(runs: Sequence[dict[str, Any]], split: str) -> tuple[str, ...]:
    """Return the metrics of the distances chosen by validation, over the seeds of a rotation."""
    chosen = [run["distances"][run["chosen"]][split] for run in runs]
    means = {key: np.mean([c[key] for c in chosen]) for key in chosen[0] if key != "FPIR by family"}
    spread = interval([c["FPIR by family"] for c in chosen])
    others = (f"{means[key]:.3f}" for key in ("TPIR", "TPIR at 5 %", "misidentification"))
    return f"{means['FPIR']:.3f} {spread}", *others


def distance_cells(rows: dict[tuple[int, int], dict[str, Any]]) -> tuple[str, ...]:
    """Return the metrics of one distance on unseen items, as means over rotations and seeds."""
    rotations = [
        np.mean([row["unseen"]["FPIR"] for (r, _), row in rows.items() if r == rotation])
        for rotation in range(ROTATIONS)
    ]
    recall, *means = (
        f"{np.mean([row['unseen'][key] for row in rows.values()]):.3f}"
        for key in ("R@1", "TPIR", "TPIR at 5 %", "misidentification")
    )
    consistency = np.mean([row["OPIS"] for row in rows.values()])
    return recall, ", ".join(f"{fpir:.3f}" for fpir in rotations), *means, f"{consistency:.4f}"
