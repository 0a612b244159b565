"""Comparison losses for the papers' tables; average-precision losses are in `comparison_rankings`.

Symbols: n = batch size, d = embedding size, C = classes, s = cosines (n, n), D = squared distances (n, n).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses.base import Loss, check_labels, library
from training.losses.contextual import Contextual, expand_query, neighbourhoods, shared_neighbours
from training.losses.proxies import Proxies

TINY = 1e-6


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n, n) masks of positive and negative pairs, self-pairs excluded."""
    same = labels[:, None] == labels[None, :]
    return same.clone().fill_diagonal_(False), ~same


class FastAP(Loss):
    """FastAP (Cakir et al., CVPR 2019) of squared distances on unit vectors. Cost and memory O(n² (d + bins))."""

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__()
        if bins < 1:
            raise InvalidParameter("bins", "be at least 1", bins)
        self.inner = library("losses").FastAPLoss(num_bins=bins)

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        value: Tensor = self.inner(embeddings, labels)
        return value


def nt_xent(cosines: Tensor, labels: Tensor, *, temperature: float) -> Tensor:
    """Return the mean over positive pairs (i, j) of -log(e^{s_ij/τ} / (e^{s_ij/τ} + Σ_{negatives k of i} e^{s_ik/τ})).

    The result is 0, still differentiable, if there are no positive pairs. Cost and memory are O(n²); an implementation
    over lists of pairs takes O(n³ m).
    """
    positive, negative = pair_masks(labels)
    logits = cosines / temperature
    others = torch.logsumexp(logits.masked_fill(~negative, -math.inf), dim=1, keepdim=True)  # (n, 1)
    surprise = torch.logaddexp(logits, others) - logits
    return (surprise * positive).sum() / positive.sum().clamp(min=1)


class NTXent(Loss):
    """NT-Xent (Chen et al., ICML 2020) with the photos of an item as its positives. Cost O(n² d), memory O(n²)."""

    def __init__(self, *, temperature: float = 0.07) -> None:
        super().__init__()
        if not temperature > 0:
            raise InvalidParameter("temperature", "be positive", temperature)
        self.temperature = temperature

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        return nt_xent(unit @ unit.T, labels, temperature=self.temperature)


