"""Selection of the checkpoint that a run keeps, and early stopping.

An objective gives each epoch a rank by its searches in the mixed gallery; the smallest is the best. Epoch 0 is the
model before the first step, which is kept if no trained epoch is as good.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.evaluation.mixed import FITTED, UNFITTED, Comparison

LAST_EPOCH = "last"
OBJECTIVES = {  # validation metrics: the objective, and the one that decides ties
    "tpir": ("mean TPIR", "R@1"),
    "r@1": ("R@1", "mean TPIR"),
    LAST_EPOCH: (),
}

Metrics = Mapping[str, float]


@dataclass
class Selection:
    """The best epoch so far. `start` and `add` take the metrics of each epoch in order.

    An epoch is a dictionary of its number, its rank, its metrics and their comparison with those of the model that
    training started from, as plain JSON values.
    """

    select: str
    patience: int
    best: dict[str, Any] | None = None
    best_trained: dict[str, Any] | None = None  # `best`, unless that is epoch 0

    def start(self, metrics: Metrics, comparison: Comparison) -> None:
        """Add the model before the first step (epoch 0)."""
        self.best = self._choice(0, metrics, comparison)

    def add(self, epoch: int, metrics: Metrics, comparison: Comparison) -> bool:
        """Add a trained epoch (1 …); return whether it is the best so far."""
        choice = self._choice(epoch, metrics, comparison)
        always = self.select == LAST_EPOCH
        if not always and self.best_trained is not None and choice["rank"] >= self.best_trained["rank"]:
            return False
        self.best_trained = choice
        if self.best is not None and self.best["epoch"] == 0 and choice["rank"] > self.best["rank"]:
            return False
        self.best = choice
        return True

    def stops(self, epoch: int) -> bool:
        """Return whether training stops after an epoch: the best trained epoch is `patience` epochs old."""
        return bool(self.patience and self.best_trained and epoch - self.best_trained["epoch"] >= self.patience)

    def _choice(self, epoch: int, metrics: Metrics, comparison: Comparison) -> dict[str, Any]:
        """Return an epoch with its rank; metrics that are not finite rank last."""
        values = [-metrics[f"validation {name}"] for name in OBJECTIVES[self.select]]
        rank = [v if math.isfinite(v) else sys.float_info.max for v in values]
        return {"epoch": epoch, "rank": rank, "metrics": dict(metrics), "comparison": comparison}


def describe(metrics: Metrics, target_fpir: float) -> str:
    """Return the metrics of searches in the mixed gallery as text, for the line of an epoch."""
    parts = [part for part in (FITTED, UNFITTED) if f"{part} TPIR" in metrics]
    each = " and ".join(f"{metrics[f'{part} TPIR']:.3f} of {part} items" for part in parts)
    return (
        f"R@1 {metrics['R@1']:.3f}, TPIR {metrics['TPIR']:.3f} at FPIR {target_fpir:g} ({each}), "
        f"OPIS {metrics['unfitted OPIS']:.4f} at TPIR {metrics['unfitted equal TPIR']:.3f} "
        f"({metrics['unfitted OPIS by chance']:.4f} by chance)"
    )
