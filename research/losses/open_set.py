"""Open-set loss: unknown items set thresholds, known items must be first and above them (Su et al., ECCV 2024).

Symbols: n = batch size, d = embedding size, B = labels of the batch, K = folds; of a fold: x = photos of its labels,
G = vectors of the other labels, p = the photos of these labels that are not in a vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses.base import Loss, check_not_negative, check_positive, one_label_each

NEAREST = 1e-6  # squared distance; below it, a distance in float32 is rounding and has no gradient


def draw_folds(labels: int, folds: int, generator: torch.Generator | None = None) -> Tensor:
    """Return a random fold for each of B labels (B,), in folds of even size: `folds` of them, or B if that is less."""
    return torch.randperm(labels, generator=generator) % min(folds, labels)


def label_vectors(unit: Tensor, groups: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the first half, rounded up, of each label's photos (B, d), and the photos in no mean (n,).

    Shapes: unit vectors (n, d), label of each as 0 … B-1 (n,), photos of each label (B,).
    """
    by_label = groups.argsort(stable=True)
    starts = sizes.cumsum(dim=0) - sizes
    place = torch.empty_like(groups)
    place[by_label] = torch.arange(len(groups), device=groups.device) - starts[groups[by_label]]
    half = (sizes + 1) // 2
    left = place >= half[groups]
    shares = (~left).to(unit.dtype) / half[groups]
    return unit.new_zeros(len(sizes), unit.shape[1]).index_add(0, groups, unit * shares[:, None]), left


def open_set(
    embeddings: Tensor,
    labels: Tensor,
    folds: Tensor,
    *,
    similarity_scale: float,
    rank_scale: float,
    threshold_scale: float,
    thresholds: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the identification-detection term and the relative threshold term, each a mean over the folds.

    With s = 1 / (1 + distance), the photos of a fold's labels are unknown to the vectors G of the other labels, and
    every s(G, x) is a threshold θ. A known photo p with its own vector at s_p has the soft rank
    r = Σ_G sigmoid(similarity_scale (s(G, p) - s_p)), and the first term is one minus the mean over θ and p of
    sigmoid(rank_scale (1 - r)) · sigmoid(threshold_scale (s_p - θ)). The second is the mean over x of
    Σ_G softmax_G(-distance) s(G, x). Without a label of two photos the first term is 0; with one label both are,
    and still differentiable. Cost O(n B d + n thresholds), memory O(n (B + thresholds)).

    Parameters
    ----------
    folds:
        The fold of each label (B,), labels in order.
    thresholds:
        The most thresholds of a fold; of more, as many are drawn with replacement.
    generator:
        Draws thresholds, on the CPU; None is torch's own.
    """
    unit = F.normalize(embeddings, dim=1)
    groups, sizes = one_label_each(labels)
    gallery, left = label_vectors(unit, groups, sizes)
    squared = unit.square().sum(dim=1)[:, None] + gallery.square().sum(dim=1) - 2 * unit @ gallery.T
    distance = squared.clamp(min=NEAREST).sqrt()  # (n, B)
    similarity = 1 / (1 + distance)
    nothing = unit.sum() * 0
    identification, threshold = [], []
    folds = folds.to(groups.device)
    for fold in sorted(set(folds.tolist())) if len(sizes) > 1 else ():
        shown = folds != fold  # (B,)
        unknown = ~shown[groups]
        impostors = similarity[unknown][:, shown]  # (x, G)
        threshold.append((F.softmax(-distance[unknown][:, shown], dim=1) * impostors).sum(dim=1).mean())
        queries = (left & shown[groups]).nonzero()[:, 0]
        if not len(queries):
            continue
        own = similarity[queries, groups[queries]][:, None]  # (p, 1)
        ranks = (similarity_scale * (similarity[queries][:, shown] - own)).sigmoid().sum(dim=1)
        cuts = impostors.flatten()
        if len(cuts) > thresholds:
            cuts = cuts[torch.randint(len(cuts), (thresholds,), generator=generator).to(cuts.device)]
        detected = (threshold_scale * (own - cuts)).sigmoid().mean(dim=1)
        identification.append(1 - ((rank_scale * (1 - ranks)).sigmoid() * detected).mean())
    first, second = (torch.stack(terms).mean() if terms else nothing for terms in (identification, threshold))
    return first, second


class OpenSet(Loss):
    """Open-set loss, which raises TPIR at the thresholds of unknown items (Su et al., ECCV 2024).

    The labels of a batch are drawn into `folds`; each fold's photos are unknown to the other labels (see `open_set`).
    The loss is the identification-detection term plus `threshold_weight` times the relative threshold term.
    The defaults are those of the released code; folds and thresholds are drawn from torch's generator.
    Cost O(n B d), memory O(n B).
    """

    def __init__(
        self,
        *,
        similarity_scale: float = 9.0,
        rank_scale: float = 1.5,
        threshold_scale: float = 9.0,
        threshold_weight: float = 4.0,
        folds: int = 4,
        thresholds: int = 1000,
    ) -> None:
        super().__init__()
        check_positive(similarity_scale=similarity_scale, rank_scale=rank_scale, threshold_scale=threshold_scale)
        check_not_negative(threshold_weight=threshold_weight)
        check_positive(thresholds=thresholds)
        if folds < 2:
            raise InvalidParameter("folds", "be at least 2", folds)
        self.similarity_scale = similarity_scale
        self.rank_scale = rank_scale
        self.threshold_scale = threshold_scale
        self.threshold_weight = threshold_weight
        self.folds = folds
        self.thresholds = thresholds

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        identification, threshold = open_set(
            embeddings,
            labels,
            draw_folds(len(one_label_each(labels)[1]), self.folds),
            similarity_scale=self.similarity_scale,
            rank_scale=self.rank_scale,
            threshold_scale=self.threshold_scale,
            thresholds=self.thresholds,
        )
        return identification + self.threshold_weight * threshold
