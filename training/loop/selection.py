"""Selection of the checkpoint that a run keeps, and early stopping.

An objective gives each epoch a rank; the smallest is the best. Epoch 0 is the model before training, which is kept if
no trained epoch is as good.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.evaluation.evaluate import BALANCED

LAST_EPOCH = "last"
OBJECTIVES = {  # validation metrics: the objective, and the one that decides ties
    "tpir": ("mean TPIR", "R@1"),
    "balanced": (BALANCED, "R@1"),
    "r@1": ("R@1", "TPIR"),
    "map@r": ("MAP@R", "TPIR"),
    LAST_EPOCH: (),
}

Metrics = Mapping[str, float]


@dataclass
class Selection:
    """The best epoch so far. `start` and `add` take the metrics of each epoch in order.

    An epoch is a dictionary of its number, its rank and its metrics, as plain JSON values.
    """

    select: str
    patience: int
    best: dict[str, Any] | None = None
    best_trained: dict[str, Any] | None = None  # `best`, unless that is epoch 0

    def start(self, metrics: Metrics) -> None:
        """Add the model before training (epoch 0)."""
        self.best = self._choice(0, metrics)

    def add(self, epoch: int, metrics: Metrics) -> bool:
        """Add a trained epoch (1 …); return whether it is the best so far."""
        choice = self._choice(epoch, metrics)
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

    def _choice(self, epoch: int, metrics: Metrics) -> dict[str, Any]:
        """Return an epoch with its rank; metrics that are not finite rank last."""
        values = [-metrics[f"validation {name}"] for name in OBJECTIVES[self.select]]
        rank = [v if math.isfinite(v) else sys.float_info.max for v in values]
        return {"epoch": epoch, "rank": rank, "metrics": dict(metrics)}


def describe(metrics: Metrics, target_fpir: float) -> str:
    """Return validation metrics as text, for the line of an epoch."""
    return (
        f"validation R@1 {metrics['R@1']:.3f}, MAP@R {metrics['MAP@R']:.3f}, OPIS {metrics['OPIS']:.4f}, "
        f"TPIR {metrics['TPIR']:.3f} at FPIR {target_fpir:g}, {BALANCED} {metrics[BALANCED]:.3f}"
    )
