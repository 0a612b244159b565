"""Selection of the checkpoint that a run keeps, and early stopping.

An objective gives each epoch a rank; the smallest is the best. Epoch 0 is the model before training, which is kept if
no trained epoch is as good. `balanced` compares means over three epochs, which vary less than single epochs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from training.evaluation.evaluate import BALANCED

NEIGHBOURS = 3  # epochs that a smoothed rank averages: the epoch and those before it
LAST_EPOCH = "last"

Rank = list[float]
Metrics = Mapping[str, float]

OBJECTIVES: Mapping[str, Callable[[Metrics], Rank]] = {
    "tpir": lambda metrics: [-metrics["validation mean TPIR"], -metrics["validation R@1"]],
    "balanced": lambda metrics: [-metrics[f"validation {BALANCED}"]],
    "fnir": lambda metrics: [metrics["validation FNIR"], -metrics["validation R@1"]],
    "r@1": lambda metrics: [-metrics["validation R@1"], metrics["validation FNIR"]],
    "map@r": lambda metrics: [-metrics["validation MAP@R"], metrics["validation FNIR"]],
    LAST_EPOCH: lambda _: [0.0],
}
SMOOTHED = {"balanced"}


@dataclass
class Choice:
    """An epoch with its rank and its metrics."""

    epoch: int
    rank: Rank
    metrics: dict[str, float]


@dataclass
class Selection:
    """The best epoch so far. `start` and `add` take the metrics of each epoch in order."""

    select: str
    patience: int
    best: Choice | None = None
    best_trained: Choice | None = None  # `best`, unless that is epoch 0
    recent: list[Rank] = field(default_factory=list)  # of the last trained epochs, not smoothed

    def start(self, metrics: Metrics) -> None:
        """Add the model before training (epoch 0)."""
        self.best = Choice(0, self._rank(metrics), dict(metrics))

    def add(self, epoch: int, metrics: Metrics) -> bool:
        """Add a trained epoch (1 …); return whether it is the best so far."""
        self.recent = [*self.recent, self._rank(metrics)][-NEIGHBOURS:]
        choice = Choice(epoch, self._smoothed(), dict(metrics))
        always = self.select == LAST_EPOCH
        if not always and self.best_trained is not None and choice.rank >= self.best_trained.rank:
            return False
        self.best_trained = choice
        if self.best is not None and self.best.epoch == 0 and choice.rank > self.best.rank:
            return False
        self.best = choice
        return True

    def stops(self, epoch: int) -> bool:
        """Return whether training stops after an epoch: the best trained epoch is `patience` epochs old."""
        return bool(self.patience and self.best_trained and epoch - self.best_trained.epoch >= self.patience)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {key: value for key, value in asdict(self).items() if key not in ("select", "patience")}

    @classmethod
    def from_dict(cls, select: str, patience: int, values: Mapping[str, Any]) -> Self:
        """Create a Selection from the output of `to_dict`; runs of earlier versions have no epoch 0."""
        best, trained = (_choice(values.get(key)) for key in ("best", "best_trained"))
        return cls(select, patience, best, trained or best, [list(rank) for rank in values.get("recent", ())])

    def _rank(self, metrics: Metrics) -> Rank:
        """Return the rank of an epoch; metrics that are not finite rank last."""
        return [value if math.isfinite(value) else sys.float_info.max for value in OBJECTIVES[self.select](metrics)]

    def _smoothed(self) -> Rank:
        if self.select not in SMOOTHED:
            return self.recent[-1]
        return [sum(value / len(values) for value in values) for values in zip(*self.recent, strict=True)]


def _choice(values: Mapping[str, Any] | None) -> Choice | None:
    return None if values is None else Choice(values["epoch"], list(values["rank"]), dict(values["metrics"]))


def describe(metrics: Metrics, target_fpir: float) -> str:
    """Return validation metrics as text, for the line of an epoch."""
    return (
        f"validation R@1 {metrics['R@1']:.3f}, MAP@R {metrics['MAP@R']:.3f}, OPIS {metrics['OPIS']:.4f}, "
        f"TPIR {metrics['TPIR']:.3f} at FPIR {target_fpir:g}, {BALANCED} {metrics[BALANCED]:.3f}"
    )