def draw_negatives(
    distances: Tensor, labels: Tensor, *, dim: int, cutoff: float, reach: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return every positive pair whose photos have a negative, and one drawn negative per pair: three tensors (t,).

    A negative at distance x is drawn in proportion to 1 / (x^(d-2) (1 - x²/4)^((d-3)/2)), the inverse density of
    distances x on the sphere (Wu et al., Eq. 4 and 5). Random numbers come from torch's global generator.

    Parameters
    ----------
    distances:
        Distances of unit embeddings (n, n).
    dim:
        Embedding size d.
    cutoff, reach:
        Distances below `cutoff` count as `cutoff`. Negatives at `reach` or more are drawn, uniformly, only for photos
        without a nearer negative.
    """
    positive, negative = pair_masks(labels)
    if not positive.any() or not negative.any():
        nobody = labels.new_empty(0)
        return nobody, nobody, nobody
    near = distances.clamp(min=cutoff)
    rarity = (2 - dim) * near.log() - (dim - 3) / 2 * (1 - near.square() / 4).clamp(min=TINY).log()
    offered = negative & (near < reach)
    weights = torch.where(offered.any(dim=1, keepdim=True), rarity.masked_fill(~offered, -math.inf), 0.0)
    chances = weights.masked_fill(~negative, -math.inf).softmax(dim=1)
    drawn = torch.multinomial(chances, int(positive.sum(dim=1).max()), replacement=True)  # (n, m)
    anchors, positives = positive.nonzero(as_tuple=True)
    return anchors, positives, drawn[anchors, positive.cumsum(dim=1)[anchors, positives] - 1]


class Margin(Loss):
    """Margin loss with distance-weighted sampling (Wu et al., ICCV 2017) of unit vectors. Cost O(n² d).

    The loss is the mean violation of d_ap <= `beta` - `margin` and d_an >= `beta` + `margin` over the positive pairs,
    with one drawn negative per pair (`draw_negatives`). A batch without positives or without negatives gives 0.
    """

    def __init__(self, *, margin: float = 0.2, beta: float = 1.2, cutoff: float = 0.5, reach: float = 1.4) -> None:
        super().__init__()
        if not margin >= 0:
            raise InvalidParameter("margin", "be zero or more", margin)
        if not 0 < cutoff < 2:
            raise InvalidParameter("cutoff", "lie between 0 and 2, a distance of unit vectors", cutoff)
        if not reach > cutoff:
            raise InvalidParameter("reach", f"be above the cutoff of {cutoff}", reach)
        self.inner = library("losses").MarginLoss(margin=margin, beta=beta)
        self.cutoff, self.reach = cutoff, reach

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings.detach(), dim=1)
        distances = (2 - 2 * unit @ unit.T).clamp(min=0).sqrt()
        triplets = draw_negatives(distances, labels, dim=unit.shape[1], cutoff=self.cutoff, reach=self.reach)
        value: Tensor = self.inner(embeddings, labels, triplets)
        return value


class EuclideanNCA(Proxies):
    """ProxyNCA++ on unnormalised embeddings and proxies: d = ‖ν_p - ν_z‖² (arXiv 2207.03784, Section 3.3).

    Proxies are initialised with length `norm`. Cost O(n C d).
    """

    def __init__(self, classes: int, dim: int, *, temperature: float = 32.0, norm: float = 10.0) -> None:
        super().__init__(classes, dim)
        for name, value in (("temperature", temperature), ("norm", norm)):
            if not value > 0:
                raise InvalidParameter(name, "be positive", value)
        self.temperature = temperature
        self.initial_norm = norm
        with torch.no_grad():
            self.proxies.copy_(norm * F.normalize(self.proxies, dim=1))

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        check_labels(labels, len(self.proxies))
        nearness = 2 * embeddings @ self.proxies.T - self.proxies.square().sum(
            dim=1
        )  # ‖ν_z‖² - d, equivalent to -d in a softmax
        return F.cross_entropy(nearness / self.temperature, labels)


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


class _AsPrinted(Contextual):
    """The contextual loss as printed in Eq. 28, as a base for ablations of its steps."""

    def __init__(self, *, neighbours: int = 4, margin: float = 0.05, slope: float = 10.0) -> None:
        super().__init__(neighbours=neighbours, margin=margin, slope=slope)

    def compare(self, squared: Tensor, *, detached: bool) -> Tensor:
        """Return w (n, n) of Eq. 23 to 27 for D; `detached` stops the gradient of the count of mutual neighbours."""
        inside = neighbourhoods(squared, k=self.neighbours, margin=self.margin, step=self._step)
        shared = shared_neighbours(inside, complement=True, stop_gradient=True, product=True)
        close = neighbourhoods(squared, k=self.neighbours // 2, margin=self.margin, step=self._step)
        if not detached:
            return expand_query(shared, close, product=True)
        mutual = close * close.T
        mean = mutual @ shared / mutual.sum(dim=1, keepdim=True).detach().clamp(min=1)
        return (mean + mean.T) / 2


class ContextualCorrected(_AsPrinted):
    """The contextual loss without gradients that contradict the labels (Table 1). Cost O(n³), memory O(n²)."""

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        alike = (labels[:, None] == labels[None]).to(unit.dtype)
        squared: Tensor = Corrected.apply((2 - 2 * unit @ unit.T).relu(), alike)  # type: ignore[no-untyped-call]
        error = (alike - self.compare(squared, detached=False)).square()
        return (error.sum() - error.diagonal().sum()) / error.numel()


class ContextualDetached(_AsPrinted):
    """The contextual loss with a constant neighbour count in Eq. 27 (Figure 17). Cost O(n³), memory O(n²)."""

    def similarity(self, unit: Tensor) -> Tensor:
        """Return the contextual similarity w (n, n) of unit embeddings (n, d)."""
        return self.compare((2 - 2 * unit @ unit.T).relu(), detached=True)
