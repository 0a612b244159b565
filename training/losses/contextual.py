"""Contextual loss, which compares the neighbourhoods of photos in the batch (arXiv 2210.01908).

Symbols: n = batch size, d = embedding size, k = neighbours, itself included, D = 2 - 2s squared distances (n, n),
N = 1[-D + margin >= -(k-th smallest D of the row)] the neighbourhoods (n, n).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss, check_not_negative, check_positive
from .contrastive import Contrastive


class SimilarityRegularizer(Loss):
    """Pulls the batch's mean cosine, self-pairs included, to `target` (arXiv 2210.01908, Eq. 7 and 30).

    (‖mean f‖² - target)², which needs no similarity matrix; labels play no part. Cost O(n d).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> SimilarityRegularizer(target=0.5)(photos, torch.tensor([0, 1, 0, 1]))  # the mean cosine is 0.5
    tensor(0.)
    >>> SimilarityRegularizer(target=0.5)(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))  # it is 1
    tensor(0.2500)
    """

    def __init__(self, *, target: float = 0.3) -> None:
        super().__init__()
        if not -1 <= target <= 1:
            raise InvalidParameter("target", "lie in [-1, 1], a cosine", target)
        self.target = target

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """Return the scalar loss of raw embeddings (n, d)."""
        return (F.normalize(embeddings, dim=1).mean(dim=0).square().sum() - self.target).square()


def step(x: Tensor, *, slope: float) -> Tensor:
    """Return 1 where x >= 0, else 0, with a constant slope as its gradient (Eq. 20)."""
    line = slope * x
    return (x >= 0).to(x.dtype) + (line - line.detach())


def margins_to_kth(squared: Tensor, *, k: int, margin: float) -> Tensor:
    """Return how far each distance (n, n) lies within the k-th smallest of its row, a constant, plus the margin."""
    k = min(max(k, 1), len(squared))
    kth = torch.topk(squared.detach(), k, dim=1, largest=False).values[:, -1:]
    return kth + margin - squared


def shared_neighbours(inside: Tensor) -> Tensor:
    """Return W̃ (n, n) of Eq. 24: the share of i's neighbourhood, and of its complement, that j has in common with i.

    It is 0 where j is not in the neighbourhood of i. The term of the complement follows from the same matrix product:
    (1-N)(1-N)ᵀ = n - |N_i| - |N_j| + N Nᵀ. Counts are constants of at least 1, so that a neighbourhood of the whole
    batch gives 0, not NaN as in the released code.
    """
    n = len(inside)
    sizes = inside.sum(dim=1, keepdim=True)
    counts = sizes.detach()
    common = inside @ inside.T
    outside = n - sizes - sizes.T + common
    return (common / counts.clamp(min=1) + outside / (n - counts).clamp(min=1)) / 2 * inside


def expand_query(similarity: Tensor, close: Tensor) -> Tensor:
    """Return w (n, n) of Eq. 26 and 27: similarities averaged over mutual close neighbours, then symmetrised."""
    mutual = close * close.T
    mean = mutual @ similarity / mutual.sum(dim=1, keepdim=True).clamp(min=1)  # differentiated, as printed
    return (mean + mean.T) / 2


class Contextual(Loss):
    """Contextual loss: the mean square of (same class) - (contextual similarity), pairs i ≠ j (Eq. 28).

    `neighbours` should be the number of photos per item in a batch. Cost O(n³), memory O(n²).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> Contextual(neighbours=2)(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(0.)
    >>> Contextual(neighbours=2)(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(0.5000)
    """

    def __init__(self, *, neighbours: int = 4, margin: float = 0.05, slope: float = 10.0) -> None:
        super().__init__()
        if neighbours < 1:
            raise InvalidParameter("neighbours", "be at least 1", neighbours)
        check_not_negative(margin=margin)
        check_positive(slope=slope)
        self.neighbours = neighbours
        self.margin = margin
        self.slope = slope

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        alike = (labels[:, None] == labels[None]).to(unit.dtype)
        error = (alike - self.similarity(unit)).square()
        return (error.sum() - error.diagonal().sum()) / error.numel()

    def similarity(self, unit: Tensor) -> Tensor:
        """Return the contextual similarity w (n, n) of unit embeddings (n, d)."""
        squared = (2 - 2 * unit @ unit.T).relu()
        shared = shared_neighbours(self.neighbourhoods(squared, self.neighbours))
        return expand_query(shared, self.neighbourhoods(squared, self.neighbours // 2))

    def neighbourhoods(self, squared: Tensor, k: int) -> Tensor:
        """Return N (n, n) for squared distances (n, n): Eq. 23 and 25."""
        return step(margins_to_kth(squared, k=k, margin=self.margin), slope=self.slope)


class ContextualSum(Loss):
    """The objective of the contextual paper, λ L_context + (1 - λ) L_contrast + γ L_reg (Eq. 6 and 31).

    The paper has λ = 0.8 to 0.95 at 224 px and 0.4 at 256 px, γ = 0.1. Cost O(n³), memory O(n²).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> ContextualSum(neighbours=2)(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(0.0040)
    >>> ContextualSum(neighbours=2)(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(0.6340)
    """

    def __init__(
        self,
        *,
        contextual_weight: float = 0.8,
        similarity_weight: float = 0.1,
        neighbours: int = 4,
        margin: float = 0.05,
        slope: float = 10.0,
        positive_margin: float = 0.75,
        negative_margin: float = 0.6,
        target: float = 0.3,
    ) -> None:
        super().__init__()
        if not 0 <= contextual_weight <= 1:
            raise InvalidParameter("contextual_weight", "lie in [0, 1]", contextual_weight)
        check_not_negative(similarity_weight=similarity_weight)
        self.contextual_weight = contextual_weight
        self.similarity_weight = similarity_weight
        self.contextual = Contextual(neighbours=neighbours, margin=margin, slope=slope)
        self.contrastive = Contrastive(positive_margin=positive_margin, negative_margin=negative_margin)
        self.regularizer = SimilarityRegularizer(target=target)

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return (
            self.contextual_weight * self.contextual.compute(embeddings, labels)
            + (1 - self.contextual_weight) * self.contrastive.compute(embeddings, labels)
            + self.similarity_weight * self.regularizer.compute(embeddings, labels)
        )
