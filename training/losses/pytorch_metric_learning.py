"""CosFace, multi-similarity, normalized softmax and triplet, computed by pytorch-metric-learning.

Symbols: n = batch size, d = embedding size, C = classes. Both sides normalise; angles are in radians here.
"""

from __future__ import annotations

from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .base import Loss, check_labels, check_not_negative, check_one_of, check_positive, check_shape, library


class _Classifier(Loss):
    """A softmax loss with one learned direction a class."""

    def __init__(self, classes: int, loss: nn.Module) -> None:
        super().__init__()
        self.classes = classes
        self.inner = loss

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        check_labels(labels, self.classes)
        value: Tensor = self.inner(embeddings, labels)
        return value


class CosFace(_Classifier):
    """CosFace (Wang et al., CVPR 2018): an additive margin on the cosine of the own class. Cost O(n C d)."""

    def __init__(self, classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.35) -> None:
        check_shape(classes, dim)
        check_positive(scale=scale)
        if not 0 <= margin <= 2:
            raise InvalidParameter("margin", "lie in [0, 2], a difference of cosines", margin)
        super().__init__(classes, library("losses").CosFaceLoss(classes, dim, margin=margin, scale=scale))


class NormalizedSoftmax(_Classifier):
    """Normalized softmax (Zhai and Wu, BMVC 2019): cross-entropy of cosines / temperature. Cost O(n C d)."""

    def __init__(self, classes: int, dim: int, *, temperature: float = 0.05) -> None:
        check_shape(classes, dim)
        check_positive(temperature=temperature)
        super().__init__(classes, library("losses").NormalizedSoftmaxLoss(classes, dim, temperature=temperature))


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


class Triplet(Loss):
    """Triplet margin (Schroff et al., CVPR 2015) on unit vectors, averaged over the triplets that violate it.

    `mining` takes "all" triplets, "semihard" or "hard" ones. Cost O(n² d), and O(n³) memory for triplets.
    """

    def __init__(self, *, margin: float = 0.05, mining: str = "semihard") -> None:
        super().__init__()
        check_not_negative(margin=margin)
        check_one_of("mining", mining, ("all", "semihard", "hard"))
        self.inner = library("losses").TripletMarginLoss(margin=margin)
        self.miner = library("miners").TripletMarginMiner(margin=margin, type_of_triplets=mining)

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        value: Tensor = self.inner(embeddings, labels, self.miner(embeddings, labels))
        return value


__all__ = ["CosFace", "MultiSimilarity", "NormalizedSoftmax", "Triplet"]
