"""Comparison losses of pairs and triplets; average-precision losses are in `comparison_rankings`.

Symbols: n = batch size, d = embedding size, s = cosines (n, n), B = classes of the batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses.base import Loss, check_cosine_distance, check_not_negative, check_one_of, one_label_each

from .library import library

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


class Triplet(Loss):
    """Triplet margin (Schroff et al., CVPR 2015) on unit vectors, averaged over the triplets that violate it.

    `mining` takes "all" triplets, "semihard" or "hard" ones. Cost O(n² d), and O(n³) memory for triplets.
    """

    def __init__(self, *, margin: float = 0.05, mining: str = "semihard") -> None:
        super().__init__()
        check_not_negative(margin=margin)
        check_one_of("mining", mining, ("all", "semihard", "hard"))
        self.inner = library("losses").TripletMarginLoss(margin=margin)
        self.miner = library("miners").TripletMarginMiner(margin=margin, type_of_triplets=mining)

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        value: Tensor = self.inner(embeddings, labels, self.miner(embeddings, labels))
        return value


class ClassAveragedContrastive(Loss):
    """Contrastive loss averaged over pairs of classes (Furusawa, ICLR 2024, Eq. 6); margins are cosine distances.

    (1/2B) Σ_c mean_{i,j of c} [d - m_P]₊ + (1/2B) Σ_{c≠c'} mean_{i of c, j of c'} [m_N - d]₊, with d = 1 - s. A
    photo paired with itself counts as a positive pair, as printed. Cost O(n² d), memory O(n²).
    """

    def __init__(self, *, positive_margin: float = 0.02, negative_margin: float = 0.3) -> None:
        super().__init__()
        check_cosine_distance(positive_margin=positive_margin, negative_margin=negative_margin)
        self.positive_margin = positive_margin
        self.negative_margin = negative_margin

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        distance = 1 - unit @ unit.T
        groups, sizes = one_label_each(labels)
        share = 1 / sizes.to(unit.dtype)[groups]  # a photo's weight in its class
        same = groups[:, None] == groups[None]
        cost = torch.where(same, (distance - self.positive_margin).relu(), (self.negative_margin - distance).relu())
        return (share @ cost @ share) / (2 * len(sizes))
