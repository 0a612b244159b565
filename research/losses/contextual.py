"""The contextual loss (arXiv 2210.01908) without single steps (Table 5), and two that the paper compares with.

Symbols: n = batch size, d = embedding size, D = squared distances (n, n), N = neighbourhoods (n, n).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.losses.base import check_one_of, check_positive, in_blocks
from training.losses.contextual import Contextual, expand_query, margins_to_kth, shared_neighbours

ROWS = 2**22  # elements of the largest (rows, n, n) block of the min ablation


class ContextualAblated(Contextual):
    """The contextual loss with the switches of Table 5. Cost O(n³), memory O(n²).

    `intersect=False` skips step 2 (W̃ = N), `expand=False` skips step 3 (Eq. 33; with both, Eq. 32),
    `complement=False` drops M₋, `stop_gradient=False` differentiates the counts, `conjunction="min"` replaces the
    product in the intersection, `step="sigmoid"` replaces the constant slope by a sigmoid of `step_temperature`.
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
        super().__init__(neighbours=neighbours, margin=margin, slope=slope)
        check_positive(step_temperature=step_temperature)
        check_one_of("conjunction", conjunction, ("product", "min"))
        check_one_of("step", step, ("constant", "sigmoid"))
        self.intersect = intersect
        self.expand = expand
        self.complement = complement
        self.stop_gradient = stop_gradient
        self.conjunction = conjunction
        self.step = step
        self.step_temperature = step_temperature

    def similarity(self, unit: Tensor) -> Tensor:
        """Return the contextual similarity w (n, n) of unit embeddings (n, d)."""
        squared = (2 - 2 * unit @ unit.T).relu()
        similarity = self.neighbourhoods(squared, self.neighbours)
        if self.intersect:
            similarity = self._intersected(similarity)
        if not self.expand:
            return similarity
        close = self.neighbourhoods(squared, self.neighbours // 2)
        if self.conjunction == "product":
            return expand_query(similarity, close)
        mutual = torch.minimum(close, close.T)
        mean = mutual @ similarity / mutual.sum(dim=1, keepdim=True).clamp(min=1)
        return (mean + mean.T) / 2

    def neighbourhoods(self, squared: Tensor, k: int) -> Tensor:
        """Return N (n, n) for squared distances (n, n)."""
        if self.step == "constant":
            return super().neighbourhoods(squared, k)
        return torch.sigmoid(margins_to_kth(squared, k=k, margin=self.margin) / self.step_temperature)

    def _intersected(self, inside: Tensor) -> Tensor:
        """Return W̃ (n, n) of Eq. 24 with the switches."""
        n, product = len(inside), self.conjunction == "product"
        sizes = inside.sum(dim=1, keepdim=True)
        divisor = sizes.detach() if self.stop_gradient else sizes
        common = inside @ inside.T if product else _sum_of_minima(inside)
        share = common / divisor.clamp(min=1)
        if self.complement:
            outside = n - sizes - sizes.T + common if product else _sum_of_minima(1 - inside)
            share = (share + outside / (n - divisor).clamp(min=1)) / 2
        return share * inside if product else torch.minimum(share, inside)


def _sum_of_minima(inside: Tensor) -> Tensor:
    """Return Σ_p min(N_ip, N_jp) (n, n), the intersection by minimum; O(n³), in blocks of rows."""
    n = len(inside)

    def sums(block: slice) -> Tensor:
        return torch.minimum(inside[block, None], inside[None]).sum(dim=2)

    return torch.cat(in_blocks(sums, rows=n, columns=n * n, limit=ROWS))


class Corrected(torch.autograd.Function):
    """Squared distances whose gradient is zeroed where it contradicts the labels (arXiv 2210.01908, Eq. 10)."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, alike: Tensor) -> Tensor:
        """Return the squared distances (n, n); `alike` is 1 for pairs with equal labels."""
        ctx.save_for_backward(alike)
        return squared.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient without the components that push mates apart or pull others together."""
        (alike,) = ctx.saved_tensors
        return torch.where(alike.bool(), gradient.clamp(min=0), gradient.clamp(max=0)), None


class ContextualCorrected(Contextual):
    """The contextual loss without gradients that contradict the labels (Table 1). Cost O(n³), memory O(n²)."""

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        alike = (labels[:, None] == labels[None]).to(unit.dtype)
        squared: Tensor = Corrected.apply((2 - 2 * unit @ unit.T).relu(), alike)  # type: ignore[no-untyped-call]
        shared = shared_neighbours(self.neighbourhoods(squared, self.neighbours))
        compared = expand_query(shared, self.neighbourhoods(squared, self.neighbours // 2))
        error = (alike - compared).square()
        return (error.sum() - error.diagonal().sum()) / error.numel()


class ContextualDetached(Contextual):
    """The contextual loss with a constant neighbour count in Eq. 27 (Figure 17). Cost O(n³), memory O(n²)."""

    def similarity(self, unit: Tensor) -> Tensor:
        """Return the contextual similarity w (n, n) of unit embeddings (n, d)."""
        squared = (2 - 2 * unit @ unit.T).relu()
        shared = shared_neighbours(self.neighbourhoods(squared, self.neighbours))
        close = self.neighbourhoods(squared, self.neighbours // 2)
        mutual = close * close.T
        mean = mutual @ shared / mutual.sum(dim=1, keepdim=True).detach().clamp(min=1)
        return (mean + mean.T) / 2
