"""Class-wise multi-similarity and the mean-field losses, with a learned field per class (Furusawa, ICLR 2024).

Symbols: n = batch size, d = embedding size, C = classes, B = classes of the batch, M = mean fields (C, d),
s = cosine similarities (n, n), distances are cosine distances 1 - s. Labels are 0 … C-1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import (
    Loss,
    check_cosine_distance,
    check_labels,
    check_not_negative,
    check_one_of,
    check_positive,
    check_shape,
    group_log_mean_exp,
    one_label_each,
)


class ClassWiseMultiSimilarity(Loss):
    """Class-wise multi-similarity (Furusawa, ICLR 2024, Eq. 9), from which the mean-field loss is derived.

    `delta` is a cosine distance, one minus the similarity 0.8 of the paper. A photo paired with itself counts as a
    positive pair, as printed. Cost O(n² d), memory O(n²).

    Examples
    --------
    >>> photos = torch.eye(2).repeat(2, 1)  # at two places: 0, 1, 0, 1
    >>> ClassWiseMultiSimilarity()(photos, torch.tensor([0, 1, 0, 1]))  # each item has a place
    tensor(40.4799)
    >>> ClassWiseMultiSimilarity()(photos, torch.tensor([0, 0, 1, 1]))  # both items are at both places
    tensor(40.7427)
    """

    def __init__(self, *, alpha: float = 0.01, beta: float = 80.0, delta: float = 0.2) -> None:
        super().__init__()
        check_positive(alpha=alpha, beta=beta)
        check_cosine_distance(delta=delta)
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


def _class_pairs(exponents: Tensor, groups: Tensor, classes: int) -> Tensor:
    """Return the log mean of e^x over the pairs of every two classes (B, B), for exponents x (n, n)."""
    rows = group_log_mean_exp(exponents, groups, classes)  # (B, n)
    return group_log_mean_exp(rows.T, groups, classes)


class _MeanFields(Loss):
    """Base class with one mean field per class (C, d), normalised when used."""

    def __init__(self, classes: int, dim: int, *, regularization: float) -> None:
        super().__init__()
        check_shape(classes, dim)
        check_not_negative(regularization=regularization)
        self.fields = nn.Parameter(torch.randn(classes, dim))
        self.regularization = regularization

    def distances(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the cosine distances (n, C) of raw embeddings (n, d) to the fields."""
        check_labels(labels, len(self.fields))
        return 1 - F.normalize(embeddings, dim=1) @ F.normalize(self.fields, dim=1).T

    def between_fields(self) -> Tensor:
        """Return the cosine distances between the fields (C, C-1), without the diagonal."""
        unit = F.normalize(self.fields, dim=1)
        count = len(unit)
        apart = ~torch.eye(count, dtype=torch.bool, device=unit.device)
        return (1 - unit @ unit.T)[apart].view(count, count - 1)


class MeanFieldContrastive(_MeanFields):
    """Mean-field contrastive loss (Eq. 8): the contrastive loss of photos against fields.

    It is averaged over the classes of the batch, as printed; `reduction="sample"` averages over photos, as in the
    released code. `regularization` is λ_MF, which keeps the fields apart and costs O(C² d). Cost O(n C d).

    Examples
    --------
    >>> loss = MeanFieldContrastive(classes=3, dim=8)  # learns a mean field per item
    >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    >>> loss.fields.grad.shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        *,
        positive_margin: float = 0.02,
        negative_margin: float = 0.3,
        regularization: float = 0.0,
        reduction: str = "class",
    ) -> None:
        super().__init__(classes, dim, regularization=regularization)
        check_cosine_distance(positive_margin=positive_margin, negative_margin=negative_margin)
        check_one_of("reduction", reduction, ("class", "sample"))
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin
        self.reduction = reduction

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        distances = self.distances(embeddings, labels)
        own = distances.gather(1, labels[:, None])[:, 0]
        pushes = (self.negative_margin - distances).relu()
        cost = (own - self.positive_margin).relu() + pushes.sum(dim=1) - (self.negative_margin - own).relu()
        if self.reduction == "sample":
            loss = cost.mean()
        else:
            groups, sizes = one_label_each(labels)
            loss = (cost / sizes.to(cost.dtype)[groups]).sum() / len(sizes)
        if self.regularization:
            crowding = (self.negative_margin - self.between_fields()).relu().square().sum()
            loss = loss + self.regularization * crowding / len(self.fields)
        return loss


class MeanFieldClassWiseMultiSimilarity(_MeanFields):
    """Mean-field class-wise multi-similarity loss (Eq. 10).

    `delta` is a cosine distance: 0.2 is the similarity 0.8 of the paper. `regularization` is λ_MF as printed (β² times
    less than in the released code) and costs O(C² d). Cost O(n C d): a class outside the batch is compared only with
    those in it.

    Examples
    --------
    >>> loss = MeanFieldClassWiseMultiSimilarity(classes=3, dim=8)  # learns a mean field per item
    >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    >>> loss.fields.grad.shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        *,
        alpha: float = 0.01,
        beta: float = 80.0,
        delta: float = 0.2,
        regularization: float = 0.0,
    ) -> None:
        super().__init__(classes, dim, regularization=regularization)
        check_positive(alpha=alpha, beta=beta)
        check_cosine_distance(delta=delta)
        self.alpha = alpha
        self.beta = beta
        self.delta = delta

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        offset = self.distances(embeddings, labels) - self.delta  # (n, C)
        groups, sizes = one_label_each(labels)
        present = torch.unique(labels)  # (B,), in the order of the groups
        own = offset.gather(1, labels[:, None])
        pull = group_log_mean_exp(self.alpha * own, groups, len(sizes))[:, 0]  # (B,)
        push = group_log_mean_exp(-self.beta * offset, groups, len(sizes))  # (B, C): log q_cc'
        absent = torch.ones(len(self.fields), dtype=torch.bool, device=push.device)
        absent[present] = False
        both = push[:, present]  # (B, B)
        both = torch.logaddexp(both, both.T)
        apart = ~torch.eye(len(sizes), dtype=torch.bool, device=push.device)
        # (c, c') and (c', c) are the same term; a pair with a class outside the batch has only one half
        repulsion = F.softplus(both)[apart].sum() + 2 * F.softplus(push[:, absent]).sum()
        loss = (F.softplus(pull).sum() / self.alpha + repulsion / (2 * self.beta)) / len(sizes)
        if self.regularization:
            crowding = F.softplus(self.beta * (self.delta - self.between_fields())).square().sum()
            loss = loss + self.regularization * crowding / len(self.fields)
        return loss
