"""Contrastive losses: averaged over violating pairs, or over pairs of classes.

Symbols: n = batch size, d = embedding size, s = cosine similarities (n, n), B = classes of the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Loss, check_cosine_distance, one_label_each
from .tcm import check_margins, threshold_consistent_margin


class Contrastive(Loss):
    """Contrastive loss averaged over violating pairs (arXiv 2210.01908, Eq. 29).

    It equals TCM with weights 1, except that a pair exactly on a margin does not count. The defaults (0.75, 0.6) are
    those of the contextual objective; the paper's stand-alone baseline has (0.9, 0.6).
    Cost O(n² d), memory O(n d).
    """

    def __init__(self, *, positive_margin: float = 0.75, negative_margin: float = 0.6) -> None:
        super().__init__()
        check_margins(positive_margin, negative_margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return threshold_consistent_margin(
            embeddings,
            labels,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            inclusive=False,
        )


class ClassAveragedContrastive(Loss):
    """Contrastive loss averaged over pairs of classes (Furusawa, ICLR 2024, Eq. 6); margins are cosine distances.

    (1/2B) Σ_c mean_{i,j of c} [d - m_P]₊ + (1/2B) Σ_{c≠c'} mean_{i of c, j of c'} [m_N - d]₊, with d = 1 - s. A
    photo paired with itself counts as a positive pair, as printed. Cost O(n² d), memory O(n²).
    """

    def __init__(self, *, positive_margin: float = 0.02, negative_margin: float = 0.3) -> None:
        super().__init__()
        check_cosine_distance(positive_margin=positive_margin, negative_margin=negative_margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        distance = 1 - unit @ unit.T
        groups, sizes = one_label_each(labels)
        share = 1 / sizes.to(unit.dtype)[groups]  # a photo's weight in its class
        same = groups[:, None] == groups[None]
        cost = torch.where(same, (distance - self.positive_margin).relu(), (self.negative_margin - distance).relu())
        return (share @ cost @ share) / (2 * len(sizes))
