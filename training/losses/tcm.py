"""Threshold-consistent margin loss (TCM, arXiv 2307.04047).

Symbols: n = batch size, d = embedding size, b = rows of a block, s = cosine similarities (n, n).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss, block_limit, check_not_negative, in_blocks


def threshold_consistent_margin(
    embeddings: Tensor,
    labels: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    hard_only: bool = True,
    inclusive: bool = True,
) -> Tensor:
    """Return Eq. 5 of arXiv 2307.04047 for raw embeddings (n, d) and labels (n,).

    Each term is the mean violation over the pairs on the wrong side of its margin, and 0, still differentiable,
    without such pairs. Memory O(n d): the cosine matrix is computed in blocks of rows.

    Parameters
    ----------
    hard_only:
        False sums over all pairs, including those on the right side, but still divides by the number of hard ones
        (ablation, Eq. 17).
    inclusive:
        Whether a pair exactly on a margin counts.
    """
    unit, n = F.normalize(embeddings, dim=1), len(labels)

    def violations(block: slice) -> tuple[Tensor, Tensor]:
        """Return the sums over the positive and negative pairs of a block with all photos, and the hard pairs (2,)."""
        similarity = unit[block] @ unit.T  # (b, n)
        same = labels[block, None] == labels[None]
        violation = torch.where(same, positive_margin - similarity, similarity - negative_margin)
        others = torch.ones_like(same)
        others[:, block].fill_diagonal_(False)
        hard = others & ((violation >= 0) if inclusive else (violation > 0))
        counted = violation * (hard if hard_only else others)
        sums = [torch.where(term, counted, 0).sum() for term in (same, ~same)]
        return torch.stack(sums), torch.stack([(hard & term).sum() for term in (same, ~same)])

    sums, counts = zip(*in_blocks(violations, rows=n, columns=n, limit=block_limit(unit)), strict=True)
    weights = unit.new_tensor([positive_weight, negative_weight])
    return (weights * torch.stack(sums).sum(dim=0) / torch.stack(counts).sum(dim=0).clamp(min=1)).sum()


def check_margins(positive_margin: float, negative_margin: float) -> None:
    """Raise InvalidParameter for margins that are out of order or no cosines."""
    if not -1 <= negative_margin <= positive_margin <= 1:
        raise InvalidParameter(
            "margins",
            "satisfy -1 <= negative_margin <= positive_margin <= 1",
            (negative_margin, positive_margin),
        )


class ThresholdConsistentMargin(Loss):
    """Threshold-consistent margin regulariser (TCM, arXiv 2307.04047, Eq. 5).

    Pulls positive pairs that are less similar than `positive_margin` and pushes negative pairs that are more similar
    than `negative_margin`, each averaged over these hard pairs only. Ablations of
    Appendix A.2.3: `negative_weight=0` (Eq. 16), `positive_weight=0` (Eq. 15), `hard_only=False` (Eq. 17).
    Cost O(n² d), memory O(n d).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> ThresholdConsistentMargin()(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(0.)
    >>> ThresholdConsistentMargin()(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(1.4000)
    """

    def __init__(
        self,
        *,
        positive_margin: float = 0.9,
        negative_margin: float = 0.5,
        positive_weight: float = 1.0,
        negative_weight: float = 1.0,
        hard_only: bool = True,
    ) -> None:
        super().__init__()
        check_margins(positive_margin, negative_margin)
        check_not_negative(positive_weight=positive_weight, negative_weight=negative_weight)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.positive_weight = positive_weight
        self.negative_weight = negative_weight
        self.hard_only = hard_only

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return threshold_consistent_margin(
            embeddings,
            labels,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            positive_weight=self.positive_weight,
            negative_weight=self.negative_weight,
            hard_only=self.hard_only,
        )
