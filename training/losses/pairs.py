"""Losses of all pairs of a batch.

Symbols used in every docstring: n = batch size, d = embedding size, s = cosine similarities (n, n), B = classes
of the batch. Each loss is a pure function plus a module that only holds its hyper-parameters.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from retrieval.errors import InvalidParameter

from .base import Loss
from .groups import group_log_mean_exp, one_label_each

BLOCK = {"cpu": 2**19, "cuda": 2**26}  # cosines that are looked at together: what a cache, or a GPU, holds


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, n) masks of positive and negative pairs, self-pairs excluded."""
    same = labels[:, None] == labels[None, :]
    return same.clone().fill_diagonal_(False), ~same


def threshold_consistent_margin(
    unit: Tensor,
    labels: Tensor,
    *,
    positive_margin: float,
    negative_margin: float,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    hard_only: bool = True,
    inclusive: bool = True,
) -> Tensor:
    """Return Eq. 5 of arXiv 2307.04047 for unit embeddings (n, d) and labels (n,).

    A term is the mean violation over the pairs on the wrong side of its margin, and 0, still differentiable,
    where there is none. Memory O(n d): the cosine matrix is made and left a block of rows at a time.

    Parameters
    ----------
    hard_only:
        False adds up all pairs, also those on the right side, and still divides by the number of hard ones
        (Eq. 17, an ablation).
    inclusive:
        Whether a pair exactly on a margin counts.
    """
    value: Tensor = _MeanViolation.apply(  # type: ignore[no-untyped-call]
        unit, labels, (positive_margin, negative_margin), (positive_weight, negative_weight), hard_only, inclusive
    )
    return value


