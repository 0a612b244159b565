"""Regularizer of the mean similarity of a batch (arXiv 2210.01908).

Symbols: n = batch size, d = embedding size, f = unit embeddings.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss


class SimilarityRegularizer(Loss):
    """Pulls the batch's mean cosine, self-pairs included, to `target` (arXiv 2210.01908, Eq. 7 and 30).

    (‖mean f‖² - target)², which needs no similarity matrix; labels play no part. Cost O(n d).
    """

    def __init__(self, *, target: float = 0.3) -> None:
        super().__init__()
        if not -1 <= target <= 1:
            raise InvalidParameter("target", "lie in [-1, 1], a cosine", target)
        self.target = target

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """Return the scalar loss of raw embeddings (n, d)."""
        return (F.normalize(embeddings, dim=1).mean(dim=0).square().sum() - self.target).square()
