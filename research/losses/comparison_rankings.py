"""Average-precision losses: the four that arXiv 2210.01908 compares with.

Symbols: n = batch size, d = embedding size, s = cosines (n, n), P = positive pairs without self-pairs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses.base import Loss

from .comparison import pair_masks

TINY = 1e-12


def calibration(cosines: Tensor, labels: Tensor, *, positive_margin: float, negative_margin: float) -> Tensor:
    """Return the calibration loss of ROADMAP: violations averaged over all pairs (TCM: over hard pairs only)."""
    positive, negative = pair_masks(labels)
    pull = ((positive_margin - cosines).relu() * positive).sum() / positive.sum().clamp(min=1)
    push = ((cosines - negative_margin).relu() * negative).sum() / negative.sum().clamp(min=1)
    return pull + push


def mean_shortfall(precision: Tensor, positive: Tensor) -> Tensor:
    """Return the mean of 1 - precision (n,) over the queries that have a positive; 0 if there are none."""
    asked = positive.any(dim=1)
    return ((1 - precision) * asked).sum() / asked.sum().clamp(min=1)


class RoadmapCalibration(Loss):
    """The calibration loss of ROADMAP (Ramzi et al., NeurIPS 2021). Cost O(n² d), memory O(n²)."""

    def __init__(self, *, positive_margin: float = 0.9, negative_margin: float = 0.6) -> None:
        super().__init__()
        if not -1 <= negative_margin <= positive_margin <= 1:
            raise InvalidParameter("margins", "satisfy -1 <= negative <= positive <= 1", positive_margin)
        self.margins = {"positive_margin": positive_margin, "negative_margin": negative_margin}

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        return calibration(unit @ unit.T, labels, **self.margins)


class RoadmapAP(Loss):
    """SupAP of ROADMAP: AP with an upper bound on the rank among negatives. Cost O(n² (d + m)), m positives.

    A positive is charged σ(t/τ) for a negative behind it, σ(t/τ) + 1/2 for a negative up to `edge` ahead, and a line of
    slope `slope` beyond; the rank among positives is exact and has no gradient.
    """

    def __init__(self, *, temperature: float = 0.01, edge: float = 0.05, slope: float = 100.0) -> None:
        super().__init__()
        for name, value in (("temperature", temperature), ("edge", edge), ("slope", slope)):
            if not value > 0:
                raise InvalidParameter(name, "be positive", value)
        self.temperature, self.edge, self.slope = temperature, edge, slope

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        cosines = unit @ unit.T
        positive, negative = pair_masks(labels)
        scores = []
        for row, is_positive, is_negative in zip(cosines, positive, negative, strict=True):
            if is_positive.any():
                own = row[is_positive]
                first = 1 + (own[None] > own[:, None]).sum(dim=1).to(row.dtype)
                behind = self._bound(row[is_negative][None] - own[:, None]).sum(dim=1)
                scores.append((first / (first + behind)).mean())
        return 1 - torch.stack(scores).mean() if scores else cosines.sum() * 0

    def _bound(self, t: Tensor) -> Tensor:
        step = torch.sigmoid(t / self.temperature)
        height = torch.sigmoid(t.new_tensor(self.edge / self.temperature)) + 0.5
        above = torch.where(t <= self.edge, step + 0.5, self.slope * (t - self.edge) + height)
        return torch.where(t > 0, above, step)


class Roadmap(Loss):
    """ROADMAP: the mean of SupAP and its calibration loss. Cost as SupAP."""

    def __init__(
        self,
        *,
        calibration_weight: float = 0.5,
        temperature: float = 0.01,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
    ) -> None:
        super().__init__()
        if not 0 <= calibration_weight <= 1:
            raise InvalidParameter("calibration_weight", "lie in [0, 1]", calibration_weight)
        self.weight = calibration_weight
        self.ranking = RoadmapAP(temperature=temperature)
        self.calibration = RoadmapCalibration(positive_margin=positive_margin, negative_margin=negative_margin)

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        rank = self.ranking.compute(embeddings, labels)
        return (1 - self.weight) * rank + self.weight * self.calibration.compute(embeddings, labels)


class SoftbinAP(Loss):
    """Average precision over similarity bins with triangular edges (Revaud et al., ICCV 2019). Memory O(n² bins)."""

    def __init__(self, *, bins: int = 20) -> None:
        super().__init__()
        if bins < 2:
            raise InvalidParameter("bins", "be at least 2", bins)
        self.bins = bins

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        positive, negative = pair_masks(labels)
        centres = torch.linspace(1, -1, self.bins, device=unit.device, dtype=unit.dtype)
        width = 2 / (self.bins - 1)
        inside = (1 - (unit @ unit.T - centres[:, None, None]).abs() / width).relu()  # (bins, n, n)
        near = (inside * positive).sum(dim=2)
        everyone = (inside * (positive | negative)).sum(dim=2)
        precision = near.cumsum(dim=0) / everyone.cumsum(dim=0).clamp(min=TINY)
        return mean_shortfall((precision * near).sum(dim=0) / positive.sum(dim=1).clamp(min=1), positive)


class _BlackboxRanks(torch.autograd.Function):
    """Ranks (rows, m) of scores, 1 for the best; the gradient is a difference of ranks (Rolínek et al., CVPR 2020)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, strength: float) -> Tensor:
        ranks = _ranks(scores)
        ctx.save_for_backward(scores, ranks)
        ctx.strength = strength
        return ranks

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        scores, ranks = ctx.saved_tensors
        moved = _ranks(scores + ctx.strength * gradient)
        return -(ranks - moved) / ctx.strength, None


def _ranks(scores: Tensor) -> Tensor:
    return (-scores).argsort(dim=1, stable=True).argsort(dim=1, stable=True).to(scores.dtype) + 1


class BlackboxAP(Loss):
    """AP by blackbox differentiation of ranking (Rolínek et al., CVPR 2020), with a margin. Cost O(n² log n)."""

    def __init__(self, *, strength: float = 4.0, margin: float = 0.02) -> None:
        super().__init__()
        if not strength > 0:
            raise InvalidParameter("strength", "be positive", strength)
        self.strength, self.margin = strength, margin

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        positive, negative = pair_masks(labels)
        shifted = unit @ unit.T + self.margin / 2 * (negative.to(unit.dtype) - positive.to(unit.dtype))
        last = -math.inf  # excluded entries rank last: the query itself, and negatives in the ranks among positives
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        ranks = _rank(shifted.masked_fill(itself, last), self.strength)
        within = _rank(shifted.masked_fill(~positive, last), self.strength)
        ratios = torch.where(positive, within / ranks, 0)  # rank among positives divided by rank
        return mean_shortfall(ratios.sum(dim=1) / positive.sum(dim=1).clamp(min=1), positive)


def _rank(scores: Tensor, strength: float) -> Tensor:
    ranks: Tensor = _BlackboxRanks.apply(scores, strength)  # type: ignore[no-untyped-call]
    return ranks