class _MeanViolation(torch.autograd.Function):
    """The two terms and their gradient in one walk over the cosine matrix.

    W = d loss / d s is symmetric and constant between ties, so that the gradient of the embeddings is 2 W f. Its
    two terms are divided by numbers of pairs that are known only at the end of the walk. Where a batch is one
    block, that is at once, and W f is one product; else each term's pairs are multiplied with f on their own.
    """

    @staticmethod
    def forward(
        ctx: Any,
        unit: Tensor,
        labels: Tensor,
        margins: tuple[float, float],
        weights: tuple[float, float],
        hard_only: bool,
        inclusive: bool,
    ) -> Tensor:
        n = len(labels)
        rows = max(1, BLOCK.get(unit.device.type, BLOCK["cuda"]) // n)
        blocks = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
        weight = unit.new_tensor(weights)
        if len(blocks) == 1:
            violation, chosen, same, counts = _violations(unit, labels, blocks[0], margins, hard_only, inclusive)
            shares = weight / counts.clamp(min=1)
            share = torch.where(same, shares[0], shares[1]) * chosen
            ctx.save_for_backward(2 * (torch.where(same, -share, share) @ unit))
            return torch.dot(share.flatten(), violation.flatten())
        products = [torch.empty_like(unit), torch.empty_like(unit)]  # positive and negative pairs times f
        totals = unit.new_zeros(2, dtype=torch.float64)
        counts = torch.zeros(2, dtype=torch.int64, device=unit.device)
        for block in blocks:
            violation, chosen, same, hard = _violations(unit, labels, block, margins, hard_only, inclusive)
            counts += hard
            for term, pairs in enumerate((chosen & same, chosen & ~same)):
                totals[term] += torch.where(pairs, violation, 0).sum()
                products[term][block] = _times(pairs, unit)
        shares = weight / counts.clamp(min=1)
        ctx.save_for_backward(2 * (shares[1] * products[1] - shares[0] * products[0]))
        return (totals.to(unit.dtype) * shares).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradient * slope, None, None, None, None, None


def _violations(
    unit: Tensor, labels: Tensor, block: slice, margins: tuple[float, float], hard_only: bool, inclusive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what Eq. 5 asks of the pairs of a block of photos with everyone.

    How far each is on the wrong side of its margin, which are counted, which are positive, all (b, n), and how
    many positive and negative ones are hard (2,).
    """
    similarity = unit[block] @ unit.T
    same = labels[block, None] == labels[None]
    violation = torch.where(same, margins[0] - similarity, similarity - margins[1])
    hard = (violation >= 0) if inclusive else (violation > 0)
    hard[:, block].fill_diagonal_(False)
    pulled = torch.count_nonzero(hard & same)
    counts = torch.stack([pulled, torch.count_nonzero(hard) - pulled])
    if not hard_only:
        hard = torch.ones_like(hard)
        hard[:, block].fill_diagonal_(False)
    return violation, hard, same, counts


def _times(mask: Tensor, unit: Tensor) -> Tensor:
    """Return mask (b, n) times f (n, d): pair by pair where few are set, else as a matrix product."""
    rows, columns = mask.nonzero(as_tuple=True)
    if 16 * len(rows) > mask.numel():
        return mask.to(unit.dtype) @ unit
    product = unit.new_zeros(len(mask), unit.shape[1])
    return product.index_add_(0, rows, unit[columns])


def _check_margins(positive_margin: float, negative_margin: float) -> None:
    if not -1 <= negative_margin <= positive_margin <= 1:
        raise InvalidParameter(
            "margins",
            "satisfy -1 <= negative_margin <= positive_margin <= 1",
            (negative_margin, positive_margin),
        )


class ThresholdConsistentMargin(Loss):
    """Threshold-consistent margin regulariser (TCM, arXiv 2307.04047, Eq. 5).

    Pulls positive pairs that are less similar than `positive_margin` and pushes negative pairs that are more
    similar than `negative_margin`, each averaged over those hard pairs only. The ablations of its Appendix
    A.2.3: `negative_weight=0` (Eq. 16), `positive_weight=0` (Eq. 15), `hard_only=False` (Eq. 17).
    Cost O(n² d), memory O(n d).
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
        _check_margins(positive_margin, negative_margin)
        for name, weight in (("positive_weight", positive_weight), ("negative_weight", negative_weight)):
            if not weight >= 0:
                raise InvalidParameter(name, "be zero or more", weight)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.positive_weight = positive_weight
        self.negative_weight = negative_weight
        self.hard_only = hard_only

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return threshold_consistent_margin(
            F.normalize(embeddings, dim=1),
            labels,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            positive_weight=self.positive_weight,
            negative_weight=self.negative_weight,
            hard_only=self.hard_only,
        )


class Contrastive(Loss):
    """Contrastive loss averaged over violating pairs (arXiv 2210.01908, Eq. 29).

    The function of TCM with weights 1, except that a pair exactly on a margin does not count. (0.75, 0.6) are
    the margins inside the contextual objective; that paper's stand-alone baseline takes (0.9, 0.6).
    Cost O(n² d), memory O(n d).
    """

    def __init__(self, *, positive_margin: float = 0.75, negative_margin: float = 0.6) -> None:
        super().__init__()
        _check_margins(positive_margin, negative_margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        return threshold_consistent_margin(
            F.normalize(embeddings, dim=1),
            labels,
            positive_margin=self.positive_margin,
            negative_margin=self.negative_margin,
            inclusive=False,
        )


class ClassAveragedContrastive(Loss):
    """Contrastive loss averaged over pairs of classes (Furusawa, ICLR 2024, Eq. 6); margins are cosine distances.

    (1/2B) Σ_c mean_{i,j of c} [d - m_P]₊ + (1/2B) Σ_{c≠c'} mean_{i of c, j of c'} [m_N - d]₊, with d = 1 - s and a
    photo paired with itself among the positives, as printed. Cost O(n² d), memory O(n²).
    """

    def __init__(self, *, positive_margin: float = 0.02, negative_margin: float = 0.3) -> None:
        super().__init__()
        for name, margin in (("positive_margin", positive_margin), ("negative_margin", negative_margin)):
            if not 0 <= margin <= 2:
                raise InvalidParameter(name, "lie in [0, 2], a cosine distance", margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        distance = 1 - unit @ unit.T
        groups, sizes = one_label_each(labels)
        share = 1 / sizes.to(unit.dtype)[groups]  # a photo's weight in its class
        same = groups[:, None] == groups[None]
        cost = torch.where(same, (distance - self.positive_margin).relu(), (self.negative_margin - distance).relu())
        return (share @ cost @ share) / (2 * len(sizes))


class ClassWiseMultiSimilarity(Loss):
    """Class-wise multi-similarity (Furusawa, ICLR 2024, Eq. 9): the parent of its mean-field form.

    `delta` is a cosine distance; the paper's "0.8" is one minus it. A photo paired with itself is among the
    positives, as printed. Cost O(n² d), memory O(n²).
    """

    def __init__(self, *, alpha: float = 0.01, beta: float = 80.0, delta: float = 0.2) -> None:
        super().__init__()
        check_similarity_scales(alpha, beta, delta)
        self.alpha = alpha
        self.beta = beta
        self.delta = delta

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
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
    """Refuse scales that are not positive, or an offset that is no cosine distance."""
    for name, scale in (("alpha", alpha), ("beta", beta)):
        if not scale > 0:
            raise InvalidParameter(name, "be positive", scale)
    if not 0 <= delta <= 2:
        raise InvalidParameter("delta", "lie in [0, 2], a cosine distance", delta)


def _class_pairs(exponents: Tensor, groups: Tensor, classes: int) -> Tensor:
    """Return the log mean of e^x over the pairs of each two classes (B, B), x being (n, n)."""
    rows = group_log_mean_exp(exponents, groups, classes)  # (B, n)
    return group_log_mean_exp(rows.T, groups, classes)


class SimilarityRegularizer(Loss):
    """Pulls the batch's mean cosine, self-pairs included, to `target` (arXiv 2210.01908, Eq. 7 and 30).

    (‖mean f‖² - target)², which needs no similarity matrix; labels play no part. Cost O(n d).
    """

    def __init__(self, *, target: float = 0.3) -> None:
        super().__init__()
        if not -1 <= target <= 1:
            raise InvalidParameter("target", "lie in [-1, 1], a cosine", target)
        self.target = target

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG002
        """Return the scalar loss of raw embeddings (n, d)."""
        return (F.normalize(embeddings, dim=1).mean(dim=0).square().sum() - self.target).square()
