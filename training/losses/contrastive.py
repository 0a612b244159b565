"""Contrastive loss, averaged over violating pairs.

Symbols: n = batch size, d = embedding size.
"""

from __future__ import annotations

from torch import Tensor

from .base import Loss
from .tcm import check_margins, threshold_consistent_margin


class Contrastive(Loss):
    """Contrastive loss averaged over violating pairs (arXiv 2210.01908, Eq. 29).

    It equals TCM with weights 1, except that a pair exactly on a margin does not count. The defaults (0.75, 0.6) are
    those of the contextual objective; the paper's stand-alone baseline has (0.9, 0.6).
    Cost O(n² d), memory O(n d).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> Contrastive()(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(0.)
    >>> Contrastive()(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(1.1500)
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
