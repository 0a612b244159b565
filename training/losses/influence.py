"""Influence loss of backward-compatible training (BCT; Shen et al., CVPR 2020, arXiv 2003.11942).

Symbols: n = batch size, d = embedding size, C = classes; labels are 0 … C-1.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter

SCALE = 16.0  # of the cosines, as in a cosine softmax


def influence(embeddings: Tensor, labels: Tensor, centres: Tensor, *, scale: float) -> Tensor:
    """Return the cross-entropy of new embeddings (n, d) under the old model's classifier.

    The classifier is synthesised: its weights are the mean old embeddings (C, d) of the classes (Section 3.3). The old
    model needs no classifier of its own, and the classes may be new to it.
    """
    cosines = F.normalize(embeddings, dim=1) @ F.normalize(centres, dim=1).T
    return F.cross_entropy(scale * cosines, labels)


class BackwardCompatible(nn.Module):
    """A loss plus `weight` times the influence loss (Eq. 3)."""

    centres: Tensor

    def __init__(self, loss: nn.Module, centres: Tensor, *, weight: float, scale: float = SCALE) -> None:
        super().__init__()
        if not weight >= 0:
            raise InvalidParameter("compatible_weight", "be zero or more", weight)
        self.loss = loss
        self.register_buffer("centres", centres)
        self.weight = weight
        self.scale = scale

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar sum for raw embeddings (n, d) with labels (n,)."""
        old = influence(embeddings, labels, self.centres, scale=self.scale)
        total: Tensor = self.loss(embeddings, labels) + self.weight * old
        return total
