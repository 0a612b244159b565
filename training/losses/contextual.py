"""Contextual loss, which compares the neighbourhoods of photos in the batch (arXiv 2210.01908).

Symbols: n = batch size, d = embedding size, k = neighbours, itself included, D = 2 - 2s squared distances (n, n),
N = 1[-D + margin >= -(k-th smallest D of the row)] the neighbourhoods (n, n).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter

from .base import Loss, check_not_negative, check_one_of, check_positive, in_blocks
from .contrastive import Contrastive


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


ROWS = 2**22  # elements of the largest (rows, n, n) block of the min ablation

Step = Callable[[Tensor], Tensor]


def neighbourhoods(squared: Tensor, *, k: int, margin: float, step: Step) -> Tensor:
    """Return N (n, n) for squared distances (n, n): Eq. 23 and 25; the k-th distance is a constant."""
    k = min(max(k, 1), len(squared))
    kth = torch.topk(squared.detach(), k, dim=1, largest=False).values[:, -1:]
    return step(kth + margin - squared)


def shared_neighbours(inside: Tensor, *, complement: bool, stop_gradient: bool, product: bool) -> Tensor:
    """Return W̃ (n, n) of Eq. 24: the share of i's neighbourhood, and of its complement, that j has in common with i.

    It is 0 where j is not in the neighbourhood of i. The term of the complement follows from the same matrix product:
    (1-N)(1-N)ᵀ = n - |N_i| - |N_j| + N Nᵀ. Counts are at least 1, so that a neighbourhood of the whole batch gives 0,
    not NaN as in the released code.
    """
    n = len(inside)
    sizes = inside.sum(dim=1, keepdim=True)
    divisor = sizes.detach() if stop_gradient else sizes
    common = inside @ inside.T if product else _sum_of_minima(inside)
    share = common / divisor.clamp(min=1)
    if complement:
        outside = n - sizes - sizes.T + common if product else _sum_of_minima(1 - inside)
        share = (share + outside / (n - divisor).clamp(min=1)) / 2
    return share * inside if product else torch.minimum(share, inside)


def _sum_of_minima(inside: Tensor) -> Tensor:
    """Return Σ_p min(N_ip, N_jp) (n, n), the intersection by minimum; O(n³), in blocks of rows."""
    n = len(inside)

    def sums(block: slice) -> Tensor:
        return torch.minimum(inside[block, None], inside[None]).sum(dim=2)

    return torch.cat(in_blocks(sums, rows=n, columns=n * n, limit=ROWS))


def expand_query(similarity: Tensor, close: Tensor, *, product: bool) -> Tensor:
    """Return w (n, n) of Eq. 26 and 27: similarities averaged over mutual close neighbours, then symmetrised."""
    mutual = close * close.T if product else torch.minimum(close, close.T)
    mean = mutual @ similarity / mutual.sum(dim=1, keepdim=True).clamp(min=1)  # differentiated, as printed
    return (mean + mean.T) / 2


class Contextual(Loss):
    """Contextual loss: the mean square of (same class) - (contextual similarity), pairs i ≠ j (Eq. 28).

    `neighbours` should be the number of photos per item in a batch. Ablations of Table 5:
    `intersect=False` skips step 2 (W̃ = N), `expand=False` skips step 3 (Eq. 33; with both, Eq. 32),
    `complement=False` drops M₋, `stop_gradient=False` differentiates the counts, `conjunction="min"` replaces the
    product in the intersection, `step="sigmoid"` replaces the constant slope by a sigmoid of `step_temperature`.
    Cost O(n³), memory O(n²).
    """

    def __init__(
        self,
        *,
        neighbours: int = 4,
        margin: float = 0.05,
        slope: float = 10.0,
        intersect: bool = True,
        expand: bool = True,
        complement: bool = True,
        stop_gradient: bool = True,
        conjunction: str = "product",
        step: str = "constant",
        step_temperature: float = 0.1,
    ) -> None:
        super().__init__()
        if neighbours < 1:
            raise InvalidParameter("neighbours", "be at least 1", neighbours)
        check_not_negative(margin=margin)
        check_positive(slope=slope, step_temperature=step_temperature)
        check_one_of("conjunction", conjunction, ("product", "min"))
        check_one_of("step", step, ("constant", "sigmoid"))
        self.neighbours = neighbours
        self.margin = margin
        self.slope = slope
        self.intersect = intersect
        self.expand = expand
        self.complement = complement
        self.stop_gradient = stop_gradient
        self.conjunction = conjunction
        self.step = step
        self.step_temperature = step_temperature

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        alike = (labels[:, None] == labels[None]).to(unit.dtype)
        error = (alike - self.similarity(unit)).square()
        return (error.sum() - error.diagonal().sum()) / error.numel()

    def similarity(self, unit: Tensor) -> Tensor:
        """Return the contextual similarity w (n, n) of unit embeddings (n, d)."""
        squared = (2 - 2 * unit @ unit.T).relu()
        product = self.conjunction == "product"
        similarity = neighbourhoods(squared, k=self.neighbours, margin=self.margin, step=self._step)
        if self.intersect:
            similarity = shared_neighbours(
                similarity, complement=self.complement, stop_gradient=self.stop_gradient, product=product
            )
        if self.expand:
            close = neighbourhoods(squared, k=self.neighbours // 2, margin=self.margin, step=self._step)
            similarity = expand_query(similarity, close, product=product)
        return similarity

    def _step(self, x: Tensor) -> Tensor:
        if self.step == "sigmoid":
            return torch.sigmoid(x / self.step_temperature)
        line = self.slope * x
        return (x >= 0).to(x.dtype) + (line - line.detach())  # the value of a step, with a constant slope (Eq. 20)


class ContextualSum(Loss):
    """The objective of the contextual paper, λ L_context + (1 - λ) L_contrast + γ L_reg (Eq. 6 and 31).

    The paper has λ = 0.8 to 0.95 at 224 px and 0.4 at 256 px, γ = 0.1. Cost O(n³), memory O(n²).
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
