"""Class-wise multi-similarity loss (Furusawa, ICLR 2024).

Symbols: n = batch size, d = embedding size, s = cosine similarities (n, n), B = classes of the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss
from .groups import group_log_mean_exp, one_label_each


class ClassWiseMultiSimilarity(Loss):
    """Class-wise multi-similarity (Furusawa, ICLR 2024, Eq. 9), from which the mean-field loss is derived.

    `delta` is a cosine distance, one minus the similarity 0.8 of the paper. A photo paired with itself counts as a
    positive pair, as printed. Cost O(n² d), memory O(n²).
    """

    def __init__(self, *, alpha: float = 0.01, beta: float = 80.0, delta: float = 0.2) -> None:
        super().__init__()
        check_similarity_scales(alpha, beta, delta)
        self.alpha = alpha
        self.beta = beta
        self.delta = delta

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        offset = (1 - unit @ unit.T) - self.delta
        groups, sizes = one_label_each(labels)
        pull = _class_pairs(self.alpha * offset, groups, len(sizes)).diagonal()  # log mean of each class (B,)
        push = _class_pairs(-self.beta * offset, groups, len(sizes))  # (B, B)
        apart = ~torch.eye(len(sizes), dtype=torch.bool, device=unit.device)
        attraction = torch.log1p(pull.exp() / 2).sum() / self.alpha
        repulsion = F.softplus(push)[apart].sum() / (2 * self.beta)
        return (attraction + repulsion) / len(sizes)


def check_similarity_scales(alpha: float, beta: float, delta: float) -> None:
    """Raise InvalidParameter for scales that are not positive, or an offset that is no cosine distance."""
    for name, scale in (("alpha", alpha), ("beta", beta)):
        if not scale > 0:
            raise InvalidParameter(name, "be positive", scale)
    if not 0 <= delta <= 2:
        raise InvalidParameter("delta", "lie in [0, 2], a cosine distance", delta)


def _class_pairs(exponents: Tensor, groups: Tensor, classes: int) -> Tensor:
    """Return the log mean of e^x over the pairs of every two classes (B, B), for exponents x (n, n)."""
    rows = group_log_mean_exp(exponents, groups, classes)  # (B, n)
    return group_log_mean_exp(rows.T, groups, classes)
