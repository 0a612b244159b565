"""Losses with one learned proxy per class.

Symbols: n = batch size, d = embedding size, C = classes; labels are 0 … C-1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Loss, check_labels, check_positive, check_shape


def proxy_anchor(similarity: Tensor, labels: Tensor, *, alpha: float = 32.0, margin: float = 0.1) -> Tensor:
    """Return the ProxyAnchor loss of cosines (n, C) to the proxies (Kim et al., CVPR 2020).

    (1/|C+|) Σ_{c in batch} log(1 + Σ_{i of c} e^{-α(s-δ)}) + (1/C) Σ_c log(1 + Σ_{i not of c} e^{α(s+δ)})
    """
    own = F.one_hot(labels, similarity.shape[1]).bool()
    present = own.any(dim=0)
    pull = _log_one_plus_sum(-alpha * (similarity - margin), own)
    push = _log_one_plus_sum(alpha * (similarity + margin), ~own)
    return pull.sum() / present.sum().clamp(min=1) + push.sum() / similarity.shape[1]


def _log_one_plus_sum(exponents: Tensor, mask: Tensor) -> Tensor:
    """Return log(1 + Σ e^x) over the masked rows of each column (C,); 0 where there are none."""
    masked = exponents.masked_fill(~mask, -math.inf)
    return torch.logsumexp(torch.cat([masked.new_zeros(1, masked.shape[1]), masked]), dim=0)


class Proxies(Loss):
    """Base class with one proxy per class (C, d), normalised when used."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        check_shape(classes, dim)
        self.proxies = nn.Parameter(torch.empty(classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    def cosines(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return cosines (n, C) of raw embeddings (n, d); raise InvalidParameter for a label without a proxy."""
        check_labels(labels, len(self.proxies))
        return F.normalize(embeddings, dim=1) @ F.normalize(self.proxies, dim=1).T


class ProxyAnchor(Proxies):
    """Proxy Anchor (Kim et al., CVPR 2020). Cost O(n C d).

    Examples
    --------
    >>> loss = ProxyAnchor(classes=3, dim=8)  # learns a proxy per item
    >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    >>> loss.proxies.grad.shape
    torch.Size([3, 8])
    """

    def __init__(self, classes: int, dim: int, *, alpha: float = 32.0, margin: float = 0.1) -> None:
        super().__init__(classes, dim)
        check_positive(alpha=alpha)
        self.alpha = alpha
        self.margin = margin

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        return proxy_anchor(self.cosines(embeddings, labels), labels, alpha=self.alpha, margin=self.margin)
