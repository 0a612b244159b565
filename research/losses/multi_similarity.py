"""Multi-similarity, computed by pytorch-metric-learning."""

from __future__ import annotations

from torch import Tensor

from training.losses.base import Loss, check_positive

from .library import library


class MultiSimilarity(Loss):
    """Multi-similarity (Wang et al., CVPR 2019), with its miner; `epsilon < 0` mines nothing. Cost O(n² d)."""

    def __init__(self, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float = 0.1) -> None:
        super().__init__()
        check_positive(alpha=alpha, beta=beta)
        self.inner = library("losses").MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)
        self.miner = library("miners").MultiSimilarityMiner(epsilon=epsilon) if epsilon >= 0 else None

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        pairs = self.miner(embeddings, labels) if self.miner is not None else None
        value: Tensor = self.inner(embeddings, labels, pairs)
        return value
